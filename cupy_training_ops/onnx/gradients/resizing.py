# SPDX-License-Identifier: MIT
"""The gradient of Resize.

y[o] = sum over taps of weight[o] x[pixel[o]] along each axis
x_grad[pixel[o]] += weight[o] y_grad[o]

A tap is one of the pixels that an output interpolates: one of nearest, two of linear, four of cubic
mode, each with an index and a weight.

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...dtypes import FLOAT32, HostArray
from ...errors import ArgumentError, shown
from ..standard.resampling import ROUND, TRANSFORMATIONS, positions, weigh, within
from ..standard.table import HALVES
from .rules import INT64, Site, Term, gradient

PLAIN = {  # the values of attributes that have a gradient here
    "coordinate_transformation_mode": TRANSFORMATIONS,
    "keep_aspect_ratio_policy": ("stretch",),
    "mode": ("nearest", "linear", "cubic"),
}

SHAPING = ("axes", "keep_aspect_ratio_policy")  # attributes left out where one axis is resized


class _Axis(NamedTuple):
    """An axis that is resized: from n pixels to m; None where the model does not say them."""

    place: int  # of x
    order: int  # index of its scale or size among the node's
    n: int | None
    m: int | None
    scale: float | None


@gradient("Resize")
def resize(site: Site) -> Sequence[Term | None]:
    """dx by one of four ways, the cheapest that applies.

    One node, ResizeGrad (linear, over the last two of four axes); sums over pixels that are each
    repeated; scattered additions by tap; where extents or scales are not known, products with the
    matrix of weights, a resized unit matrix. roi, scales and sizes have no gradient.
    """
    for name, values in PLAIN.items():
        value = site.attribute(name, values[0])
        if name in site.node.attributes and value not in values:
            raise ArgumentError(f"its gradient is not known for {name}={shown(value)}")
    axes = list(_axes(site))
    if _is_bilinear(site, axes):
        return [_by_one_node(site)]
    repeats = [_repeats(site, axis) for axis in axes]
    if all(repeats):
        return [_sum_repeats(site, {a.place: r for a, r in zip(axes, repeats, strict=True)})]
    dx = site.dy
    for axis in axes:
        dx = _add_taps(site, dx, axis)
    return [dx]


def _axes(site: Site) -> Iterator[_Axis]:
    """Yield each axis that may change; left out are those known to keep their pixels.

    These have a scale of 1, or, where sizes are given, as many pixels before as after.
    """
    x, scales, sizes = _ends(site)
    has_sizes = sizes is not None
    factors = None if has_sizes else site.value(scales)
    for i, axis in enumerate(_chosen(site)):
        before, after = (site.extent(each, axis) for each in (x, site.outputs[0]))
        scale = None if factors is None else float(factors[i])
        same = has_sizes and before is not None and before == after
        if same or scale == 1:
            continue
        n, m = (extent if isinstance(extent, int) else None for extent in (before, after))
        if m is None and n is not None and scale is not None:
            m = int(np.floor(n * np.float32(scale)))
        if has_sizes and n is not None and m is not None:
            scale = m / max(n, 1)
        yield _Axis(axis, i, n, m, scale)


def _chosen(site: Site) -> list[int]:
    """Return the axes, from the front, that scales or sizes are of, in their order."""
    rank = site.rank(site.inputs[0])
    return [axis % rank for axis in site.attribute("axes", None) or range(rank)]


def _ends(site: Site) -> tuple[Term, Term | None, Term | None]:
    """Return (x, scales, sizes), one of the last two None, as an empty array of sizes counts."""
    x, _, scales, sizes = (*site.inputs, None, None, None)[:4]
    known = site.value(sizes)
    if sizes is None or (known is not None and not known.size):
        if scales is None:
            raise ArgumentError("its gradient needs scales or sizes")
        return x, scales, None
    return x, None, sizes


def _is_bilinear(site: Site, axes: Sequence[_Axis]) -> bool:
    """Return True for nodes whose gradient ResizeGrad computes: linear, over the last 2 of 4 axes.

    pytorch_half_pixel is half_pixel for axes of more than one pixel.
    """
    mode = site.attribute("coordinate_transformation_mode", "half_pixel")
    same = mode in ("half_pixel", "align_corners")
    same |= mode == "pytorch_half_pixel" and all(
        (axis.m or 0) > 1 or (axis.scale or 0) >= 1 for axis in axes
    )
    is_linear = site.attribute("mode", "nearest") == "linear"
    is_linear &= not (site.attribute("exclude_outside", 0) or site.attribute("antialias", 0))
    of_planes = site.rank(site.inputs[0]) == 4 and all(axis.place >= 2 for axis in axes)
    return same and is_linear and of_planes


def _by_one_node(site: Site) -> Term:
    """Return dx by ResizeGrad, which takes a scale for each of four axes, or none with sizes."""
    x, scales, _ = _ends(site)
    mode = site.attribute("coordinate_transformation_mode", "half_pixel").removeprefix("pytorch_")
    if scales is not None and site.attribute("axes", None):
        chosen, one = _chosen(site), site.constant(np.ones(1, np.float32))
        factors = (
            site.op("Gather", scales, site.ints(chosen.index(axis))) if axis in chosen else one
            for axis in range(4)
        )
        scales = site.op("Concat", *factors, axis=0, like=scales)
    operands = (site.dy, x, *([None, scales] if scales else []))
    return site.own("ResizeGrad", *operands, mode="linear", coordinate_transformation_mode=mode)


# ---- pixels that are repeated --------------------------------------------------------------------


def _repeats(site: Site, axis: _Axis) -> int:
    """Return k if the axis has each pixel k times, one after the other, like NumPy's repeat.

    Else 0, also if that is not known.
    """
    if site.attribute("mode", "nearest") != "nearest" or axis.scale is None:
        return 0
    times = int(axis.scale)
    if times != axis.scale or times < 1:
        return 0
    of_ends = site.attribute("coordinate_transformation_mode", "half_pixel") == "align_corners"
    if of_ends and not axis.n:
        return 0
    n = axis.n or 3  # where it is unknown, three pixels show the pattern
    pixels = _pixels(site, n, n * times, axis.scale)
    return times if np.array_equal(pixels, np.arange(n).repeat(times)) else 0


def _sum_repeats(site: Site, times: dict[int, int]) -> Term:
    """Return dx: dy reshaped to (n_0, n_1, times, ...), summed over the axes of repeats.

    times: for each resized axis, how often a pixel is repeated.
    """
    x = site.inputs[0]
    dims: list[int | tuple[Term, int]] = []
    sums = []
    for axis in range(site.rank(x)):
        dims.append((x, axis))
        if axis in times:
            sums.append(len(dims))
            dims.append(times[axis])
    if not sums:
        return site.dy
    return site.op("ReduceSum", site.reshape(site.dy, *dims), site.ints(*sums), keepdims=0)


# ---- pixels by index -----------------------------------------------------------------------------


def _add_taps(site: Site, dy: Term, axis: _Axis) -> Term:
    """Return dx[pixel[o]] += weight[o] dy[o] along one axis, summed over taps."""
    place, _, n, m, scale = axis
    if n is None or m is None or scale is None:
        return _add_unknown_taps(site, dy, axis)
    mode = site.attribute("mode", "nearest")
    if mode == "nearest":
        return site.add_along(dy, site.constant(_pixels(site, n, m, scale)), place, site.ints(n))
    s = positions(n, m, scale, site.attribute("coordinate_transformation_mode", "half_pixel"))
    a, outside = site.attribute("cubic_coeff_a", -0.75), site.attribute("exclude_outside", 0)
    each = [-1 if i == place else 1 for i in range(site.rank(site.inputs[0]))]  # a weight's shape
    parts = []
    width = scale if site.attribute("antialias", 0) else 1.0
    for rows, weights in zip(*weigh(mode, s, n, a, bool(outside), width), strict=True):
        factor = site.constant(weights.reshape(each).astype(site.dtype(dy)))
        parts.append(site.add_along(dy * factor, site.constant(rows), place, site.ints(n)))
    return site.op("Sum", *parts)


def _pixels(site: Site, n: int, m: int, scale: float) -> HostArray:
    """Return the index (0 to n - 1) of the nearest pixel of each of m outputs."""
    s = positions(n, m, scale, site.attribute("coordinate_transformation_mode", "half_pixel"))
    return within(ROUND[site.attribute("nearest_mode", "round_prefer_floor")](s), n)


# ---- extents that are known as the graph runs ----------------------------------------------------


def _add_unknown_taps(site: Site, dy: Term, axis: _Axis) -> Term:
    """Return dx along one axis whose extents or scale are known only as the graph runs.

    Resizing the columns of a unit matrix gives the matrix of weights W, with y = W x along the
    axis: dx = W^T dy. In mode nearest, resizing 0, 1, ..., n - 1 gives each output's pixel.
    """
    place, n = axis.place, site.dims((site.inputs[0], axis.place))
    if site.attribute("mode", "nearest") == "nearest":
        count = site.op("Squeeze", n, site.ints(0))
        pixels = site.cast(site.count_up(count), np.dtype(np.int32))
        return site.add_along(dy, site.cast(_resized(site, pixels, axis), INT64), place, n)
    dtype = FLOAT32 if site.dtype(dy) in HALVES else site.dtype(dy)
    square = site.op("Concat", n, n, axis=0)
    zeros = site.op("ConstantOfShape", square, value=np.zeros(1, dtype), dtype=dtype)
    weights = _resized(site, site.op("EyeLike", zeros), axis, n)
    rank = site.rank(site.inputs[0])
    perm = [*(i for i in range(rank) if i != place), place]
    rows = site.op("Transpose", site.cast(dy, dtype), perm=tuple(perm))
    sums = site.op("MatMul", rows, weights)
    back = site.op("Transpose", sums, perm=tuple(map(int, np.argsort(perm))))
    return site.cast(back, site.dtype(dy))


def _resized(site: Site, x: Term, axis: _Axis, columns: Term | None = None) -> Term:
    """Return x, a vector or a matrix, resized along its axis 0 as the node does along `axis`.

    columns: an int64 vector of the matrix's number of columns; None of a vector.
    """
    _, scales, _ = _ends(site)
    if scales is None:
        ends, same = site.dims((site.outputs[0], axis.place)), columns
    else:
        ends = site.op("Gather", scales, site.ints(axis.order))
        same = site.constant(np.ones(1, np.float32))
    if columns is not None:
        ends = site.op("Concat", ends, same, axis=0)
    roi, others = (*site.inputs[1:], None, None)[:2]
    operands = (ends,) if scales is not None else (others, ends)
    options = {k: v for k, v in site.node.attributes.items() if k not in SHAPING}
    return site.op("Resize", x, roi, *operands, like=x, **options)
