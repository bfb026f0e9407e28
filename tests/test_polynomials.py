# SPDX-License-Identifier: MIT
"""The polynomials of kernels and NumPy functions, and ratios of two, are as near to what they stand
for as is said.

Each was fitted so that its greatest weighted error is the least of its degree (the exchange
algorithm of Remez in 50 digits, scripts/fit_polynomials.py of commit 9ee23672), and rounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mpmath")
from mpmath import mp, mpf

ROOT = Path(__file__).resolve().parents[1]
EXP, GELU = "cuda_src/math/exp.cuh", "cuda_src/activation/gelu.cuh"
NUMPY = "cupy_training_ops/families/activation/reference.py"
ARGUMENTS = r"polynomial\(\s*\w+,([^)]*)\)"
TUPLE = r"\(([^)]*)\)"
DIGITS = 50
Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Fit:
    """A polynomial of a file, what it stands for, and the error that it may have.

    Where it is divided by another, whose last coefficient is 1, `under` is that one's degree.
    """

    file: str
    before: str  # what stands before it there
    low: Any
    high: Any
    target: Function
    bound: Function  # of the unweighted error
    pattern: str = ARGUMENTS
    under: int = 0

    def committed(self) -> list[Any]:
        """The file's coefficients, from the highest power down, as the compiler rounds them; of a
        ratio those of both, without the last."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        result = re.findall(self.pattern, text.partition(self.before)[2])
        assert result, f"{self.file}: no polynomial after {self.before}"
        both = ",".join(result[: 2 if self.under else 1]).replace("* RAISED", "").replace(",", " ")
        numbers = [mpf(float(np.float32(n[:-1]) if n[-1] == "f" else n)) for n in both.split()]
        assert not self.under or numbers[-1] == 1, f"{self.file}: a divisor without 1 at its end"
        return numbers[:-1] if self.under else numbers


def scaled_tail(t: Any) -> Any:
    """e^(t^2 / 2) Phi(-t), Phi the normal distribution."""
    return mp.exp(t * t / 2) * mp.erfc(t / mp.sqrt(2)) / 2


def t_of_u(u: Any) -> Any:
    """The argument of Gelu's float polynomial is u = 1 / (1 + 3/8 t)."""
    return (1 / u - 1) * 8 / 3


def slope_at(t: Any) -> Any:
    """e^(t^2 / 2) (Phi(-t) - t phi(t))."""
    return scaled_tail(t) - t / mp.sqrt(2 * mp.pi)


def falling_slope(u: Any) -> Any:
    """Q of slope_at(t) = (ZERO - t) Q(u)."""
    t = t_of_u(u)
    t = t if abs(t - ZERO) > mpf(10) ** -12 else ZERO + mpf(10) ** -12
    return slope_at(t) / (ZERO - t)


def bell(u: Any) -> Any:
    """e^(-t^2 / 2), by which Q is multiplied in the end."""
    return mp.exp(-(t_of_u(u) ** 2) / 2)


def half_tangent(w: Any) -> Any:
    """q = tanh(z / 4) / z of w = z^2: e^(z / 2) = (1 + z q) / (1 - z q).

    The kernel's z is too small by the part LAST.
    """
    z = mp.sqrt(w)
    return mp.tanh(z * (1 + LAST) / 4) / z


def tail_of_w(v: Any) -> Any:
    """P of scaled_tail(t) = w P(v), w = (34 / 15) / (1 + 3/16 t), v = w - 19/15."""
    w = v + mpf(19) / 15
    return scaled_tail((mpf(34) / 15 / w - 1) * 16 / 3) / w


mp.dps = DIGITS
ZERO = mp.findroot(slope_at, 0.75)
LAST = 1 - mpf(0.693147180559663) / mp.log(2)
LAST_T = 15  # e^(-t^2 / 2) is zero in float from 13.2 on
FITS = {
    "exponential, double": Fit(
        EXP, "double short_exponential(double z)", -mp.log(2), mp.log(2),
        target=lambda z: mp.exp(z / 2),
        bound=lambda z: mpf("4e-16") * mp.exp(z / 2),
    ),
    "bell, double": Fit(
        EXP, "raised_normal_exponential(double t)", mpf("1e-9"), mp.log(2) ** 2,
        target=half_tangent,
        bound=lambda w: mpf("2e-16") * half_tangent(w),
        under=2,
    ),
    "Gelu, double": Fit(
        GELU, "Ratio scaled_tail(double t)", mpf(0), mpf(40),
        target=scaled_tail,
        bound=lambda t: mpf("2e-16") * scaled_tail(t),
        under=10,
    ),
    "Gelu, float": Fit(
        GELU, "float scaled_falling_slope(float t)", 1 / (1 + mpf(3) / 8 * LAST_T), mpf(1),
        target=falling_slope,
        bound=lambda u: min(mpf("2e-8") / bell(u), mpf("2e-6")),
    ),
    "Gelu, NumPy, float64": Fit(
        NUMPY, "FLOAT64: ", mpf(-1), mpf(1),
        target=tail_of_w,
        bound=lambda v: mpf("2e-16") * tail_of_w(v),
        pattern=TUPLE,
    ),
    "Gelu, NumPy, float32": Fit(
        NUMPY, "FLOAT32: ", mpf(34) / 15 / (1 + mpf(3) / 16 * LAST_T) - mpf(19) / 15, mpf(1),
        target=tail_of_w,
        bound=lambda v: mpf("3e-10") * tail_of_w(v),
        pattern=TUPLE,
    ),
}  # fmt: skip


def spread_points(low: Any, high: Any, n: int) -> list[Any]:
    """n + 1 points from low to high, denser towards the ends."""
    middle, radius = (low + high) / 2, (high - low) / 2
    return [middle - radius * mp.cos(mp.pi * i / n) for i in range(n + 1)]


def value_at(coefficients: Sequence[Any], x: Any) -> Any:
    """A polynomial's value."""
    value = mpf(0)
    for coefficient in coefficients:
        value = value * x + coefficient
    return value


def divided(fit: Fit, coefficients: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the coefficients above the line, and those below it with a last 1."""
    over = len(coefficients) - fit.under
    return coefficients[:over], [*coefficients[over:], mpf(1)]


def ratio_at(fit: Fit, coefficients: Sequence[Any], x: Any) -> Any:
    """The value of what is fitted."""
    over, under = divided(fit, coefficients)
    return value_at(over, x) / value_at(under, x)


def excess(fit: Fit, coefficients: Sequence[Any]) -> float:
    """The greatest error over the interval as a multiple of what it may be: at most 1."""
    points = spread_points(fit.low, fit.high, 400)
    off = (abs(ratio_at(fit, coefficients, x) - fit.target(x)) / fit.bound(x) for x in points)
    return float(max(off))


@pytest.mark.parametrize("name", FITS)
def test_polynomials_keep_their_bounds(name) -> None:
    fit = FITS[name]
    coefficients = fit.committed()
    assert excess(fit, coefficients) <= 1
    coefficients[-2] *= 1 + mpf("1e-6")
    assert excess(fit, coefficients) > 1


def test_gelus_constants_are_what_they_stand_for() -> None:
    """The polynomials are fitted beside them."""
    text = (ROOT / GELU).read_text(encoding="utf-8")
    high, low = re.search(r"\(\(([\d.]+)f - t\) - ([\de.-]+)f\)", text).groups()
    root = float(np.float32(high)) - float(np.float32(low))
    assert root == pytest.approx(float(ZERO), abs=1e-15)
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
