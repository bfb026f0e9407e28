# SPDX-License-Identifier: MIT
"""Reductions, operators along an axis, and normalizations that have no operator of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...dtypes import FLOATS
from ...registry import get_op
from .arrays import dense, in_float32, wide
from .elementwise import scalar
from .table import axis_of, standard

Array = Any
Module = Any
SUMMED = (*FLOATS, np.dtype(np.int32), np.dtype(np.int64))
Axes = Sequence[int] | None
Reduce = Callable[[Module, Array, Any, bool], Array]


def places(axes: Any) -> tuple[int, ...] | None:
    """Axes of an attribute or an array; None for all."""
    return None if axes is None or len(axes) == 0 else tuple(map(int, axes))


def _of_module(name: str) -> Reduce:
    return lambda xp, x, axes, keep: getattr(xp, name)(x, axis=axes, keepdims=keep)


def _largest(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    """The maximum; of no elements the least number that there is."""
    if not x.size:
        return _of_nothing(xp, x, axes, keep, -np.inf if x.dtype.kind == "f" else _least(x))
    return x.max(axis=axes, keepdims=keep)


def _smallest(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    if not x.size:
        return _of_nothing(xp, x, axes, keep, _most(x))
    return x.min(axis=axes, keepdims=keep)


def _of_nothing(xp: Module, x: Array, axes: Any, keep: bool, value: Any) -> Array:
    """The result of a reduction of no elements; CuPy's take no `initial`."""
    return xp.full(x.sum(axis=axes, keepdims=keep).shape, value, x.dtype)


def _most(x: Array) -> Any:
    if x.dtype.kind in "iu":
        return np.iinfo(x.dtype).max
    return True if x.dtype.kind == "b" else np.inf


def _least(x: Array) -> Any:
    return False if x.dtype.kind == "b" else np.iinfo(x.dtype).min


def _in_type(name: str) -> Reduce:
    """NumPy would widen small integers."""
    return lambda xp, x, axes, keep: getattr(xp, name)(x, axis=axes, keepdims=keep, dtype=x.dtype)


def _l1(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    return xp.abs(x).sum(axis=axes, keepdims=keep, dtype=x.dtype)


def _squares(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    return (x * x).sum(axis=axes, keepdims=keep, dtype=x.dtype)


def _log_sum_exp(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    top = _largest(xp, x, axes, True)
    top = xp.where(xp.isfinite(top), top, scalar(x, 0))
    total = xp.log(xp.exp(x - top).sum(axis=axes, keepdims=True)) + top
    return total if keep else total.reshape(x.sum(axis=axes).shape)


def _norm(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    return xp.sqrt(_squares(xp, x, axes, keep))


def _log_sum(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    return xp.log(x.sum(axis=axes, keepdims=keep, dtype=x.dtype))


REDUCTIONS: dict[str, tuple[Reduce, int]] = {  # and the opset from which axes are an input
    "ReduceL1": (_l1, 18),
    "ReduceL2": (_norm, 18),
    "ReduceLogSum": (_log_sum, 18),
    "ReduceLogSumExp": (_log_sum_exp, 18),
    "ReduceMax": (_largest, 18),
    "ReduceMean": (_of_module("mean"), 18),
    "ReduceMin": (_smallest, 18),
    "ReduceProd": (_in_type("prod"), 18),
    "ReduceSum": (_in_type("sum"), 13),
    "ReduceSumSquare": (_squares, 18),
}


def _in_input_type(reduce: Reduce) -> Reduce:
    """Half types are reduced in float32; a result is of its input's type."""

    def run(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
        return reduce(xp, wide(x), axes, keep).astype(x.dtype, copy=False)

    return run


_SUM = _in_input_type(_in_type("sum"))


def _sum(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    """By this package's kernels where they are for the type: they add halves in float32."""
    if xp.__name__ != "cupy" or x.dtype not in SUMMED or axes == ():
        return _SUM(xp, x, axes, keep)
    op = get_op("ReduceSumTraining").shared(keepdims=keep)
    return op(dense(xp, x), axes or ())


def _register(name: str, reduce: Reduce, since: int) -> None:
    @standard(name, until=since - 1)
    def by_attribute(xp: Module, x: Array, *, axes: Axes = None, keepdims: bool = True) -> Array:
        return reduce(xp, x, places(axes), bool(keepdims))

    @standard(name, since=since, host=(1,))
    def by_input(
        xp: Module,
        x: Array,
        axes: Any = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
    ) -> Array:
        chosen = places(axes)
        if chosen is None and noop_with_empty_axes:
            chosen = ()
        return reduce(xp, x, chosen, bool(keepdims))


for _name, (_reduce, _since) in REDUCTIONS.items():
    _register(_name, _sum if _name == "ReduceSum" else _in_input_type(_reduce), _since)


def _arg(name: str) -> Callable[..., Array]:
    def run(
        xp: Module,
        x: Array,
        *,
        axis: int = 0,
        keepdims: bool = True,
        select_last_index: bool = False,
    ) -> Array:
        if not select_last_index:
            index = getattr(xp, name)(x, axis=axis)
        else:
            index = x.shape[axis] - 1 - getattr(xp, name)(xp.flip(x, axis), axis=axis)
        index = xp.asarray(index).astype("int64")
        return xp.expand_dims(index, axis) if keepdims else index

    return run


standard("ArgMax")(_arg("argmax"))
standard("ArgMin")(_arg("argmin"))


@standard("CumSum", host=(1,))
@in_float32
def cum_sum(
    xp: Module, x: Array, axis: Any, *, exclusive: bool = False, reverse: bool = False
) -> Array:
    place, shape = int(axis.reshape(-1)[0]), x.shape
    x = xp.flip(x, place) if reverse else x
    if exclusive:  # what is before each element: to take it off again would cost it its bits
        x = xp.moveaxis(x, place, 0)[:-1]
        before = xp.zeros((min(1, shape[place]), *x.shape[1:]), x.dtype)
        x = xp.moveaxis(xp.concatenate([before, x]), 0, place)
    total = xp.cumsum(x, axis=place, dtype=x.dtype)
    return xp.flip(total, place) if reverse else total


@standard("Softmax", until=12)
@in_float32
def softmax_1(xp: Module, x: Array, *, axis: int = 1) -> Array:
    """Over all dimensions from the axis on."""
    e = xp.exp(_below_top(x, axis))
    return e / _row_sums(e, axis)


@standard("LogSoftmax", until=12)
@in_float32
def log_softmax_1(xp: Module, x: Array, *, axis: int = 1) -> Array:
    below = _below_top(x, axis)
    return below - xp.log(_row_sums(xp.exp(below), axis))


def _below_top(x: Array, axis: int) -> Array:
    return x - x.max(axis=_row_axes(x, axis), keepdims=True) if x.size else x


def _row_sums(x: Array, axis: int) -> Array:
    return x.sum(axis=_row_axes(x, axis), keepdims=True)


def _row_axes(x: Array, axis: int) -> tuple[int, ...]:
    return tuple(range(axis_of(axis, x.ndim), x.ndim)) if x.ndim else ()


@standard("Hardmax", since=13)
def hardmax(xp: Module, x: Array, *, axis: int = -1) -> Array:
    if not x.size:
        return x.copy()
    first = xp.expand_dims(x.argmax(axis=axis), axis)
    shape = [1] * x.ndim
    shape[axis] = -1
    return (xp.arange(x.shape[axis]).reshape(shape) == first).astype(x.dtype)


@standard("GlobalMaxPool")
def global_max_pool(xp: Module, x: Array) -> Array:
    return x.max(axis=tuple(range(2, x.ndim)), keepdims=True)


# ---- normalizations ------------------------------------------------------------------------------


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
        return _normalize(xp, x, scale, bias, wide(mean), wide(var), epsilon)
    own_mean, own_var = wide(x).mean(axis=axes), wide(x).var(axis=axes)
    y = _normalize(xp, x, scale, bias, own_mean, own_var, epsilon)
    running = [
        (wide(old) * momentum + own * (1 - momentum)).astype(old.dtype)
        for old, own in ((mean, own_mean), (var, own_var))
    ]
    return y, *running


def _normalize(
    xp: Module, x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float
) -> Array:
    each = (-1, *[1] * (x.ndim - 2))
    factor = wide(scale) / xp.sqrt(var + scalar(var, epsilon))
    shifted = wide(bias) - mean * factor
    return (wide(x) * factor.reshape(each) + shifted.reshape(each)).astype(x.dtype, copy=False)


@standard("InstanceNormalization")
@in_float32
def instance_normalization(
    xp: Module, x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5
) -> Array:
    axes, each = tuple(range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))
    centred = x - x.mean(axis=axes, keepdims=True)
    width = xp.sqrt(xp.square(centred).mean(axis=axes, keepdims=True) + scalar(x, epsilon))
    return centred / width * scale.reshape(each) + bias.reshape(each)


@standard("LpNormalization", only={"p": (2, 1)})
@in_float32
def lp_normalization(xp: Module, x: Array, *, axis: int = -1, p: int = 2) -> Array:
    power = xp.abs(x).sum(axis=axis, keepdims=True) if p == 1 else None
    norm = xp.sqrt((x * x).sum(axis=axis, keepdims=True)) if power is None else power
    return xp.where(norm == 0, scalar(x, 0), x / norm)


@standard("Dropout", since=7, until=11, view=True)
def dropout_7(xp: Module, x: Array, *, ratio: float = 0.5) -> tuple[Array, Array]:
    """The identity, as in an inference model."""
    return x, xp.ones(x.shape, bool)
