# SPDX-License-Identifier: MIT
"""The gradients of GridSample, and of AffineGrid.

y[p] = sum over taps of weight(p) x[pixel(p)], where p lies at s(p) = grid(p) scaled to pixels
x_grad[pixel(p)] += weight(p) y_grad[p]
s_grad[p] = y_grad[p] (sum over taps of weight'(p) x[pixel(p)])

A place p is a point that the grid names, a tap one of the pixels that are interpolated there.

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import NamedTuple

import numpy as np

from ...dtypes import FLOAT32, FLOAT64, Dtype
from .rules import INT64, Site, Term, gradient

CUBIC = -0.75


class _Extent(NamedTuple):
    """How many pixels an image has along an axis.

    Both are one number if the model says it; else scalars, `length` of the type of places, `whole`
    of int64.
    """

    length: int | Term
    whole: int | Term


class _Tap(NamedTuple):
    """A pixel that each sampled place reads along one axis; all are of shape (N, places)."""

    pixel: Term  # its index
    weight: Term | None  # None: 1 everywhere
    slope: Term | None  # d weight / d place; None: 0 everywhere
    is_inside: Term | None  # 1.0 where the image has such a pixel, else 0.0; None: 1 everywhere


@gradient("AffineGrid")
def affine_grid(site: Site) -> Sequence[Term | None]:
    """y[p] = theta (p, 1): dtheta = sum over pixels of dy[p] (p, 1).

    p is what AffineGrid gives of a theta that is a unit matrix, and zeros.
    """
    theta, size = site.inputs
    own, rank = site.dtype(theta), site.rank(site.outputs[0]) - 2
    unit = site.op("Expand", site.constant(np.eye(rank, rank + 1, dtype=own)), site.shape(theta))
    places = site.op("AffineGrid", unit, size, **site.node.attributes)
    rows = (theta, 0), -1, rank
    places, dy = (site.reshape(each, *rows) for each in (places, site.dy))
    turned = site.op("MatMul", site.op("Transpose", dy, perm=(0, 2, 1)), places)
    moved = site.op("Unsqueeze", site.op("ReduceSum", dy, site.ints(1), keepdims=0), site.ints(2))
    return [site.op("Concat", turned, moved, axis=2)]


@gradient("GridSample")
def grid_sample(site: Site) -> Sequence[Term | None]:
    """dx and dgrid, summed over all combinations of one tap per axis (see the module).

    Arrays are (N, places, C) and (N, pixels, C): the places of a grid and the pixels of an image
    are one axis each.
    """
    x, grid = site.inputs
    exact = FLOAT64 if FLOAT64 in map(site.dtype, (x, grid)) else FLOAT32
    shape = [_extent(site, x, axis, exact) for axis in range(2, site.rank(x))]
    rank = len(shape)
    n, pixels = (
        site.op("ReduceProd", site.op("Shape", each, **ends, dtype=INT64), keepdims=1)
        for each, ends in ((grid, {"start": 1, "end": -1}), (x, {"start": 2}))
    )
    flat = site.op("Concat", site.dims((grid, 0)), n, site.ints(rank), axis=0)
    places = site.cast(site.op("Reshape", grid, flat, allowzero=1), exact)
    rows = _pixels_first(site, x, pixels, exact)
    dy = _pixels_first(site, site.dy, n, exact)
    of_ends = bool(site.attribute("align_corners", 0))
    scales = [m.length - 1 if of_ends else m.length for m in shape]
    axes = []  # the taps along each axis of an image
    for axis, (m, scale) in enumerate(zip(shape, scales, strict=True)):
        place = site.constant(np.array(rank - 1 - axis, INT64))  # a grid has (x, y), images (y, x)
        s = (site.op("Gather", places, place, axis=2) + 1) * (scale / 2)
        axes.append(_taps(site, s if of_ends else s - 0.5, m.length))
    dx: list[Term] = []
    slopes: list[list[Term]] = [[] for _ in shape]
    for taps in itertools.product(*axes):
        index = site.op("Unsqueeze", _flat_index(shape, taps), site.ints(2))
        weights, inside = [tap.weight for tap in taps], [tap.is_inside for tap in taps]
        if site.wanted[0]:
            part = _times(site, dy, [*weights, *inside])
            whole = site.op("Shape", rows, dtype=INT64)
            dx.append(site.own("GatherNDGrad", whole, index, part, batch_dims=1, like=dy))
        if site.wanted[1]:
            near = dy * site.op("GatherND", rows, index, batch_dims=1)
            for axis, tap in enumerate(taps):
                if tap.slope is not None:
                    rest = [*weights[:axis], *weights[axis + 1 :], *inside, tap.slope]
                    slopes[axis].append(_times(site, near, rest))
    return [_in_images(site, dx, x), _in_grid(site, slopes, scales, grid)]


def _pixels_first(site: Site, x: Term, n: Term, dtype: np.dtype) -> Term:
    """Return images (N, C, ...) as (N, n, C) of a type; n: a vector of one number, their pixels."""
    shape = site.op("Concat", site.dims((x, 0), (x, 1)), n, axis=0)
    rows = site.op("Reshape", x, shape, allowzero=1)
    return site.cast(site.op("Transpose", rows, perm=(0, 2, 1)), dtype)


def _times(site: Site, x: Term, factors: Sequence[Term | None]) -> Term:
    """Return x (N, places, C) times factors (N, places); None is a factor of 1."""
    own = [factor for factor in factors if factor is not None]
    return x * site.op("Unsqueeze", reduce(mul, own), site.ints(2)) if own else x


def _extent(site: Site, x: Term, axis: int, dtype: Dtype) -> _Extent:
    """Return the extent of x along an axis; dtype: of its `length`, if that is computed."""
    n = site.extent(x, axis)
    if isinstance(n, int):
        return _Extent(n, n)
    count = site.op("Squeeze", site.dims((x, axis)), site.ints(0))
    return _Extent(site.cast(count, dtype), count)


def _flat_index(shape: Sequence[_Extent], taps: Sequence[_Tap]) -> Term:
    """Return the index of a pixel in its flattened image, by a tap of each axis: y width + x."""
    index = taps[0].pixel
    for n, tap in zip(shape[1:], taps[1:], strict=True):
        index = index * n.whole + tap.pixel
    return index


def _in_images(site: Site, parts: Sequence[Term], x: Term) -> Term | None:
    """Return the sum of parts (N, pixels, C) in x's shape and type; None without parts."""
    if not parts:
        return None
    rows = site.op("Transpose", site.op("Sum", *parts), perm=(0, 2, 1))
    return site.cast(site.reshape_like(rows, x), site.dtype(x))


def _in_grid(
    site: Site, slopes: Sequence[Sequence[Term]], scales: Sequence[int | Term], grid: Term
) -> Term | None:
    """Return dgrid; slopes: for each axis of an image, parts of ds (N, places, C) to be summed.

    scales: pixels of an axis for 2 units of the grid, whose range is -1 to 1. None if an axis has
    no parts: dgrid is 0 or not needed.
    """
    if not all(slopes):
        return None
    columns = [
        site.op("ReduceSum", site.op("Sum", *parts), site.ints(2), keepdims=1) * (scale / 2)
        for parts, scale in zip(slopes, scales, strict=True)
    ]
    whole = site.op("Concat", *columns[::-1], axis=2)
    return site.cast(site.reshape_like(whole, grid), site.dtype(grid))


# ---- taps of an axis -----------------------------------------------------------------------------


def _taps(site: Site, s: Term, n: int | Term) -> list[_Tap]:
    """Return the taps around the places s, in pixels, along an axis of n pixels.

    One for mode nearest, two for linear, four for cubic: its weights are the cubic convolution of
    the distance d from s, with a = CUBIC, one formula for d <= 1 and one for 1 < d <= 2.
    """
    mode = site.attribute("mode", "linear").removeprefix("bi")
    if mode == "nearest":
        return [_tap(site, site.op("Round", s), n)]
    low = site.op("Floor", s)
    t = s - low
    if mode == "linear":
        minus, plus = site.number(-1, s), site.number(1, s)
        return [_tap(site, low, n, 1 - t, minus), _tap(site, low + 1, n, t, plus)]
    a = CUBIC
    taps = []
    # Distance of each tap from s, and d distance / d s.
    for k, (d, sign) in enumerate(((t + 1, 1), (t, 1), (1 - t, -1), (2 - t, -1))):
        if k in (1, 2):
            weight = (d * (a + 2) - (a + 3)) * d * d + 1
            slope = (d * (3 * (a + 2)) - 2 * (a + 3)) * d
        else:
            weight = ((d * a - 5 * a) * d + 8 * a) * d - 4 * a
            slope = (d * (3 * a) - 10 * a) * d + 8 * a
        taps.append(_tap(site, low + (k - 1), n, weight, slope * sign))
    return taps


def _tap(
    site: Site,
    pixel: Term,
    n: int | Term,
    weight: Term | None = None,
    slope: Term | None = None,
) -> _Tap:
    """Return the tap of a pixel index (a float, maybe outside 0 to n - 1), by the padding mode.

    zeros: is_inside is 0 outside; border: the nearest pixel; reflection: mirrored back inside.
    """
    padding = site.attribute("padding_mode", "zeros")
    if padding != "reflection":
        index = site.op("Min", site.op("Max", pixel, pixel.beside(0)), pixel.beside(n - 1))
        tap = _Tap(site.cast(index, INT64), weight, slope, None)
        if padding != "zeros":
            return tap
        is_inside = site.compare("Equal", pixel, index)
        return tap._replace(is_inside=site.cast(is_inside, site.dtype(pixel)))
    # Indices around + period k and last - around are one pixel: mirrored at the borders -0.5 and
    # n - 0.5, or, with align_corners, at the pixels 0 and n - 1.
    last, period = 2 * n - 1, 2 * n
    if site.attribute("align_corners", 0):  # a single pixel repeats after one
        last, period = 2 * n - 2, site.op("Max", pixel.beside(2 * n - 2), pixel.beside(1))
    around = pixel - site.op("Floor", pixel / period) * period
    back = last - around
    return _Tap(site.cast(site.op("Min", around, back), INT64), weight, slope, None)
