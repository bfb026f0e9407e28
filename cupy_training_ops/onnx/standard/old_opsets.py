# SPDX-License-Identifier: MIT
"""Operators of early opsets, whose attributes have changed since: `broadcast`, `axis`, `scales`.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ArgumentError
from .elementwise import prelu
from .reductions import batch_normalization
from .shapes import resize
from .table import Array, Function, Module, find, standard

BROADCASTING = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
UPSAMPLED = {"mode": ("nearest", "linear")}


def _with_axis(name: str) -> Function:
    """Return the operator `name` as of opset 6, computed by its function of opset 7.

    y is broadcast to x only if the attribute `broadcast` is set, from axis `axis` of x on.
    """
    item = find(name, 7)
    assert item is not None

    def run(
        xp: Module, x: Array, y: Array, *, broadcast: bool = False, axis: int | None = None
    ) -> Array:
        if not broadcast and x.shape != y.shape:
            raise ArgumentError(f"B: expected shape {x.shape}, got {y.shape}: broadcast is 0")
        return item.function(xp, x, _before(y, x.shape, axis) if broadcast else y)

    return run


def _before(y: Array, shape: tuple[int, ...], axis: int | None) -> Array:
    """Return y reshaped to broadcast to `shape`, with its first axis at `axis` of that.

    (3,) for shape (2, 3, 4) at axis 1 becomes (3, 1). Without axis, its last axis is the last.
    """
    first = len(shape) - y.ndim if axis is None else axis
    if y.size == 1:
        return y.reshape(())
    own = shape[max(first, 0) :][: y.ndim]
    if len(own) < y.ndim or any(n not in (1, m) for n, m in zip(y.shape, own, strict=True)):
        raise ArgumentError(f"B: expected a part of shape {shape} from {first} on, got {y.shape}")
    return y.reshape(y.shape + (1,) * (len(shape) - first - y.ndim))


for _operator in BROADCASTING:
    standard(_operator, until=6)(_with_axis(_operator))


@standard("PRelu", until=6)
def prelu_1(xp: Module, x: Array, slope: Array) -> Array:
    """PRelu with one slope, or one for each channel (axis 1)."""
    if slope.size == 1:
        return prelu(xp, x, slope.reshape(()))
    if x.ndim < 2 or slope.shape != x.shape[1:2]:
        raise ArgumentError(f"slope: expected one, or one for each channel, got {slope.shape}")
    return prelu(xp, x, slope.reshape(-1, *[1] * (x.ndim - 2)))


@standard("BatchNormalization", until=6, only={"is_test": (True,), "spatial": (True,)})
def batch_normalization_1(
    xp: Module,
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    var: Array,
    *,
    is_test: bool,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: bool = True,
) -> Any:
    """Normalise by the running `mean` and `var`; is_test and spatial have to be set."""
    return batch_normalization(xp, x, scale, bias, mean, var, epsilon=epsilon)


@standard("Upsample", since=7, until=8, grows=True, view=True, only=UPSAMPLED)
def upsample_7(xp: Module, x: Array, *, scales: Sequence[float], mode: str = "nearest") -> Array:
    return resize_10(xp, x, scales, mode=mode)


@standard("Resize", host=(1,), since=10, until=10, grows=True, view=True, only=UPSAMPLED)
@standard("Upsample", host=(1,), since=9, until=9, grows=True, view=True, only=UPSAMPLED)
def resize_10(xp: Module, x: Array, scales: Any, *, mode: str = "nearest") -> Array:
    """Resize with output i at pixel i / scale; of mode nearest, the pixel before."""
    return resize(
        xp,
        x,
        scales=scales,
        mode=mode,
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
