# SPDX-License-Identifier: MIT
"""Decoded arrays as .npy, .npz and .safetensors files."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ..codecs import Packed, safetensors_file
from ..codecs.numpy_file import write_header
from ..codecs.parts import Advance, decoded
from ..dtypes import BFLOAT16, HostArray, to_dtype

Arrays = Sequence[tuple[str, Packed]]


def format_of(out: str) -> str:
    """By the ending of OUT; npy where that says nothing."""
    ending = Path(out).suffix.removeprefix(".")
    return ending if ending in WRITERS else "npy"


def size(arrays: Arrays) -> int:
    """Elements of them all."""
    return sum(math.prod(packed.shape) for _, packed in arrays)


def loses_names(form: str, packed: Packed) -> bool:
    """Whether a file of this format says other than bfloat16 of bfloat16."""
    return form != "safetensors" and to_dtype(packed.dtype) == BFLOAT16


def _write_npy(stream: IO[bytes], arrays: Arrays, advance: Advance) -> None:
    ((_, packed),) = arrays
    _write_elements(stream, packed, advance)


def _write_npz(stream: IO[bytes], arrays: Arrays, advance: Advance) -> None:
    with zipfile.ZipFile(stream, "w") as archive:
        for name, packed in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_elements(member, packed, advance)


def _write_safetensors(stream: IO[bytes], arrays: Arrays, advance: Advance) -> None:
    safetensors_file.save(stream, {name: _whole(packed, advance) for name, packed in arrays})


def _write_elements(stream: IO[bytes], packed: Packed, advance: Advance) -> None:
    """Part by part: the whole array is never in memory. NumPy's header says V2 of bfloat16."""
    write_header(stream, packed.shape, to_dtype(packed.dtype))
    for part in decoded(packed, advance):
        stream.write(part.view(np.uint8).data)


def _whole(packed: Packed, advance: Advance) -> HostArray:
    flat = np.empty(math.prod(packed.shape), to_dtype(packed.dtype))
    done = 0
    for part in decoded(packed, advance):
        flat[done : done + part.size] = part
        done += part.size
    return flat.reshape(packed.shape)


WRITERS: dict[str, Callable[[IO[bytes], Arrays, Advance], None]] = {
    "npy": _write_npy,
    "npz": _write_npz,
    "safetensors": _write_safetensors,
}
