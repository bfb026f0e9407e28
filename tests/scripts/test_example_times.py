# SPDX-License-Identifier: MIT
"""Calls as the operators' examples write them: those that are made again run little of the package.

Seconds stand in no test: functions are counted, and scripts/example_times.py has the microseconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cupy_training_ops as cto

pytest.importorskip("cupy", reason="CuPy is in the extras")

from example_times import actions, measured

from cupy_training_ops.testing.hollow import hollow_launches

PACKAGE = Path(cto.__file__).parent
MOST = 51
OF_STEPS = 84  # whose numbers change: rates, steps, scales
STEPS = {
    "AdamCodedList",
    "AdamOptimizer",
    "AdamOptimizerList",
    "AdamWOptimizer",
    "LambOptimizer",
} | {
    "SGDOptimizerList",
    "SGDOptimizerV2",
}


def functions_run(action) -> int:
    """How many of the package's functions an action runs; what replaces a GPU does not count."""
    found = []

    def note(frame, event, _) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in file.parents and "testing" not in file.parts:
            found.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return len(found)


def test_a_call_like_one_before_runs_few_functions() -> None:
    n_made = 0
    for name, action in actions():
        with hollow_launches():
            try:
                action()
                action()
            except cto.OpError:  # an event is recorded once, say
                continue
            assert functions_run(action) <= (OF_STEPS if name in STEPS else MOST), name
            n_made += 1
    assert n_made > 100


def test_a_call_is_measured_without_its_launches() -> None:
    ((name, action),) = actions("InvertibleLayerNormalizationGrad")
    n_launches, microseconds, ratio = measured(action, 100)
    assert (name, n_launches) == ("InvertibleLayerNormalizationGrad", 2)
    assert microseconds > 0
    assert ratio > 0
