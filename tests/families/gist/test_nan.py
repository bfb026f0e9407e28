# SPDX-License-Identifier: MIT
"""NaN in codecs: the sign is kept and nothing else, in the same bits on every provider."""

from __future__ import annotations

import numpy as np
import pytest
from references import computed

from cupy_training_ops import CODECS, get_op
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name

# Bits of the exponent, and what a NaN is without its sign.
EXPONENTS = {FLOAT16: 0x7C00, BFLOAT16: 0x7F80, FLOAT32: 0x7F80_0000, FLOAT64: 0x7FF << 52}
QUIET = {FLOAT16: 0x7E00, BFLOAT16: 0x7FC0, FLOAT32: 0x7FC0_0000, FLOAT64: 0x7FF8 << 48}
# Of one element, without its sign; blocks have codes behind 16 bytes of scales.
CODE_OF_NAN = {"pack8": 0x7E, "pack16": 0x7E00, "block_e4m3": 0x7F, "block_e5m2": 0x7E}
VALUE_CODECS = (*CODE_OF_NAN, "fp10")

floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


def width(dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")


def sign_bits(bits: np.ndarray) -> np.ndarray:
    return bits >> (8 * bits.itemsize - 1)


def nan_bits(rng, dtype, n: int) -> np.ndarray:
    """NaN of either sign: each fraction bit alone, all of them, and any."""
    unsigned, inf = width(dtype), EXPONENTS[dtype]
    n_fraction = (inf & -inf).bit_length() - 1
    alone = [1 << i for i in range(n_fraction)]
    drawn = [int(i) for i in rng.integers(1, (inf & -inf), n)]
    payloads = np.array([*alone, (inf & -inf) - 1, *drawn], unsigned)
    top = unsigned.type(1 << (8 * dtype.itemsize - 1))
    return np.concatenate([payloads | unsigned.type(inf), payloads | unsigned.type(inf) | top])


def mixed(rng, dtype, n: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """An array with many NaN, and which of its elements they are."""
    x = rng.standard_normal(n).astype(dtype)
    x[::41] = np.inf
    result = nan_bits(rng, dtype, 300)
    places = rng.permutation(n)[: result.size]
    x.view(width(dtype))[places] = result
    is_nan = np.zeros(n, bool)
    is_nan[places] = True
    return x, is_nan


def codes_of_elements(codec: str, y: np.ndarray, n: int) -> np.ndarray:
    if codec.startswith("block"):
        tiles = np.pad(y, (0, -y.size % 1040)).reshape(-1, 1040)
        return tiles[:, 16:].ravel()[:n]
    if codec == "fp10":
        return (y[:, None] >> np.array([0, 10, 20], np.uint32) & 0x3FF).ravel()[:n]
    return y.view(width(y.dtype))


@floats
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("codec", VALUE_CODECS)
def test_codes_and_what_they_decode_to(anywhere, rng, codec, dtype, offset) -> None:
    x, is_nan = mixed(rng, dtype)
    actual = CODECS[codec]
    encoder, decoder = actual.encoder(), actual.decoder(to=dtype, shape=x.shape)
    placed = encoder(anywhere.place(x, offset))
    y = anywhere.host(placed)
    assert y.tobytes() == computed(encoder, x).tobytes()
    signs = sign_bits(x.view(width(dtype)))[is_nan].astype(np.int64)
    codes = codes_of_elements(codec, y, x.size)[is_nan].astype(np.int64)
    top, nan = (9, 0x1F8) if codec == "fp10" else (8 * y.itemsize - 1, CODE_OF_NAN[codec])
    np.testing.assert_array_equal(codes, signs << top | nan)
    decoded = anywhere.host(decoder(placed))
    bits = decoded.view(width(dtype))[is_nan]
    unsigned = width(dtype).type
    expected = signs.astype(bits.dtype) << (8 * dtype.itemsize - 1) | unsigned(QUIET[dtype])
    np.testing.assert_array_equal(bits, expected)
    assert decoded.tobytes() == computed(decoder, y).tobytes()


def every_code(codec: str) -> tuple[np.ndarray, np.ndarray]:
    """Every code there is, and its sign."""
    if codec == "pack16":
        return np.arange(2**16, dtype=np.uint16).view(FLOAT16), np.arange(2**16) >> 15
    if codec == "fp10":
        codes = np.arange(1024 + 2, dtype=np.uint32).reshape(-1, 3) & 0x3FF
        words = codes[:, 0] | codes[:, 1] << 10 | codes[:, 2] << 20
        return words.astype(np.uint32), codes.ravel() >> 9
    codes = np.tile(np.arange(256, dtype=np.uint8), 4)
    blocks = np.concatenate([np.zeros(16, np.uint8), codes])
    return blocks if codec.startswith("block") else codes, codes >> 7


@floats
@pytest.mark.parametrize("codec", VALUE_CODECS)
def test_every_code_of_a_nan_decodes_to_one_of_two(anywhere, codec, dtype) -> None:
    """Also those that no encoder makes."""
    codes, signs = every_code(codec)
    decoder = CODECS[codec].decoder(to=dtype)
    decoded = anywhere.host(decoder(anywhere.place(codes))).ravel()
    is_nan = np.isnan(decoded.astype(np.float64))
    assert is_nan.sum() >= 2
    bits = decoded.view(width(dtype))[is_nan]
    top = signs[is_nan].astype(bits.dtype) << (8 * dtype.itemsize - 1)
    np.testing.assert_array_equal(bits, top | width(dtype).type(QUIET[dtype]))
    assert decoded.tobytes() == computed(decoder, codes).tobytes()


@floats
@pytest.mark.parametrize("values", ["", "Fp10", "Msfp15"])
def test_sparse_codes(anywhere, rng, values, dtype) -> None:
    """Elements as they are keep all bits, those of FP10 and MSFP15 their sign."""
    x, is_nan = mixed(rng, dtype)
    x[rng.random(x.size) < 0.9] = 0
    is_nan &= x.view(width(dtype)) != 0
    encoder, decoder = (get_op(f"GistSparse{values}{way}") for way in ("Encoder", "Decoder"))
    placed = encoder()(anywhere.place(x))
    y = anywhere.host(placed)
    expected = computed(encoder(), x)
    length = int(expected[:8].view(np.int64)[0])
    assert y[:length].tobytes() == expected[:length].tobytes()
    decoded = anywhere.host(decoder(to=dtype, shape=x.shape)(placed))
    if values == "":
        assert decoded.tobytes() == x.tobytes()
    if values:
        signs = sign_bits(x.view(width(dtype)))[is_nan] << (8 * dtype.itemsize - 1)
        bits = decoded.view(width(dtype))[is_nan]
        np.testing.assert_array_equal(bits, signs | width(dtype).type(QUIET[dtype]))


@floats
@pytest.mark.parametrize("keep", [False, True])
def test_a_tile_of_msfp15_keeps_them_with_their_signs_or_is_zeros(
    anywhere, rng, keep, dtype
) -> None:
    x, is_nan = mixed(rng, dtype)
    inf = width(dtype).type(EXPONENTS[dtype])
    lost = np.repeat((x.view(width(dtype)) & inf == inf).reshape(-1, 8).any(1), 8)
    encoder, decoder = (
        get_op(f"GistPackMsfp15{way}")(keep_nonfinite=keep, **to)
        for way, to in (("Encoder", {}), ("Decoder", {"to": dtype}))
    )
    placed = encoder(anywhere.place(x))
    assert anywhere.host(placed).tobytes() == computed(encoder, x).tobytes()
    bits = anywhere.host(decoder(placed)).view(width(dtype))
    if keep:
        signs = sign_bits(x.view(width(dtype)))[is_nan] << (8 * dtype.itemsize - 1)
        np.testing.assert_array_equal(bits[is_nan], signs | width(dtype).type(QUIET[dtype]))
    else:
        assert (bits[lost] == 0).all()
    others = ~is_nan if keep else ~lost
    assert not np.isnan(bits.view(dtype)[others].astype(np.float64)).any()
