# SPDX-License-Identifier: MIT
"""The polynomials in the CUDA headers are as near to what they stand for as the headers say."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture(scope="module")
def script():
    """The script that derives them."""
    pytest.importorskip("mpmath")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
        return importlib.import_module("fit_polynomials")


@pytest.mark.parametrize("name", ["exponential, double", "Gelu, double", "Gelu, float"])
def test_polynomials_keep_their_bounds(script, name) -> None:
    fit = script.FITS[name]
    coefficients = fit.committed()
    assert script.excess(fit, coefficients) <= 1
    coefficients[-2] *= 1 + script.mpf("1e-6")
    assert script.excess(fit, coefficients) > 1


def test_a_fit_is_the_best_of_its_degree(script) -> None:
    """A line for 1 / (1 + x) on [0, 1]: its slope is -1/2, and worked out by hand it is known."""
    one = script.mpf(1)
    fit = dataclasses.replace(
        script.FITS["Gelu, double"],
        low=0 * one,
        high=one,
        target=lambda x: 1 / (1 + x),
        weight=lambda _: one,
    )
    line = script.fitted(fit, 1)
    assert [float(c) for c in line] == pytest.approx([-0.5, 0.9571067811865475], abs=1e-4)
    assert float(script.greatest(fit, line, lambda _: one)) == pytest.approx(0.0428932, abs=1e-5)
