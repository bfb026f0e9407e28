# SPDX-License-Identifier: MIT
"""Sparse codes: every bit comes back, the bytes are those of the drawing, garbage is harmless."""

from __future__ import annotations

import numpy as np
import pytest
from references import References

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import BOOL, FIXED_SIZE, FLOAT32, FLOATS, dtype_name
from cupy_training_ops.families.gist_sparse.operators import OPS
from cupy_training_ops.testing.compare import assert_matches

functions = References("gist_sparse")

every_dtype = pytest.mark.parametrize("dtype", FIXED_SIZE, ids=dtype_name)
CODED = pytest.mark.parametrize("values", ["fp10", "msfp15"])


def random_bits(rng: np.random.Generator, n: int, dtype, share: float) -> np.ndarray:
    """Any bits in a share of the elements, zeros elsewhere."""
    bits = rng.integers(0, 2 if dtype == BOOL else 256, (n, dtype.itemsize), dtype=np.uint8)
    return (bits * (rng.random((n, 1)) < share)).view(dtype).ravel()


@every_dtype
def test_every_bit_comes_back(dtype, rng):
    tile = 16_384 // dtype.itemsize
    for n in (0, 1, 7, 127, tile - 1, tile, 2 * tile + 5):
        for share in (0.0, 0.03, 0.5, 1.0):
            x = random_bits(rng, n, dtype, share)
            packed = cto.compress(x, "sparse")
            assert packed.decompress().tobytes() == x.tobytes()
            assert packed.nbytes <= x.nbytes + 16
    assert cto.compress(np.zeros(10 * tile, dtype), "sparse").ratio > 7 * dtype.itemsize


ENCODERS = [name for name in OPS if name.endswith("Encoder")]


@pytest.mark.parametrize("name", ENCODERS)
def test_the_room_for_a_code_is_what_is_declared(name):
    op = OPS[name]()
    encode = getattr(functions, op.function_name)
    for n in (1, 11, 12, 4095, 4096, 4097, 3 * 4096 + 13):
        x = np.zeros(n, np.float32)
        assert encode(x).shape == (op.layout(Spec(x.shape, x.dtype)).most,)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_minus_zero_nan_payloads_and_subnormals_come_back(dtype, rng):
    width = np.dtype(f"u{dtype.itemsize}")
    top = width.type(1) << width.type(8 * dtype.itemsize - 1)
    quiet = np.array([np.nan], dtype).view(width)[0]
    bits = np.array([top, 1, top | width.type(1), quiet, quiet | width.type(3), top | quiet], width)
    x = np.zeros(500, width)
    x[rng.permutation(500)[:6]] = bits
    assert cto.compress(x.view(dtype), "sparse").decompress().tobytes() == x.tobytes()


def test_the_bytes_are_those_of_the_drawing():
    x = np.zeros(200, np.float32)
    x[[3, 8, 130]] = 1.5, -0.0, np.inf
    code = cto.compress(x, "sparse").code
    assert code[:16].view(np.int64).tolist() == [16 + 16 + 32 + 16, 0]
    assert code[16:32].view(np.int64).tolist() == [64, 0]  # its one tile's values; padding
    assert np.flatnonzero(np.unpackbits(code[32:64], bitorder="little")).tolist() == [3, 8, 130]
    assert code[64:].view(np.uint32).tolist() == [0x3FC00000, 0x80000000, 0x7F800000, 0]


def test_what_gets_no_smaller_is_kept():
    x = np.arange(1, 1000, dtype=np.int16)
    code = cto.compress(x, "sparse").code
    assert code[:16].view(np.int64).tolist() == [16 + x.nbytes, 1]
    assert code[16:].tobytes() == x.tobytes()


def test_what_takes_as_many_bytes_is_kept():
    x = np.arange(16, dtype=np.float32) // 8
    assert cto.compress(x, "sparse").code[:16].view(np.int64).tolist() == [16 + 64, 1]
    x[9:13] = 0
    assert cto.compress(x, "sparse").code[:16].view(np.int64).tolist() == [16 + 16 + 16 + 16, 0]


def test_each_tile_begins_with_a_group(rng):
    x = random_bits(rng, 10_000, np.dtype(np.uint32), 0.4)
    code = cto.compress(x, "sparse").code
    counts = [np.count_nonzero(x[start : start + 4096]) for start in range(0, 10_000, 4096)]
    starts = code[16:40].view(np.int64)
    first = 16 + 32 + 16 * -(-10_000 // 128)
    assert (
        starts.tolist()
        == (first + 16 * np.cumsum([0, *(-(-c // 4) for c in counts[:-1])])).tolist()
    )


@CODED
@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_values_are_what_their_codec_makes_of_them(values, dtype, rng):
    x = np.where(rng.random(1800) < 0.3, rng.standard_normal(1800), 0.0).astype(dtype)
    packed = cto.compress(x, f"sparse_{values}")
    back = packed.decompress()
    there = x != 0
    np.testing.assert_array_equal(back[~there], 0)
    assert_matches(back[there], cto.compress(x[there], values).decompress(), 0)
    assert packed.nbytes < cto.compress(x, values).nbytes


@pytest.mark.parametrize("name", [name for name in OPS if "Decoder" in name])
def test_garbage_is_harmless(name, rng):
    decoder = OPS[name](to=np.float32, shape=(9000,))
    result = decoder.layout(Spec((9000,), FLOAT32))
    for n in rng.integers(result.least, result.most + 1, 20):
        code = rng.integers(0, 256, n, dtype=np.uint8)
        code[8:16] = int(rng.integers(2))
        code[16:40:8] = code[17:40:8] = 0
        with np.errstate(all="ignore"):
            assert decoder(code).shape == (9000,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda code: code[:-1], "bytes in"),
        (lambda code: set_number(code, 8, 1), "1 says how"),
        (lambda code: set_number(code, 8, 2), "2 says how"),
        (lambda code: set_number(code, 16, 16), "tiles do not begin"),
        (lambda code: set_number(code, 32, 1), "tiles do not begin"),
        (lambda code: set_number(code, 32 + 40, -1), "after the last element"),
    ],
)
def test_a_file_that_lies_is_refused(change, message, tmp_path):
    x = np.zeros(300, np.float32)
    x[:9] = 1
    packed = cto.compress(x, "sparse")
    bad = cto.Packed("sparse", "float32", (300,), change(packed.code.copy()))
    cto.codecs.container.write(
        tmp_path / "x.npz",
        cto.codecs.packed.FORMAT,
        {"codec": "sparse", "dtype": "float32", "shape": (300,), "options": {}},
        {"code": bad.code},
    )
    with pytest.raises(ArgumentError, match=f"x.npz: damaged packed array: .*{message}"):
        cto.Packed.load(tmp_path / "x.npz")


def set_number(code: np.ndarray, place: int, number: int) -> np.ndarray:
    code[place : place + 8].view(np.int64)[0] = number
    return code


def test_room_behind_a_code_is_given_back(rng):
    x = random_bits(rng, 5000, np.dtype(np.float32), 0.2)
    with_room = cto.Packed("sparse", "float32", (5000,), cto.gist_sparse_encoder(x))
    trimmed = with_room.trimmed()
    assert trimmed.nbytes == cto.compress(x, "sparse").nbytes < with_room.nbytes
    assert trimmed.decompress().tobytes() == with_room.decompress().tobytes() == x.tobytes()
    assert with_room.trimmed(trimmed.nbytes).code.tobytes() == trimmed.code.tobytes()
    assert trimmed.trimmed() is trimmed


@pytest.mark.parametrize("nbytes", [0, 16, -8, "shorter", "longer", 1.5, True, "x", 2**80, [8]])
@pytest.mark.parametrize("codec", ["sparse", "sparse_fp10", "sparse_msfp15", "msfp15"])
def test_codes_are_trimmed_to_their_length_alone(rng, codec, nbytes) -> None:
    packed = cto.compress(rng.standard_normal(9000) * (rng.random(9000) < 0.2), codec)
    near = {"shorter": packed.nbytes - 16, "longer": packed.nbytes + 16}
    with pytest.raises(ArgumentError, match="Packed: nbytes: expected"):
        packed.trimmed(near.get(nbytes, nbytes) if isinstance(nbytes, str) else nbytes)
    assert packed.trimmed(packed.nbytes) is packed
