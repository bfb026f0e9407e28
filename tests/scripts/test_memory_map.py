# SPDX-License-Identifier: MIT
"""The script that measures memory against time: its processes, its errors, its table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from memory_map import Measuring, Row, differences
from memory_map_report import comparison, draw, filled, panel_table, read, shares, tables

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "memory_map.py"
DOCS = SCRIPT.parents[1] / "docs"
ALONE = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

BUSY = """
import json, sys, time
def noted(seconds, name):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with open(sys.argv[1] + name, "a") as file:
            file.write(f"{time.monotonic()}\\n")
        time.sleep(0.01)
noted(0.2 if sys.argv[1].endswith("compiled") else 1, ".compiled")
began = time.monotonic()
print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
noted(0.3, ".timed")
print(json.dumps({"first_began": began, "first_s": 10.0}), flush=True)
"""


def made(folder: Path, way: str, code: str) -> Row:
    row = Row("gpt", way, folder, [])
    row.words = [sys.executable, "-c", code, str(folder / way)]
    np.savez(row.samples, weight=np.ones(3))
    return row


def measured(folder: Path, rows: list[Row], limit: float, seconds: float) -> list[dict[str, Any]]:
    measuring = Measuring(folder / "lines", folder, 1, limit)
    measuring.all(rows, jobs=len(rows), seconds=seconds)
    return [json.loads(line) for line in (folder / "lines").read_text().splitlines()]


def times(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().splitlines()]


def test_one_is_timed_and_all_others_stopped(tmp_path: Path) -> None:
    ways = ("compiled", "eager", "codes")
    lines = measured(tmp_path, [made(tmp_path, way, BUSY) for way in ways], 60, 60)
    assert {line["way"] for line in lines if line["kind"] == "row"} == set(ways)
    assert all(line["worst"] == 0 for line in lines if line["kind"] == "gradients")
    for way in ways:
        timed = times(tmp_path / f"{way}.timed")
        for other in set(ways) - {way}:
            for name in ("timed", "compiled"):
                between = [t for t in times(tmp_path / f"{other}.{name}") if t > timed[0]]
                assert not [t for t in between if t < timed[-1]]
    assert all(line["first_s"] <= 10 for line in lines if line["kind"] == "row")  # stops taken off


def test_a_first_call_is_stopped_for_the_seconds_within_it(tmp_path: Path) -> None:
    row = made(tmp_path, "eager", "")
    row.stops = [(1.0, 3.0), (5.0, 6.0)]
    assert [row.stopped(*times) for times in ((0,), (2, 5.5), (3.5, 4))] == [3.0, 1.5, 0.0]


def test_what_takes_too_long_is_ended_and_the_rest_named(tmp_path: Path) -> None:
    sleeping = "import time; time.sleep(600)"
    lines = measured(tmp_path, [made(tmp_path, "eager", sleeping)], 0.3, 60)
    assert [line["error"] for line in lines] == ["longer than 0 s"]
    late = [made(tmp_path, "codes", sleeping), made(tmp_path, "compiled", sleeping)]
    for each in late:
        each.gigabytes = 100  # one at a time
    lines = measured(tmp_path, late, 60, 0.5)[1:]
    assert lines[0]["error"] == "no time was left"
    assert lines[1] == {"kind": "skipped", "model": "gpt", "way": "compiled"}


def test_a_crash_says_its_last_words(tmp_path: Path) -> None:
    (line,) = measured(tmp_path, [made(tmp_path, "eager", "raise SystemExit('it broke')")], 60, 60)
    assert line["error"] == "ended with 1: it broke"


def test_memory_is_asked_for_alone_once_more(tmp_path: Path) -> None:
    code = """import json; print(json.dumps({"error": "OutOfMemoryError: full"}))"""
    tried = made(tmp_path, "eager", code)
    (line,) = measured(tmp_path, [tried], 60, 60)
    assert line["error"] == "OutOfMemoryError: full"
    assert tried.gigabytes > 100


def test_errors_of_gradients(tmp_path: Path) -> None:
    expected = {"near": np.array([3.0, 4.0]), "far": np.array([1.0, 0.0]), "none": np.zeros(2)}
    ours = {"near": np.array([3.0, 4.5]), "far": np.array([1.0, 0.5]), "none": np.zeros(2)}
    for name, arrays in (("expected", expected), ("ours", ours)):
        np.savez(tmp_path / f"{name}.npz", **arrays)
    line = differences(tmp_path / "ours.npz", tmp_path / "expected.npz")
    assert line == {"n": 2, "median": 0.3, "worst": 0.5, "worst_name": "far"}
    np.savez(tmp_path / "ours.npz", **{**ours, "near": np.array([np.nan, 4.0])})
    line = differences(tmp_path / "ours.npz", tmp_path / "expected.npz")
    assert (line["worst_name"], np.isnan(line["worst"])) == ("near", True)


def lines_of(ways: dict[str, tuple[float, float]]) -> str:
    """Milliseconds and peak gigabytes, in a file's lines."""
    lines: list[dict[str, Any]] = [
        {"kind": "about", "gpu": "made up", "date": "today", "commit": "none"}
    ]
    for way, (ms, peak) in ways.items():
        formats = {"int8": {"before": 2e9}, "made again": {"before": 1e9}}
        figures = {"least_ms": ms, "median_ms": ms + 1, "first_s": 9.0, "label": "A model"}
        figures["graphs"] = 0 if way.startswith("eager") else 1
        sizes = {"peak_bytes": peak * 1e9, "held_bytes": peak * 5e8}
        said = {"coded": {"coded": formats} if "codes" in way else None}
        lines.append({"kind": "row", "model": "gpt", "way": way, **figures, **sizes, **said})
        lines.append({"kind": "gradients", "model": "gpt", "way": way, "median": 0, "worst": 0.01})
    lines.append({"kind": "row", "model": "gpt", "way": "offloaded", "error": "no"})
    lines.append({"kind": "skipped", "model": "gpt", "way": "fp8 pass"})
    return "\n".join(map(json.dumps, lines)) + "\n"


def test_commands_meet_in_their_control(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(lines_of({"compiled": (10, 8), "budget 0.5": (12, 6), "budget 0": (10.5, 4)}))
    second.write_text(lines_of({"compiled": (20, 8), 'codes {"budget": 0.5}': (22, 5.7)}))
    abouts, panels = read([first, second])
    assert len(abouts) == 2
    assert {way: row["ratio"] for way, row in panels["gpt"].items()} == {
        "compiled": 1,
        "budget 0.5": 1.2,
        "budget 0": 1.05,
        'codes {"budget": 0.5}': 1.1,
    }
    row = '| codes {"budget": 0.5} | 5.70 | 2.85 | 22.0 (23.0) | 1.10 | 2.00 | 9 | 0.00%, 1.00% |'
    assert row in panel_table(panels["gpt"])
    (line,) = comparison(panels).splitlines()[2:]  # the other budget takes no time
    assert line == '| A model | budget 0.5 | 1.20 | codes {"budget": 0.5} | 0.950 | 0.917 |'
    half, third = shares(panels).splitlines()[2:]
    assert half == "| A model | 1/2 | none |  | budget 0 | 1.050 |"
    assert third == "| A model | 1/3 | none |  | none |  |"
    pytest.importorskip("matplotlib", reason="the extra 'plot' is missing")
    draw(panels, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_the_page_gets_the_tables() -> None:
    page = "before\n<!-- measured: memory_map -->\n<!-- end -->\nafter <!-- end -->\n"
    once = filled(page, "new")
    assert once == page.replace("<!-- end -->", "new\n<!-- end -->", 1)
    assert filled(once, "newer") == once.replace("new", "newer")
    with pytest.raises(ValueError, match=r"expected one .* not 0"):
        filled("a page", "new")


def test_the_page_is_that_of_its_figures() -> None:
    page = (DOCS / "stash.md").read_text("utf-8")
    assert filled(page, tables(*read([DOCS / "memory_map.jsonl"]))) == page


@pytest.mark.thorough
def test_a_model_is_measured(tmp_path: Path) -> None:
    ways = ("checkpointed", "eager", "offloaded")
    command = [sys.executable, str(SCRIPT), "measure", "--tiny", "--models", "gpt", "--jobs", "2"]
    command += ["--out", str(tmp_path / "lines")]
    for way in ways:
        command += ["--ways", way]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **ALONE})
    _, panels = read([tmp_path / "lines"])
    rows = panels["gpt"]
    assert rows.keys() == {"compiled", *ways}
    losses = [row["loss"] for row in rows.values()]
    assert losses == pytest.approx([losses[0]] * len(rows), rel=1e-3)
    assert all(row["least_ms"] <= row["median_ms"] for row in rows.values())
    assert rows["compiled"]["gradients"] == (0, 0)
    assert all(row["gradients"][1] < 0.01 for row in rows.values())
    assert rows["checkpointed"]["graphs"] == 1
    assert rows["eager"]["graphs"] == 0


@pytest.mark.thorough
def test_losses_with_and_without_codes(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT.with_name("code_losses.py")), "--tiny", "--steps", "6"]
    command += ["--models", "gpt", "--seeds", "2", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **ALONE})
    losses = json.loads((tmp_path / "code_losses.json").read_text())["losses"]["gpt"]
    plain, codes = losses["plain"], losses["codes"]
    assert plain[0] != plain[1]
    for a, b in zip(plain, codes, strict=True):
        assert len(a) == 6
        assert a != b
        assert a == pytest.approx(b, rel=1e-2)
    assert "| gpt | " in (tmp_path / "code_losses.md").read_text()
