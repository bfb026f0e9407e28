# SPDX-License-Identifier: MIT
"""Gradients of Fourier transforms.

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import ArgumentError
from .rules import INT64, Site, Term, gradient

AXIS_IS_AN_INPUT = 20  # from this opset on


@gradient("DFT")
def dft(site: Site) -> Sequence[Term | None]:
    """Y = F X: dX = F^H dY = n times the inverse transform of dY; its real part for a real X.

    The last axis has real and imaginary parts, or 1 element of a real X. A onesided dY is padded
    with zeros. The transform cuts X, or fills it with zeros, to n elements; dX is filled or cut.
    """
    dy = site.dys[0]
    is_inverse = site.attribute("inverse", 0)
    if is_inverse and site.attribute("onesided", 0):
        raise ArgumentError("the gradient of an inverse transform of half a spectrum is not known")
    extents, axis = _whole_extents(site), _axis(site)
    n = _length(site, extents[axis])
    attributes, inputs = {"inverse": 1 - is_inverse}, [site.constant(np.array(n, INT64))]
    if site.node.version < AXIS_IS_AN_INPUT:
        attributes["axis"] = axis
    else:
        inputs.append(site.constant(np.array(axis, INT64)))
    back = site.op("DFT", dy, *inputs, **attributes)
    dx = back / n if is_inverse else back * n
    if extents[-1] == 1:  # X is real: so is dX
        dx = _slice(site, dx, 1, len(extents) - 1)
    if n > extents[axis]:
        return [_slice(site, dx, extents[axis], axis)]
    if n < extents[axis]:
        pads = [0] * 2 * len(extents)
        pads[len(extents) + axis] = extents[axis] - n
        return [site.op("Pad", dx, site.ints(*pads))]
    return [dx]


def _whole_extents(site: Site) -> list[int]:
    """Return the extents of the node's input; refuse one whose shape is not known."""
    known = [n for n in site.extents(site.inputs[0]) or () if isinstance(n, int)]
    if len(known) != site.rank(site.inputs[0]):
        raise ArgumentError("its gradient needs the shape of its input")
    return known


def _axis(site: Site) -> int:
    """Return the axis of the signal, counted from the front."""
    rank = site.rank(site.inputs[0])
    if site.node.version < AXIS_IS_AN_INPUT:
        return int(site.attribute("axis", 1)) % rank
    if len(site.inputs) < 3 or site.inputs[2] is None:
        return rank - 2
    axis = site.value(site.inputs[2])
    if axis is None:
        raise ArgumentError("its gradient needs an axis that is a constant")
    return int(axis.item()) % rank


def _length(site: Site, extent: int) -> int:
    """Return the transform's length n: input 1, or else `extent`."""
    if len(site.inputs) < 2 or site.inputs[1] is None:
        return extent
    length = site.value(site.inputs[1])
    if length is None:
        raise ArgumentError("its gradient needs a dft_length that is a constant")
    return int(length.item())


def _slice(site: Site, x: Term, end: int, axis: int) -> Term:
    """Return the first `end` elements of x along an axis."""
    return site.op("Slice", x, site.ints(0), site.ints(end), site.ints(axis))
