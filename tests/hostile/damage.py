# SPDX-License-Identifier: MIT
"""Sound files, and what becomes of them: flipped, cut, swapped, or with a header that lies."""

from __future__ import annotations

import ast
import io
import json
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from cupy_training_ops import compress
from cupy_training_ops.codecs import CODECS
from cupy_training_ops.dtypes import BFLOAT16

Generator = np.random.Generator
Lie = Callable[[Any, Generator], Any]


# ---- sound files ---------------------------------------------------------------------------------


def sound_files() -> dict[str, bytes]:
    """Files by name: packed arrays of every codec, arrays of several kinds, archives of them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 11))
    arrays = {
        "float32": x.astype("f4"), "float16": x.astype("f2"), "float64": x, "big": x.astype(">f4"),
        "columns": np.asfortranarray(x), "number": np.array(2.5), "empty": x[:0], "bools": x > 0,
        "whole": x.astype("i4"), "raw": x.astype("f2").view("V2"), "fields": np.zeros(3, "f4,i4"),
    }  # fmt: skip
    files = {f"{codec}.packed": packed_file(codec) for codec in CODECS}
    files |= {f"{name}.npy": written(np.save, array) for name, array in arrays.items()}
    files["arrays.npz"] = written(np.savez, **arrays)
    files["deflated.npz"] = written(np.savez_compressed, **arrays)
    files |= tensor_files(x)
    files["one.npz"] = written(np.savez, x=x)
    return files


def tensor_files(x: np.ndarray) -> dict[str, bytes]:
    """None where the library is not here: it is in the extra `safetensors`."""
    try:
        from safetensors.numpy import save
    except ImportError:
        return {}
    types = ("f4", "f2", "f8", "i4", BFLOAT16, ml_dtypes.float8_e4m3fn)
    return {"arrays.safetensors": save({np.dtype(t).name: x.astype(t) for t in types})}


def packed_file(codec: str) -> bytes:
    stream = io.BytesIO()
    compress(packed_array(codec), codec).save(stream)
    return stream.getvalue()


def packed_array(codec: str) -> np.ndarray:
    """What a codec takes; for sparse ones so many zeros that their codes are sparse."""
    rng = np.random.default_rng(1)
    if codec == "index4":
        return rng.integers(0, 16, (6, 11))
    if CODECS[codec].leaves_room:
        return np.where(rng.random((6, 50)) < 0.3, rng.standard_normal((6, 50)), 0).astype("f4")
    return rng.standard_normal((6, 11)).astype(np.float32)


def written(save: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    stream = io.BytesIO()
    save(stream, *arrays, **named)
    return stream.getvalue()


# ---- bytes ---------------------------------------------------------------------------------------


def somewhere(data: bytes, rng: Generator) -> int:
    """A place in a file: its first and last hundred bytes as often as all the others."""
    near = (int(rng.integers(100)), len(data) - 1 - int(rng.integers(100)))
    return int(rng.choice([*near, *rng.integers(len(data), size=2)])) % len(data)


def flip(data: bytes, rng: Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        place = somewhere(data, rng)
        one_bit = changed[place] ^ 1 << rng.integers(8)
        changed[place] = one_bit if rng.random() < 0.6 else rng.integers(256)
    return bytes(changed)


def cut(data: bytes, rng: Generator) -> bytes:
    start, stop = sorted(somewhere(data, rng) for _ in range(2))
    return (data[:start], data[stop:], data[:start] + data[stop:], data[: 2 * start], b"")[
        rng.choice(5, p=(0.4, 0.2, 0.3, 0.08, 0.02))
    ]


def swap(data: bytes, rng: Generator) -> bytes:
    a, b, c, d = sorted(somewhere(data, rng) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def grow(data: bytes, rng: Generator) -> bytes:
    place = somewhere(data, rng)
    more = (rng.bytes(int(rng.integers(1, 50))), data[place : place + 60], data, b"\0" * 4096)
    return data[:place] + more[rng.integers(4)] + data[place:]


def lying_directory(data: bytes, rng: Generator) -> bytes:
    """A number of an archive's directory that is not so."""
    marks = [m.start() for m in re.finditer(b"PK\x01\x02|PK\x05\x06|PK\x03\x04", data)]
    if not marks:
        return flip(data, rng)
    place = int(rng.choice(marks)) + 4 + 2 * int(rng.integers(20))
    number = struct.pack("<I", int(rng.choice([0, 1, 7, 2**16, 2**31, 2**32 - 1])))
    return data[:place] + number[: int(rng.choice([2, 4]))] + data[place + 4 :]


# ---- headers -------------------------------------------------------------------------------------

SHAPES = [
    repr(shape)
    for shape in ((2**62,), (2**40, 2**30), (10**30,), (-1,), (-6, -11), (6, 10), (66,), (), 6,
                  (6.0, 11), "ab", (True, 66), (None,), [6, 11], (1,) * 70, (0, 2**60), (2**31, 2))
]  # fmt: skip
DESCRS = [
    "'|O'", "'<f8'", "'<f2'", "'>f4'", "'<f99'", "'<U99999999'", "'V0'", "[('a', '<f4')]", "None",
    "[('a', '<f4', -1)]", "{'names': ['a'], 'formats': ['<f4']}", "5", "'?'", "'<M8'",
    "('<f4', (3,))",
]  # fmt: skip
HEADERS = [
    "",
    "{}",
    "[1]",
    "{'descr': '<f4'}",
    "{'shape': (1,)",
    "open('x')",
    "(" * 300,
    "{1: 2}",
    "\\x00",
]


def lying_array(data: bytes, rng: Generator) -> bytes:
    """A .npy file whose header says something else, in as many bytes or in others."""
    magic, length = data[:8], struct.unpack("<H", data[8:10])[0]
    header = ast.literal_eval(data[10 : 10 + length].decode())
    said = {name: repr(value) for name, value in header.items()}
    kind = rng.choice(["shape", "descr", "order", "whole", "version", "length"])
    if kind == "shape":
        said["shape"] = str(rng.choice(SHAPES))
    elif kind == "descr":
        said["descr"] = str(rng.choice(DESCRS))
    elif kind == "order":
        said["fortran_order"] = str(rng.choice(["1", "'no'", "None", "True", "False", "2.5"]))
    elif kind == "version":
        magic = magic[:6] + bytes(rng.integers(0, 5, 2).tolist())
    text = "{" + ", ".join(f"'{name}': {value}" for name, value in said.items()) + "}"
    text = str(rng.choice(HEADERS)) if kind == "whole" else text
    encoded = text.encode().ljust(length - 1) + b"\n"
    told = (
        int(rng.choice([0, 1, length - 16, length + 64, 65535]))
        if kind == "length"
        else len(encoded)
    )
    return magic + struct.pack("<H", told % 65536) + encoded + data[10 + length :]


ODD_JSON: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, "", "text", "float32", "int8", "msfp15", "pack8", [], {}, [6],
    [6, 11], [66], [6, -11], [2**62], [2**40, 2**40], [6.0, 11.0], ["6"], [[6, 11]], [1] * 70,
    {"keep_nonfinite": True}, {"keep_nonfinite": 5}, {"shape": [1]}, {"to": "float32"},
    {"nonsense": 1}, {"a": {"b": {}}},
]  # fmt: skip
NAMES = [
    "../x",
    "/etc/x",
    "a\nb",
    "\x1b[31mred",
    "x.npy",
    "",
    "a" * 3000,
    "\u202eabc",
    "code",
    "header",
]


def lying_archive(data: bytes, rng: Generator) -> bytes:
    """An archive whose members were lied about, written anew."""
    members = read_members(data)
    name = str(rng.choice(list(members)))
    kind = rng.choice(["json", "json", "member", "without", "another", "renamed", "twice"])
    if kind == "json" and "header.npy" in members:
        members["header.npy"] = lying_json(members["header.npy"], rng)
    elif kind == "without":
        del members[name]
    elif kind == "another":
        members[name] = written(np.save, another_array(rng))
    elif kind == "renamed":
        members[str(rng.choice(NAMES)) + ".npy"] = members.pop(name)
    elif kind == "twice":
        return write_members([*members.items(), (name, written(np.save, another_array(rng)))], rng)
    else:
        members[name] = lying_array(members[name], rng)
    return write_members(list(members.items()), rng)


def another_array(rng: Generator) -> np.ndarray:
    arrays = (
        np.zeros(0), np.array("text"), np.array([None], object), np.array({}), np.ones(3, complex),
        np.zeros((6, 11), np.uint8), np.zeros(72, np.uint8), np.zeros(72, np.int8),
        np.array("{" * 999), np.array('{"format": 1}'), np.zeros((), "f4,i4"), np.zeros((1,) * 40),
    )  # fmt: skip
    return arrays[rng.integers(len(arrays))]


def lying_json(member: bytes, rng: Generator) -> bytes:
    header = json.loads(str(np.load(io.BytesIO(member))))
    field = str(rng.choice(list(header)))
    kind = rng.integers(5)
    if kind == 0:
        del header[field]
    elif kind == 1:
        header[str(rng.choice(["nonsense", "code", "to"]))] = 1
    else:
        header[field] = ODD_JSON[rng.integers(len(ODD_JSON))]
    text = json.dumps(header)
    return written(np.save, np.array(text if kind != 1 or rng.random() < 0.5 else text[:-3]))


def read_members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(members: list[tuple[str, bytes]], rng: Generator) -> bytes:
    stream = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if rng.random() < 0.3 else zipfile.ZIP_STORED
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as archive:
        warnings.simplefilter("ignore")  # two members of one name
        for name, content in members:
            archive.writestr(name, content)
    return stream.getvalue()


def damaged(data: bytes, rng: Generator) -> tuple[bytes, str]:
    """A file that is no longer what it was, and in which way."""
    is_array = data.startswith(b"\x93NUMPY")
    kinds: list[tuple[str, Lie]] = [("flip", flip), ("cut", cut), ("swap", swap), ("grow", grow)]
    lies = ("lying header", lying_array if is_array else lying_archive)
    if is_array or data.startswith(b"PK"):
        kinds += [lies, lies, lies, ("lying directory", lying_directory)]
    kind, change = kinds[rng.integers(len(kinds))]
    made = change(data, rng)
    return made, f"{kind}, {len(data)} to {len(made)} bytes"
