# SPDX-License-Identifier: MIT
"""The MSFP15 oracle against worked tiles and a slow model in exact arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msfp15_model import model_decode, model_encode
from references import References

import cupy_training_ops as cto
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.testing.compare import assert_matches

gist = References("gist")

NAN, INF = math.nan, math.inf
floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


@np.errstate(all="ignore")
def cast(x, dtype) -> np.ndarray:
    """NumPy's conversion, without its word on signalling NaN and overflow."""
    return np.asarray(x).astype(dtype)


def encode(*values: float, dtype=FLOAT32, **options) -> str:
    """Codes as hexadecimal text."""
    return gist.gist_pack_msfp15_encoder(cast(values, dtype), **options).tobytes().hex()


def decode(codes: str, dtype=FLOAT32, **options) -> list[float]:
    x = np.frombuffer(bytes.fromhex(codes), np.uint8)
    return gist.gist_pack_msfp15_decoder(x, to=dtype, **options).astype(FLOAT64).tolist()


def model(x: np.ndarray, **options) -> np.ndarray:
    """Codes of a whole array whose size is a multiple of 8."""
    tiles = cast(x, FLOAT64).reshape(-1, 8).tolist()
    return np.array([model_encode(tile, **options) for tile in tiles], np.uint8).ravel()


# ---- worked tiles --------------------------------------------------------------------------------

TILES = [
    (
        (1, -1, 0.5, 0.25, 0.03125, 0.015625, 0.0078125, 0),
        "a0e0908881818000",
        (1, -1, 0.5, 0.25, 0.03125, 0.03125, 0, 0),
    ),
    (
        (1.9921875, 1.984375, 1.96875, -1.96, 1.5, 1.015625, 1.0078125, 1.03125),
        "bfbfbfffb0a1a021",
        (1.96875, 1.96875, 1.96875, -1.96875, 1.5, 1.03125, 1.0, 1.03125),
    ),
    ((100, -50, 25, 12.5, 3, 1, 0.5, -0.3), "b2598d06020100c0", (100, -50, 26, 12, 4, 2, 0, 0)),
    ((1, -1e-3, 1e-3, 0, 0, 0, 0, 0), "a0c0808080808000", (1, 0, 0, 0, 0, 0, 0, 0)),
    ((1, NAN, 2, 3, 4, 5, 6, 7), "00" * 8, (0,) * 8),
    ((1, INF, 2, 3, 4, 5, 6, 7), "00" * 8, (0,) * 8),
    ((1e-40,) * 8, "00" * 8, (0,) * 8),
]


@pytest.mark.parametrize(("values", "codes", "decoded"), TILES)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=dtype_name)
def test_worked_tiles(dtype, values, codes, decoded) -> None:
    assert encode(*values, dtype=dtype) == codes
    result = decode(codes, dtype)
    assert result == list(decoded)
    assert all(math.copysign(1, y) == 1 for y in result if y == 0)


def test_the_model_gives_the_worked_tiles_too() -> None:
    for values, codes, decoded in TILES:
        assert bytes(model_encode(list(values))).hex() == codes
        assert model_decode(list(bytes.fromhex(codes))) == list(decoded)


# ---- against the model ---------------------------------------------------------------------------


@floats
@pytest.mark.parametrize("keep_sign", [False, True])
@pytest.mark.parametrize("keep_nonfinite", [False, True])
def test_random_tiles_are_the_models(rng, dtype, keep_nonfinite, keep_sign) -> None:
    spread = (
        rng.uniform(-30, 16, (300, 8)) if dtype == FLOAT16 else rng.uniform(-160, 130, (300, 8))
    )
    x = cast(rng.standard_normal((300, 8)) * 2.0**spread, dtype)
    near = rng.standard_normal((300, 8)) * 2.0 ** rng.integers(-140, 127, (300, 1))
    x = np.concatenate([x, cast(near, dtype)])
    options = {"keep_nonfinite": keep_nonfinite, "keep_sign": keep_sign}
    codes = gist.gist_pack_msfp15_encoder(x, **options)
    assert codes.shape == x.shape
    np.testing.assert_array_equal(codes.ravel(), model(x, **options))


@floats
@pytest.mark.parametrize("keep_sign", [False, True])
def test_random_bits_are_the_models(rng, dtype, keep_sign) -> None:
    bits = rng.integers(0, 256, (4000, 8 * np.dtype(dtype).itemsize), np.uint8)
    x = bits.view(dtype).ravel()
    codes = gist.gist_pack_msfp15_encoder(x, keep_sign=keep_sign)
    np.testing.assert_array_equal(codes, model(x, keep_sign=keep_sign))


@pytest.mark.parametrize("shared", [1, 2, 5, 8, 127, 254])
def test_ties_round_away_from_zero(shared) -> None:
    """Every half quantum under a tile's largest element, and the next float on either side."""
    quantum = 2.0 ** (shared - 132)
    halves = (np.arange(1, 127) + 0.5) * quantum / 2
    points = np.concatenate([np.nextafter(halves, 0), halves, np.nextafter(halves, INF)])
    points = cast(points, FLOAT32)
    tiles = np.zeros((points.size, 8), FLOAT32)
    tiles[:, 0], tiles[:, 3], tiles[:, 7] = 32 * quantum, points, -points
    np.testing.assert_array_equal(gist.gist_pack_msfp15_encoder(tiles).ravel(), model(tiles))


@floats
def test_arbitrary_codes_decode_as_the_model(rng, dtype) -> None:
    codes = rng.integers(0, 256, (2000, 8), np.uint8)
    codes[:256] = codes[:256] & 0x7F | np.array(  # every shared exponent once
        [[(e >> j & 1) << 7 for j in range(8)] for e in range(256)], np.uint8
    )
    expected = cast([model_decode(tile) for tile in codes.tolist()], FLOAT32)
    actual = gist.gist_pack_msfp15_decoder(codes, to=dtype)
    assert_matches(actual, cast(expected, dtype), 0)
    assert (np.signbit(actual) == np.signbit(expected)).all()


# ---- properties ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, BFLOAT16], ids=dtype_name)
def test_a_decoded_tile_encodes_to_itself(rng, dtype) -> None:
    x = cast(rng.standard_normal((2000, 8)) * 2.0 ** rng.uniform(-110, 120, (2000, 8)), dtype)
    decoded = gist.gist_pack_msfp15_decoder(gist.gist_pack_msfp15_encoder(x), to=dtype)
    codes = gist.gist_pack_msfp15_encoder(decoded)
    again = gist.gist_pack_msfp15_decoder(codes, to=dtype)
    assert_matches(again, decoded, 0)
    np.testing.assert_array_equal(gist.gist_pack_msfp15_encoder(again), codes)


@floats
def test_the_error_is_within_half_a_quantum(rng, dtype) -> None:
    """Of the tile's largest exponent; within a whole one where M saturates at 63."""
    x = cast(rng.standard_normal((4000, 8)) * 2.0 ** rng.uniform(-9, 9, (4000, 8)), dtype)
    y = cast(gist.gist_pack_msfp15_decoder(gist.gist_pack_msfp15_encoder(x), to=dtype), FLOAT64)
    x = cast(x, FLOAT64)
    _, exponent = np.frexp(np.abs(x).max(axis=1, keepdims=True))
    quantum = np.ldexp(1.0, exponent - 6)
    saturated = np.abs(x) >= 63.5 * quantum
    assert (np.abs(y - x) <= np.where(saturated, quantum, quantum / 2)).all()
    assert saturated.any()
    assert (np.abs(y - x)[saturated] > 0).all()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@floats
def test_a_nonfinite_tile_is_zeros_or_is_kept(rng, dtype, bad) -> None:
    x = cast(rng.standard_normal((3, 8)), dtype)
    clean = gist.gist_pack_msfp15_encoder(x)
    x[1, rng.integers(8)] = bad
    for keep in (False, True):
        codes = gist.gist_pack_msfp15_encoder(x, keep_nonfinite=keep)
        assert (codes[1] >= 0x80).all() if keep else (codes[1] == 0).all()
        np.testing.assert_array_equal(codes[[0, 2]], clean[[0, 2]])
        decoded = gist.gist_pack_msfp15_decoder(codes, to=dtype, keep_nonfinite=keep)
        assert is_kept(x[1], decoded[1], 2.0**-4) if keep else (decoded[1] == 0).all()


def is_kept(x: np.ndarray, y: np.ndarray, share: float) -> bool:
    """Return True if NaN and infinities are as in x, and numbers off by a share of the largest."""
    wide, back = cast(x, FLOAT64), cast(y, FLOAT64)
    finite = np.isfinite(wide)
    power = 2.0 ** np.floor(np.log2(np.abs(wide[finite]).max()))
    np.testing.assert_array_equal(back[~finite], wide[~finite])
    np.testing.assert_array_equal(np.signbit(back[~finite]), np.signbit(wide[~finite]))
    off = np.abs(back[finite] - wide[finite])
    return bool(
        (off <= np.where(np.abs(wide[finite]) >= 1.9375 * power, 0.125, share) * power).all()
    )


@floats
@pytest.mark.parametrize("keep_sign", [False, True])
def test_numbers_beside_what_is_not_finite_are_kept(rng, dtype, keep_sign) -> None:
    """As the model says, in tiles with one to eight infinities and NaN of both signs."""
    top = 14 if dtype == FLOAT16 else 128
    spread = rng.uniform(-20 if dtype == FLOAT16 else -150, top, (2000, 1))
    x = cast(
        rng.uniform(-1, 1, (2000, 8)) * 2.0**spread * 2.0 ** rng.uniform(-6, 0, (2000, 8)), dtype
    )
    lost = rng.random((2000, 8)) < rng.random((2000, 1))
    lost[np.arange(2000), rng.integers(8, size=2000)] = True
    x[lost] = rng.choice(cast([NAN, -NAN, INF, -INF], dtype), int(lost.sum()))
    options = {"keep_nonfinite": True, "keep_sign": keep_sign}
    codes = gist.gist_pack_msfp15_encoder(x, **options)
    np.testing.assert_array_equal(codes.ravel(), model(x, **options))
    assert (codes >= 0x80).all()
    decoded = gist.gist_pack_msfp15_decoder(codes, to=dtype, keep_nonfinite=True)
    share = 2.0**-3 if keep_sign else 2.0**-4
    for tile, back in zip(x, decoded, strict=True):
        kinds = cast(tile, FLOAT64)
        finite = np.isfinite(kinds)
        largest = np.abs(kinds[finite]).max(initial=0)
        if 2.0**-126 <= largest < 1.8 * 2.0**127 and not (dtype == FLOAT16 and largest < 2.0**-10):
            tile, back = tile.copy(), back.copy()
            gone = finite & (np.abs(kinds) < 2.0**-126) & (not keep_sign)
            tile[gone] = back[gone] = 0
            assert is_kept(tile, back, share)
    if keep_sign and dtype != FLOAT16:
        np.testing.assert_array_equal(np.sign(cast(decoded, FLOAT64)), np.sign(cast(x, FLOAT64)))


def test_tiles_of_older_encoders_are_eight_nan() -> None:
    assert np.isnan(decode("80" * 8, keep_nonfinite=True)).all()
    assert not np.signbit(decode("80" * 8, keep_nonfinite=True)).any()


def test_float64_beyond_float32() -> None:
    """Cut, not rounded: below 2^128 a tile is finite, from there on it is lost; so below 2^-126."""
    largest = math.nextafter(2.0**128, 0)
    assert (
        encode(largest, *[0] * 7, dtype=FLOAT64) == bytes(model_encode([largest] + [0] * 7)).hex()
    )
    assert decode(encode(largest, *[0] * 7, dtype=FLOAT64))[0] == 63 * 2.0**122
    assert encode(2.0**128, *[1] * 7, dtype=FLOAT64) == "00" * 8
    kept = encode(1e300, -(2.0**128), *[1] * 6, dtype=FLOAT64, keep_nonfinite=True)
    assert decode(kept, FLOAT64, keep_nonfinite=True) == [INF, -INF] + [1] * 6
    below = math.nextafter(2.0**-126, 0)
    assert encode(*[below] * 8, dtype=FLOAT64) == "00" * 8
    assert encode(2.0**-126, *[below] * 7, dtype=FLOAT64) == "a0" + "00" * 7


@pytest.mark.parametrize("n", [1, 7, 9, 23])
@floats
def test_a_short_tile_is_padded_with_zeros(rng, dtype, n) -> None:
    x = cast(rng.standard_normal(n), dtype)
    codes = gist.gist_pack_msfp15_encoder(x)
    padded = np.concatenate([x, np.zeros(-n % 8, dtype)])
    assert codes.shape == padded.shape
    np.testing.assert_array_equal(codes, gist.gist_pack_msfp15_encoder(padded))
    back = gist.gist_pack_msfp15_decoder(codes, to=dtype, shape=(n,))
    assert_matches(back, gist.gist_pack_msfp15_decoder(codes, to=dtype)[:n], 0)


NUMBERS = st.floats(width=32) | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(NUMBERS, min_size=8, max_size=8), st.booleans(), st.booleans())
def test_any_tile_is_the_models(tile, keep, signs) -> None:
    codes = bytes(model_encode(tile, keep, signs))
    assert encode(*tile, dtype=FLOAT64, keep_nonfinite=keep, keep_sign=signs) == codes.hex()
    decoded = decode(codes.hex(), FLOAT64, keep_nonfinite=keep)
    np.testing.assert_array_equal(decoded, model_decode(list(codes), keep))


# ---- signs that are kept -------------------------------------------------------------------------

SMALLEST = {FLOAT16: 2.0**-24, BFLOAT16: 2.0**-133, FLOAT32: 2.0**-149, FLOAT64: 5e-324}
LOWEST = 2.0**-126  # of float32's normal numbers


def hostile(rng, dtype) -> np.ndarray:
    """Finite tiles: near the smallest numbers, of all magnitudes, zeros of both signs, a ReLU's."""
    top = {FLOAT16: 15, FLOAT64: 127}.get(dtype, 126)
    exponent = rng.uniform(math.log2(SMALLEST[dtype]) - 1, top, (3000, 1))
    exponent[:1000] = rng.uniform(-152, -120, (1000, 1)) if dtype != FLOAT16 else -24
    values = rng.standard_normal((3000, 8)).clip(-2, 2) * np.exp2(exponent - 1)
    values[rng.random((3000, 8)) < 0.2] *= 2.0**-30
    values[rng.random((3000, 8)) < 0.2] = 0.0
    values[rng.random((3000, 8)) < 0.1] = -0.0
    values[::5] = np.maximum(values[::5], 0)
    return cast(values, dtype)


def step_of(x: np.ndarray) -> np.ndarray:
    """2^-5 of the largest power of two of each tile, at least 2^-132: by frexp, not by bits."""
    largest = np.abs(cast(x, FLOAT64)).max(axis=1, keepdims=True)
    power = np.exp2(np.frexp(largest)[1] - 1.0)
    return np.where(largest < LOWEST, 2.0**-132, power * 2.0**-5)


@floats
def test_what_is_not_zero_keeps_its_sign_within_a_step(rng, dtype) -> None:
    x = hostile(rng, dtype)
    y = gist.gist_pack_msfp15_decoder(gist.gist_pack_msfp15_encoder(x, keep_sign=True), to=dtype)
    wide, decoded = cast(x, FLOAT64), cast(y, FLOAT64)
    np.testing.assert_array_equal(np.sign(decoded), np.sign(wide))
    assert not np.signbit(decoded[wide == 0]).any()
    assert (np.abs(decoded - wide) <= step_of(x)).all()
    usual = gist.gist_pack_msfp15_decoder(gist.gist_pack_msfp15_encoder(x), to=dtype)
    assert ((usual == 0) & (x != 0)).any()


@floats
def test_a_tile_of_the_smallest_numbers_keeps_signs(dtype) -> None:
    x = cast([SMALLEST[dtype], -SMALLEST[dtype], 0, -0.0] * 2, dtype)
    codes = gist.gist_pack_msfp15_encoder(x, keep_sign=True)
    step = SMALLEST[dtype] if dtype == FLOAT16 else 2.0**-132
    expected = [step, -step, 0, 0] * 2
    assert gist.gist_pack_msfp15_decoder(codes, to=dtype).tolist() == expected


@floats
def test_kept_signs_change_nothing_else(rng, dtype) -> None:
    """Codes differ only where the usual rounding gives 0, and where a tile is below 2^-126."""
    x = hostile(rng, dtype)
    usual = gist.gist_pack_msfp15_encoder(x)
    kept = gist.gist_pack_msfp15_encoder(x, keep_sign=True)
    sizes = np.abs(cast(x, FLOAT64))
    differs = (usual & 0x3F == 0) & (sizes > 0)
    np.testing.assert_array_equal(kept != usual, differs)
    step = step_of(x)
    expected = np.clip(np.floor(sizes / step + 0.5), 1, 63)
    np.testing.assert_array_equal((kept & 0x3F)[differs], expected[differs])


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@floats
def test_a_nonfinite_tile_is_the_same_where_signs_are_kept(rng, dtype, bad) -> None:
    x = cast(rng.standard_normal((3, 8)), dtype)
    x[1, rng.integers(8)] = bad
    for keep in (False, True):
        codes = gist.gist_pack_msfp15_encoder(x, keep_nonfinite=keep, keep_sign=True)
        assert (codes[1] >= 0x80).all() if keep else (codes[1] == 0).all()
        assert (codes[[0, 2]] & 0x3F > 0).all()


@floats
def test_sparse_codes_keep_signs(rng, dtype) -> None:
    """The decoder is told nothing."""
    x = hostile(rng, dtype)
    codes = cto.gist_sparse_msfp15_encoder(x, keep_sign=True)
    y = cto.gist_sparse_msfp15_decoder(codes, to=dtype, shape=x.shape)
    np.testing.assert_array_equal(np.sign(cast(y, FLOAT64)), np.sign(cast(x, FLOAT64)))
    usual = cto.gist_sparse_msfp15_encoder(x)
    y = cto.gist_sparse_msfp15_decoder(usual, to=dtype, shape=x.shape)
    assert ((y == 0) & (x != 0)).any()
