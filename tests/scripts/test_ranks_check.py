# SPDX-License-Identifier: MIT
"""The check of several ranks, on the CPU: a step that passes, and one whose rank is killed."""

from __future__ import annotations

import json

import pytest
import ranks_check
from click.testing import CliRunner

pytestmark = pytest.mark.thorough


def test_it_says_what_passed_and_how_soon_a_killed_rank_ends_all(tmp_path) -> None:
    arguments = [str(tmp_path), "--ranks", "2", "--provider", "cpu"]
    arguments += ["--step", "train_divided", "--step", "killed_train"]
    result = CliRunner().invoke(ranks_check.main, arguments)
    assert result.exit_code == 0, result.output
    train, killed = json.loads((tmp_path / "ranks_check.json").read_text())
    assert train["status"] == 0
    assert "[0] losses " in (tmp_path / "train_divided.log").read_text()
    assert killed["status"] != 0
    assert 0 < killed["seconds after"] <= ranks_check.TIMEOUT + 1
    assert "[0] losses " not in (tmp_path / "killed_train.log").read_text()


@pytest.mark.parametrize(
    ("row", "is_right"),
    [
        ({"status": 0}, True),
        ({"status": 1}, False),
        ({"status": 137, "seconds after": 2.0}, True),
        ({"status": 0, "seconds after": 2.0}, False),  # nobody noticed
        ({"status": -9, "seconds after": 40.0}, False),
        ({"status": 1, "seconds after": float("inf")}, False),  # it ended before a rank was killed
    ],
)
def test_what_counts_as_right(row, is_right) -> None:
    assert ranks_check.is_right(row) is is_right
