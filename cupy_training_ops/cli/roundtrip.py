# SPDX-License-Identifier: MIT
"""`roundtrip`: every codec on every array, checked against the bound that it states."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click
import numpy as np

from ..codecs import CODECS
from ..declare import schema
from ..dtypes import BFLOAT16, FLOAT32, FLOATS, dtype_name, to_dtype
from ..errors import ArgumentError, printable
from .errors import CHECK_FAILED, Failure
from .inputs import file_type, open_arrays, why_left_out
from .machine import array_library, computing, provider_option
from .outputs import force_option
from .parameter_types import OneOf, nonfinite_option
from .peers import Peer, against_option
from .report import (
    Plot,
    Tried,
    array_lines,
    plot_option,
    summary_lines,
    trial_fields,
    trials_of,
)
from .terminal import JsonLines, json_option, progress_bar
from .trial import DISTRIBUTIONS, Quality, Settings, Subject, Summary, generate, run

# Codecs tried without --codec.
OF_FLOATS = tuple(name for name, codec in CODECS.items() if FLOAT32 in codec.dtypes)


def parsed_shape(_: click.Context, __: click.Parameter, text: str | None) -> Any:
    """Convert the option `--shape 8,128` to (8, 128); None if it is not there."""
    try:
        return None if text is None else schema.shape([int(part) for part in text.split(",")])
    except ArgumentError as error:
        raise click.BadParameter(str(error)) from None
    except ValueError:
        raise click.BadParameter(f"expected extents such as 8,128, got {text!r}") from None


def not_nan(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Return the number of an option; refuse NaN."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("expected a number, got nan")
    return value


@click.command()
@click.argument("files", nargs=-1, type=file_type, metavar="[FILE]...")
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    type=OneOf("codec", CODECS),
    metavar="CODEC",
    help=f"Only this codec, of {', '.join(CODECS)}; may be given more than once.",
)
@against_option
@provider_option
@click.option(
    "--min-snr",
    type=float,
    metavar="DB",
    callback=not_nan,
    help="Quality that every codec has to reach.",
)
@click.option(
    "--max-abs", type=click.FloatRange(0), callback=not_nan, help="An error that none may exceed."
)
@nonfinite_option
@json_option
@plot_option
@force_option
@click.option(
    "--dtype",
    type=click.Choice([dtype_name(dtype) for dtype in FLOATS]),
    help="Of made data; with FILE, bfloat16 reads raw two-byte arrays as such.",
)
@click.option("--shape", callback=parsed_shape, help="Of made data, such as 8,128.")
@click.option("--distribution", type=click.Choice(DISTRIBUTIONS), help="Of made data.")
@click.option("--seed", type=click.IntRange(0), help="Of made data.")
def roundtrip(
    files: tuple[str, ...],
    codecs: tuple[str, ...],
    against: tuple[Peer, ...],
    provider: str,
    min_snr: float | None,
    max_abs: float | None,
    keep_nonfinite: bool,
    as_json: bool,
    plot: str | None,
    force: bool,
    dtype: str | None,
    **random: Any,
) -> None:
    """Try codecs on arrays: what each saves, keeps and costs.

    Every floating-point array of each FILE (.npy, .npz, .safetensors; - is stdin) goes through
    every codec of such and back, or through those of --codec with whatever arrays they take; others
    are skipped with a line on stderr. Without FILE, data is made. Exit code 1 where a codec misses
    the bound it states, or the quality that --min-snr and --max-abs ask for; `cupy-training-ops ops
    GistPack8Encoder` and its kin give the bounds.

    \b
    max abs error  the largest |decoded - x| of values finite on both sides; "-"
                   for binarize and pack1, which keep x > 0 and not x: that is
                   what is checked, and no quality is asked of them
    RMSE           the root of the mean squared error, of the same values
    cosine         of the angle between x and decoded
    SNR dB         signal to noise; inf where nothing was lost
    zeros kept     share of the zeros that come back as zeros
    ms             median time; on the CPU of one run for more than 4 million
                   values; on a GPU between CUDA events, where a small array
                   shows the time of a launch and not of its memory

    Recommended is the codec that reaches the quality asked for, or 30 dB, in the fewest bytes.
    """
    drawing = Plot(plot, files, force) if plot is not None else None
    xp = array_library(provider)
    used = "cpu" if xp is np else "cuda"
    settings = Settings(keep_nonfinite, Quality(min_snr, max_abs))
    subjects = _subjects(files, codecs, dtype, random)
    trials = _trials(subjects, codecs or OF_FLOATS, against, settings, xp)
    summary = Summary(settings.quality)
    if as_json:
        lines = JsonLines("roundtrip", computing(xp), xp is not np, asked=str(summary.quality))
        _print_json(trials, summary, used, lines)
    else:
        _print_tables(trials, summary, used)
    if drawing:
        drawing.draw(summary)
    if summary.has_failed():
        raise click.exceptions.Exit(CHECK_FAILED)


Trials = Iterator[tuple[Subject, Tried]]


def _trials(
    subjects: list[Subject],
    codecs: tuple[str, ...],
    against: tuple[Peer, ...],
    settings: Settings,
    xp: Any,
) -> Trials:
    """Yield (array, results) of each array: of all codecs, then of other libraries (`against`).

    settings: options of all codecs. xp: NumPy or CuPy, where codecs run. A progress bar is shown
    for each array.
    """
    for subject in subjects:
        size = subject.array.size
        n = len(codecs) + len(against)
        with progress_bar(n * size, printable(subject.name)) as advance:
            tried = [run(subject, codec, settings, xp, advance) for codec in codecs]
            for peer in against:
                tried.append(peer.run(subject))
                advance(size)
        yield subject, tried


def _print_tables(trials: Trials, summary: Summary, provider: str) -> None:
    """Print each array's table as soon as it was tried, then the summary, which this fills.

    trials: (array, its results) one after the other. provider: "cpu" or "cuda".
    """
    for subject, tried in trials:
        summary.add(subject, trials_of(tried))
        click.echo("\n".join(array_lines(subject, tried)) + "\n")
    click.echo("\n".join(summary_lines(summary, provider)))


def _print_json(trials: Trials, summary: Summary, provider: str, lines: JsonLines) -> None:
    """Print trials and recommendations as JSON `lines` as they come, then totals; fill the summary.

    provider: "cpu" or "cuda".
    """
    for subject, tried in trials:
        for trial in tried:
            lines.write("trial", **trial_fields(subject, trial, provider))
        added = summary.add(subject, trials_of(tried))
        lines.write("recommendation", array=added.name, **asdict(added.recommendation))
    for total in summary.codecs():
        lines.write("total", **asdict(total), ratio=total.ratio)
    before, after = summary.recommended_nbytes()
    lines.write("recommended", nbytes_before=before, nbytes_after=after, ratio=summary.ratio())


def _subjects(
    files: tuple[str, ...], codecs: tuple[str, ...], dtype: str | None, random: dict[str, Any]
) -> list[Subject]:
    """Return the arrays to try: those of files, else one of random numbers.

    codecs: of --codec, () for any. dtype: of --dtype. random: the options shape, distribution and
    seed.
    """
    if not files:
        return [_random_subject(dtype or "float32", **random)]
    if dtype not in (None, "bfloat16") or any(value is not None for value in random.values()):
        raise click.UsageError(
            "with FILE there is no --shape, --distribution or --seed, and --dtype is bfloat16"
        )
    raw = dtype is not None
    subjects = [s for file in files for s in _subjects_of(file, codecs, raw, len(files) > 1)]
    if not subjects:
        raise Failure(f"{', '.join(files)}: no array to try")
    if raw and all(subject.array.dtype != BFLOAT16 for subject in subjects):
        raise Failure(f"{', '.join(files)}: --dtype: no raw two-byte elements")
    return subjects


def _random_subject(
    dtype: str, shape: Any = None, distribution: str | None = None, seed: int | None = None
) -> Subject:
    """Return an array of random numbers of one of DISTRIBUTIONS, by default 512 x 1024 normal."""
    distribution = distribution or "normal"
    shape = (512, 1024) if shape is None else shape
    return Subject(distribution, generate(distribution, shape, to_dtype(dtype), seed or 0))


def _subjects_of(file: str, codecs: tuple[str, ...], raw: bool, several: bool) -> Iterator[Subject]:
    """Yield the arrays of a file that a codec takes; say on stderr why others are skipped.

    raw: two-byte elements are bfloat16. several: there are more files, so names include the file.
    """
    with open_arrays(file) as members:
        for member in members:
            reason = why_left_out(member, [CODECS[name] for name in codecs], raw)
            if reason is None:
                name = f"{file}:{member.name}" if several else member.name
                yield Subject(name, member.read(raw))
            else:
                member.skip(reason)
