# SPDX-License-Identifier: MIT
"""`roundtrip --plot`: a point for each codec that keeps values, on each array."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cupy_training_ops.cli import main, report
from cupy_training_ops.cli.roundtrip import OF_FLOATS
from cupy_training_ops.cli.trial import Quality

from .test_files import assert_refused


@pytest.fixture
def folder(rng, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=rng.standard_normal((9, 11)), ones=np.ones(8), huge=np.full(8, 1e6))
    return tmp_path


def call(*arguments: str):
    command = ["roundtrip", "x.npz", "--provider", "cpu", *arguments]
    result = CliRunner().invoke(main, command)
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    return result


@pytest.fixture
def figure():
    return pytest.importorskip("matplotlib.figure", reason="in the extra `plot`").Figure()


@pytest.mark.usefixtures("figure", "folder")
def test_points_are_rate_and_distortion(monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(report, "_draw", lambda _, points, quality: drawn.append((points, quality)))
    result = call("--json", "--min-snr", "-1", "--plot", "out.svg")
    trials = [json.loads(line) for line in result.stdout.splitlines() if '"trial"' in line]
    expected: dict[str, list] = {}
    for trial in trials:
        if trial["codec"] not in ("binarize", "pack1"):
            actual = trial["snr_db"] or (-math.inf if trial["lost"] else math.inf)
            expected.setdefault(trial["codec"], []).append((trial["bits_per_value"], actual))
    ((points, quality),) = drawn
    assert points == expected
    assert {-math.inf, math.inf} < {snr for of_codec in points.values() for _, snr in of_codec}
    assert quality == Quality(min_snr=-1)


@pytest.mark.usefixtures("figure", "folder")
def test_a_picture_is_written_and_kept() -> None:
    result = call("--plot", "out.png", "--json")
    count = len(set(OF_FLOATS) - {"binarize", "pack1"})
    assert (result.exit_code, result.stderr) == (
        0,
        f"out.png: {3 * count} points of {count} codecs\n",
    )
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    assert_refused(call("--plot", "out.png"), "--force")
    assert call("--plot", "out.png", "--force", "--codec", "pack8").exit_code == 0


def test_all_that_is_drawn_has_a_name(figure) -> None:
    points = {"a": [(8.0, 30.0), (8.0, math.inf)], "b": [(4.0, -math.inf)]}
    report._draw(figure, points, Quality(min_snr=20))
    (axes,) = figure.axes
    named = [text.get_text() for text in axes.get_legend().get_texts()]
    assert named == ["a", "b", "nothing lost", "values lost", "20 dB"]
    heights = [list(line.get_ydata()) for line in axes.get_lines()[:2]]
    assert heights == [[30, 40], [20]]


@pytest.mark.usefixtures("figure")
def test_what_cannot_be_drawn_is_refused_before_anything_is_measured(folder, monkeypatch) -> None:
    monkeypatch.setattr("cupy_training_ops.cli.roundtrip.run", None)
    assert_refused(call("--plot", "x.npz"), "expected an ending among")
    assert_refused(call("--plot", "png"), "expected an ending among")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert_refused(call("--plot", "out.png"), "pip install 'cupy-training-ops[plot]'")
    assert sorted(path.name for path in folder.iterdir()) == ["x.npz"]
