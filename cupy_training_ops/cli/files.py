# SPDX-License-Identifier: MIT
"""`encode` and `decode`: arrays to packed files and back."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click
import numpy as np

from ..codecs import CODECS, Packed
from ..codecs.atomic_file import is_replaced, remove_unfinished, replacing
from ..codecs.numpy_file import NumpyArray, write_header
from ..codecs.parts import decoded, encoded
from ..dtypes import BFLOAT16, to_dtype
from ..errors import cut
from .errors import Failure, reading, writing
from .inputs import is_raw, opened, read
from .printable import say
from .progress import advancing
from .signals import ends_with

path_type = click.Path(path_type=Path)


@click.command()
@click.argument("file", type=path_type)
@click.argument("out", type=path_type)
@click.option("--codec", type=click.Choice(list(CODECS)), required=True, help="How to encode.")
@click.option("--name", help="The array, where FILE holds several.")
@click.option("--dtype", type=click.Choice(["bfloat16"]), help="Read a raw two-byte array as such.")
@click.option("--keep-nonfinite", is_flag=True, help="msfp15: NaN for a tile it gives up.")
def encode(
    file: Path, out: Path, codec: str, name: str | None, dtype: str | None, keep_nonfinite: bool
) -> None:
    """Encode an array of FILE (.npy, .npz) into the packed OUT.

    Runs on the CPU provider; a GPU makes the same codes. OUT knows codec, dtype and shape, and is
    written whole or not at all. `cupy_training_ops.Packed.load` reads it in Python.
    """
    _refuse_same(file, out)
    array = _chosen(file, name, raw=dtype is not None)
    options: dict[str, object] = {"keep_nonfinite": True} if keep_nonfinite else {}
    with advancing(array.size, "encoding") as advance:
        packed = encoded(array, codec, options, advance)
    with _replaced(out) as stream:
        packed.save(stream)
    _say(
        out,
        f"{codec} of {packed.dtype} {packed.shape}, "
        f"{packed.original_nbytes} to {packed.nbytes} bytes, ratio {packed.ratio:.1f}",
    )


@click.command()
@click.argument("file", type=path_type)
@click.argument("out", type=path_type)
def decode(file: Path, out: Path) -> None:
    """Decode the packed FILE into the .npy file OUT.

    OUT is written whole or not at all. Runs on the CPU provider. A .npy file has no bfloat16: such
    an array is written as its raw two-byte elements (uint16), which `--dtype bfloat16` reads back.
    """
    _refuse_same(file, out)
    with reading(file):
        packed = Packed.load(file)
    dtype = to_dtype(packed.dtype)
    if dtype == BFLOAT16:
        dtype = np.dtype(np.uint16)
        say(f"{out}: bfloat16 is written as raw two-byte elements (uint16)", err=True)
    with _replaced(out) as stream, advancing(math.prod(packed.shape), "decoding") as advance:
        write_header(stream, packed.shape, dtype)
        for part in decoded(packed, advance):
            stream.write(part.view(np.uint8).data)
    _say(out, f"{packed.dtype} {packed.shape} from {packed.codec}")


@contextlib.contextmanager
def _replaced(out: Path) -> Iterator[IO[bytes]]:
    """A stream that replaces OUT at the end, or leaves it as it is and nothing beside it."""
    with ends_with(remove_unfinished), writing(out), replacing(out) as stream:
        yield stream


def _refuse_same(file: Path, out: Path) -> None:
    """An OUT that is FILE, by whatever names, would take the place of what was read."""
    with contextlib.suppress(OSError):  # one of them is not there
        if os.path.samefile(file, out):
            raise Failure(f"{out}: OUT is FILE itself ({file}); expected another place")


def _say(out: Path, done: str) -> None:
    """What was done: on stderr where OUT is no file of its own, for that may be stdout."""
    say(f"{out}: {done}", err=not is_replaced(out))


def _chosen(path: Path, name: str | None, raw: bool) -> NumpyArray:
    """The array called `name`, or the only one; bfloat16 where its elements are raw."""
    with opened(path) as arrays:
        if name is None and len(arrays) == 1:
            (name,) = arrays
        if name is None or name not in arrays:
            asked = "which array? give --name" if name is None else f"no array {name!r}"
            raise Failure(f"{path}: {asked}; there are: {cut(', '.join(arrays)) or 'none'}")
        dtype = arrays[name].header().dtype
        if raw and not is_raw(dtype):
            raise Failure(f"{path}: --dtype: expected raw two-byte elements, got {dtype}")
        array = read(arrays[name])
    return array.view(BFLOAT16) if raw else array
