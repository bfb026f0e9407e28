# SPDX-License-Identifier: MIT
"""`info`: what a file holds, packed or not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import click

from ..codecs import Packed, get_codec
from ..errors import printable
from .inputs import Member, contents, file_type
from .lines import Lines, json_option
from .machine import processor
from .printable import say
from .table import aligned, wrapped


@click.command()
@click.argument("files", nargs=-1, required=True, type=file_type, metavar="FILE...")
@json_option
def info(files: tuple[str, ...], as_json: bool) -> None:
    """Say what a file holds, packed or not.

    FILE is a packed array, .npy, .npz or .safetensors; "-" is stdin. A packed array is read whole,
    so that a damaged one is found.
    """
    lines = Lines("info", processor()) if as_json else None
    for file in files:
        with contents(file) as found:
            if lines is None:
                _print(file, found)
            elif isinstance(found, Packed):
                lines.put("packed", file=file, **_of_packed(found))
            else:
                for member in found:
                    lines.put("array", file=file, **_of_array(member))


def _print(file: str, found: Packed | Sequence[Member]) -> None:
    if isinstance(found, Packed):
        say(f"{file}: packed array")
        for line in _about(found):
            click.echo(f"  {line}")
    else:
        rows = [tuple(map(_shown, _of_array(member).values())) for member in found]
        say(f"{file}: {len(found)} array{'s' * (len(found) != 1)}")
        for line in aligned([("array", "dtype", "shape", "bytes"), *rows], left=3):
            click.echo(f"  {line}")


def _about(packed: Packed) -> Iterator[str]:
    codec = get_codec(packed.codec)
    options = "".join(f", {name} {value}" for name, value in packed.options.items())
    yield f"array    {packed.dtype} {packed.shape}, {packed.original_nbytes} bytes"
    yield f"codes    {packed.nbytes} bytes, {packed.ratio:.1f} times smaller"
    yield f"codec    {codec.name}{options}"
    for name, text in (("formula", codec.formula), ("error", f"at most {codec.bound}")):
        yield from wrapped(f"{name:8} {text}", 76)


def _of_packed(packed: Packed) -> dict[str, Any]:
    return {
        "codec": packed.codec,
        "options": packed.options,
        "dtype": packed.dtype,
        "shape": packed.shape,
        "nbytes_before": packed.original_nbytes,
        "nbytes_after": packed.nbytes,
        "ratio": packed.ratio,
    }


def _of_array(member: Member) -> dict[str, Any]:
    """Null where a member is no array."""
    if not member.unread.is_array():
        return {"array": member.name, "dtype": None, "shape": None, "nbytes": None}
    shape, dtype, _ = member.unread.header()
    nbytes = math.prod(shape) * dtype.itemsize
    return {"array": member.name, "dtype": str(dtype), "shape": shape, "nbytes": nbytes}


def _shown(value: object) -> str:
    return "-" if value is None else printable(str(value))
