# SPDX-License-Identifier: MIT
"""`info`: what a file holds, packed or not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import click

from ..codecs import Packed, get_codec
from ..errors import printable
from .inputs import Member, file_type, open_contents
from .machine import processor
from .terminal import JsonLines, align, json_option, say, wrap


@click.command()
@click.argument("files", nargs=-1, required=True, type=file_type, metavar="FILE...")
@json_option
def info(files: tuple[str, ...], as_json: bool) -> None:
    """Say what a file holds, packed or not.

    FILE is a packed array, .npy, .npz or .safetensors; "-" is stdin. A packed array is read whole,
    so that a damaged one is found.
    """
    lines = JsonLines("info", processor()) if as_json else None
    for file in files:
        with open_contents(file) as content:
            if lines is None:
                _print(file, content)
            elif isinstance(content, Packed):
                lines.write("packed", file=file, **_packed_fields(content))
            else:
                for member in content:
                    lines.write("array", file=file, **_array_fields(member))


def _print(file: str, content: Packed | Sequence[Member]) -> None:
    if isinstance(content, Packed):
        say(f"{file}: packed array")
        for line in _packed_lines(content):
            click.echo(f"  {line}")
    else:
        rows = [tuple(map(_cell, _array_fields(member).values())) for member in content]
        say(f"{file}: {len(content)} array{'s' * (len(content) != 1)}")
        for line in align([("array", "dtype", "shape", "bytes"), *rows], left=3):
            click.echo(f"  {line}")


def _packed_lines(packed: Packed) -> Iterator[str]:
    codec = get_codec(packed.codec)
    options = "".join(f", {name} {value}" for name, value in packed.options.items())
    yield f"array    {packed.dtype} {packed.shape}, {packed.original_nbytes} bytes"
    yield f"codes    {packed.nbytes} bytes, {packed.ratio:.1f} times smaller"
    yield f"codec    {codec.name}{options}"
    for name, text in (("formula", codec.formula), ("error", f"at most {codec.bound}")):
        yield from wrap(f"{name:8} {text}", 76)


def _packed_fields(packed: Packed) -> dict[str, Any]:
    return {
        "codec": packed.codec,
        "options": packed.options,
        "dtype": packed.dtype,
        "shape": packed.shape,
        "nbytes_before": packed.original_nbytes,
        "nbytes_after": packed.nbytes,
        "ratio": packed.ratio,
    }


def _array_fields(member: Member) -> dict[str, Any]:
    """Null where a member is no array."""
    if not member.unread.is_array():
        return {"array": member.name, "dtype": None, "shape": None, "nbytes": None}
    shape, dtype, _ = member.unread.header()
    nbytes = math.prod(shape) * dtype.itemsize
    return {"array": member.name, "dtype": str(dtype), "shape": shape, "nbytes": nbytes}


def _cell(value: object) -> str:
    return "-" if value is None else printable(str(value))
