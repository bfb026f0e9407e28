# SPDX-License-Identifier: MIT
"""Gradients of operators that compute each element by itself, and repeat what is smaller."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .rules import RULES, ZERO, Rule, Site, Term, gradient

ZERO |= {"Ceil", "Floor", "Round", "Sign", "Not", "IsInf", "IsNaN", "BitwiseNot"}
ZERO |= {"And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}

# dy/dx of y = f(x), as formulas of x and y.
DERIVATIVES: dict[str, Callable[[Site, Term, Term], Term]] = {
    "Abs": lambda site, x, y: site.op("Sign", x),
    "Cos": lambda site, x, y: -site.op("Sin", x),
    "Erf": lambda site, x, y: site.op("Exp", -(x * x)) * (2 / math.sqrt(math.pi)),
    "Exp": lambda site, x, y: y,
    "Log": lambda site, x, y: 1 / x,
    "Reciprocal": lambda site, x, y: -(y * y),
    "Sin": lambda site, x, y: site.op("Cos", x),
    "Softplus": lambda site, x, y: site.op("Sigmoid", x),
    "Sqrt": lambda site, x, y: 0.5 / y,
    "Tan": lambda site, x, y: 1 + y * y,
}


def _by_derivative(derivative: Callable[[Site, Term, Term], Term]) -> Rule:
    def rule(site: Site) -> Sequence[Term]:
        return [site.dys[0] * derivative(site, site.inputs[0], site.outputs[0])]

    return rule


RULES |= {name: _by_derivative(derivative) for name, derivative in DERIVATIVES.items()}


@gradient("Identity")
def identity(site: Site) -> Sequence[Term | None]:
    """dx = dy."""
    return [site.dys[0]]


@gradient("Neg")
def negative(site: Site) -> Sequence[Term | None]:
    """dx = -dy."""
    return [-site.dys[0]]


@gradient("Relu")
def relu(site: Site) -> Sequence[Term | None]:
    """dx = dy where y > 0."""
    return [site.own("ReluGrad", site.dys[0], site.outputs[0])]


@gradient("Sigmoid")
def sigmoid(site: Site) -> Sequence[Term | None]:
    """dx = dy y (1 - y)."""
    return [site.own("SigmoidGrad", site.dys[0], site.outputs[0])]


@gradient("Tanh")
def tanh(site: Site) -> Sequence[Term | None]:
    """dx = dy (1 - y^2)."""
    return [site.own("TanhGrad", site.dys[0], site.outputs[0])]


# ---- of two and more arrays ----------------------------------------------------------------------


@gradient("Add", "Sum")
def add(site: Site) -> Sequence[Term | None]:
    """dx = dy of each."""
    return [_sum(site, site.dys[0], i) for i in range(len(site.inputs))]


@gradient("Sub")
def subtract(site: Site) -> Sequence[Term | None]:
    """da = dy, db = -dy."""
    dy = site.dys[0]
    return [_sum(site, dy, 0), _sum(site, -dy, 1) if site.wanted[1] else None]


@gradient("Mul")
def multiply(site: Site) -> Sequence[Term | None]:
    """da = dy b, db = dy a."""
    (dy,), (a, b) = site.dys, site.inputs
    return [
        _sum(site, dy * b, 0) if site.wanted[0] else None,
        _sum(site, dy * a, 1) if site.wanted[1] else None,
    ]


@gradient("Div")
def divide(site: Site) -> Sequence[Term | None]:
    """da = dy / b, db = -dy y / b."""
    (dy,), (_, b), (y,) = site.dys, site.inputs, site.outputs
    quotient = dy / b
    return [_sum(site, quotient, 0), _sum(site, -(quotient * y), 1) if site.wanted[1] else None]


def _sum(site: Site, dx: Term, place: int) -> Term | None:
    """The gradient of an input by that of its repeated form; None of one that nobody wants."""
    return site.sum_to(dx, site.inputs[place]) if site.wanted[place] else None
