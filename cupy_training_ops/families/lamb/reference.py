# SPDX-License-Identifier: MIT
"""LAMB in NumPy. Formula: the class in `operators.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...dtypes import FLOAT64, HostArray
from ...rules.step import allows_step, bias_correction, count_step, gradient_divisor, number
from ...rules.widening import cast, quiet

Arrays = Sequence[HostArray]
Lists = tuple[HostArray, ...]
Number = object  # a Python number, or an array of one element
ForEach = float | tuple[float, ...]
Rule = tuple[float, ...]  # alpha, beta, lambda_, epsilon, divisor of the gradient


@quiet
def lamb_optimizer(
    update_signal: Number,
    loss_scale: Number,
    gradient_norm: Number,
    r: Number,
    step: Number,
    weights: Arrays,
    gradients: Arrays,
    moment1: Arrays,
    moment2: Arrays,
    mixed_precision_weights: Sequence[HostArray | None] | None = None,
    *,
    alpha: ForEach,
    beta: ForEach,
    lambda_: ForEach,
    epsilon: ForEach,
    max_norm_clip: ForEach,
    ratio_min: float,
    ratio_max: float,
    do_bias_correction: bool,
) -> tuple[HostArray, Lists, Lists, Lists, Lists, tuple[HostArray | None, ...]]:
    """Return new step, weights, what was added to them, both moments and low-precision weights.

    update_signal: False changes nothing. loss_scale: factor of the gradients; gradient_norm: their
    norm, with it, clipped to max_norm_clip. r: learning rate; step: its number, None corrects no
    bias. Lists have an array for each parameter, moment1 and moment2 its moments.
    mixed_precision_weights: arrays, or None, that get the new weights too. The rest: attributes.
    """
    update = bool(number(update_signal)) and allows_step(r, loss_scale)
    before, new_step = count_step(step, update)
    mixed = tuple(mixed_precision_weights or [None] * len(weights))
    if not update:
        return new_step, *map(tuple, (weights, gradients, moment1, moment2)), mixed  # type: ignore[return-value]
    t = before if do_bias_correction else 0
    columns = (_for_each(x, len(weights)) for x in (alpha, beta, lambda_, epsilon))
    divisors = [
        gradient_divisor(loss_scale, gradient_norm, clip)
        for clip in _for_each(max_norm_clip, len(weights))
    ]
    rules = zip(*columns, divisors, strict=True)
    numbers = number(r), t, (ratio_min, ratio_max)
    stepped = [
        _step(w, g, m, v, copy, rule, *numbers)
        for w, g, m, v, copy, rule in zip(
            weights, gradients, moment1, moment2, mixed, rules, strict=True
        )
    ]
    return new_step, *zip(*stepped, strict=True)  # type: ignore[return-value]


def _for_each(value: ForEach, n: int) -> tuple[float, ...]:
    """Return the values of n parameters, from one or a tuple of n."""
    return value if isinstance(value, tuple) else (value,) * n


def _step(
    w: HostArray,
    g: HostArray,
    m1: HostArray,
    m2: HostArray,
    mixed: HostArray | None,
    rule: Rule,
    rate: float,
    step: int,
    limits: tuple[float, float],
) -> tuple[HostArray | None, ...]:
    """Return one parameter's new weights, what was added to them, both moments, and the copy.

    w, g, m1, m2: weights, gradient and moments. mixed: has the copy's dtype; None: no copy. rule:
    (alpha, beta, lambda_, epsilon, divisor of the gradient). rate: learning rate. step: 0 for no
    bias correction. limits: (least, most) of the trust ratio.
    """
    direction, m, v = _direction(w, g, m1, m2, rule, step)
    delta = -w.dtype.type(_trust(rate, w, direction, limits)) * direction.astype(w.dtype)
    finite = np.isfinite(w + delta)
    new_w, delta = np.where(finite, w + delta, w), np.where(finite, delta, 0)
    copy = None if mixed is None else cast(new_w, mixed.dtype)
    return new_w, cast(delta, g.dtype), cast(m, m1.dtype), cast(v, m2.dtype), copy


def _direction(
    w: HostArray, g: HostArray, m1: HostArray, m2: HostArray, rule: Rule, step: int
) -> tuple[HostArray, HostArray, HostArray]:
    """Return d = m / (sqrt(v) + epsilon) + lambda_ w in g's dtype, and both new moments.

    m1, m2: moments. rule: (alpha, beta, lambda_, epsilon, divisor of g). step: 0 for no bias
    correction. Where d is not finite it is 0, and the moments stay.
    """
    alpha, beta, lambda_, epsilon, divisor = rule
    number_of = w.dtype.type  # what is computed in
    old_m, old_v = m1.astype(w.dtype), m2.astype(w.dtype)
    scaled = g.astype(w.dtype) / number_of(divisor)
    m = number_of(alpha) * old_m + number_of(1 - alpha) * scaled
    v = number_of(beta) * old_v + number_of(1 - beta) * scaled * scaled
    root = np.sqrt(v / number_of(bias_correction(beta, step)))
    exact = number_of(lambda_) * w + m / number_of(bias_correction(alpha, step)) / (
        root + number_of(epsilon)
    )
    finite = np.isfinite(exact)
    m, v = np.where(finite, m, old_m), np.where(finite, v, old_v)
    return cast(np.where(finite, exact, 0), g.dtype), m, v


def _trust(rate: float, w: HostArray, d: HostArray, limits: tuple[float, float]) -> float:
    """Return the rate times |w| / |d|, or the rate alone if either norm is 0.

    w, d: weights and directions of a parameter. limits: (least, most) of |w| / |d|.
    """
    of_weights, of_directions = (float(np.sum(np.square(x.astype(FLOAT64)))) for x in (w, d))
    if of_weights == 0 or of_directions == 0:
        return rate
    ratio = np.sqrt(np.divide(of_weights, of_directions))
    return rate * float(np.fmax(limits[0], np.fmin(limits[1], ratio)))
