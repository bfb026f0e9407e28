# SPDX-License-Identifier: MIT
"""The figure of what codecs cost and keep: docs/codecs.png, from docs/codecs.json alone.

    pip install -e '.[plot]'
    python scripts/plot_codecs.py              draws the committed figures
    python scripts/plot_codecs.py --measure    measures them anew first

Errors are measured here, on the activations of tests/data. Speeds are those of float32 in
docs/benchmark.jsonl, which were measured on a GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click
import numpy as np
from benchmark_report import machine_line

from cupy_training_ops import CODECS, OpError, compress
from cupy_training_ops.codecs.fidelity import SIGN_CODECS

DATA = ROOT / "tests" / "data" / "digits_cnn_activations.npz"
FIGURES = ROOT / "docs" / "codecs.json"
PICTURE = ROOT / "docs" / "codecs.png"
BENCHMARK = ROOT / "docs" / "benchmark.jsonl"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")


def measured() -> dict[str, Any]:
    """Return the content of docs/codecs.json: errors on arrays of DATA, and measured speeds."""
    machine, *records = map(json.loads, BENCHMARK.read_text("utf-8").splitlines())
    line = machine_line([machine])
    rate = round(machine["copy_gb_per_s"])
    versions = line[line.index("driver") : line.index(", commit")]
    speeds = {
        r["case"]: round(r["floor_ms"] / r["ms"]["median"] * rate)
        for r in records
        if r["kind"] == "case"
    }
    return {
        "errors": {"data": str(DATA.relative_to(ROOT)), "numpy": np.__version__},
        "speeds": {
            "gpu": machine["gpu"], "versions": versions, "commit": machine["commit"],
            "date": machine["date"], "copy_gb_per_s": rate,
        },
        "codecs": {name: codec_figures(name, speeds) for name in CODECS},
    }  # fmt: skip


def codec_figures(name: str, speeds: dict[str, int]) -> dict[str, Any]:
    """Return a codec's bits a value and decibels for each array, and GB/s if they are known.

    speeds: GB/s by case of the benchmark.
    """
    with np.load(DATA) as arrays:
        floats = {key: arrays[key] for key in arrays if arrays[key].dtype.kind == "f"}
    results = {}
    for key, x in floats.items():
        with contextlib.suppress(OpError):  # of a codec of integers
            results[key] = array_figures(name, x)
    codec = CODECS[name]
    encodes = "f4,signs" if codec.fixed.get("keep_sign") else "f4"
    cases = {"encode": f"{codec.encoder.name}[{encodes}]", "decode": f"{codec.decoder.name}[f4]"}
    own = {way: speeds[case] for way, case in cases.items() if case in speeds}
    return {"arrays": results, **own}


def array_figures(name: str, x: np.ndarray) -> dict[str, float | None]:
    """Return bits a value and decibels, None for a codec of signs, or without any error."""
    packed = compress(x, name)
    noise = np.sum(np.square(packed.decompress().astype(np.float64) - x))
    keeps = noise > 0 and name not in SIGN_CODECS
    snr = 10 * math.log10(np.sum(np.square(x, dtype=np.float64)) / noise) if keeps else None
    return {"bits": round(8 * packed.nbytes / x.size, 2), "snr_db": snr and round(snr, 1)}


def draw(figures: dict[str, Any], picture: Path) -> None:
    """Draw the two panels into a PNG."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
        draw_errors(left, figures)
        draw_speeds(right, figures)
        notes = {"Software": None, "Description": fingerprint()}
        figure.savefig(picture, dpi=150, metadata=notes)


def draw_errors(axes: Any, figures: dict[str, Any]) -> None:
    """Draw decibels over bits a value: a point for each array, joined if all have the same bits."""
    lossy = {name: points(codec) for name, codec in figures["codecs"].items()}
    drawn: list[float] = []
    for colour, (name, at) in zip(COLOURS, ((n, p) for n, p in lossy.items() if p), strict=False):
        bits, decibels = (np.array(each) for each in zip(*sorted(at), strict=True))
        is_fixed = np.ptp(bits) < 0.5
        shift = 0.2 * sum(abs(bits.mean() - other) < 0.5 for other in drawn) if is_fixed else 0
        if is_fixed:  # the next one stands beside it, not upon it
            drawn.append(bits.mean())
        style = "o-" if is_fixed else "D"
        axes.plot(bits + shift, decibels, style, color=colour, ms=4.5, lw=1, label=name)
    axes.set(xlabel="bits a value (float32 has 32)", ylabel="signal to noise, dB", xlim=(0, 20))
    axes.set(ylim=(0, None), xticks=range(0, 21, 4))
    axes.set_title("What is kept: eight arrays of a small CNN", loc="left", fontsize=9)
    axes.legend(loc="lower right", fontsize=8, framealpha=1)
    axes.grid(alpha=0.3)


def points(codec: dict[str, Any]) -> list[tuple[float, float]]:
    """Return (bits, decibels) of each array that has decibels."""
    result = codec["arrays"].values()
    return [(each["bits"], each["snr_db"]) for each in result if each["snr_db"] is not None]


def draw_speeds(axes: Any, figures: dict[str, Any]) -> None:
    """Draw bars of GB/s of encoder and decoder, and a line at the copy rate."""
    known = {name: codec for name, codec in figures["codecs"].items() if "encode" in codec}
    rate = figures["speeds"]["copy_gb_per_s"]
    places = np.arange(len(known))
    for shift, way, colour in ((-0.2, "encode", "#0072b2"), (0.2, "decode", "#e69f00")):
        bars = axes.barh(places + shift, [c[way] for c in known.values()], 0.38, color=colour)
        axes.bar_label(bars, padding=-28, fontsize=8, color="white" if way == "encode" else "black")
        bars.set_label(way)
    axes.axvline(rate, color="black", linewidth=1, linestyle="--", label=f"copy, {rate}")
    axes.set_yticks(places, known)
    axes.invert_yaxis()
    date = figures["speeds"]["date"]
    axes.set(xlabel=f"GB/s read and written ({date})", xlim=(0, rate * 1.1))
    axes.set_title(f"How fast: {figures['speeds']['gpu']}, float32", loc="left", fontsize=9)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, fontsize=8, frameon=False)


def fingerprint() -> str:
    """Return a text that says which figures a picture shows: the hash of their file."""
    return f"docs/codecs.json {hashlib.sha256(FIGURES.read_bytes()).hexdigest()}"


@click.command()
@click.option("--measure", is_flag=True, help="Write docs/codecs.json first.")
def main(measure: bool) -> None:
    """Draw docs/codecs.png."""
    if measure:
        FIGURES.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    draw(json.loads(FIGURES.read_text("utf-8")), PICTURE)


if __name__ == "__main__":
    main()
