# SPDX-License-Identifier: MIT
"""The polynomials of kernels and NumPy functions are as near to what they stand for as is said."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture(scope="module")
def script():
    """The script that derives them."""
    pytest.importorskip("mpmath")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
        return importlib.import_module("fit_polynomials")


FITS = (
    "exponential, double",
    "bell, double",
    "Gelu, double",
    "Gelu, float",
    "Gelu, NumPy, float64",
    "Gelu, NumPy, float32",
)


@pytest.mark.parametrize("name", FITS)
def test_polynomials_keep_their_bounds(script, name) -> None:
    fit = script.FITS[name]
    coefficients = fit.committed()
    assert script.excess(fit, coefficients) <= 1
    coefficients[-2] *= 1 + script.mpf("1e-6")
    assert script.excess(fit, coefficients) > 1


def test_gelus_constants_are_what_they_stand_for(script) -> None:
    """The polynomials are fitted beside them."""
    text = (script.REPOSITORY / script.GELU).read_text(encoding="utf-8")
    high, low = re.search(r"\(\(([\d.]+)f - t\) - ([\de.-]+)f\)", text).groups()
    root = float(np.float32(high)) - float(np.float32(low))
    assert root == pytest.approx(float(script.ROOT), abs=1e-15)
    (single,) = re.findall(r"fmaf\(([\d.]+)f, t, scaled_falling_slope", text)
    assert np.float32(single) == np.float32(1 / math.sqrt(2 * math.pi))
    named = dict(re.findall(r"constexpr double (\w+) = ([\d.]+);", text))
    for name, value in {
        "INV_SQRT_2PI": 1 / math.sqrt(2 * math.pi),
        "LOG2_E": 1 / math.log(2),
        "FAST_1": 2 * math.sqrt(2 / math.pi),
        "FAST_3": 2 * math.sqrt(2 / math.pi) * 0.044715,
    }.items():
        assert float(named[name]) == pytest.approx(value, rel=3e-16), name


def test_a_fit_is_the_best_of_its_degree(script) -> None:
    """A line for 1 / (1 + x) on [0, 1]: its slope is -1/2, and worked out by hand it is known."""
    one = script.mpf(1)
    fit = dataclasses.replace(
        script.FITS["exponential, double"],
        low=0 * one,
        high=one,
        target=lambda x: 1 / (1 + x),
        weight=lambda _: one,
    )
    line = script.fitted(fit, 1)
    assert [float(c) for c in line] == pytest.approx([-0.5, 0.9571067811865475], abs=1e-4)
    assert float(script.greatest(fit, line, lambda _: one)) == pytest.approx(0.0428932, abs=1e-5)
