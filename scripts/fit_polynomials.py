# SPDX-License-Identifier: MIT
"""Derives the polynomials of cuda_src and of the reference of activations, and ratios of two: the
best of their degree beside those that stand there.

A fit minimises the greatest weighted error over an interval (the exchange algorithm of Remez, in 50
digits). Rounded coefficients differ from the fit's in digits that do not count; what counts is the
error that the file states, which `excess` measures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
from mpmath import mp, mpf

REPOSITORY = Path(__file__).resolve().parent.parent
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
    weight: Function
    bound: Function  # of the unweighted error
    pattern: str = ARGUMENTS
    under: int = 0

    def committed(self) -> list[Any]:
        """The file's coefficients, from the highest power down, as the compiler rounds them; of a
        ratio those of both, without the last."""
        text = (REPOSITORY / self.file).read_text(encoding="utf-8")
        found = re.findall(self.pattern, text.partition(self.before)[2])
        assert found, f"{self.file}: no polynomial after {self.before}"
        both = ",".join(found[: 2 if self.under else 1]).replace("* RAISED", "").replace(",", " ")
        numbers = [mpf(float(np.float32(n[:-1]) if n[-1] == "f" else n)) for n in both.split()]
        assert not self.under or numbers[-1] == 1, f"{self.file}: a divisor without 1 at its end"
        return numbers[:-1] if self.under else numbers


# ---- what is approximated ------------------------------------------------------------------------


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
    """Q of slope_at(t) = (ROOT - t) Q(u)."""
    t = t_of_u(u)
    t = t if abs(t - ROOT) > mpf(10) ** -12 else ROOT + mpf(10) ** -12
    return slope_at(t) / (ROOT - t)


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
ROOT = mp.findroot(slope_at, 0.75)
LAST = 1 - mpf(0.693147180559663) / mp.log(2)
LAST_T = 15  # e^(-t^2 / 2) is zero in float from 13.2 on
FITS = {
    "exponential, double": Fit(
        EXP, "double short_exponential(double z)", -mp.log(2), mp.log(2),
        target=lambda z: mp.exp(z / 2),
        weight=lambda z: mp.exp(-z / 2),
        bound=lambda z: mpf("4e-16") * mp.exp(z / 2),
    ),
    "bell, double": Fit(
        EXP, "raised_normal_exponential(double t)", mpf("1e-9"), mp.log(2) ** 2,
        target=half_tangent,
        weight=lambda w: 1 / half_tangent(w),
        bound=lambda w: mpf("2e-16") * half_tangent(w),
        under=2,
    ),
    "Gelu, double": Fit(
        GELU, "Ratio scaled_tail(double t)", mpf(0), mpf(40),
        target=scaled_tail,
        weight=lambda t: 1 / scaled_tail(t),
        bound=lambda t: mpf("2e-16") * scaled_tail(t),
        under=10,
    ),
    "Gelu, float": Fit(
        GELU, "float scaled_falling_slope(float t)", 1 / (1 + mpf(3) / 8 * LAST_T), mpf(1),
        target=falling_slope,
        weight=lambda u: bell(u) + mpf(1) / 64,
        bound=lambda u: min(mpf("2e-8") / bell(u), mpf("2e-6")),
    ),
    "Gelu, NumPy, float64": Fit(
        NUMPY, "FLOAT64: ", mpf(-1), mpf(1),
        target=tail_of_w,
        weight=lambda v: 1 / tail_of_w(v),
        bound=lambda v: mpf("2e-16") * tail_of_w(v),
        pattern=TUPLE,
    ),
    "Gelu, NumPy, float32": Fit(
        NUMPY, "FLOAT32: ", mpf(34) / 15 / (1 + mpf(3) / 16 * LAST_T) - mpf(19) / 15, mpf(1),
        target=tail_of_w,
        weight=lambda v: 1 / tail_of_w(v),
        bound=lambda v: mpf("3e-10") * tail_of_w(v),
        pattern=TUPLE,
    ),
}  # fmt: skip


# ---- the best polynomial of a degree -------------------------------------------------------------


def spread_points(low: Any, high: Any, n: int) -> list[Any]:
    """n + 1 points from low to high, denser towards the ends."""
    middle, radius = (low + high) / 2, (high - low) / 2
    return [middle - radius * mp.cos(mp.pi * i / n) for i in range(n + 1)]


def levelled(fit: Fit, points: Sequence[Any], divisor: Function) -> list[Any]:
    """The polynomial whose weighted errors at the points are equal and alternate in sign.

    Those of a ratio are so multiplied by its divisor, of which `divisor` is an earlier guess.
    """
    n, over = len(points), len(points) - 1 - fit.under
    matrix, values = mp.matrix(n, n), mp.matrix(n, 1)
    for i, x in enumerate(points):
        value = fit.target(x)
        for j in range(over):
            matrix[i, j] = x ** (over - 1 - j)
        for j in range(fit.under):
            matrix[i, over + j] = -value * x ** (fit.under - j)
        matrix[i, n - 1] = (-1) ** i * divisor(x) / fit.weight(x)
        values[i] = value
    return list(mp.lu_solve(matrix, values))[:-1]


def extremes(xs: Sequence[Any], errors: Sequence[Any], n: int) -> list[Any]:
    """The n points of greatest error of alternating sign; neighbours with one sign are one."""
    found: list[int] = []
    for i, error in enumerate(errors):
        if not found or (error > 0) != (errors[found[-1]] > 0):
            found.append(i)
        elif abs(error) > abs(errors[found[-1]]):
            found[-1] = i
    while len(found) > n:
        found.pop(0 if abs(errors[found[0]]) < abs(errors[found[-1]]) else -1)
    return [xs[i] for i in found]


def fitted(fit: Fit, degree: int, rounds: int = 12) -> list[Any]:
    """Coefficients from the highest power down, of the degree above the line."""
    n = degree + fit.under + 2
    xs = spread_points(fit.low, fit.high, 60 * n)
    targets, weights = [fit.target(x) for x in xs], [fit.weight(x) for x in xs]
    points, coefficients = spread_points(fit.low, fit.high, n - 1), [mpf(0)] * (n - 1)
    for _ in range(rounds):
        divisor = partial(value_at, divided(fit, coefficients)[1])
        coefficients = levelled(fit, points, divisor)
        rows = zip(xs, targets, weights, strict=True)
        errors = [w * (ratio_at(fit, coefficients, x) - y) for x, y, w in rows]
        points = extremes(xs, errors, n)
    return coefficients


# ---- errors --------------------------------------------------------------------------------------


def value_at(coefficients: Sequence[Any], x: Any) -> Any:
    """A polynomial's value."""
    value = mpf(0)
    for coefficient in coefficients:
        value = value * x + coefficient
    return value


def divided(fit: Fit, coefficients: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Those above the line and below it."""
    over = len(coefficients) - fit.under
    return coefficients[:over], [*coefficients[over:], mpf(1)]


def ratio_at(fit: Fit, coefficients: Sequence[Any], x: Any) -> Any:
    """The value of what is fitted."""
    over, under = divided(fit, coefficients)
    return value_at(over, x) / value_at(under, x)


def greatest(fit: Fit, coefficients: Sequence[Any], per: Function, n: int = 400) -> Any:
    """The greatest error over the interval, multiplied by `per`."""
    points = spread_points(fit.low, fit.high, n)
    return max(abs(ratio_at(fit, coefficients, x) - fit.target(x)) * per(x) for x in points)


def excess(fit: Fit, coefficients: Sequence[Any]) -> float:
    """The error as a multiple of what it may be: at most 1."""
    return float(greatest(fit, coefficients, lambda x: 1 / fit.bound(x)))


def main() -> None:
    """Print each fit beside what the file has."""
    for name, fit in FITS.items():
        ours = fit.committed()
        degree = len(ours) - 1 - fit.under
        best = fitted(fit, degree)
        apart = max(abs(a - b) / abs(b) for a, b in zip(ours, best, strict=True))
        weighted = [float(greatest(fit, c, fit.weight)) for c in (best, ours)]
        print(f"{name} ({fit.file}), degree {degree} over {fit.under}")
        print(f"  greatest weighted error: best {weighted[0]:.3g}; the file's {weighted[1]:.3g}")
        print(f"  the file's error: {excess(fit, ours):.2f} of its bound")
        print(f"  coefficients differ by at most {float(apart):.1g} of their size")
        for a, b in zip(ours, best, strict=True):
            print(f"    {mpmath.nstr(b, 19):>28}  file {mpmath.nstr(a, 19)}")


if __name__ == "__main__":
    main()
