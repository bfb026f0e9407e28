# SPDX-License-Identifier: MIT
"""Gradients of quantized numbers q, straight through the rounding.

q = x / scale + zero        dx = dq / scale, 0 where q was cut to its type's range
y = (q - zero) scale        dq = dy scale

The gradient of an integer q is real. What depends on q's shape alone has none.

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...dtypes import HostArray
from ...errors import ArgumentError
from .rules import INT64, STRAIGHT, UNDEFINED, ZERO, Site, Term, gradient
from .writer import is_real

ZERO |= {"Shape", "Size", "NonZero"}
STRAIGHT |= {"QuantizeLinear"}
UNDEFINED["DynamicQuantizeLinear"] = "its scale is the range of its input, which moves in steps"
# In steps: as far as rounding moves a number, and a little more, as the product with the scale is
# rounded itself. What moved farther was cut to the range.
HALF_STEP = 0.501
ONE = np.ones(1, np.int8)


@gradient("DequantizeLinear")
def dequantize_linear(site: Site) -> Sequence[Term | None]:
    """dq = dy scale, dscale = sum of dy (q - zero)."""
    (dy,), (q, scale, *zero) = site.dys, site.inputs
    dq = dscale = None
    if site.wanted[0]:
        dq = dy * _spread(site, q, scale)
    if site.wanted[1]:
        ones = _fill(site, scale, np.ones(1, site.dtype(scale)))
        distance = _dequantize(site, q, ones, *zero)
        dscale = _sum_to_scale(site, dy * distance, scale)
    return [dq, dscale]


@gradient("QuantizeLinear")
def quantize_linear(site: Site) -> Sequence[Term | None]:
    """dx = dq / scale, dscale = -sum of dx x / scale; both are 0 where q was cut."""
    (dq,), (x, scale, *zero), (q,) = site.dys, site.inputs, site.outputs
    if is_real(site.dtype(q)):
        raise ArgumentError("its gradient is known for whole numbers, whose steps are equal")
    dq = dq if site.dtype(dq) == site.dtype(x) else site.cast(dq, site.dtype(x))
    step = _spread(site, x, scale)
    moved = site.op("Abs", x - _dequantize(site, q, scale, *zero))
    is_cut = site.compare("Greater", moved, step * HALF_STEP)
    dx = site.choose(is_cut, 0, dq / step)
    dscale = _sum_to_scale(site, -(dx * x / step), scale) if site.wanted[1] else None
    return [dx, dscale]


def _dequantize(site: Site, q: Term, scale: Term, *zero: Term | None) -> Term:
    """Return (q - zero) scale, with the node's axis and block size."""
    names = ("axis", "block_size")
    attributes = {k: v for k, v in site.node.attributes.items() if k in names}
    dtype = site.dtype(scale)
    return site.op("DequantizeLinear", q, scale, *zero, dtype=dtype, **attributes)


def _spread(site: Site, x: Term, scale: Term) -> Term:
    """Return the scale in a shape that broadcasts to x: a scalar, or x's own shape."""
    extents = site.extents(scale)
    if extents is not None and all(n == 1 for n in extents) and len(extents) < 2:
        return site.op("Reshape", scale, site.ints()) if extents else scale
    # Ones of x's shape, dequantized, are the scale of each element, by axis or by block.
    return _dequantize(site, _fill(site, x, ONE), scale)


def _fill(site: Site, like: Term, value: HostArray) -> Term:
    """Return an array of the shape of `like`, of value's type and its one number everywhere."""
    shape = site.op("Shape", like, dtype=INT64)
    return site.op("ConstantOfShape", shape, value=value, dtype=value.dtype)


def _sum_to_scale(site: Site, value: Term, scale: Term) -> Term:
    """Return a value of the node's input's shape, summed over the elements that share a scale.

    The result has scale's shape: one number, or one for each index of the node's axis.
    """
    extents = site.extents(scale)
    if extents is None or len(extents) > 1 or site.attribute("block_size", 0):
        raise ArgumentError("the gradient of a scale is known for one of all, or of an axis")
    if all(n == 1 for n in extents):
        total = site.op("ReduceSum", value, keepdims=0)
        return site.op("Reshape", total, site.ints(1)) if extents else total
    rank = site.rank(site.inputs[0])
    own = site.attribute("axis", 1) % rank
    axes = [axis for axis in range(rank) if axis != own]
    return site.op("ReduceSum", value, site.ints(*axes), keepdims=0) if axes else value
