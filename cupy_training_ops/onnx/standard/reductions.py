# SPDX-License-Identifier: MIT
"""Products of matrices, reductions, operators along an axis, and normalizations.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...device import recording
from ...dtypes import FLOATS
from ...errors import ArgumentError
from ...registry import get_op
from ..vectors import compute, dense
from .elementwise import refuse_mixed, scalar
from .table import HALVES, Array, Module, axis_of, in_float32, stack, standard, wide

SUMMED = (*FLOATS, np.dtype(np.int32), np.dtype(np.int64))  # types that a kernel here sums
Axes = Sequence[int] | None
Reduce = Callable[..., Array]  # f(xp, x, axes, keep): axes a tuple or None for all, keep: keepdims


def places(axes: Any) -> tuple[int, ...] | None:
    """Return axes, from an attribute or an array, as a tuple; None (or none of them) for all."""
    return None if axes is None or len(axes) == 0 else tuple(map(int, axes))


def _of_module(name: str) -> Reduce:
    return lambda xp, x, axes, keep: getattr(xp, name)(x, axis=axes, keepdims=keep)


def _largest(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    """Return the maximum; of no elements the least number of the type."""
    if not x.size:
        return _of_nothing(xp, x, axes, keep, -np.inf if x.dtype.kind == "f" else _least(x))
    return x.max(axis=axes, keepdims=keep)


def _smallest(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    if not x.size:
        return _of_nothing(xp, x, axes, keep, _most(x))
    return x.min(axis=axes, keepdims=keep)


def _of_nothing(xp: Module, x: Array, axes: Any, keep: bool, value: Any) -> Array:
    """Return the result of a reduction of no elements, all `value`; CuPy's have no `initial`."""
    return xp.full(x.sum(axis=axes, keepdims=keep).shape, value, x.dtype)


def _most(x: Array) -> Any:
    """Return the largest number of x's type."""
    if x.dtype.kind in "iu":
        return np.iinfo(x.dtype).max
    return True if x.dtype.kind == "b" else np.inf


def _least(x: Array) -> Any:
    return False if x.dtype.kind == "b" else np.iinfo(x.dtype).min


def _in_type(name: str) -> Reduce:
    """Return NumPy's reduction in x's own type, where it would widen small integers."""
    return lambda xp, x, axes, keep: getattr(xp, name)(x, axis=axes, keepdims=keep, dtype=x.dtype)


def _l1(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    return xp.abs(x).sum(axis=axes, keepdims=keep, dtype=x.dtype)


def _squares(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    return (x * x).sum(axis=axes, keepdims=keep, dtype=x.dtype)


def _log_sum_exp(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    """Return log of the sum of e^x, as top + log of the sum of e^(x - top): without overflow."""
    top = _largest(xp, x, axes, True)
    top = xp.where(xp.isfinite(top), top, scalar(x, 0))
    total = xp.log(xp.exp(x - top).sum(axis=axes, keepdims=True)) + top
    return total if keep else total.reshape(x.sum(axis=axes).shape)


def _norm(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    return xp.sqrt(_squares(xp, x, axes, keep))


def _log_sum(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
    return xp.log(x.sum(axis=axes, keepdims=keep, dtype=x.dtype))


REDUCTIONS: dict[str, tuple[Reduce, int]] = {  # function; opset from which axes are an input
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
    """Return the reduction of half types in float32, with results of the input's type."""

    def run(xp: Module, x: Array, axes: Any, keep: bool) -> Array:
        return reduce(xp, wide(x), axes, keep).astype(x.dtype, copy=False)

    return run


_SUM = _in_input_type(_in_type("sum"))


def _sum(xp: Module, x: Array, axes: Any, keep: bool, out: Array = None) -> Array:
    """Return sums over axes by this package's kernels where they have the type, else by xp's own.

    Halves are summed in float32. axes: None for all. keep: with extent 1 for each of them. out: is
    written if it has the result's shape and type.
    """
    if xp is np or x.dtype not in SUMMED or axes == ():
        if xp is not np:
            recording.leave()
        y = _SUM(xp, x, axes, keep)
        if out is None or (out.shape, out.dtype) != (y.shape, y.dtype):
            return y
        out[...] = y
        return out
    op = get_op("ReduceSumTraining").shared(keepdims=keep)
    fits = out is not None and out.shape == _kept_extents(x.shape, axes, keep)
    return op(dense(xp, x), axes or (), out=out if fits else None)


def _kept_extents(shape: Sequence[int], axes: Any, keep: bool) -> tuple[int, ...]:
    """Return the shape of a reduction over axes (None: all); keep: with 1 for each of them."""
    summed = {axis_of(axis, len(shape)) for axis in (range(len(shape)) if axes is None else axes)}
    pairs = enumerate(shape)
    return tuple(1 if i in summed else n for i, n in pairs if keep or i not in summed)


def _register(name: str, reduce: Reduce, since: int) -> None:
    """Put the operator `name`, computed by reduce(xp, x, axes, keepdims), into the table.

    Its axes are an attribute before opset `since`, then an input.
    """
    noted = name == "ReduceSum"

    @standard(name, until=since - 1, noted=noted)
    def by_attribute(
        xp: Module, x: Array, out: Array = None, *, axes: Axes = None, keepdims: bool = True
    ) -> Array:
        return reduce(xp, x, places(axes), bool(keepdims), **({} if out is None else {"out": out}))

    @standard(name, since=since, host=(1,), noted=noted)
    def by_input(
        xp: Module,
        x: Array,
        axes: Any = None,
        out: Array = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
    ) -> Array:
        """Reduce x over `axes` (all without any, or none if noop_with_empty_axes)."""
        chosen = places(axes)
        if chosen is None and noop_with_empty_axes:
            chosen = ()
        return reduce(xp, x, chosen, bool(keepdims), **({} if out is None else {"out": out}))


for _name, (_reduce, _since) in REDUCTIONS.items():
    _register(_name, _sum if _name == "ReduceSum" else _in_input_type(_reduce), _since)


def _arg(name: str) -> Callable[..., Array]:
    """Return ArgMax or ArgMin by NumPy's function of this name, "argmax" or "argmin"."""

    def run(
        xp: Module,
        x: Array,
        *,
        axis: int = 0,
        keepdims: bool = True,
        select_last_index: bool = False,
    ) -> Array:
        """Return the index of the first (or last) extreme element along an axis, as int64."""
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
    return _accumulate(xp.cumsum, xp, x, axis, exclusive, reverse, 0)


@standard("CumProd", host=(1,))
@in_float32
def cum_prod(
    xp: Module, x: Array, axis: Any, *, exclusive: bool = False, reverse: bool = False
) -> Array:
    return _accumulate(xp.cumprod, xp, x, axis, exclusive, reverse, 1)


def _accumulate(
    function: Any, xp: Module, x: Array, axis: Any, exclusive: bool, reverse: bool, first: int
) -> Array:
    """Return cumulative sums or products, by `function`, along an axis (an array of one number).

    exclusive: element i has those before i; `first`, 0 or 1, is the result of none.
    """
    place, shape = axis_of(int(axis.reshape(-1)[0]), x.ndim), x.shape
    x = xp.flip(x, place) if reverse else x
    if exclusive:  # what is before each element: to take it off again would cost it its bits
        x = xp.moveaxis(x, place, 0)[:-1]
        before = xp.full((min(1, shape[place]), *x.shape[1:]), first, x.dtype)
        x = xp.moveaxis(xp.concatenate([before, x]), 0, place)
    total = function(x, axis=place, dtype=x.dtype)
    return xp.flip(total, place) if reverse else total


@standard("Softmax", until=12)
@in_float32
def softmax_1(xp: Module, x: Array, *, axis: int = 1) -> Array:
    """Softmax over all dimensions from the axis on, together."""
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


@standard("Hardmax", until=12)
def hardmax_1(xp: Module, x: Array, *, axis: int = 1) -> Array:
    """Hardmax over all dimensions from the axis on, together."""
    place = axis if axis == x.ndim else axis_of(axis, x.ndim)
    rows = x.reshape(math.prod(x.shape[:place]), math.prod(x.shape[place:]))
    return hardmax(xp, rows).reshape(x.shape)


@standard("Hardmax", since=13)
def hardmax(xp: Module, x: Array, *, axis: int = -1) -> Array:
    """Return 1 at the first largest element along an axis, 0 elsewhere."""
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
    """Return y; in training mode (y, new running mean, new running variance)."""
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
    """Return (x - mean) / sqrt(var + epsilon) scale + bias, with an element of each for a channel.

    Channels are axis 1.
    """
    each = (-1, *[1] * (x.ndim - 2))
    factor = wide(scale) / xp.sqrt(var + scalar(var, epsilon))
    shifted = wide(bias) - mean * factor
    return (wide(x) * factor.reshape(each) + shifted.reshape(each)).astype(x.dtype, copy=False)


@standard("InstanceNormalization")
@in_float32
def instance_normalization(
    xp: Module, x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5
) -> Array:
    """Normalise each channel (axis 1) of each sample by its own mean and variance."""
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
    """Return (x, a mask of True): in an inference model, Dropout is the identity."""
    return x, xp.ones(x.shape, bool)


# ---- products of matrices ------------------------------------------------------------------------


@standard("MatMul", noted=True)
def matmul(xp: Module, a: Array, b: Array, *, allow_tf32: bool = False) -> Array:
    return product(xp, a, b, tf32=allow_tf32)


def product(
    xp: Module, a: Array, b: Array, alpha: float = 1.0, tf32: bool = False, out: Array = None
) -> Array:
    """Return alpha a @ b, by cuBLAS where it takes the types; `out` is written if it is there.

    A batch a (..., m, k) times one matrix b is computed as one product of all rows.
    """
    refuse_mixed(a, b)
    if xp.__name__ == "cupy" and 1 in (a.ndim, b.ndim) and a.ndim and b.ndim:
        return _of_vectors(xp, a, b, alpha, tf32)
    if xp.__name__ == "cupy":
        from .. import cublas

        if cublas.fits((a, b)):
            return cublas.product(a, b, alpha=alpha, tf32=bool(tf32), out=out)
        recording.leave()
    elif a.dtype in HALVES:  # of which NumPy makes float32, or has no BLAS
        y = product(xp, wide(a), wide(b), alpha).astype(a.dtype)
        if out is None:
            return y
        out[...] = y
        return out
    if a.ndim and b.ndim and a.shape[-1] != b.shape[max(b.ndim - 2, 0)]:
        raise ValueError(f"expected shapes that can be multiplied, got {a.shape} and {b.shape}")
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous:
        rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        y = xp.matmul(rows, b).reshape(*a.shape[:-1], b.shape[-1])
    else:
        y = xp.matmul(a, b, out=out)
    if alpha != 1 and y.dtype.kind in "iu":
        return _multiply(y, alpha)
    if alpha != 1:
        y *= scalar(y, alpha)
    return y


def _of_vectors(xp: Module, a: Array, b: Array, alpha: float, tf32: bool) -> Array:
    """Return alpha a @ b where a or b is a vector: a as one row, b as one column."""
    rows = a[None] if a.ndim == 1 else a
    columns = b[:, None] if b.ndim == 1 else b
    y = product(xp, rows, columns, alpha, tf32)
    y = y[..., 0, :] if a.ndim == 1 else y
    return y[..., 0] if b.ndim == 1 else y


@standard("Det", since=11)
@in_float32
def det(xp: Module, x: Array) -> Array:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ArgumentError(f"expected square matrices, got shape {x.shape}")
    return xp.linalg.det(x)


@standard("DetGrad")
@in_float32
def det_grad(xp: Module, dy: Array, x: Array) -> Array:
    """Return the gradient of Det, an operator of this package: dy times the cofactors of x.

    By the singular values x = u s v they are det(u) det(v) u c v, where c is diagonal, and c_i the
    product of all s but s_i: so x may be singular.
    """
    u, s, v = xp.linalg.svd(x)
    places = range(x.shape[-1])
    others = [xp.concatenate([s[..., :i], s[..., i + 1 :]], axis=-1).prod(axis=-1) for i in places]
    c = stack(xp, others, -1) if others else s
    scale = dy * xp.linalg.det(u) * xp.linalg.det(v)
    return scale[..., None, None] * ((u * c[..., None, :]) @ v)


@standard("Gemm", noted=True)
def gemm(
    xp: Module,
    a: Array,
    b: Array,
    c: Array = None,
    out: Array = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,  # noqa: N803
    transB: bool = False,  # noqa: N803
    broadcast: bool = True,
    allow_tf32: bool = False,
) -> Array:
    """Return alpha a b + beta c, with a^T and b^T if transA and transB; out: is written."""
    y = product(xp, a.T if transA else a, b.T if transB else b, alpha, allow_tf32, out)
    if c is not None:
        c = c if beta == 1 else _multiply(c, beta)
        if xp is np or compute("add", (y, c), y) is None:
            y += c
    return y


def _multiply(x: Array, factor: float) -> Array:
    """Return x factor in x's type; of integers truncated."""
    recording.leave()
    if x.dtype.kind in "iu":
        return (x * factor).astype(x.dtype)
    return x * scalar(x, factor)


@standard("FusedMatMul", "TransposeMatMul", noted=True)
def fused_matmul(
    xp: Module,
    a: Array,
    b: Array,
    *,
    alpha: float = 1.0,
    transA: bool = False,  # noqa: N803
    transB: bool = False,  # noqa: N803
    transBatchA: bool = False,  # noqa: N803
    transBatchB: bool = False,  # noqa: N803
    allow_tf32: bool = False,
    transY: bool = False,  # noqa: N803
) -> Array:
    """Return alpha a @ b with each factor transposed as its flags say.

    trans: the last two dimensions are swapped. transBatch: the first dimension belongs second to
    last: (M, batch, K) is read as (batch, M, K). transY, an attribute of this package: the result's
    last two dimensions are swapped.
    """
    a, b = _transpose(xp, a, transA, transBatchA), _transpose(xp, b, transB, transBatchB)
    if transY and a.ndim > 1 and b.ndim > 1:
        return product(xp, b.swapaxes(-1, -2), a.swapaxes(-1, -2), alpha, allow_tf32)
    y = product(xp, a, b, alpha, allow_tf32)
    return y.swapaxes(-1, -2) if transY else y


def _transpose(xp: Module, x: Array, last: int, batch: int) -> Array:
    """Return a factor of FusedMatMul as (batch, M, K), by its flags trans and transBatch."""
    if batch and x.ndim > 2:
        x = xp.moveaxis(x, 0, -2)
    return x.swapaxes(-1, -2) if last and x.ndim > 1 else x


@standard("Einsum", keeps=True)
def einsum(xp: Module, *arrays: Array, equation: str) -> Array:
    if xp is np:  # NumPy's sums are of the arrays' type
        return xp.einsum(equation, *map(wide, arrays)).astype(arrays[0].dtype, copy=False)
    return xp.einsum(equation, *arrays)
