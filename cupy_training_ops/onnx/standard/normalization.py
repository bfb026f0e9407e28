# SPDX-License-Identifier: MIT
"""Normalizations that have no operator of this package."""

from __future__ import annotations

from typing import Any

from .arrays import wide, widened
from .elementwise import scalar
from .table import standard

Array = Any
Module = Any


@standard("BatchNormalization", since=7, only={"spatial": (True,)})
def batch_normalization(
    xp: Module,
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: bool = False,
    spatial: bool = True,
) -> Any:
    """In training mode the running statistics come back as new arrays."""
    axes = (0, *range(2, x.ndim))
    if not training_mode:
        return _normalized(xp, x, scale, bias, wide(mean), wide(var), epsilon)
    own_mean, own_var = wide(x).mean(axis=axes), wide(x).var(axis=axes)
    y = _normalized(xp, x, scale, bias, own_mean, own_var, epsilon)
    running = [
        (wide(old) * momentum + own * (1 - momentum)).astype(old.dtype)
        for old, own in ((mean, own_mean), (var, own_var))
    ]
    return y, *running


def _normalized(
    xp: Module, x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float
) -> Array:
    each = (-1, *[1] * (x.ndim - 2))
    factor = wide(scale) / xp.sqrt(var + scalar(var, epsilon))
    shifted = wide(bias) - mean * factor
    return (wide(x) * factor.reshape(each) + shifted.reshape(each)).astype(x.dtype, copy=False)


@standard("InstanceNormalization")
@widened
def instance_normalization(
    xp: Module, x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5
) -> Array:
    axes, each = tuple(range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))
    centred = x - x.mean(axis=axes, keepdims=True)
    width = xp.sqrt(xp.square(centred).mean(axis=axes, keepdims=True) + scalar(x, epsilon))
    return centred / width * scale.reshape(each) + bias.reshape(each)


@standard("LpNormalization", only={"p": (2, 1)})
@widened
def lp_normalization(xp: Module, x: Array, *, axis: int = -1, p: int = 2) -> Array:
    power = xp.abs(x).sum(axis=axis, keepdims=True) if p == 1 else None
    norm = xp.sqrt((x * x).sum(axis=axis, keepdims=True)) if power is None else power
    return xp.where(norm == 0, scalar(x, 0), x / norm)


@standard("Dropout", since=7, until=11, view=True)
def dropout_7(xp: Module, x: Array, *, ratio: float = 0.5) -> tuple[Array, Array]:
    """Of an inference model: the identity."""
    return x, xp.ones(x.shape, bool)
