# SPDX-License-Identifier: MIT
"""The figure of the codecs is that of its data, and the data that of codecs and GPU runs."""

from __future__ import annotations

import json

import plot_codecs
import pytest

FIGURES = json.loads(plot_codecs.FIGURES.read_text("utf-8"))


def test_the_picture_shows_the_committed_figures() -> None:
    """It says so itself; `python scripts/plot_codecs.py` draws it anew."""
    assert plot_codecs.fingerprint().encode() in plot_codecs.PICTURE.read_bytes()


def test_the_figures_are_what_is_measured() -> None:
    """`python scripts/plot_codecs.py --measure` measures them anew."""
    measured = plot_codecs.measured()
    assert measured["speeds"] == FIGURES["speeds"]
    assert measured["codecs"].keys() == FIGURES["codecs"].keys()
    for name, codec in measured["codecs"].items():
        for key, value in flat(codec).items():
            assert flat(FIGURES["codecs"][name])[key] == pytest.approx(value, abs=0.11), (name, key)


def flat(codec) -> dict:
    arrays = codec["arrays"].items()
    actual = {(key, what): value for key, each in arrays for what, value in each.items()}
    return actual | {way: gb for way, gb in codec.items() if way != "arrays"}


@pytest.mark.thorough
def test_drawing(tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot brings it")
    plot_codecs.draw(FIGURES, tmp_path / "codecs.png")
    assert (tmp_path / "codecs.png").read_bytes().startswith(b"\x89PNG")


def test_the_readme_says_what_the_picture_shows() -> None:
    readme = " ".join((plot_codecs.ROOT / "README.md").read_text("utf-8").split())
    codecs = FIGURES["codecs"]
    for name, times in (("msfp15", 2), ("pack16", 1)):
        decibels = [snr for _, snr in plot_codecs.points(codecs[name])]
        assert readme.count(f"{min(decibels):.0f} to {max(decibels):.0f} dB") == times
    for way in ("encode", "decode"):
        speeds = [codec[way] for codec in codecs.values() if way in codec]
        assert f"{min(speeds)} to {max(speeds)}" in readme
    assert f"a copy at {FIGURES['speeds']['copy_gb_per_s']}." in readme
