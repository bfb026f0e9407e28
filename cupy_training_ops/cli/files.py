# SPDX-License-Identifier: MIT
"""Packed files: `encode` and `decode`, to .npy, .npz and .safetensors and back; `info`.

One array becomes a packed array; several become a packed file, in which arrays that no codec takes
are as they are.

In all functions a `member` is an array of an input file, not read yet; an `item` one that is packed
or as it is; `out` the path OUT; `coding` a codec with its options; `sync`: wait for the disk;
advance(n) moves a progress bar by n elements.
"""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import click
import numpy as np

from ..codecs import CODECS, Packed, get_codec, packed_file, safetensors_file
from ..codecs.numpy_file import NumpyArray, write_header
from ..codecs.packed import PART, Advance, decode_in_parts, encode_in_parts
from ..codecs.packed_file import Item, PackedFile, Uncoded
from ..codecs.safetensors_file import Tensor, type_name
from ..dtypes import BFLOAT16, dtype_name, to_dtype
from ..errors import ArgumentError, DtypeError, cut, printable
from ..machine import processor
from .errors import Failure
from .inputs import (
    Member,
    check_names,
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
from .parameter_types import ArrayName, OneOf, nonfinite_option
from .terminal import JsonLines, align, json_option, progress_bar, say, wrap

Arrays = Sequence[tuple[str, Item]]  # (name, packed or uncoded array)
DEFAULT_CODEC = "int8"  # of 8 bits and a half, the most faithful for any numbers
# By the ending of OUT, writers of packed files of several arrays.
CONTAINERS = {".npz": packed_file.write_npz, ".safetensors": packed_file.write_safetensors}


def _write_npy(stream: IO[bytes], arrays: Arrays, _: Mapping[str, str], advance: Advance) -> None:
    """Decode the only array into a .npy file; `_`: metadata, which such files lack. advance(n): n
    elements more are done."""
    ((_name, item),) = arrays
    _write_elements(stream, item, advance)


def _write_npz(stream: IO[bytes], arrays: Arrays, _: Mapping[str, str], advance: Advance) -> None:
    """Decode arrays into an uncompressed .npz file, one member each; `_`: metadata, which such
    files lack. advance(n): n elements more are done."""
    with zipfile.ZipFile(stream, "w") as archive:
        for name, item in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_elements(member, item, advance)


def _write_safetensors(
    stream: IO[bytes], arrays: Arrays, metadata: Mapping[str, str], advance: Advance
) -> None:
    """Decode arrays into a .safetensors file, each as it is written; metadata: its texts."""
    entries = []
    for name, item in arrays:
        if isinstance(item, Packed):
            dtype, parts = to_dtype(item.dtype), decode_in_parts(item, advance)
            nbytes = math.prod(item.shape) * dtype.itemsize
            kind = type_name(dtype)
            buffers: Iterator[Any] = (part.view(np.uint8).data for part in parts)
        else:
            nbytes, kind = item.nbytes, packed_file.stored_type(name, item)
            buffers = iter([item.content.data])
        entries.append(safetensors_file.Entry(name, kind, item.shape, nbytes, buffers))
    safetensors_file.save(stream, entries, metadata)


def _write_elements(stream: IO[bytes], item: Item, advance: Advance) -> None:
    """Write an array as .npy, header and elements; a packed one is decoded part by part.

    Types of 8 bits that NumPy lacks are declared as raw bytes, "V1".
    """
    if isinstance(item, Packed):
        write_header(stream, item.shape, to_dtype(item.dtype))
        for part in decode_in_parts(item, advance):
            stream.write(part.view(np.uint8).data)
    else:
        array = item.array()
        is_fp8 = array.dtype in safetensors_file.FP8.values()
        write_header(stream, array.shape, np.dtype("V1") if is_fp8 else array.dtype)
        stream.write(item.content.data)


# Writers of decoded arrays by format: (stream, arrays, metadata, advance).
WRITERS: dict[str, Callable[[IO[bytes], Arrays, Mapping[str, str], Advance], None]] = {
    "npy": _write_npy,
    "npz": _write_npz,
    "safetensors": _write_safetensors,
}


@click.command()
@click.argument("files", nargs=-1, type=file_type, metavar="FILE...")
@click.argument("out", required=False, type=file_type, metavar="OUT")
@click.option(
    "--codec",
    type=OneOf("codec", CODECS),
    metavar="CODEC",
    default=DEFAULT_CODEC,
    show_default=True,
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
@nonfinite_option
@force_option
@sync_option
def encode(
    files: tuple[str, ...],
    out: str | None,
    codec: str,
    names: tuple[str, ...],
    dtype: str | None,
    keep_nonfinite: bool,
    force: bool,
    sync: bool,
) -> None:
    """Encode arrays of files into packed ones.

    FILE is .npy, .npz or .safetensors. An OUT that ends in .safetensors, or in .npz where there
    are several arrays, gets all arrays of FILE, or those of --name: those that the codec does not
    take, or makes no smaller, as they are, and the texts of a .safetensors' metadata. Else one
    array becomes the file OUT. A folder as OUT (it exists, or ends in /) gets a NAME.npz for each
    array that the codec takes. "-" is stdin and stdout.

    Runs on the CPU provider; a GPU makes the same codes. A packed file knows codec, dtype and
    shape, and is written whole or not at all. `cupy_training_ops.Packed.load` reads one array in
    Python.
    """
    out = _required_out(files, out, "OUT.npz")
    options: dict[str, object] = {} if keep_nonfinite else {"keep_nonfinite": False}
    _check_options(codec, options)
    coding = Coding(codec, options, dtype is not None)
    with contextlib.ExitStack() as stack:
        members = [m for file in files for m in stack.enter_context(open_arrays(file))]
        kind = _container(out, members, names)
        with naming(files):
            chosen = _select(members, names, out, kind, coding)
        outs = out_files(out, [member.name for member in chosen], ".npz")
        refuse_overwriting(outs if kind is None else [out], files, force)
        if not is_folder(out) and out.endswith(".npy"):
            raise Failure(f"{out}: packed arrays are .npz or .safetensors; expected such an OUT")
        if kind is not None:
            _encode_all(chosen, out, kind, coding, bool(names), sync)
            return
        make_folder(out)
        for member, out_file in zip(chosen, outs, strict=True):
            _encode(member, out_file, coding, sync)


class Coding(NamedTuple):
    """A codec with options; raw: raw two-byte elements are bfloat16."""

    codec: str
    options: dict[str, object]
    raw: bool


def _required_out(files: tuple[str, ...], out: str | None, example: str) -> str:
    """Return OUT; refuse a command with fewer than two paths; example: of an OUT, for messages."""
    if out is None:
        raise click.UsageError(f"expected FILE and OUT, such as FILE {example}")
    if not files:
        raise click.UsageError(f"{out}: where to? give OUT behind FILE, such as {example}")
    return out


def _container(out: str, members: Sequence[Member], names: tuple[str, ...]) -> str | None:
    """Return ".npz" or ".safetensors" if OUT becomes a packed file, which may hold several arrays
    and uncoded ones; None if it becomes one packed array or a folder of them.

    names: those of --name.
    """
    ending = Path(out).suffix
    if is_folder(out) or ending not in CONTAINERS:
        return None
    n = len(names) or len(members)
    return ending if ending == ".safetensors" or n > 1 else None


def _check_options(codec: str, options: Mapping[str, object]) -> None:
    """Refuse options that the codec does not have."""
    known = {
        name: {attribute.name for attribute in each.encoder.declaration.attributes}
        for name, each in CODECS.items()
    }
    for option in options:
        have = [name for name, attributes in known.items() if option in attributes]
        if codec not in have:
            raise click.UsageError(
                f"--zero-nonfinite goes with {', '.join(have)}, not with {codec}"
            )


@click.command()
@click.argument("files", nargs=-1, type=file_type, metavar="FILE...")
@click.argument("out", required=False, type=file_type, metavar="OUT")
@click.option(
    "--name",
    "only",
    multiple=True,
    type=ArrayName(),
    help="Only this array; may be given more than once.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(WRITERS)),
    help="Of OUT, where its ending does not say it.  [default: npy]",
)
@force_option
@sync_option
def decode(
    files: tuple[str, ...],
    out: str | None,
    only: tuple[str, ...],
    form: str | None,
    force: bool,
    sync: bool,
) -> None:
    """Decode packed files into .npy, .npz or .safetensors.

    The ending of OUT says which. .npz and .safetensors hold several arrays: all of a packed file,
    or those of --name, and each packed array by its file's; a .safetensors also the texts of its
    metadata. A folder as OUT (it exists, or ends in /) gets a file for each array. "-" is stdin and
    stdout.

    OUT is written whole or not at all. Runs on the CPU provider. bfloat16 stays bfloat16 in
    .safetensors; NumPy's files have no name for it and keep its bytes as raw two-byte elements,
    '<V2', as numpy.save does: `array.view(ml_dtypes.bfloat16)` in Python, --dtype bfloat16 here.
    """
    out = _required_out(files, out, "OUT.npy")
    ending = Path(out).suffix.removeprefix(".")
    form = form or (ending if ending in WRITERS else "npy")
    if not is_folder(out):
        refuse_overwriting([out], files, force)
    arrays: list[tuple[str, Item]] = []
    metadata: dict[str, str] = {}
    for file in files:
        content = read_packed(file)
        if isinstance(content, Packed):
            arrays.append((name_of(stem(file)), content))
        else:
            arrays += content.items.items()
            metadata |= content.metadata
    if only:
        with naming(files):
            check_names([name for name, _ in arrays], only)
        arrays = [(name, item) for name, item in arrays if name in only]
    names = [name for name, _ in arrays]
    _refuse_names(names, files, out, form)
    if not is_folder(out):
        _decode(out, arrays, metadata, form, sync)
        return
    outs = out_files(out, names, f".{form}")
    refuse_overwriting(outs, files, force)
    make_folder(out)
    for out_file, array in zip(outs, arrays, strict=True):
        _decode(out_file, [array], metadata, form, sync)


def _packed(member: Member, coding: Coding) -> Packed:
    """Read an array and encode it by the codec of `coding`, with a progress bar.

    Raises Failure if the codec does not take its type.
    """
    array = member.read(coding.raw)
    try:
        with progress_bar(array.size, "encoding") as advance:
            packed = encode_in_parts(array, coding.codec, coding.options, advance)
    except DtypeError:
        codec = get_codec(coding.codec)
        reason = why_left_out(member, [codec], coding.raw)
        types = ", ".join(map(dtype_name, codec.dtypes))
        where = f"{member.file}: {cut(member.name)}"
        raise Failure(f"{where}: {reason}; expected {types}") from None
    if coding.options:
        _say_zeros(member, array)
    return packed


def _say_zeros(member: Member, array: NumpyArray) -> None:
    """Say on stderr how many values of an array --zero-nonfinite made zeros.

    They are all in the tiles of 8 that have a NaN or an |x| of 2^128 or more.
    """
    flat, zeros, nonfinite = array.reshape(-1), 0, 0
    for first in range(0, flat.size, PART):
        lost = ~(np.abs(flat[first : first + PART].astype(np.float64)) < 2.0**128)
        if lost.any():
            tiles = np.pad(lost, (0, -lost.size % 8)).reshape(-1, 8).any(1)
            zeros += int(np.repeat(tiles, 8)[: lost.size].sum())
            nonfinite += int(lost.sum())
    if zeros:
        what = f"{zeros} values became zeros, the tiles of {nonfinite} infinities and NaN"
        say(f"{member.file}: {cut(member.name)}: {what} (--zero-nonfinite)", err=True)


def _encode(member: Member, out: str, coding: Coding, sync: bool) -> None:
    """Encode one array by the codec of `coding` into the file `out`, a packed array."""
    packed = _packed(member, coding)
    with open_out(out, sync) as stream:
        packed.save(stream)
    say_done(
        out,
        f"{coding.codec} of {packed.dtype} {packed.shape}, "
        f"{packed.original_nbytes} to {packed.nbytes} bytes, ratio {packed.ratio:.1f}",
    )


def _encode_all(
    members: Sequence[Member], out: str, kind: str, coding: Coding, named: bool, sync: bool
) -> None:
    """Encode members by the codec of `coding` into the packed file `out`; kind: its ending.

    named: they are those of --name; one that cannot be encoded is refused, not stored as it is.
    """
    items: dict[str, Item] = {}
    metadata: dict[str, str] = {}
    if kind == ".safetensors":
        with naming((out,)):
            _refuse_types(members, coding)
    for member in members:
        if member.name in items:
            raise Failure(f"{out}: two arrays are called {member.name!r}; expected different names")
        items[member.name] = _item(member, coding, named)
        metadata |= member.texts
    with open_out(out, sync) as stream, naming((out,)):
        CONTAINERS[kind](stream, packed_file.PackedFile(items, metadata))
    coded = sum(isinstance(item, Packed) for item in items.values())
    before = sum(item.original_nbytes for item in items.values())
    after = sum(item.nbytes for item in items.values())
    ratio = before / after if after else 1.0
    others = f", {len(items) - coded} as they are" if coded < len(items) else ""
    arrays = f"{coding.codec} of {coded} array{'s' * (coded != 1)}{others}"
    say_done(out, f"{arrays}, {before} to {after} bytes, ratio {ratio:.1f}")


def _refuse_types(members: Sequence[Member], coding: Coding) -> None:
    """Raise Failure for an array of a type that `.safetensors` lacks, before any is encoded."""
    for member in members:
        dtype = member.dtype(coding.raw)
        if dtype is not None and not isinstance(member.unread, Tensor):
            try:
                type_name(dtype)
            except ArgumentError as error:
                raise Failure(f"{cut(member.name)}: {error}") from None


def _item(member: Member, coding: Coding, named: bool) -> Item:
    """Return a member encoded, or as it is if coding.codec does not take it or saves no bytes.

    Says on stderr why it is as it is. named: raise Failure instead, and ignore the bytes.
    """
    reason = why_left_out(member, [get_codec(coding.codec)], coding.raw)
    if reason is None:
        packed = _packed(member, coding)
        if named or packed.nbytes < packed.original_nbytes:
            return packed
        reason = f"{packed.nbytes} bytes of codes for {packed.original_nbytes}"
    elif named:
        what = f"{cut(member.name)}: {reason}; without --name it is stored as it is"
        raise Failure(f"{member.file}: {what}")
    say(f"{member.file}: {cut(member.name)}: stored as it is: {reason}", err=True)
    return member.uncoded(coding.raw)


def _decode(out: str, arrays: Arrays, metadata: Mapping[str, str], form: str, sync: bool) -> None:
    """Decode arrays into the file `out`, and say so.

    metadata: texts for a .safetensors. form: "npy", "npz" or "safetensors".
    """
    for name, item in arrays:
        _say_raw(out, name, item, form)
    if metadata and form != "safetensors":
        say(f"{out}: .{form} has no metadata; {len(metadata)} texts are left out", err=True)
    size = sum(math.prod(item.shape) for _, item in arrays)
    with open_out(out, sync) as stream, progress_bar(size, "decoding") as advance, naming((out,)):
        WRITERS[form](stream, arrays, metadata, advance)
    for name, item in arrays:
        which = f"{name}: " if len(arrays) > 1 else ""
        if isinstance(item, Packed):
            say_done(out, f"{which}{item.dtype} {item.shape} from {item.codec}")
        else:
            kind = item.type if item.dtype is None else dtype_name(item.dtype)
            say_done(out, f"{which}{kind} {item.shape} as it was")


def _say_raw(out: str, name: str, item: Item, form: str) -> None:
    """Say on stderr if an array's type is written as raw bytes, as NumPy's files lack it.

    form: "npy", "npz" or "safetensors", which has all types.
    """
    if form == "safetensors":
        return
    dtype = to_dtype(item.dtype) if isinstance(item, Packed) else item.dtype
    if dtype == BFLOAT16:
        say(
            f"{out}: {name}: bfloat16 is written as raw two-byte elements ('<V2'), "
            "which --dtype bfloat16 reads; .safetensors names it",
            err=True,
        )
    elif dtype is None or dtype in safetensors_file.FP8.values():
        kind = item.type if isinstance(item, Uncoded) else item.dtype
        say(f"{out}: {name}: {kind} is written as raw bytes; .safetensors names it", err=True)


def _refuse_names(names: list[str], files: tuple[str, ...], out: str, form: str) -> None:
    """Refuse several arrays for a .npy, and two of one name for .npz and .safetensors.

    names: of the arrays to be written to `out` in the format `form`.
    """
    if is_folder(out):
        return
    if form == "npy" and len(names) != 1:
        what = f"{', '.join(files)} holds {len(names)}" if len(files) == 1 else f"got {len(names)}"
        raise Failure(
            f"{out}: .npy holds one array, {what}; expected a folder, .npz or .safetensors"
        )
    for name in names:
        if names.count(name) > 1:
            raise Failure(f"{out}: two arrays would be called {name!r}; expected different names")


def _select(
    members: list[Member], names: tuple[str, ...], out: str, kind: str | None, coding: Coding
) -> list[Member]:
    """Return the arrays to encode: those of --name; else the only one, or all if OUT holds several.

    kind: ending of a packed file, which also holds arrays that the codec does not take; else None.
    """
    chosen = select(members, names) if names else members
    if kind is not None:
        chosen = [m for m in chosen if _is_array(m, coding, bool(names))]
    elif is_folder(out) and not names:
        chosen = _fitting(members, coding)
    elif not chosen:
        raise Failure("no array in it")
    elif not is_folder(out) and len(chosen) != 1:
        hint = names_hint([member.name for member in chosen])
        how = "give --name, or OUT as .npz, .safetensors or a folder"
        raise Failure(f"{out} holds one array; {how}; {hint}")
    _check_raw(chosen, coding.raw)
    return chosen


def _is_array(member: Member, coding: Coding, named: bool) -> bool:
    """Return True if a member is an array, which a packed file can hold.

    Else raise Failure if it is `named`, one of --name, or say on stderr that it is skipped.
    """
    if isinstance(member.unread, Tensor) or member.dtype(coding.raw) is not None:
        return True
    if named:
        raise Failure(f"{cut(member.name)}: no array")
    member.skip("no array")
    return False


def _fitting(members: list[Member], coding: Coding) -> list[Member]:
    """Return the arrays that coding.codec takes; say on stderr why others are skipped."""
    fitting = []
    for member in members:
        reason = why_left_out(member, [get_codec(coding.codec)], coding.raw)
        if reason is None:
            fitting.append(member)
        else:
            member.skip(reason)
    if not fitting:
        raise Failure(f"no array that {coding.codec} takes")
    return fitting


def _check_raw(chosen: list[Member], raw: bool) -> None:
    """Refuse --dtype bfloat16 (`raw`) if no array that was chosen has raw two-byte elements."""
    if raw and all(member.dtype(raw) != BFLOAT16 for member in chosen):
        raise Failure(f"--dtype: expected raw two-byte elements, got {chosen[0].dtype(raw)}")


# ---- info ----------------------------------------------------------------------------------------


@click.command()
@click.argument("files", nargs=-1, required=True, type=file_type, metavar="FILE...")
@json_option
def info(files: tuple[str, ...], as_json: bool) -> None:
    """Say what a file holds, packed or not.

    FILE is a packed array or file, .npy, .npz or .safetensors; "-" is stdin. A packed one is read
    whole, so that damage is found. A file that cannot be read does not keep others from it.
    """
    lines = JsonLines("info", processor()) if as_json else None
    unreadable = []
    for file in files:
        try:
            with open_contents(file) as content:
                if lines is None:
                    _print(file, content)
                else:
                    _write_json(lines, file, content)
        except (Failure, ArgumentError) as error:
            unreadable.append(str(error))
    if unreadable:
        raise Failure("; ".join(unreadable))


def _write_json(
    lines: JsonLines, file: str, content: Packed | PackedFile | Sequence[Member]
) -> None:
    """Print, by `lines`, a JSON object for each array of a file's content, packed or not."""
    if isinstance(content, Packed):
        lines.write("packed", file=file, **_packed_fields(content))
    elif isinstance(content, PackedFile):
        for name, item in content.items.items():
            if isinstance(item, Packed):
                lines.write("packed", file=file, **_packed_fields(item, name))
            else:
                lines.write("array", file=file, **_uncoded_fields(name, item))
    else:
        for member in content:
            lines.write("array", file=file, **_array_fields(member))


def _print(file: str, content: Packed | PackedFile | Sequence[Member]) -> None:
    """Print a line about a file and a table of its content, or lines about its packed array."""
    if isinstance(content, PackedFile):
        items = content.items
        texts = f", {len(content.metadata)} texts" if content.metadata else ""
        say(f"{file}: packed file, {len(items)} array{'s' * (len(items) != 1)}{texts}")
        rows = [_item_row(name, item) for name, item in items.items()]
        for line in align([("array", "codec", "dtype", "shape", "bytes", "codes"), *rows], left=4):
            click.echo(f"  {line}")
    elif isinstance(content, Packed):
        say(f"{file}: packed array")
        for line in _packed_lines(content):
            click.echo(f"  {line}")
    else:
        rows = [tuple(map(_cell, _array_fields(member).values())) for member in content]
        say(f"{file}: {len(content)} array{'s' * (len(content) != 1)}")
        for line in align([("array", "dtype", "shape", "bytes"), *rows], left=3):
            click.echo(f"  {line}")


def _item_row(name: str, item: Item) -> tuple[str, ...]:
    """Return cells: array, codec, dtype, shape, bytes before, bytes of codes."""
    if isinstance(item, Packed):
        about = (item.codec, item.dtype, item.shape, item.original_nbytes, item.nbytes)
    else:
        fields = _uncoded_fields(name, item)
        about = ("-", fields["dtype"], item.shape, item.nbytes, item.nbytes)
    return tuple(map(_cell, (name, *about)))


def _uncoded_fields(name: str, item: Uncoded) -> dict[str, Any]:
    """Return the JSON fields of an uncoded array, also of a type that NumPy lacks."""
    kind = item.type if item.dtype is None else dtype_name(item.dtype)
    return {"array": name, "dtype": kind, "shape": item.shape, "nbytes": item.nbytes}


def _packed_lines(packed: Packed) -> Iterator[str]:
    """Yield lines about a packed array: array, codes, codec, formula, error."""
    codec = get_codec(packed.codec)
    options = "".join(f", {name} {value}" for name, value in packed.options.items())
    yield f"array    {packed.dtype} {packed.shape}, {packed.original_nbytes} bytes"
    yield f"codes    {packed.nbytes} bytes, {packed.ratio:.1f} times smaller"
    yield f"codec    {codec.name}{options}"
    for name, text in (("formula", codec.formula), ("error", f"at most {codec.bound}")):
        yield from wrap(f"{name:8} {text}", 76)


def _packed_fields(packed: Packed, name: str | None = None) -> dict[str, Any]:
    """Return the JSON fields of a packed array; name: in a packed file, None outside of one."""
    return {
        "array": name,
        "codec": packed.codec,
        "options": packed.options,
        "dtype": packed.dtype,
        "shape": packed.shape,
        "nbytes_before": packed.original_nbytes,
        "nbytes_after": packed.nbytes,
        "ratio": packed.ratio,
    }


def _array_fields(member: Member) -> dict[str, Any]:
    """Return the JSON fields of a member of a file, without reading it; None if it is no array."""
    if isinstance(member.unread, Tensor) and not member.unread.is_array():
        return _uncoded_fields(member.name, Uncoded.of_tensor(member.unread))
    if not member.unread.is_array():
        return {"array": member.name, "dtype": None, "shape": None, "nbytes": None}
    shape, dtype, _ = member.unread.header()
    nbytes = math.prod(shape) * dtype.itemsize
    return {"array": member.name, "dtype": str(dtype), "shape": shape, "nbytes": nbytes}


def _cell(value: object) -> str:
    """Return a cell of a table, "-" for None."""
    return "-" if value is None else printable(str(value))
