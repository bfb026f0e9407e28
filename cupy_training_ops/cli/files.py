# SPDX-License-Identifier: MIT
"""`encode` and `decode`: arrays to packed files and back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click
import numpy as np

from ..codecs import CODECS, Packed, compress
from ..codecs.atomic_file import replacing
from ..codecs.numpy_file import NumpyArray
from ..dtypes import BFLOAT16
from .errors import Failure
from .inputs import as_bfloat16, read, readable

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
    array = _chosen(file, name)
    options = {"keep_nonfinite": True} if keep_nonfinite else {}
    packed = compress(as_bfloat16(array) if dtype else array, codec, **options)
    with writing(out) as stream:
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
    with readable(file):
        packed = Packed.load(file)
    array = packed.decompress()
    if array.dtype == BFLOAT16:
        array = array.view(np.uint16)
        click.echo(f"{out}: bfloat16 is written as raw two-byte elements (uint16)", err=True)
    with writing(out) as stream:
        np.save(stream, array)
    _say(out, f"{packed.dtype} {packed.shape} from {packed.codec}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A stream that replaces `path` at the end, or a Failure and no file."""
    try:
        with replacing(path) as stream:
            yield stream
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror or error}") from None


def _refuse_same(file: Path, out: Path) -> None:
    """An OUT that is FILE, by whatever names, would take the place of what was read."""
    with contextlib.suppress(OSError):  # one of them is not there
        if os.path.samefile(file, out):
            raise Failure(f"{out}: OUT is FILE itself ({file}); expected another place")


def _say(out: Path, done: str) -> None:
    """What was done: on stderr where OUT is a pipe or a device, for that may be stdout."""
    click.echo(f"{out}: {done}", err=not out.is_file())


def _chosen(path: Path, name: str | None) -> NumpyArray:
    """The array called `name`, or the only one."""
    arrays = read(path)
    if name is None and len(arrays) == 1:
        return next(iter(arrays.values()))
    if name not in arrays:
        asked = "which array? give --name" if name is None else f"no array {name!r}"
        raise Failure(f"{path}: {asked}; there are: {', '.join(arrays) or 'none'}")
    return arrays[name]
