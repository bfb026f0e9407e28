# SPDX-License-Identifier: MIT
"""Gradient descent and clipping in NumPy. Formulas: the classes in `operators.py`.

Steps over lists have, as declared there: lr, the learning rate; weights, gradients and momenta,
lists of arrays; mixed_precision_weights, low-precision arrays, some None, that get the new weights
too; loss_scale, which gradients were multiplied by; gradient_norm of all gradients and max_norm,
which it is clipped to; update_signal, False to change nothing; step, from 1 on. None: left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import numpy as np

from ...dtypes import HostArray
from ...rules.step import allows_step, count_step, gradient_divisor, number, rounded_weights
from ...rules.widening import cast, computed_in, quiet, wide
from ..reduction import reference as reduction

Lists = tuple[HostArray | None, ...]

Number = Any  # a Python number, or an array of one element


class Rule(TypedDict):
    """Attributes of SGDOptimizerList."""

    weight_decay: float
    maximize: bool


class MomentumRule(Rule, total=False):
    """Attributes of SGDMomentumList."""

    momentum: float
    dampening: float
    nesterov: bool
    rounding_seed: int | None


@quiet
def sgd_optimizer(eta: Number, w: HostArray, g: HostArray) -> tuple[HostArray, HostArray]:
    """Return w - eta g and -eta g, or w and g if eta is not finite."""
    if not allows_step(eta):
        return w, g
    new_w, delta = _descend(w, g, number(eta))
    return cast(new_w, w.dtype), cast(delta, g.dtype)


def sgd_optimizer_v2(
    lr: Number,
    weights: Sequence[HostArray],
    gradients: Sequence[HostArray],
    update_signal: Number = None,
) -> tuple[HostArray, Lists]:
    """Return the update signal, and w - lr g for each array of a list."""
    rule = Rule(weight_decay=0.0, maximize=False)
    return sgd_optimizer_list(lr, weights, gradients, update_signal=update_signal, **rule)[:2]


@quiet
def sgd_optimizer_list(
    lr: Number,
    weights: Sequence[HostArray],
    gradients: Sequence[HostArray],
    mixed_precision_weights: Sequence[HostArray | None] | None = None,
    loss_scale: Number = None,
    gradient_norm: Number = None,
    max_norm: Number = None,
    update_signal: Number = None,
    **rule: Unpack[Rule],
) -> tuple[HostArray, Lists, Lists | None]:
    """Return update signal, new weights and low-precision copies (None without them).

    weights[i] - lr (gradients[i] / divisor + weight_decay weights[i]); the divisor unscales and
    clips (gradient_divisor). rule: attributes weight_decay and maximize.
    """
    return sgd_momentum_list(
        lr, weights, gradients, mixed_precision_weights, loss_scale, gradient_norm, max_norm,
        update_signal, **rule,
    )[:3]  # fmt: skip


@quiet
def sgd_momentum_list(
    lr: Number,
    weights: Sequence[HostArray],
    gradients: Sequence[HostArray],
    mixed_precision_weights: Sequence[HostArray | None] | None = None,
    loss_scale: Number = None,
    gradient_norm: Number = None,
    max_norm: Number = None,
    update_signal: Number = None,
    step: Number = None,
    momenta: Sequence[HostArray] | None = None,
    **rule: Unpack[MomentumRule],
) -> tuple[HostArray, Lists, Lists | None, HostArray, Lists | None]:
    """Return update signal, weights, low-precision copies, step and momenta after a step.

    weights[i] -= lr u, u the gradient or its momentum (`_direction`). All are unchanged where the
    step is skipped. Copies and momenta are None where they are left out. rule: the attributes.
    """
    update = np.full(np.shape(update_signal), number(update_signal) != 0)
    mixed = mixed_precision_weights or [None] * len(weights)
    is_applied = bool(number(update_signal)) and allows_step(lr, loss_scale)
    before, new_step = count_step(step, is_applied)
    if not is_applied:
        return update, tuple(weights), mixed_precision_weights, new_step, momenta  # type: ignore[return-value]
    divisor = gradient_divisor(loss_scale, gradient_norm, number(max_norm, np.inf))
    divisor = -divisor if rule["maximize"] else divisor
    buffers: Sequence[HostArray | None] = momenta or [None] * len(weights)
    directions = [
        _direction(w, g, m, divisor, before, rule)
        for w, g, m in zip(weights, gradients, buffers, strict=True)
    ]
    rate = number(lr)
    descended = [_descend(w, u, rate)[0] for w, (u, _) in zip(weights, directions, strict=True)]
    new_weights = rounded_weights(descended, weights, rule.get("rounding_seed"), before)
    copies = [c if c is None else cast(x, c.dtype) for x, c in zip(descended, mixed, strict=True)]
    new_momenta = None if momenta is None else tuple(b for _, b in directions)
    new_mixed = None if mixed_precision_weights is None else tuple(copies)
    return update, new_weights, new_mixed, new_step, new_momenta


def _direction(
    w: HostArray,
    g: HostArray,
    momentum: HostArray | None,
    divisor: float,
    step: int,
    rule: MomentumRule,
) -> tuple[HostArray, HostArray]:
    """Return u of w -= lr u, and the new momentum, in float32 or float64 (`computed_in`).

    w, g, momentum: one weight, its gradient, and its momentum or None, without which both are
    g / divisor + weight_decay w. step: this step's number; in 1 the momentum begins as that
    gradient. rule: attributes of the operator.
    """
    kind = computed_in(w.dtype)
    g = g.astype(kind) / kind.type(divisor)
    if rule["weight_decay"]:
        g = g + kind.type(rule["weight_decay"]) * w.astype(kind)
    if momentum is None:
        return g, g
    factor = kind.type(rule["momentum"])
    new = g if step <= 1 else factor * momentum + kind.type(1 - rule["dampening"]) * g
    return (g + factor * new if rule["nesterov"] else new), new


def _descend(w: HostArray, u: HostArray, rate: float) -> tuple[HostArray, HostArray]:
    """Return w - rate u, and -rate u, in the type that is computed in."""
    kind = computed_in(w.dtype)
    delta = -kind.type(rate) * u.astype(kind)
    return w.astype(kind) + delta, delta


@quiet
def gradient_norm(gradients: Sequence[HostArray]) -> tuple[HostArray, HostArray]:
    norm = _norm(gradients)
    return norm, np.isfinite(norm)


@quiet
def inplace_clip_grad_norm(
    gradients: Sequence[HostArray],
    *,
    max_norm: float,
    norm_type: str,  # noqa: ARG001 - there is one
) -> tuple[HostArray, ...]:
    """Return g max_norm / (norm + 1e-6) for each array, or g if that factor is not below 1."""
    norm = _norm(gradients)
    factor = norm.dtype.type(max_norm) / (norm + norm.dtype.type(1e-6))
    if not factor < 1:
        return tuple(gradients)
    return tuple(cast(wide(g) * factor, g.dtype) for g in gradients)


def _norm(gradients: Sequence[HostArray]) -> HostArray:
    """Return the Euclidean norm of all elements, in the type that is computed in."""
    kind = computed_in(gradients[0].dtype)
    return reduction.reduce_all_l2(gradients, output_type=kind)
