# SPDX-License-Identifier: MIT
"""Gradient descent and clipping in NumPy. Formulas: the classes in `operators.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dtypes import HostArray
from ...rules.step import can_be_made, gradient_divisor, number
from ...rules.widening import cast, computed_in, quiet, wide
from ..reduction import reference as reduction

Lists = tuple[HostArray | None, ...]

Number = Any  # a Python number, or an array of one element


@quiet
def sgd_optimizer(eta: Number, w: HostArray, g: HostArray) -> tuple[HostArray, HostArray]:
    if not can_be_made(eta):
        return w, g
    new_w, delta = _descend(w, g, number(eta), 1.0)
    return cast(new_w, w.dtype), cast(delta, g.dtype)


def sgd_optimizer_v2(
    lr: Number,
    weights: Sequence[HostArray],
    gradients: Sequence[HostArray],
    update_signal: Number = None,
) -> tuple[HostArray, Lists]:
    return sgd_optimizer_list(lr, weights, gradients, update_signal=update_signal)[:2]


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
) -> tuple[HostArray, Lists, Lists | None]:
    update = np.full(np.shape(update_signal), number(update_signal) != 0)
    mixed = mixed_precision_weights or [None] * len(weights)
    if not (number(update_signal) and can_be_made(lr, loss_scale)):
        return update, tuple(weights), tuple(mixed)
    divisor = gradient_divisor(loss_scale, gradient_norm, number(max_norm, np.inf))
    rate = number(lr)
    pairs = zip(weights, gradients, strict=True)
    descended = [_descend(w, g, rate, divisor)[0] for w, g in pairs]
    new_weights = [cast(x, w.dtype) for x, w in zip(descended, weights, strict=True)]
    copies = [c if c is None else cast(x, c.dtype) for x, c in zip(descended, mixed, strict=True)]
    return update, tuple(new_weights), tuple(copies)


def _descend(
    w: HostArray, g: HostArray, rate: float, divisor: float
) -> tuple[HostArray, HostArray]:
    """New weights, and what was added to them, in the type that is computed in."""
    kind = computed_in(w.dtype)
    delta = -kind.type(rate) * (g.astype(kind) / kind.type(divisor))
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
    norm = _norm(gradients)
    factor = norm.dtype.type(max_norm) / (norm + norm.dtype.type(1e-6))
    if not factor < 1:
        return tuple(gradients)
    return tuple(cast(wide(g) * factor, g.dtype) for g in gradients)


def _norm(gradients: Sequence[HostArray]) -> HostArray:
    """In the type that is computed in, beyond which it is infinite."""
    kind = computed_in(gradients[0].dtype)
    return reduction.reduce_all_l2(gradients, output_type=kind)
