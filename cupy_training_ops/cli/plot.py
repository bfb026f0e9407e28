# SPDX-License-Identifier: MIT
"""`roundtrip --plot`: rate against distortion, a point for each codec on each array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from .errors import Failure
from .outputs import check, replaced
from .printable import say
from .recommend import Quality, keeps_values, snr_db
from .summary import OneArray, Summary

Point = tuple[float, float]  # bits per value, dB
MARKERS = "osD^vPX*<>hpd"
EDGES = {math.inf: "nothing lost", -math.inf: "values lost"}
BEYOND = 10.0  # dB

plot_option = click.option(
    "--plot", metavar="OUT", help="Draw rate against distortion into OUT (.png, .svg, .pdf)."
)


class Plot:
    """A place that can be drawn to, before anything is measured."""

    def __init__(self, out: str, files: tuple[str, ...], force: bool) -> None:
        self._out = out
        self._figure = _figure(out)
        self._format = Path(out).suffix.removeprefix(".").lower()
        known = self._figure.canvas.get_supported_filetypes()
        if self._format not in known:
            raise Failure(f"{out}: expected an ending among {', '.join(sorted(known))}")
        check([out], files, force)

    def draw(self, summary: Summary) -> None:
        """Draw the codecs that keep values."""
        points = points_of(summary.arrays)
        if not points:
            raise Failure(f"{self._out}: nothing to draw: no codec tried keeps values")
        _draw(self._figure, points, summary.quality)
        with replaced(self._out) as stream:
            self._figure.savefig(stream, format=self._format, dpi=150)
        drawn = f"{sum(map(len, points.values()))} points of {len(points)} codecs"
        say(f"{self._out}: {drawn}", err=True)


def points_of(arrays: Sequence[OneArray]) -> dict[str, list[Point]]:
    """Codec to its points; infinite where nothing was lost."""
    points: dict[str, list[Point]] = {}
    for array in arrays:
        for trial in array.trials:
            kept = keeps_values(trial.fidelity) or trial.fidelity.lost
            if kept and array.size:
                point = (8 * trial.nbytes / array.size, snr_db(trial.fidelity))
                points.setdefault(trial.name, []).append(point)
    return points


def _draw(figure: Any, points: dict[str, list[Point]], quality: Quality) -> None:
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
    """Where infinite ratios are drawn, of those there are: beyond all others."""
    found = set(snrs)
    finite = [snr for snr in found if math.isfinite(snr)] or [0.0]
    heights = {math.inf: max(finite) + BEYOND, -math.inf: min(finite) - BEYOND}
    return {snr: height for snr, height in heights.items() if snr in found}


def _figure(out: str) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Failure(
            f"{out}: matplotlib is not here; install it with: pip install 'cupy-training-ops[plot]'"
        ) from None
    return Figure(figsize=(7, 5), layout="constrained")
