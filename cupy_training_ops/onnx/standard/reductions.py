# SPDX-License-Identifier: MIT
"""Reductions, and what goes along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...dtypes import FLOATS
from ...registry import get_op
from .arrays import dense, wide, widened
from .elementwise import scalar
from .table import axis_of, standard

Array = Any
Module = Any
SUMMED = (*FLOATS, np.dtype(np.int32), np.dtype(np.int64))
Axes = Sequence[int] | None
Reduce = Callable[[Module, Array, Any, bool], Array]


def places(axes: Any) -> tuple[int, ...] | None:
    """Axes of an attribute or an array; None for all."""
    return None if axes is None or len(axes) == 0 else tuple(int(i) for i in axes)


def _named(name: str) -> Reduce:
    return lambda xp, x, axes, keep: getattr(xp, name)(x, axis=axes, keepdims=keep)


def _largest(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    """Of nothing the least number that there is."""
    if not x.size:
        return _of_nothing(xp, x, axes, keep, -np.inf if x.dtype.kind == "f" else _least(x))
    return x.max(axis=axes, keepdims=keep)


def _smallest(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    if not x.size:
        return _of_nothing(xp, x, axes, keep, _most(x))
    return x.min(axis=axes, keepdims=keep)


def _of_nothing(xp: Module, x: Array, axes: Any, keep: bool, value: Any) -> Array:
    """What a reduction without elements gives; CuPy's take no `initial`."""
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
    "ReduceMean": (_named("mean"), 18),
    "ReduceMin": (_smallest, 18),
    "ReduceProd": (_in_type("prod"), 18),
    "ReduceSum": (_in_type("sum"), 13),
    "ReduceSumSquare": (_squares, 18),
}


def _typed(reduce: Reduce) -> Reduce:
    """Half types are reduced in float32; a result is of its input's type."""

    def run(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
        return reduce(xp, wide(x), axes, keep).astype(x.dtype, copy=False)

    return run


def _sum(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    """By this package's kernels where they are for the type: they add halves in float32."""
    if xp.__name__ != "cupy" or x.dtype not in SUMMED or axes == ():
        return _typed(_in_type("sum"))(xp, x, axes, keep)
    op = get_op("ReduceSumTraining").shared(keepdims=keep)
    return op(dense(xp, x), axes or ())


def _put(name: str, reduce: Reduce, since: int) -> None:
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
        found = places(axes)
        if found is None and noop_with_empty_axes:
            found = ()
        return reduce(xp, x, found, bool(keepdims))


for _name, (_reduce, _since) in REDUCTIONS.items():
    _put(_name, _sum if _name == "ReduceSum" else _typed(_reduce), _since)


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
            found = getattr(xp, name)(x, axis=axis)
        else:
            found = x.shape[axis] - 1 - getattr(xp, name)(xp.flip(x, axis), axis=axis)
        found = xp.asarray(found).astype("int64")
        return xp.expand_dims(found, axis) if keepdims else found

    return run


standard("ArgMax")(_arg("argmax"))
standard("ArgMin")(_arg("argmin"))


@standard("CumSum", host=(1,))
@widened
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
@widened
def softmax_1(xp: Module, x: Array, *, axis: int = 1) -> Array:
    """Over all dimensions from the axis on."""
    e = xp.exp(_below_top(x, axis))
    return e / _row_sums(e, axis)


@standard("LogSoftmax", until=12)
@widened
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
