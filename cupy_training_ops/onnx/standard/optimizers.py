# SPDX-License-Identifier: MIT
"""Steps of optimizers of the domain ai.onnx.preview.training: new arrays for old ones.

The inputs are the learning rate, the count of steps before, and lists of n arrays one behind the
other: x_1 ... x_n, their gradients, and n of each moment. In formulas g is the gradient plus
norm_coefficient x.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...dtypes import FLOAT64
from ...errors import ArgumentError
from .elementwise import scalar
from .table import Array, Module, standard

PREVIEW = "ai.onnx.preview.training"


def _update(
    function: Callable[..., Sequence[Array]],
    rate: Array,
    count: Array,
    arrays: Sequence[Array],
    n_lists: int,
) -> tuple[Array, ...]:
    """Return the new variables x_1 ... x_n, then n new ones of each moment.

    function: (rate, count, x, gradient, moments...) to the new (x, moments...) of one variable.
    arrays: n_lists lists of equal length, one behind the other.
    """
    if rate.size != 1 or count.size != 1:
        raise ArgumentError(f"R, T: expected one number, got {rate.shape} and {count.shape}")
    n = len(arrays) // n_lists
    if n * n_lists != len(arrays):
        raise ArgumentError(f"inputs: expected {n_lists} for each variable, got {len(arrays)}")
    rows = []
    for k in range(n):
        own = arrays[k::n]
        for array in own[1:]:
            if array.shape != own[0].shape or array.dtype != own[0].dtype:
                expected = f"{own[0].dtype} {own[0].shape} as the variable"
                raise ArgumentError(f"inputs: expected {expected}, got {array.dtype} {array.shape}")
        rows.append(function(rate.reshape(()).astype(own[0].dtype), count.reshape(()), *own))
    return tuple(array for column in zip(*rows, strict=True) for array in column)


def _add_penalty(x: Array, gradient: Array, coefficient: float) -> Array:
    """Return the gradient with that of coefficient |x|^2 / 2 added."""
    return x * scalar(x, coefficient) + gradient if coefficient else gradient


@standard(f"{PREVIEW}.Momentum", only={"mode": ("nesterov", "standard")})
def momentum(
    xp: Module,
    rate: Array,
    count: Array,
    *arrays: Array,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> tuple[Array, ...]:
    """Return new x and moments v: v = alpha v + beta g (beta = 1 in the first step), x -= rate v.

    Mode "nesterov": x -= rate (g + alpha v). arrays: all x, their gradients, and all v.
    """

    def step(rate: Array, count: Array, x: Array, gradient: Array, v: Array) -> Sequence[Array]:
        gradient = _add_penalty(x, gradient, norm_coefficient)
        share = xp.where(count > 0, scalar(x, beta), scalar(x, 1))
        v = v * scalar(x, alpha) + gradient * share
        direction = gradient + v * scalar(x, alpha) if mode == "nesterov" else v
        return x - direction * rate, v

    return _update(step, rate, count, arrays, 3)


@standard(f"{PREVIEW}.Adagrad")
def adagrad(
    xp: Module,
    rate: Array,
    count: Array,
    *arrays: Array,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Array, ...]:
    """Return new x and moments h: h += g^2, x -= rate g / (1 + count decay_factor) / (sqrt(h) + e).

    e: epsilon. arrays: all x, their gradients, and all h.
    """

    def step(rate: Array, count: Array, x: Array, gradient: Array, h: Array) -> Sequence[Array]:
        gradient = _add_penalty(x, gradient, norm_coefficient)
        h = h + gradient * gradient
        slower = count.astype(x.dtype) * scalar(x, decay_factor) + scalar(x, 1)
        return x - gradient / (xp.sqrt(h) + scalar(x, epsilon)) * (rate / slower), h

    return _update(step, rate, count, arrays, 3)


@standard(f"{PREVIEW}.Adam")
def adam(
    xp: Module,
    rate: Array,
    count: Array,
    *arrays: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Array, ...]:
    """Return new x and moments: v = alpha v + (1 - alpha) g, h = beta h + (1 - beta) g^2.

    arrays: all x, their gradients, all v, and all h.
    x -= rate c v / (sqrt(h) + epsilon), c = sqrt(1 - beta^count) / (1 - alpha^count), 1 in step 0;
    then x *= 1 - norm_coefficient_post.
    """

    def step(
        rate: Array, count: Array, x: Array, gradient: Array, v: Array, h: Array
    ) -> Sequence[Any]:
        """Return the new x, v and h of one variable."""
        gradient = _add_penalty(x, gradient, norm_coefficient)
        v = v * scalar(x, alpha) + gradient * scalar(x, 1 - alpha)
        h = h * scalar(x, beta) + gradient * gradient * scalar(x, 1 - beta)
        t = xp.maximum(count, 1).astype(FLOAT64)
        powers = [xp.power(FLOAT64.type(base), t) for base in (alpha, beta)]
        correction = xp.sqrt(1 - powers[1]) / (1 - powers[0])
        correction = xp.where(count > 0, correction, FLOAT64.type(1)).astype(x.dtype)
        new = x - v / (xp.sqrt(h) + scalar(x, epsilon)) * (rate * correction)
        return new * scalar(x, 1 - norm_coefficient_post), v, h

    return _update(step, rate, count, arrays, 4)
