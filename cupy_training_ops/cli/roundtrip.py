# SPDX-License-Identifier: MIT
"""`roundtrip`: every codec on every array, held to the bound it states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from .. import schema
from ..codecs import CODECS
from ..codecs.numpy_file import Stored
from ..dtypes import BFLOAT16, FLOATS, dtype_name, to_dtype
from ..errors import ArgumentError
from .errors import CHECK_FAILED, Failure
from .generate import DISTRIBUTIONS, generate
from .inputs import is_raw, opened, read
from .printable import printable, say
from .progress import advancing
from .provider import array_library, provider_option
from .report import as_objects, as_text
from .trial import Refusal, Subject, Trial, run


def parsed_shape(_: click.Context, __: click.Parameter, text: str | None) -> Any:
    """The option `--shape 8,128` as (8, 128)."""
    try:
        return None if text is None else schema.shape([int(part) for part in text.split(",")])
    except ArgumentError as error:
        raise click.BadParameter(str(error)) from None
    except ValueError:
        raise click.BadParameter(f"expected extents such as 8,128, got {text!r}") from None


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    type=click.Choice(list(CODECS)),
    help="Only this codec; may be given more than once.",
)
@provider_option
@click.option("--keep-nonfinite", is_flag=True, help="Let msfp15 make NaN of a tile it gives up.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="A JSON list, one object for each row; null where the table has inf or -.",
)
@click.option(
    "--dtype",
    type=click.Choice([dtype_name(dtype) for dtype in FLOATS]),
    help="Of made data; with FILE, bfloat16 reads raw two-byte arrays as such.",
)
@click.option("--shape", callback=parsed_shape, help="Of made data, such as 8,128.")
@click.option("--distribution", type=click.Choice(DISTRIBUTIONS), help="Of made data.")
@click.option("--seed", type=click.IntRange(0), help="Of made data.")
def roundtrip(
    files: tuple[Path, ...],
    codecs: tuple[str, ...],
    provider: str,
    keep_nonfinite: bool,
    as_json: bool,
    dtype: str | None,
    **making: Any,
) -> None:
    """Try codecs on arrays: what each saves, keeps and costs.

    Every floating-point array of each FILE (.npy or .npz) goes through every codec and back; others
    are skipped with a line on stderr. Without FILE, data is made. Exit code 1 where a codec misses
    the bound it states; `cupy-training-ops ops GistPack8Encoder` and its kin give the bounds.

    \b
    bits/value  bits stored for each value, padding included
    max error   the largest |decoded - x|, and that over |x|, of values finite on both sides;
                "-" for binarize and pack1, which keep x > 0 and not x: that is what is checked
    SNR dB      signal to noise, of the same values; inf where nothing was lost
    zeros kept  share of the zeros that come back as zeros
    overflow    values finite before and infinite after
    dropped     finite values given up with a non-finite one in their msfp15 tile of eight
    ms, GB/s    median time, and bytes read and written in it; on the CPU one run for more than 4
                million values; on a GPU between CUDA events, where a small array shows the time of
                a launch and not of its memory
    """
    xp = array_library(provider)
    used = "cpu" if xp is np else "cuda"
    trials = _trials(_subjects(files, dtype, making), codecs or tuple(CODECS), keep_nonfinite, xp)
    failed = _print_json(trials, used) if as_json else _print_tables(trials, used)
    if failed:
        raise click.exceptions.Exit(CHECK_FAILED)


Trials = Iterator[tuple[Subject, list[Trial | Refusal]]]


def _trials(
    subjects: list[Subject], codecs: tuple[str, ...], keep_nonfinite: bool, xp: Any
) -> Trials:
    for subject in subjects:
        with advancing(len(codecs) * subject.array.size, printable(subject.name)) as advance:
            tried = [run(subject, codec, keep_nonfinite, xp, advance) for codec in codecs]
        yield subject, tried


def _print_tables(trials: Trials, provider: str) -> bool:
    """Each array's table as soon as it is there; whether a verdict was FAIL."""
    failed = False
    for number, (subject, tried) in enumerate(trials):
        click.echo("\n" * bool(number) + "\n".join(as_text(subject, tried, provider)))
        failed |= any(trial.verdict == "FAIL" for trial in tried)
    return failed


def _print_json(trials: Trials, provider: str) -> bool:
    rows = [row for subject, tried in trials for row in as_objects(subject, tried, provider)]
    click.echo(json.dumps(rows, indent=1, allow_nan=False))
    return any(row["verdict"] == "FAIL" for row in rows)


def _subjects(files: tuple[Path, ...], dtype: str | None, making: dict[str, Any]) -> list[Subject]:
    if not files:
        return [_made(dtype or "float32", **making)]
    if dtype not in (None, "bfloat16") or any(value is not None for value in making.values()):
        raise click.UsageError(
            "with FILE there is no --shape, --distribution or --seed, and --dtype is bfloat16"
        )
    found = [s for path in files for s in _floating(path, dtype is not None, len(files) > 1)]
    if not found:
        raise Failure(f"{', '.join(map(str, files))}: no floating-point array")
    if dtype is not None and all(subject.array.dtype != BFLOAT16 for subject in found):
        raise Failure(f"{', '.join(map(str, files))}: --dtype: no raw two-byte elements")
    return found


def _made(
    dtype: str, shape: Any = None, distribution: str | None = None, seed: int | None = None
) -> Subject:
    distribution = distribution or "normal"
    shape = (512, 1024) if shape is None else shape
    return Subject(distribution, generate(distribution, shape, to_dtype(dtype), seed or 0))


def _floating(path: Path, raw: bool, several: bool) -> Iterator[Subject]:
    """The floating-point arrays of a file; says on stderr what it leaves out."""
    with opened(path) as arrays:
        for name, stored in arrays.items():
            reason = _no_subject(stored, raw)
            if reason is None:
                array = read(stored)
                array = array.view(BFLOAT16) if raw and is_raw(array.dtype) else array
                yield Subject(f"{path}:{name}" if several else name, array)
            else:
                say(f"{path}: {name}: skipped: {reason}", err=True)


def _no_subject(stored: Stored, raw: bool) -> str | None:
    """Why no codec takes what a file holds, without reading it; or None."""
    if not stored.is_array():
        return "no array"
    dtype = stored.header().dtype
    if dtype.kind == "f" or (raw and is_raw(dtype)):
        return None
    hint = "; --dtype bfloat16 reads raw two-byte arrays" if dtype == "V2" else ""
    return f"{dtype} is no floating-point type{hint}"
