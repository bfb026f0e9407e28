# SPDX-License-Identifier: MIT
"""Trials as tables of 80 columns for people, as fields for JSON, and as plots.

A trial is the result of one codec on a `subject`, an array with its name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..dtypes import dtype_name
from ..errors import printable
from .errors import Failure
from .outputs import open_out, refuse_overwriting
from .terminal import align, say, wrap
from .trial import OneArray, Quality, Refusal, Subject, Summary, Trial, is_measured, snr_db

Point = tuple[float, float]  # bits per value, dB
MARKERS = "osD^vPX*<>hpd"  # matplotlib's, one a codec
EDGES = {math.inf: "nothing lost", -math.inf: "values lost"}  # labels of infinite ratios
BEYOND = 10.0  # dB from the finite ratios to the line of infinite ones
Tried = Sequence[Trial | Refusal]
HEADINGS = (
    ("", "", "max abs", "", "", "SNR", "zeros", "encode", "decode", ""),
    ("codec", "ratio", "error", "RMSE", "cosine", "dB", "kept", "ms", "ms", "verdict"),
)
TOTAL_HEADINGS = ("codec", "arrays", "bytes before", "bytes after", "ratio", "lowest dB", "verdict")


def array_lines(subject: Subject, tried: Tried) -> Iterator[str]:
    """Yield a line about the array, a row for each codec tried, a line for each bad verdict."""
    trials = trials_of(tried)
    yield from wrap(_title(subject, trials))
    if trials:
        yield from align([*HEADINGS, *map(_row, trials)], gap=" ")
    for trial in trials:
        if trial.note:
            yield from wrap(f"{trial.name}: {trial.note}")
    refusing = [one.name for one in tried if isinstance(one, Refusal)]
    if refusing:
        yield from wrap(f"not for {dtype_name(subject.array.dtype)}: {', '.join(refusing)}")


def summary_lines(summary: Summary, provider: str) -> Iterator[str]:
    """Yield a table of each codec's totals, and lines with the codec recommended for each array.

    provider: "cpu" or "cuda".
    """
    count = len(summary.arrays)
    yield f"{count} array{'s' * (count != 1)}, provider {provider}"
    rows = [
        (t.codec, str(t.arrays), str(t.nbytes_before), str(t.nbytes_after), f"{t.ratio:.1f}",
         _number(t.lowest_snr_db, ".1f"), t.verdict)
        for t in summary.codecs()
    ]  # fmt: skip
    if rows:
        yield from align([TOTAL_HEADINGS, *rows])
    yield ""
    yield f"recommended for {summary.quality} (--min-snr and --max-abs ask for more or less):"
    best = [(array.name, array.recommendation) for array in summary.arrays]
    cells = [(printable(name), r.codec or "as it is", r.reason) for name, r in best]
    for line in align(cells, left=3):
        yield from wrap(line)
    before, after = summary.recommended_nbytes()
    yield from wrap(f"together {before} to {after} bytes, {summary.ratio():.1f} times smaller")
    sign = summary.sign_codec()
    if sign:
        yield from wrap(
            f"where the backward pass needs x > 0 alone, as ReLU's: {sign.codec}, "
            f"{sign.ratio:.1f} times smaller"
        )


def trial_fields(subject: Subject, trial: Trial | Refusal, provider: str) -> dict[str, Any]:
    """Return the JSON fields of a codec's result on an array; a refusal has no numbers.

    provider: "cpu" or "cuda".
    """
    about = {
        "array": subject.name,
        "dtype": dtype_name(subject.array.dtype),
        "shape": subject.array.shape,
        "codec": trial.name,
        "provider": provider,
        "verdict": trial.verdict,
        "note": trial.note,
    }
    return about | (_numbers(subject, trial) if isinstance(trial, Trial) else {})


def trials_of(tried: Tried) -> list[Trial]:
    """Return the trials without refusals."""
    return [one for one in tried if isinstance(one, Trial)]


def _title(subject: Subject, trials: Iterable[Trial]) -> str:
    """Return a line with an array's name, dtype, shape, bytes and number of non-finite values."""
    array = subject.array
    counts = {trial.fidelity.nonfinite for trial in trials} - {0}
    nonfinite = "".join(f", {count} non-finite" for count in counts)
    about = f"{dtype_name(array.dtype)} {array.shape}  {array.nbytes} bytes{nonfinite}"
    return f"{printable(subject.name)}  {about}"


def _row(trial: Trial) -> tuple[str, ...]:
    """Return the cells of a codec's result, below HEADINGS."""
    f = trial.fidelity
    return (
        trial.name,
        f"{trial.ratio:.1f}",
        _number(f.max_abs_error, ".1e"),
        _number(f.rmse, ".1e"),
        _number(f.cosine, ".5f"),
        _number(None if f.snr_db is None else snr_db(f), ".1f"),
        _number(f.zeros_kept, ".0%"),
        duration(trial.encode_s),
        duration(trial.decode_s),
        trial.verdict,
    )


def _numbers(subject: Subject, trial: Trial) -> dict[str, Any]:
    """Return the JSON fields of a trial: bytes, errors (those of Fidelity), times in seconds."""
    nbytes = subject.array.nbytes
    return {
        "nbytes_before": nbytes,
        "nbytes_after": trial.nbytes,
        "ratio": trial.ratio,
        "bits_per_value": bits_per_value(subject, trial),
        **asdict(trial.fidelity),
        "encode_s": trial.encode_s,
        "encode_gb_per_s": _rate(nbytes, trial, trial.encode_s),
        "decode_s": trial.decode_s,
        "decode_gb_per_s": _rate(nbytes, trial, trial.decode_s),
    }


def bits_per_value(subject: Subject, trial: Trial) -> float:
    """Return the bits stored for each value, padding included; of an empty array the codec's."""
    size = subject.array.size
    return 8 * trial.nbytes / size if size else float(trial.codec.bits)


def _rate(nbytes: int, trial: Trial, duration: float) -> float:
    """Return GB/s of the bytes read and written in `duration` seconds; nbytes: of the array."""
    return (nbytes + trial.nbytes) / duration / 1e9


def duration(seconds: float) -> str:
    """Return milliseconds as text, with fewer decimals the longer they are."""
    ms = 1e3 * seconds
    return f"{ms:.3f}" if ms < 10 else f"{ms:.1f}" if ms < 1000 else f"{ms:.0f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


# ---- plots ---------------------------------------------------------------------------------------


plot_option = click.option(
    "--plot", metavar="OUT", help="Draw rate against distortion into OUT (.png, .svg, .pdf)."
)


class Plot:
    """The file of a plot, checked before anything is measured."""

    def __init__(self, out: str, files: tuple[str, ...], force: bool) -> None:
        """out: path, whose ending is the format. files: inputs, which it must not overwrite.

        force: replace a file that exists.
        """
        self._out = out
        self._figure = _figure(out)
        self._format = Path(out).suffix.removeprefix(".").lower()
        known = self._figure.canvas.get_supported_filetypes()
        if self._format not in known:
            raise Failure(f"{out}: expected an ending among {', '.join(sorted(known))}")
        refuse_overwriting([out], files, force)

    def draw(self, summary: Summary) -> None:
        """Draw the codecs of a summary that keep values, not signs alone, and write the file."""
        points = points_of(summary.arrays)
        if not points:
            raise Failure(f"{self._out}: nothing to draw: no codec tried keeps values")
        _draw(self._figure, points, summary.quality)
        with open_out(self._out) as stream:
            self._figure.savefig(stream, format=self._format, dpi=150)
        drawn = f"{sum(map(len, points.values()))} points of {len(points)} codecs"
        say(f"{self._out}: {drawn}", err=True)


def points_of(arrays: Sequence[OneArray]) -> dict[str, list[Point]]:
    """Return {codec: a point for each array}; the dB are infinite if nothing was lost."""
    points: dict[str, list[Point]] = {}
    for array in arrays:
        for trial in array.trials:
            has_values = is_measured(trial.fidelity)
            if has_values and array.size:
                point = (8 * trial.nbytes / array.size, snr_db(trial.fidelity))
                points.setdefault(trial.name, []).append(point)
    return points


def _draw(figure: Any, points: dict[str, list[Point]], quality: Quality) -> None:
    """Draw each codec's points, and lines for infinite ratios and the quality asked for.

    figure: of matplotlib.
    """
    axes = figure.add_subplot(xlabel="bits per value", ylabel="signal to noise, dB")
    edges = _edges(snr for of_codec in points.values() for _, snr in of_codec)
    for marker, (codec, of_codec) in zip(itertools.cycle(MARKERS), points.items(), strict=False):
        bits, heights = zip(*of_codec, strict=True)
        axes.plot(bits, [edges.get(h, h) for h in heights], marker, label=codec, alpha=0.7)
    for snr, height in edges.items():
        axes.axhline(height, color="gray", linestyle=":", label=EDGES[snr])
    if quality.min_snr is not None:
        label = f"{quality.min_snr:g} dB"
        axes.axhline(quality.min_snr, color="gray", linestyle="--", label=label)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()


def _edges(snrs: Iterable[float]) -> dict[float, float]:
    """Return {inf: dB, -inf: dB}: where infinite ratios are drawn, beyond all finite ones.

    Those that are not among `snrs` are left out.
    """
    ratios = set(snrs)
    finite = [snr for snr in ratios if math.isfinite(snr)] or [0.0]
    heights = {math.inf: max(finite) + BEYOND, -math.inf: min(finite) - BEYOND}
    return {snr: height for snr, height in heights.items() if snr in ratios}


def _figure(out: str) -> Any:
    """Return an empty figure of matplotlib; Failure, naming the plot `out`, if that is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Failure(
            f"{out}: matplotlib is not here; install it with: pip install 'cupy-training-ops[plot]'"
        ) from None
    return Figure(figsize=(7, 5), layout="constrained")
