# SPDX-License-Identifier: MIT
"""Packed files: `encode` and `decode`, to .npy, .npz and .safetensors and back; `info`."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click
import numpy as np

from ..codecs import CODECS, Packed, get_codec, safetensors_file
from ..codecs.numpy_file import write_header
from ..codecs.packed import Advance, decode_in_parts, encode_in_parts
from ..dtypes import BFLOAT16, HostArray, to_dtype
from ..errors import printable
from ..machine import processor
from .errors import Failure
from .inputs import (
    Member,
    file_type,
    names_hint,
    naming,
    open_arrays,
    open_contents,
    read_packed,
    select,
    stem,
    why_left_out,
)
from .outputs import (
    force_option,
    is_folder,
    make_folder,
    name_of,
    open_out,
    out_files,
    refuse_overwriting,
    say_done,
    sync_option,
)
from .parameter_types import ArrayName, OneOf
from .terminal import JsonLines, align, json_option, progress_bar, say, wrap

Arrays = Sequence[tuple[str, Packed]]


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
    """Write an array part by part, so that memory never holds all of it."""
    write_header(stream, packed.shape, to_dtype(packed.dtype))
    for part in decode_in_parts(packed, advance):
        stream.write(part.view(np.uint8).data)


def _whole(packed: Packed, advance: Advance) -> HostArray:
    flat = np.empty(math.prod(packed.shape), to_dtype(packed.dtype))
    done = 0
    for part in decode_in_parts(packed, advance):
        flat[done : done + part.size] = part
        done += part.size
    return flat.reshape(packed.shape)


WRITERS: dict[str, Callable[[IO[bytes], Arrays, Advance], None]] = {
    "npy": _write_npy,
    "npz": _write_npz,
    "safetensors": _write_safetensors,
}


@click.command()
@click.argument("files", nargs=-1, required=True, type=file_type, metavar="FILE...")
@click.argument("out", type=file_type)
@click.option(
    "--codec",
    type=OneOf("codec", CODECS),
    metavar="CODEC",
    required=True,
    help=f"How to encode: {', '.join(CODECS)}.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    type=ArrayName(),
    help="Only this array; may be given more than once.",
)
@click.option("--dtype", type=click.Choice(["bfloat16"]), help="Read raw two-byte arrays as such.")
@click.option(
    "--keep-nonfinite", is_flag=True, help="msfp15 and msfp15_signed: NaN for a tile they give up."
)
@force_option
@sync_option
def encode(
    files: tuple[str, ...],
    out: str,
    codec: str,
    names: tuple[str, ...],
    dtype: str | None,
    keep_nonfinite: bool,
    force: bool,
    sync: bool,
) -> None:
    """Encode arrays of files into packed ones.

    FILE is .npy, .npz or .safetensors. One array becomes the file OUT; a folder as OUT (it exists,
    or ends in /) gets a NAME.npz for each array that the codec takes, or for each --name. "-" is
    stdin and stdout.

    Runs on the CPU provider; a GPU makes the same codes. A packed file knows codec, dtype and
    shape, and is written whole or not at all. `cupy_training_ops.Packed.load` reads it in Python.
    """
    options: dict[str, object] = {"keep_nonfinite": True} if keep_nonfinite else {}
    _check_options(codec, options)
    raw = dtype is not None
    with contextlib.ExitStack() as stack:
        members = [m for file in files for m in stack.enter_context(open_arrays(file))]
        with naming(files):
            chosen = _select(members, names, is_folder(out), codec, raw)
        outs = out_files(out, [member.name for member in chosen], ".npz")
        refuse_overwriting(outs, files, force)
        make_folder(out)
        for member, out_file in zip(chosen, outs, strict=True):
            _encode(member, out_file, codec, options, raw, sync)


def _check_options(codec: str, options: Mapping[str, object]) -> None:
    """Refuse options that the codec does not have."""
    known = {
        name: {attribute.name for attribute in each.encoder.declaration.attributes}
        for name, each in CODECS.items()
    }
    for option in options:
        have = [name for name, attributes in known.items() if option in attributes]
        if codec not in have:
            flag = option.replace("_", "-")
            raise click.UsageError(f"--{flag} goes with {', '.join(have)}, not with {codec}")


@click.command()
@click.argument("files", nargs=-1, required=True, type=file_type, metavar="FILE...")
@click.argument("out", type=file_type)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(WRITERS)),
    help="Of OUT, where its ending does not say it.  [default: npy]",
)
@force_option
@sync_option
def decode(files: tuple[str, ...], out: str, form: str | None, force: bool, sync: bool) -> None:
    """Decode packed files into .npy, .npz or .safetensors.

    The ending of OUT says which. .npz and .safetensors hold several arrays, each by the name of its
    packed file; a folder as OUT (it exists, or ends in /) gets a file for each. "-" is stdin and
    stdout.

    OUT is written whole or not at all. Runs on the CPU provider. bfloat16 stays bfloat16 in
    .safetensors; NumPy's files have no name for it and keep its bytes as raw two-byte elements,
    '<V2', as numpy.save does: `array.view(ml_dtypes.bfloat16)` in Python, --dtype bfloat16 here.
    """
    ending = Path(out).suffix.removeprefix(".")
    form = form or (ending if ending in WRITERS else "npy")
    names = [name_of(stem(file)) for file in files]
    outs = out_files(out, names, f".{form}")
    refuse_overwriting(outs, files, force)
    _refuse_names(names, out, form)
    if is_folder(out):
        make_folder(out)
        for out_file, name, file in zip(outs, names, files, strict=True):
            _decode(out_file, [(name, read_packed(file))], form, sync)
    else:
        arrays = [(name, read_packed(file)) for name, file in zip(names, files, strict=True)]
        _decode(out, arrays, form, sync)


def _encode(
    member: Member, out: str, codec: str, options: dict[str, object], raw: bool, sync: bool
) -> None:
    array = member.read(raw)
    with progress_bar(array.size, "encoding") as advance:
        packed = encode_in_parts(array, codec, options, advance)
    with open_out(out, sync) as stream:
        packed.save(stream)
    say_done(
        out,
        f"{codec} of {packed.dtype} {packed.shape}, "
        f"{packed.original_nbytes} to {packed.nbytes} bytes, ratio {packed.ratio:.1f}",
    )


def _decode(out: str, arrays: Arrays, form: str, sync: bool) -> None:
    for name, packed in arrays:
        if form != "safetensors" and to_dtype(packed.dtype) == BFLOAT16:
            say(
                f"{out}: {name}: bfloat16 is written as raw two-byte elements ('<V2'), "
                "which --dtype bfloat16 reads; .safetensors names it",
                err=True,
            )
    size = sum(math.prod(packed.shape) for _, packed in arrays)
    with open_out(out, sync) as stream, progress_bar(size, "decoding") as advance:
        WRITERS[form](stream, arrays, advance)
    for name, packed in arrays:
        which = f"{name}: " if len(arrays) > 1 else ""
        say_done(out, f"{which}{packed.dtype} {packed.shape} from {packed.codec}")


def _refuse_names(names: list[str], out: str, form: str) -> None:
    """Refuse several arrays for a file of one, and two of one name for a file of several."""
    if is_folder(out):
        return
    if form == "npy" and len(names) > 1:
        raise Failure(f"{out}: .npy holds one array; expected a folder, .npz or .safetensors")
    for name in names:
        if names.count(name) > 1:
            raise Failure(f"{out}: two arrays would be called {name!r}; expected different names")


def _select(
    members: list[Member], names: tuple[str, ...], several: bool, codec: str, raw: bool
) -> list[Member]:
    """The arrays of these names; without names the only one, or for a folder all that fit."""
    chosen = select(members, names) if names else members
    if several and not names:
        chosen = _fitting(members, codec, raw)
    elif not several and len(chosen) != 1:
        hint = names_hint([member.name for member in chosen])
        raise Failure(f"which array? give --name, or a folder as OUT; {hint}")
    _check_raw(chosen, raw)
    return chosen


def _fitting(members: list[Member], codec: str, raw: bool) -> list[Member]:
    """The arrays that the codec takes; says on stderr what it leaves out."""
    fitting = []
    for member in members:
        reason = why_left_out(member, [get_codec(codec)], raw)
        if reason is None:
            fitting.append(member)
        else:
            member.skip(reason)
    if not fitting:
        raise Failure(f"no array that {codec} takes")
    return fitting


def _check_raw(chosen: list[Member], raw: bool) -> None:
    """Refuse --dtype where nothing can be read as it says."""
    if raw and all(member.dtype(raw) != BFLOAT16 for member in chosen):
        raise Failure(f"--dtype: expected raw two-byte elements, got {chosen[0].dtype(raw)}")


# ---- info ----------------------------------------------------------------------------------------


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
