# SPDX-License-Identifier: MIT
"""docs/codecs.json, which docs/codecs.png shows and README.md quotes: errors are those of today."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from cupy_training_ops import OpError, compress
from cupy_training_ops.codecs.fidelity import SIGN_CODECS

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "codecs.json"
FIGURES = json.loads(FILE.read_text("utf-8"))
CODEC_FIGURES = FIGURES["codecs"]


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    with np.load(ROOT / FIGURES["errors"]["data"]) as data:
        return {key: data[key] for key in data if data[key].dtype.kind == "f"}


def figures(name: str, x: np.ndarray) -> dict[str, float | None]:
    """Bits a value; decibels, or None of a codec that keeps the sign alone, or everything."""
    packed = compress(x, name)
    noise = np.sum(np.square(packed.decompress().astype(np.float64) - x))
    keeps = noise > 0 and name not in SIGN_CODECS
    snr = 10 * math.log10(np.sum(np.square(x, dtype=np.float64)) / noise) if keeps else None
    return {"bits": 8 * packed.nbytes / x.size, "snr_db": snr}


def test_the_picture_shows_the_committed_figures() -> None:
    """It says so itself."""
    said = f"docs/codecs.json {hashlib.sha256(FILE.read_bytes()).hexdigest()}"
    assert said.encode() in FILE.with_suffix(".png").read_bytes()


@pytest.mark.parametrize("name", CODEC_FIGURES)
def test_the_figures_are_what_is_measured(name, arrays) -> None:
    measured = {}
    for key, x in arrays.items():
        with contextlib.suppress(OpError):  # of a codec of integers
            measured[key] = figures(name, x)
    assert measured.keys() == CODEC_FIGURES[name]["arrays"].keys()
    for key, found in measured.items():
        assert found == pytest.approx(CODEC_FIGURES[name]["arrays"][key], abs=0.11), key


def test_the_readme_says_what_the_picture_shows() -> None:
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    for name, times in (("msfp15", 2), ("pack16", 1)):
        decibels = [found["snr_db"] for found in CODEC_FIGURES[name]["arrays"].values()]
        assert readme.count(f"{min(decibels):.0f} to {max(decibels):.0f} dB") == times
    for way in ("encode", "decode"):
        speeds = [codec[way] for codec in CODEC_FIGURES.values() if way in codec]
        assert f"{min(speeds)} to {max(speeds)}" in readme
    assert f"a copy at {FIGURES['speeds']['copy_gb_per_s']}." in readme
