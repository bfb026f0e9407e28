# SPDX-License-Identifier: MIT
"""Gradients of reductions.

y = reduction of x over axes: dy, with a 1 in place of each axis, is broadcast to x's shape.

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...dtypes import Dtype
from ..graph import Extent
from .rules import INT64, ZERO, Site, Term, gradient, wide_type

ZERO |= {"ArgMax", "ArgMin"}


@gradient("ReduceSum")
def reduce_sum(site: Site) -> Sequence[Term | None]:
    """dx = dy, broadcast to x."""
    return [_repeat(site, _with_axes(site, site.dys[0]))]


@gradient("ReduceMean")
def reduce_mean(site: Site) -> Sequence[Term | None]:
    """dx = dy / n, broadcast to x."""
    dy = site.divide(site.dys[0], _count(site, wide_type(site.dtype(site.dys[0]))))
    return [_repeat(site, _with_axes(site, dy))]


@gradient("ReduceSumSquare")
def reduce_sum_square(site: Site) -> Sequence[Term | None]:
    """dx = 2 x dy."""
    return [site.inputs[0] * _with_axes(site, site.dys[0] * 2)]


@gradient("ReduceL1")
def reduce_l1(site: Site) -> Sequence[Term | None]:
    """dx = sign(x) dy."""
    return [site.op("Sign", site.inputs[0]) * _with_axes(site, site.dys[0])]


@gradient("ReduceL2")
def reduce_l2(site: Site) -> Sequence[Term | None]:
    """dx = x dy / y, 0 where y = 0."""
    (dy,), (y,) = site.dys, site.outputs
    rate = site.choose(site.compare("Equal", y, 0), 0, dy / y)
    return [site.inputs[0] * _with_axes(site, rate)]


@gradient("ReduceLogSum")
def reduce_log_sum(site: Site) -> Sequence[Term | None]:
    """y = log of the sum of x: dx = dy / sum of x, broadcast to x."""
    total = _reduce(site, "ReduceSum", site.widened(site.inputs[0]))
    return [_repeat(site, site.divide(_with_axes(site, site.dys[0]), total))]


@gradient("ReduceLogSumExp")
def reduce_log_sum_exp(site: Site) -> Sequence[Term | None]:
    """y = log of the sum of e^x: dx = dy e^(x - y).

    Of half types y is computed again in float32: e^(x - y) would be as far off as y is rounded.
    """
    (dy,), (x, *_), (y,) = site.dys, site.inputs, site.outputs
    wide = site.widened(x)
    y = _with_axes(site, y) if wide is x else _reduce(site, "ReduceLogSumExp", wide)
    return [site.cast(site.op("Exp", wide - y), site.dtype(x)) * _with_axes(site, dy)]


@gradient("ReduceMax", "ReduceMin")
def reduce_extreme(site: Site) -> Sequence[Term | None]:
    """dx = dy / n where x is one of the n elements that equal y, else 0."""
    (dy,), (x, *_), (y,) = site.dys, site.inputs, site.outputs
    is_y = site.compare("Equal", x, _with_axes(site, y))
    n = _reduce(site, "ReduceSum", site.cast(is_y, wide_type(site.dtype(x))))
    return [site.choose(is_y, site.divide(_with_axes(site, dy), n), 0)]


@gradient("ReduceProd")
def reduce_product(site: Site) -> Sequence[Term | None]:
    """dx = dy times the product of all other elements.

    p = the product of all that are not 0: the others' product is p / x, of a 0 that is the only one
    p, and 0 where another element is 0.
    """
    x = site.inputs[0]
    is_0 = site.compare("Equal", x, 0)
    zero = site.choose(is_0, site.number(1, x), 0)
    has_others = site.compare("Greater", _reduce(site, "ReduceSum", zero) - zero, 0)
    x = site.choose(is_0, 1, x)
    others = _reduce(site, "ReduceProd", x) / x
    return [site.choose(has_others, 0, others * _with_axes(site, site.dys[0]))]


@gradient("CumSum")
def cumulative_sum(site: Site) -> Sequence[Term | None]:
    """dx = the same sum of dy from the other end."""
    attributes = {**site.node.attributes, "reverse": 1 - site.attribute("reverse", 0)}
    return [site.op("CumSum", site.dys[0], site.inputs[1], **attributes)]


@gradient("CumProd")
def cumulative_product(site: Site) -> Sequence[Term | None]:
    """dx[i] = (sum of dy[j] y[j] over j >= i) / x[i], in the order in which it multiplies.

    At the first 0 of x, y is computed with 1 in its place, and not divided; behind it dx = 0.
    """
    (dy,), (x, axis), (y,) = site.dys, site.inputs, site.outputs
    forward = site.node.attributes
    backward = {**forward, "reverse": 1 - site.attribute("reverse", 0)}
    is_0 = site.compare("Equal", x, 0)
    zeros = site.choose(is_0, site.number(1, x), 0)
    attributes = {"reverse": site.attribute("reverse", 0), "exclusive": 1}
    before = site.op("CumSum", zeros, axis, **attributes)
    is_behind = site.compare("Greater", before, 0)
    is_first = site.op("And", is_0, site.op("Not", is_behind))
    products = site.op("CumProd", site.choose(is_first, 1, x), axis, **forward)
    of_first = site.op("CumSum", dy * products, axis, **backward)
    of_others = site.op("CumSum", dy * y, axis, **backward) / site.choose(is_0, 1, x)
    return [site.choose(is_first, of_first, site.choose(is_behind, 0, of_others))]


# ---- axes ----------------------------------------------------------------------------------------


def _axes(site: Site) -> Term | None:
    """Return the axes as a vector, from input 1 or an attribute; None for all."""
    axes = site.inputs[1] if len(site.inputs) > 1 else None
    if axes is None and "axes" in site.node.attributes:
        return site.ints(*site.node.attributes["axes"])
    return axes


def _with_axes(site: Site, y: Term) -> Term:
    """Return a value of y's shape with extent 1 for each reduced axis, so that it broadcasts to x.

    A scalar, of all axes, does so as it is.
    """
    axes = _axes(site)
    if axes is None or site.attribute("keepdims", 1):
        return y
    return site.op("Unsqueeze", y, axes)


def _repeat(site: Site, dy: Term) -> Term:
    return site.op("Expand", dy, site.shape(site.inputs[0]))


def _reduce(site: Site, op_type: str, x: Term) -> Term:
    """Return the reduction `op_type` of x over the node's axes, with extent 1 for each."""
    options = {"keepdims": 1}
    if site.attribute("noop_with_empty_axes", 0):
        options["noop_with_empty_axes"] = 1
    if op_type == "ReduceSum" or len(site.inputs) > 1:
        axes = _axes(site)
        return site.op(op_type, x, *([] if axes is None else [axes]), **options)
    if "axes" in site.node.attributes:
        options["axes"] = site.node.attributes["axes"]
    return site.op(op_type, x, **options)


def _count(site: Site, dtype: Dtype) -> Term:
    """Return how many elements of x are reduced to one of y, a scalar of a type."""
    x, y = site.inputs[0], site.outputs[0]
    sizes = _size(site.extents(x)), _size(site.extents(y))
    if sizes[0] is not None and sizes[1]:
        return site.constant(np.array(sizes[0] / sizes[1], dtype))
    of_x, of_y = (site.cast(site.op("Size", each, dtype=INT64), dtype) for each in (x, y))
    return of_x / of_y


def _size(extents: Sequence[Extent] | None) -> int | None:
    """Return the number of elements of a shape; None where that is not known."""
    known = [n for n in extents or () if isinstance(n, int)]
    return None if extents is None or len(known) < len(extents) else math.prod(known)
