# SPDX-License-Identifier: MIT
"""Two checkouts beside each other: what is asked where, and the scripts that compare them."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from turns import Checkout, CheckoutError, in_turns, ratios

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
ASKED = f"""
import os, sys
sys.path.insert(0, {str(SCRIPTS)!r})
from turns import serve

def name(suffix):
    print("what is printed is no answer")
    import cupy_training_ops
    return cupy_training_ops.NAME + suffix

def fail():
    raise ValueError("none of it")

def leave():
    os._exit(7)

serve(name, fail, leave)
"""


@pytest.fixture
def checkout(tmp_path):
    """A function that starts the process of a checkout whose package has this name."""
    script = tmp_path / "asked.py"
    script.write_text(ASKED)
    begun = []

    def begin(name: str) -> Checkout:
        package = tmp_path / name / "cupy_training_ops"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"NAME = {name!r}")
        begun.append(Checkout(tmp_path / name, str(script)))
        return begun[-1]

    yield begin
    for process in begun:
        process.__exit__()


def test_each_checkout_has_its_own_package(checkout) -> None:
    old, new = checkout("old"), checkout("new")
    assert in_turns([old, new], 3, "name", "!") == [["old!"] * 3, ["new!"] * 3]


def test_the_first_and_the_last_begin_in_turns() -> None:
    asked = []

    class Noting:
        def __init__(self, name: str) -> None:
            self.name = name

        def ask(self, question: str) -> int:
            asked.append(self.name)
            return len(asked)

    assert in_turns([Noting("old"), Noting("new")], 3, "any") == [[1, 4, 5], [2, 3, 6]]
    assert asked == ["old", "new", "new", "old", "old", "new"]


def test_what_goes_wrong_there_is_told_here(checkout) -> None:
    old = checkout("old")
    with pytest.raises(CheckoutError, match="ValueError: none of it"):
        old.ask("fail")
    assert old.ask("name", "") == "old"
    with pytest.raises(CheckoutError, match="ended with exit code 7"):
        old.ask("leave")


def test_another_checkouts_package_is_refused(checkout, tmp_path) -> None:
    old = checkout("old")
    (tmp_path / "old" / "cupy_training_ops").rename(tmp_path / "cupy_training_ops")
    with pytest.raises(CheckoutError, match="cupy_training_ops is found in"):
        old.ask("name", "")  # the script's own folder, which Python looks into as well


def test_ratios_are_of_rounds() -> None:
    before, after = [1.0, 2.0, 4.0, 8.0, 16.0], [1.1, 2.0, 4.0, 8.0, 32.0]
    median, low, high = ratios(before, after)
    assert (median, low) == (1.0, 1.0)
    assert 1.1 < high < 2
    assert statistics.median(after) / statistics.median(before) == 1


# ---- the scripts ---------------------------------------------------------------------------------


@pytest.fixture
def _cupy() -> None:
    pytest.importorskip("cupy", reason="the scripts make CuPy arrays")


def script(name: str, *arguments: str) -> list[str]:
    command = [sys.executable, str(SCRIPTS / name), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout.splitlines()


def another(folder: Path) -> Path:
    """A checkout elsewhere."""
    for name in ("cupy_training_ops", "cuda_src", "scripts", "tests"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.usefixtures("_cupy")
def test_host_time_beside_another_checkout(tmp_path) -> None:
    options = ("--against", str(another(tmp_path)), "--runs", "3", "--only", "Scale, one")
    head, _, row = script("host_time.py", *options)
    assert head == "| call | old us | us | us / old us (p20, p80) |"
    name, old, new, ratio = row.strip("| ").split(" | ")
    assert name == "Scale, one scale"
    assert 0 < float(old) < 1e5 > float(new) > 0
    assert 0 < float(ratio.partition(" ")[0]) < 100


@pytest.mark.usefixtures("_cupy")
def test_host_time_of_every_call() -> None:
    rows = script("host_time.py", "--runs", "2")[2:]
    assert len(rows) == 33
    assert all(float(row.split("|")[2]) > 0 for row in rows)


@pytest.mark.thorough
@pytest.mark.usefixtures("_cupy")
def test_host_time_of_pytorchs_door_beside_another_checkout(tmp_path) -> None:
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    options = ("--against", str(another(tmp_path)), "--runs", "2", "--only", "rms_norm, forward")
    head, _, *rows = script("host_time.py", "--tensors", *options)
    assert head == "| call | old us | us | us / old us (p20, p80) |"
    names = [row.strip("| ").split(" | ")[0] for row in rows]
    assert names == ["rms_norm, forward", "(torch) rms_norm, forward"]
