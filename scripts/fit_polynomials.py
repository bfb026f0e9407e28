# SPDX-License-Identifier: MIT
"""Derives the polynomials of cuda_src and of the reference of activations: the best of their degree
beside those that stand there.

A fit minimises the greatest weighted error over an interval (the exchange algorithm of Remez, in 50
digits). Rounded coefficients differ from the fit's in digits that do not count; what counts is the
error that the file states, which `excess` measures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
from mpmath import mp, mpf

REPOSITORY = Path(__file__).resolve().parent.parent
EXP, GELU = "cuda_src/math/exp.cuh", "cuda_src/activation/gelu.cuh"
NUMPY = "cupy_training_ops/families/activation/reference.py"
ARGUMENTS = r"polynomial\(\w+,([^)]*)\)"
TUPLE = r"\(([^)]*)\)"
DIGITS = 50
Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Fit:
    """A polynomial of a file, what it stands for, and the error that it may have."""

    file: str
    before: str  # what stands before it there
    low: Any
    high: Any
    target: Function
    weight: Function
    bound: Function  # of the unweighted error
    pattern: str = ARGUMENTS

    def committed(self) -> list[Any]:
        """The file's coefficients, from the highest power down, as the compiler rounds them."""
        text = (REPOSITORY / self.file).read_text(encoding="utf-8")
        found = re.search(self.pattern, text.partition(self.before)[2])
        assert found is not None, f"{self.file}: no polynomial after {self.before}"
        numbers = found[1].replace(",", " ").split()
        return [mpf(float(np.float32(n[:-1]) if n[-1] == "f" else n)) for n in numbers]


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


def tail_of_v(v: Any) -> Any:
    """P of scaled_tail(t) = u P(v), u = 1 / (1 + 11/64 t), v = (126 u - 71) / 55 from -1 to 1."""
    u = (v + mpf(71) / 55) / (mpf(126) / 55)
    return scaled_tail((1 / u - 1) * 64 / 11) / u


def tail_of_w(v: Any) -> Any:
    """P of scaled_tail(t) = w P(v), w = (34 / 15) / (1 + 3/16 t), v = w - 19/15."""
    w = v + mpf(19) / 15
    return scaled_tail((mpf(34) / 15 / w - 1) * 16 / 3) / w


mp.dps = DIGITS
ROOT = mp.findroot(slope_at, 0.75)
LAST_T = 15  # e^(-t^2 / 2) is zero in float from 13.2 on
FITS = {
    "exponential, double": Fit(
        EXP, "double short_exponential(double z)", -mp.log(2), mp.log(2),
        target=lambda z: mp.exp(z / 2),
        weight=lambda z: mp.exp(-z / 2),
        bound=lambda z: mpf("4e-16") * mp.exp(z / 2),
    ),
    "Gelu, double": Fit(
        GELU, "double scaled_tail(double t)", mpf(-1), mpf(1),
        target=tail_of_v,
        weight=lambda v: 1 / tail_of_v(v),
        bound=lambda v: mpf("2e-16") * tail_of_v(v),
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


def levelled(fit: Fit, points: Sequence[Any]) -> list[Any]:
    """The polynomial whose weighted errors at the points are equal and alternate in sign."""
    n = len(points)
    matrix, values = mp.matrix(n, n), mp.matrix(n, 1)
    for i, x in enumerate(points):
        for j in range(n - 1):
            matrix[i, j] = x ** (n - 2 - j)
        matrix[i, n - 1] = (-1) ** i / fit.weight(x)
        values[i] = fit.target(x)
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
    """Coefficients from the highest power down."""
    xs = spread_points(fit.low, fit.high, 60 * (degree + 2))
    targets, weights = [fit.target(x) for x in xs], [fit.weight(x) for x in xs]
    points = spread_points(fit.low, fit.high, degree + 1)
    for _ in range(rounds):
        coefficients = levelled(fit, points)
        rows = zip(xs, targets, weights, strict=True)
        errors = [w * (value_at(coefficients, x) - y) for x, y, w in rows]
        points = extremes(xs, errors, degree + 2)
    return coefficients


# ---- errors --------------------------------------------------------------------------------------


def value_at(coefficients: Sequence[Any], x: Any) -> Any:
    """A polynomial's value."""
    value = mpf(0)
    for coefficient in coefficients:
        value = value * x + coefficient
    return value


def greatest(fit: Fit, coefficients: Sequence[Any], per: Function, n: int = 400) -> Any:
    """The greatest error over the interval, multiplied by `per`."""
    points = spread_points(fit.low, fit.high, n)
    return max(abs(value_at(coefficients, x) - fit.target(x)) * per(x) for x in points)


def excess(fit: Fit, coefficients: Sequence[Any]) -> float:
    """The error as a multiple of what it may be: at most 1."""
    return float(greatest(fit, coefficients, lambda x: 1 / fit.bound(x)))


def main() -> None:
    """Print each fit beside what the file has."""
    for name, fit in FITS.items():
        ours = fit.committed()
        best = fitted(fit, len(ours) - 1)
        apart = max(abs(a - b) / abs(b) for a, b in zip(ours, best, strict=True))
        weighted = [float(greatest(fit, c, fit.weight)) for c in (best, ours)]
        print(f"{name} ({fit.file}), degree {len(ours) - 1}")
        print(f"  greatest weighted error: best {weighted[0]:.3g}; the file's {weighted[1]:.3g}")
        print(f"  the file's error: {excess(fit, ours):.2f} of its bound")
        print(f"  coefficients differ by at most {float(apart):.1g} of their size")
        for a, b in zip(ours, best, strict=True):
            print(f"    {mpmath.nstr(b, 19):>28}  file {mpmath.nstr(a, 19)}")


if __name__ == "__main__":
    main()
