# SPDX-License-Identifier: MIT
"""Operators that make, join, split, index and resize arrays, or look at their shapes.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ... import limits
from ...dtypes import FLOAT32, FLOATS, Dtype, HostArray, dtype_name, dtype_names, to_dtype
from ...errors import ArgumentError, DtypeError, shown
from ..stored import convert, graph_dtype
from ..vectors import dense
from .reductions import Axes, places
from .resampling import (
    CROP,
    ROUND,
    TRANSFORMATIONS,
    fit_sizes,
    positions,
    positions_in_crop,
    weigh,
    within,
)
from .table import Array, Module, axis_of, concatenate, standard, wide


def extents(shape: Any) -> tuple[int, ...]:
    """Return a shape, from a vector on the host, as a tuple; refuse one that is too large."""
    if getattr(shape, "ndim", 1) != 1:
        raise ArgumentError(f"expected a vector of extents, got an array of shape {shape.shape}")
    result = tuple(int(extent) for extent in shape)
    limits.refuse(limits.of_shape(result))
    return result


BLOCKS = {"mode": ("DCR", "CRD")}  # order of block (row, column) and channel in the channels' axis


@standard("Identity", view=True)
def identity(xp: Module, x: Array) -> Array:
    return x


@standard("Shape", shapes_only=True)
def shape_(xp: Module, x: Array, *, start: int = 0, end: int | None = None) -> Array:
    return np.array(x.shape[start:end], np.int64)


@standard("Size", shapes_only=True)
def size(xp: Module, x: Array) -> Array:
    return np.array(x.size, np.int64)


@standard("BroadcastGradientArgs", host=(0, 1))
def broadcast_gradient_args(xp: Module, a: Any, b: Any) -> tuple[Array, Array]:
    """Return, for arrays of shapes a and b, the axes that their gradients are summed over.

    These are the axes along which they are broadcast to each other, the last one first:
    (2, 1), (4, 2, 3): [2, 0], [].
    """
    rank = max(len(a), len(b))
    shapes = [(1,) * (rank - len(shape)) + tuple(map(int, shape)) for shape in (a, b)]
    np.broadcast_shapes(*shapes)
    own = [rank - len(a), rank - len(b)]  # how many axes in front each shape lacks
    axes = [
        [i for i in reversed(range(rank)) if i < n or (shape[i] == 1 != other[i])]
        for n, shape, other in zip(own, shapes, shapes[::-1], strict=True)
    ]
    return np.array(axes[0], np.int64), np.array(axes[1], np.int64)


@standard("Reshape", host=(1,), view=True, since=5)
def reshape(xp: Module, x: Array, shape: Any, *, allowzero: bool = False) -> Array:
    """Return x in a shape where -1 is inferred, and 0, if not allowzero, is x's own extent."""
    wanted = [int(extent) for extent in shape]
    if any(extent < -1 for extent in wanted):
        raise ArgumentError(f"shape: expected extents of at least -1, got {tuple(wanted)}")
    if not allowzero:
        wanted = [x.shape[i] if extent == 0 else extent for i, extent in enumerate(wanted)]
    return x.reshape(wanted)


@standard("Transpose", view=True, noted=True)
def transpose(xp: Module, x: Array, *, perm: Sequence[int] | None = None) -> Array:
    """Return a view of x, or on a GPU a C-contiguous copy.

    The copy is left out for fewer than three axes, and where only the last two of them swap:
    products of matrices read these as they are.
    """
    if xp.__name__ != "cupy" or x.ndim < 3 or _swaps_last(x.ndim, perm):
        return x.transpose(perm)
    return dense(xp, x.transpose(perm))


def _swaps_last(rank: int, perm: Sequence[int] | None) -> bool:
    return list(perm or ()) == [*range(rank - 2), rank - 1, rank - 2]


@standard("Flatten", view=True)
def flatten(xp: Module, x: Array, *, axis: int = 1) -> Array:
    place = axis if axis == x.ndim or not x.ndim else axis_of(axis, x.ndim)
    return x.reshape(math.prod(x.shape[:place]), math.prod(x.shape[place:]))


@standard("Squeeze", view=True, until=12)
def squeeze_1(xp: Module, x: Array, *, axes: Axes = None) -> Array:
    return x.squeeze(places(axes))


@standard("Squeeze", view=True, host=(1,), since=13)
def squeeze(xp: Module, x: Array, axes: Any = None) -> Array:
    return x.squeeze(places(axes))


@standard("Unsqueeze", view=True, until=12)
def unsqueeze_1(xp: Module, x: Array, *, axes: Sequence[int]) -> Array:
    return xp.expand_dims(x, places(axes) or ())


@standard("Unsqueeze", view=True, host=(1,), since=13)
def unsqueeze(xp: Module, x: Array, axes: Any) -> Array:
    return xp.expand_dims(x, places(axes.reshape(-1)) or ())


@standard("Expand", host=(1,), view=True, grows=True)
def expand(xp: Module, x: Array, shape: Any) -> Array:
    return xp.broadcast_to(x, np.broadcast_shapes(x.shape, extents(shape)))


@standard("Tile", host=(1,), grows=True, since=6)
def tile(xp: Module, x: Array, repeats: Any) -> Array:
    extents(n * int(r) for n, r in zip(x.shape, repeats, strict=True))
    return xp.tile(x, tuple(int(r) for r in repeats))


@standard("Concat", since=4, noted=True)
def concat(xp: Module, *arrays: Array, axis: int) -> Array:
    return concatenate(xp, arrays, axis)


def _split_at(xp: Module, x: Array, sizes: Sequence[int], axis: int) -> tuple[Array, ...]:
    """Return parts of x of these extents along an axis, which they have to sum up to."""
    if min(sizes, default=0) < 0 or sum(sizes) != x.shape[axis]:
        raise ArgumentError(f"split: expected a sum of {x.shape[axis]}, got {tuple(sizes)}")
    ends = np.cumsum(np.asarray(sizes))[:-1]
    return tuple(xp.split(x, [int(end) for end in ends], axis))


def _parts(extent: int, n: int) -> list[int]:
    """Return the lengths of n equal parts of `extent`, of which the last may be shorter."""
    each = -(-extent // n)
    return [max(min(each, extent - each * i), 0) for i in range(n)]


@standard("Split", view=True, until=12, takes_count=True)
def split_2(
    xp: Module, x: Array, *, n_outputs: int, axis: int = 0, split: Axes = None
) -> tuple[Array, ...]:
    return _split_at(xp, x, split or _parts(x.shape[axis], n_outputs), axis)


@standard("Split", view=True, host=(1,), since=13, takes_count=True)
def split_(
    xp: Module,
    x: Array,
    sizes: Any = None,
    *,
    n_outputs: int,
    axis: int = 0,
    num_outputs: int | None = None,
) -> tuple[Array, ...]:
    """Return parts of x along an axis, of these sizes, or n_outputs equal ones (a shorter last)."""
    lengths = _parts(x.shape[axis], n_outputs) if sizes is None else [int(n) for n in sizes]
    return _split_at(xp, x, lengths, axis)


@standard("Slice", view=True, until=9)
def slice_1(
    xp: Module, x: Array, *, starts: Sequence[int], ends: Sequence[int], axes: Axes = None
) -> Array:
    return slice_(xp, x, starts, ends, axes)


@standard("Slice", view=True, host=(1, 2, 3, 4), since=10)
def slice_(
    xp: Module, x: Array, starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> Array:
    """Return x[start:end:step, ...] as a view; starts, ends, steps: for each of `axes`."""
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    cut = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        is_back = step < 0  # ONNX clips such a start to 0; Python's slice would be empty
        first = max(int(start), -x.shape[int(axis)]) if is_back else int(start)
        cut[int(axis)] = slice(first, int(end), int(step))
    return x[tuple(cut)]


@standard("Cast", since=6, view=True)
def cast(xp: Module, x: Array, *, to: int, saturate: bool = True, round_mode: str = "up") -> Array:
    return convert(xp, x, graph_dtype(to), saturate=saturate, round_mode=round_mode)


@standard("CastLike", since=15, view=True)
def cast_like(
    xp: Module, x: Array, like: Array, *, saturate: bool = True, round_mode: str = "up"
) -> Array:
    return convert(xp, x, like.dtype, saturate=saturate, round_mode=round_mode)


@standard("ConstantOfShape", host=(0,), grows=True)
def constant_of_shape(xp: Module, shape: Any, *, value: HostArray | None = None) -> Array:
    value = np.zeros(1, FLOAT32) if value is None else value
    return xp.full(extents(shape), value.item(), value.dtype)


@standard("Range", host=(0, 1, 2), grows=True)
def range_(xp: Module, start: Any, limit: Any, delta: Any) -> Array:
    n = math.ceil((limit.item() - start.item()) / delta.item())
    extents((max(n, 0),))
    numbers = xp.arange(max(n, 0)) * delta.item() + start.item()
    return numbers.astype(start.dtype)


@standard("EyeLike", shapes_only=True, grows=True)
def eye_like(xp: Module, x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    if x.ndim != 2:
        raise ArgumentError(f"expected 2 dimensions, got {x.ndim}")
    return xp.eye(*x.shape, k=k, dtype=x.dtype if dtype is None else to_dtype(dtype))


PAD = {"mode": ("constant", "reflect", "edge", "wrap")}


@standard("Pad", until=10, only=PAD)
def pad_2(
    xp: Module, x: Array, *, pads: Sequence[int], mode: str = "constant", value: float = 0
) -> Array:
    return pad(xp, x, pads, np.array(value, x.dtype), mode=mode)


@standard("Pad", host=(1, 2, 3), grows=True, since=11, only=PAD)
def pad(
    xp: Module,
    x: Array,
    pads: Any,
    value: Any = None,
    axes: Any = None,
    *,
    mode: str = "constant",
) -> Array:
    """Return x with pads of each of `axes`: all at the begin, then all at the end.

    Negative ones cut elements off. value: what "constant" pads have.
    """
    n = len(pads) // 2
    ends = np.zeros((x.ndim, 2), np.int64)
    chosen = range(x.ndim) if axes is None else [int(i) for i in axes]
    for axis, before, after in zip(chosen, pads[:n], pads[n:], strict=True):
        ends[axis] = int(before), int(after)
    extents(extent + sum(map(int, pair)) for extent, pair in zip(x.shape, ends, strict=True))
    cut, wider = [], []
    for m, (before, after) in zip(x.shape, ends.tolist(), strict=True):
        start, stop = max(-before, 0), m - max(-after, 0)
        cut.append(slice(min(start, m), max(stop, 0)))
        # What is cut beyond x is cut off the pads at its other end.
        wider.append((max(before, 0) + min(stop, 0), max(after, 0) - max(start - m, 0)))
    if mode == "constant":
        return xp.pad(x[tuple(cut)], wider, constant_values=0 if value is None else value.item())
    return xp.pad(x[tuple(cut)], wider, mode=mode)


@standard("DepthToSpace", view=True, only=BLOCKS)
def depth_to_space(xp: Module, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Return (n, c / b^2, h b, w b) of (n, c, h, w): channels become blocks of b x b pixels.

    In channels, the place in a block varies slower (DCR) or faster (CRD) than the result's channel.
    """
    n, c, h, w = x.shape
    b, inner = blocksize, c // blocksize**2
    if mode == "DCR":
        moved = x.reshape(n, b, b, inner, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        moved = x.reshape(n, inner, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return moved.reshape(n, inner, h * b, w * b)


@standard("SpaceToDepth", view=True, only=BLOCKS)
def space_to_depth(xp: Module, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    """Return (n, c b^2, h / b, w / b) of (n, c, h, w): the inverse of depth_to_space."""
    n, c, h, w = x.shape
    b = blocksize
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = x.reshape(n, c, h // b, b, w // b, b).transpose(order)
    return moved.reshape(n, c * b * b, h // b, w // b)


# ---- elements by index; on the host, indices out of range are refused ----------------------------


@standard("Gather")
def gather(xp: Module, x: Array, indices: Array, *, axis: int = 0) -> Array:
    if indices.ndim == 0 and isinstance(indices, np.ndarray):
        return xp.take(x, int(indices), axis=axis)
    return xp.take(x, indices, axis=axis)


@standard("GatherElements")
def gather_elements(xp: Module, x: Array, indices: Array, *, axis: int = 0) -> Array:
    return x[_along(xp, x, indices, axis)]


@standard("GatherND", view=True)
def gather_nd(xp: Module, x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """Return x[indices[..., 0], indices[..., 1], ...]; batch axes in front are the same in both."""
    batch = tuple(
        xp.arange(n).reshape([-1 if j == i else 1 for j in range(indices.ndim - 1)])
        for i, n in enumerate(x.shape[:batch_dims])
    )
    places = (*batch, *(indices[..., i] for i in range(indices.shape[-1])))
    if indices.shape[-1]:
        return x[places]
    apart = (1,) * (indices.ndim - 1 - batch_dims)  # every place is the whole of its batch
    whole = x.reshape(x.shape[:batch_dims] + apart + x.shape[batch_dims:])
    return xp.broadcast_to(whole, indices.shape[:-1] + x.shape[batch_dims:]).copy()


@standard("ScatterElements", "Scatter")
def scatter_elements(
    xp: Module,
    x: Array,
    indices: Array,
    updates: Array,
    *,
    axis: int = 0,
    reduction: str = "none",
) -> Array:
    """Return a copy of x with `updates` at the indices along an axis, or reduced with them."""
    return _scatter(xp, x, _along(xp, x, indices, axis), updates, reduction)


@standard("ScatterND")
def scatter_nd(
    xp: Module, x: Array, indices: Array, updates: Array, *, reduction: str = "none"
) -> Array:
    places = tuple(indices[..., i] for i in range(indices.shape[-1]))
    return _scatter(xp, x, places, updates, reduction)


def _along(xp: Module, x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    """Return an index array for each dimension, as NumPy takes them, for GatherElements.

    That of `axis` is `indices`, the others are 0, 1, ... along their own dimension.
    """
    result = []
    place = axis_of(axis, x.ndim)
    for i, n in enumerate(indices.shape):
        shape = [-1 if j == i else 1 for j in range(indices.ndim)]
        result.append(indices if i == place else xp.arange(n).reshape(shape))
    return tuple(result)


def _scatter(
    xp: Module, x: Array, places: tuple[Array, ...], updates: Array, reduction: str
) -> Array:
    """Return a copy of x with x[places] = updates, or reduced with them; places: index arrays."""
    y = x.copy()
    if reduction == "none":
        y[places] = updates
        return y
    functions = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
    if reduction not in functions:
        raise ArgumentError(
            f"expected a reduction among {sorted(functions)}, got {shown(reduction)}"
        )
    y = wide(y)
    getattr(xp, functions[reduction]).at(y, places, wide(updates))
    return y.astype(x.dtype, copy=False)


@standard("OneHot", host=(1,), grows=True)
def one_hot(xp: Module, indices: Array, depth: Any, values: Array, *, axis: int = -1) -> Array:
    """Return values[1] at the indices along a new axis of extent depth, values[0] elsewhere."""
    n = int(depth.reshape(-1)[0])
    if n < 0:
        raise ArgumentError(f"depth: expected at least 0, got {n}")
    place = axis_of(axis, indices.ndim + 1)
    shape = [-1 if i == place else 1 for i in range(indices.ndim + 1)]
    counted = xp.where(indices < 0, indices + n, indices)
    hot = xp.expand_dims(counted, place) == xp.arange(n).reshape(shape)
    return xp.where(hot, values[1], values[0])


@standard("TopK", host=(1,), since=10)
def top_k(
    xp: Module, x: Array, k: Any, *, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    """Return the k largest or smallest elements, sorted, and their indices; of equals the first."""
    n = int(k.reshape(-1)[0])
    if not 0 <= n <= x.shape[axis]:
        raise ArgumentError(f"K: expected 0 to {x.shape[axis]}, got {n}")
    order = xp.argsort(x, axis=axis, kind="stable")
    if largest:  # sorted from the end, so that the reverse has equal elements in their order
        flipped = xp.argsort(xp.flip(x, axis), axis=axis, kind="stable")
        order = xp.flip(x.shape[axis] - 1 - flipped, axis)
    cut = [slice(None)] * x.ndim
    cut[axis] = slice(0, n)
    chosen = order[tuple(cut)].astype(np.int64)
    return xp.take_along_axis(x, chosen, axis), chosen


@standard("Trilu", host=(1,))
def trilu(xp: Module, x: Array, k: Any = None, *, upper: bool = True) -> Array:
    if x.ndim < 2:
        raise ArgumentError(f"expected at least 2 dimensions, got {x.ndim}")
    return (xp.triu if upper else xp.tril)(x, 0 if k is None else int(k.reshape(-1)[0]))


@standard("NonZero")
def non_zero(xp: Module, x: Array) -> Array:
    return xp.stack(xp.nonzero(x)).astype(np.int64)


# ---- Resize --------------------------------------------------------------------------------------

_ON_DEVICE: dict[object, Any] = {}  # copies on devices, never freed: captured graphs read them
_MOST = 4096  # copies


def on_device(xp: Module, array: HostArray) -> Array:
    """Return an array, which follows from extents alone, on the current device; cached."""
    if xp is np:
        return array
    form = xp.cuda.runtime.getDevice(), array.dtype, array.shape, array.tobytes()
    if form in _ON_DEVICE:
        return _ON_DEVICE[form]
    copy = xp.asarray(array)
    return _ON_DEVICE.setdefault(form, copy) if len(_ON_DEVICE) < _MOST else copy


ONLY = {
    "antialias": (False, True),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "mode": ("nearest", "linear", "cubic"),
    "nearest_mode": tuple(ROUND),
    "coordinate_transformation_mode": (*TRANSFORMATIONS, CROP),
}


def _refuse_integers(attributes: Mapping[str, Any], dtypes: Sequence[Dtype | None]) -> None:
    """Refuse an X, of type dtypes[0], that is not floating where pixels are interpolated."""
    mode, dtype = attributes.get("mode", "nearest"), dtypes[0]
    if mode != "nearest" and dtype is not None and dtype not in FLOATS:
        expected = f"{dtype_names(FLOATS)} for mode={mode}"
        raise DtypeError(f"X: expected {expected}, got {dtype_name(dtype)}")


@standard(
    "Resize",
    host=(1, 2, 3),
    grows=True,
    view=True,
    since=11,
    only=ONLY,
    refuse_types=_refuse_integers,
)
def resize(
    xp: Module,
    x: Array,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    extrapolation_value: float = 0.0,
    antialias: bool = False,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
) -> Array:
    """Resize one axis after the other: each output is a weighted sum of a few pixels of it.

    roi, scales, sizes: one element, or of roi two, for each of `axes`; attributes as ONNX's.
    """
    _refuse_integers({"mode": mode}, [x.dtype])
    chosen = list(range(x.ndim)) if axes is None else [axis_of(axis, x.ndim) for axis in axes]
    is_crop = coordinate_transformation_mode == CROP
    parts = _parts_of(roi, len(chosen)) if is_crop else [(0.0, 1.0)] * len(chosen)
    old = [x.shape[axis] for axis in chosen]
    has_sizes = sizes is not None and len(sizes) > 0
    values, name = (sizes, "sizes") if has_sizes else (scales, "scales")
    if values is None or len(values) != len(chosen):
        got = "none" if values is None else len(values)
        raise ArgumentError(f"{name}: expected {len(chosen)} numbers, got {got}")
    if has_sizes:
        new, factors = fit_sizes([int(n) for n in sizes], old, keep_aspect_ratio_policy)
    else:
        factors = [float(scale) for scale in scales]
        lengths = [n * (end - start) for n, (start, end) in zip(old, parts, strict=True)]
        pairs = zip(lengths, factors, strict=True)
        new = [int(np.floor(length * np.float32(scale))) for length, scale in pairs]
    extents(new)
    outside = np.zeros((1,) * x.ndim, bool)  # outputs of a crop that lie beyond x
    for axis, m, scale, (start, end) in zip(chosen, new, factors, parts, strict=True):
        n = x.shape[axis]
        if m and not n:
            raise ArgumentError(f"X: expected pixels along axis {axis}, got shape {x.shape}")
        if is_crop:
            s = positions_in_crop(n, m, start, end)
            outside = outside | ((s < 0) | (s > n - 1)).reshape(_on_axis(axis, x.ndim))
        elif m == n and scale == 1:
            continue
        else:
            s = positions(n, m, scale, coordinate_transformation_mode)
        if mode == "nearest":
            x = xp.take(x, on_device(xp, within(ROUND[nearest_mode](s), n)), axis=axis)
        else:
            width = scale if antialias else 1.0
            pixels, weights = weigh(mode, s, n, cubic_coeff_a, exclude_outside, width)
            x = _sum_taps(xp, x, axis, pixels, weights)
    if outside.any():
        return xp.where(on_device(xp, outside), x.dtype.type(extrapolation_value), x)
    return x


def _parts_of(roi: Any, n: int) -> list[tuple[float, float]]:
    """Return (start, end) of a crop on each of n axes; roi: all starts, then all ends."""
    ends = [] if roi is None else [float(end) for end in roi]
    if len(ends) != 2 * n:
        raise ArgumentError(f"roi: expected {2 * n} numbers, got {len(ends)}")
    return list(zip(ends[:n], ends[n:], strict=True))


def _on_axis(axis: int, rank: int) -> list[int]:
    """Return a shape for `reshape` that puts all elements on one axis: [1, -1, 1]."""
    return [-1 if i == axis else 1 for i in range(rank)]


def _sum_taps(xp: Module, x: Array, axis: int, pixels: HostArray, weights: HostArray) -> Array:
    """Return sums of x's pixels along an axis; pixels, weights: (taps, outputs)."""
    each = _on_axis(axis, x.ndim)
    total = None
    for rows, weight in zip(pixels, weights, strict=True):
        part = xp.take(x, on_device(xp, rows), axis=axis)
        part = part * on_device(xp, weight.astype(x.dtype)).reshape(each)
        total = part if total is None else total + part
    return total
