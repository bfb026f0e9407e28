# SPDX-License-Identifier: MIT
"""Another program's reader, written from docs/gist.md alone: it shares no code with the package."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest
from codec_names import FLOAT_CODECS

import cupy_training_ops as cto

SIZES = {"float16": 2, "float32": 4, "float64": 8}


def small_float(code: int, exponent_bits: int, fraction_bits: int, ieee: bool) -> float:
    sign = -1.0 if code >> (exponent_bits + fraction_bits) & 1 else 1.0
    exponent = code >> fraction_bits & (1 << exponent_bits) - 1
    fraction = code & (1 << fraction_bits) - 1
    last = exponent == (1 << exponent_bits) - 1
    if last and ieee:
        return sign * math.inf if fraction == 0 else math.nan
    if last and fraction == (1 << fraction_bits) - 1:
        return math.nan
    bias = (1 << (exponent_bits - 1)) - 1
    whole = fraction / (1 << fraction_bits) + (exponent > 0)
    return sign * whole * 2.0 ** (max(exponent, 1) - bias)


def read_fp10(code: bytes, n: int) -> list[float]:
    words = struct.unpack(f"<{len(code) // 4}I", code)
    return [small_float(words[i // 3] >> 10 * (i % 3) & 0x3FF, 5, 4, True) for i in range(n)]


def read_msfp15(code: bytes, n: int) -> list[float]:
    values = []
    for i in range(n):
        box = code[i // 8 * 8 :][:8]
        exponent = sum((byte >> 7) << j for j, byte in enumerate(box))
        magnitude = (box[i % 8] & 63) * 2.0 ** (exponent - 132)
        values.append(-magnitude if box[i % 8] & 64 and magnitude else magnitude)
    return values


def read_blocks(code: bytes, n: int, exponent_bits: int) -> list[float]:
    values = []
    for i in range(n):
        tile = code[i // 1024 * 1040 :][:1040]
        (scale,) = struct.unpack_from("<h", tile, 2 * (i % 1024 // 128))
        number = tile[16 + i % 1024]
        values.append(small_float(number, exponent_bits, 7 - exponent_bits, exponent_bits == 5))
        values[-1] *= 2.0**scale
    return values


def read_integers(code: bytes, n: int) -> list[float]:
    values = []
    for i in range(n):
        tile = code[i // 1024 * 1088 :][:1088]
        (scale,) = struct.unpack("<f", b"\0\0" + tile[i % 1024 // 32 * 2 :][:2])
        (number,) = struct.unpack_from("<b", tile, 64 + i % 1024)
        values.append(scale * number)
    return values


def read_elements(code: bytes, n: int, itemsize: int) -> list[float]:
    return list(struct.unpack(f"<{n}{ {2: 'e', 4: 'f', 8: 'd'}[itemsize] }", code[: n * itemsize]))


def read_sparse(code: bytes, n: int, itemsize: int, values) -> list[float]:
    if n == 0:
        return []
    length, kept = struct.unpack_from("<QQ", code)
    assert length == len(code)
    if kept:
        return read_elements(code[16:], n, itemsize)
    tile = 16_384 // itemsize
    tiles = -(-n // tile)
    mask = code[16 + -(-8 * tiles // 16) * 16 :]
    is_set = [mask[i // 8] >> i % 8 & 1 for i in range(n)]
    actual = []
    for t in range(tiles):
        (start,) = struct.unpack_from("<Q", code, 16 + 8 * t)
        bits = is_set[t * tile : (t + 1) * tile]
        packed = iter(values(code[start:], sum(bits)))
        actual += [next(packed) if bit else 0.0 for bit in bits]
    return actual


def read(codec: str, code: bytes, n: int, itemsize: int) -> list[float]:
    as_they_are = lambda code, n: read_elements(code, n, itemsize)  # noqa: E731
    coded = {"sparse": as_they_are, "sparse_fp10": read_fp10, "sparse_msfp15": read_msfp15}
    if codec in coded:
        return read_sparse(code, n, itemsize, coded[codec])
    return {
        "binarize": lambda: [float(byte) for byte in code],
        "pack1": lambda: [float(code[i // 8] >> 7 - i % 8 & 1) for i in range(n)],
        "pack8": lambda: [small_float(byte, 5, 2, True) for byte in code],
        "pack16": lambda: read_elements(code, n, 2),
        "msfp15": lambda: read_msfp15(code, n),
        "msfp15_signed": lambda: read_msfp15(code, n),
        "fp10": lambda: read_fp10(code, n),
        "block_e4m3": lambda: read_blocks(code, n, 4),
        "block_e5m2": lambda: read_blocks(code, n, 5),
        "int8": lambda: read_integers(code, n),
        "int8_signed": lambda: read_integers(code, n),
    }[codec]()


def read_file(path) -> np.ndarray:
    with np.load(path) as members:
        header, code = json.loads(members["header"].item()), members["code"].tobytes()
    assert header["format"] == "cupy-training-ops packed array"
    n = math.prod(header["shape"])
    actual = read(header["codec"], code, n, SIZES[header["dtype"]])
    return np.array(actual).reshape(header["shape"])


@pytest.mark.parametrize("codec", FLOAT_CODECS)
def test_files_are_what_the_page_says(codec, rng, tmp_path):
    dtype = rng.choice(list(SIZES))
    for shape in ((0,), (1,), (5, 7), (90, 101)):
        x = np.where(rng.random(shape) < 0.5, rng.standard_normal(shape), 0.0).astype(dtype)
        packed = cto.compress(x, codec)
        packed.save(tmp_path / "x.npz")
        expected = packed.decompress()
        with np.errstate(over="ignore"):
            actual = read_file(tmp_path / "x.npz").astype(dtype)
        assert actual.tobytes() == expected.tobytes()


def test_indices_are_what_the_page_says(rng):
    x = rng.integers(0, 16, 77)
    code = cto.compress(x, "index4").code.tobytes()
    assert [code[i // 2] >> 4 * (i % 2) & 15 for i in range(77)] == x.tolist()
