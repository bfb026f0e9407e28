# SPDX-License-Identifier: MIT
"""Gradients of pooling.

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ArgumentError
from ..inferred_shapes import end_pad
from .rules import INT64, Site, Term, gradient


@gradient("MaxPool")
def max_pool(site: Site) -> Sequence[Term | None]:
    """dx[index of each window's first largest element] += dy, by one node."""
    indices = site.extra_output(1, INT64)
    return [site.op("MaxPoolGrad", site.dy, indices, **site.node.attributes)]


@gradient("MaxUnpool")
def max_unpool(site: Site) -> Sequence[Term | None]:
    """y[index] = x: dx = dy[index], an index into all elements of y."""
    _, indices, *shape = site.inputs
    if shape and shape[0]:
        raise ArgumentError("its gradient is known without output_shape alone")
    flat = site.op("Reshape", site.dy, site.ints(-1))
    return [site.op("Gather", flat, indices)]


@gradient("AveragePool")
def average_pool(site: Site) -> Sequence[Term | None]:
    """dx = the sum over an element's windows of dy / count, by one node.

    AveragePoolGrad finds its pool, whose input's shape it needs, by the pool's name.
    """
    site.name_node()
    return [site.op("AveragePoolGrad", site.dy, **site.node.attributes)]


@gradient("GlobalAveragePool")
def global_average_pool(site: Site) -> Sequence[Term | None]:
    """dx = dy / n, broadcast to x, n pixels."""
    x = site.inputs[0]
    return [site.op("Expand", site.share(site.dy, x, site.outputs[0]), site.shape(x))]


@gradient("GlobalMaxPool")
def global_max_pool(site: Site) -> Sequence[Term | None]:
    """dx = dy at the first of each channel's largest pixels, else 0."""
    x = site.inputs[0]
    n = site.op("ReduceProd", site.op("Shape", x, start=2, dtype=INT64), keepdims=1)
    planes = site.op("Concat", site.dims((x, 0), (x, 1)), n, axis=0)
    flat = site.op("Reshape", x, planes, allowzero=1)
    places = site.op("ArgMax", flat, axis=2, keepdims=1, dtype=INT64)
    dy = site.reshape(site.dy, (x, 0), (x, 1), 1)
    dx = site.own("GatherElementsGrad", dy, planes, places, axis=2)
    return [site.reshape_like(dx, x)]


@gradient("LpPool")
def lp_pool(site: Site) -> Sequence[Term | None]:
    """y^p = sum of |x|^p: dx = sign(x) |x|^(p - 1) times the sum of dy y^(1 - p) over windows.

    The sum over an element's windows is AveragePoolGrad's, times the n elements of a window.
    """
    x = site.inputs[0]
    attributes = {k: v for k, v in site.node.attributes.items() if k != "p"}
    if attributes.pop("ceil_mode", 0):
        attributes |= _pads_of_all_windows(site, attributes)
    n = math.prod(attributes["kernel_shape"])
    p = site.attribute("p", 2)
    part = _of_norm(site, p) * n
    options = {**attributes, "count_include_pad": 1}
    sums = site.op("AveragePoolGrad", part, site.shape(x), **options)
    return [sums * _slope(site, x, p)]


def _pads_of_all_windows(site: Site, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes by which a pool without ceil_mode has the windows of one with it.

    The pads at the end grow, so that the last window is inside. {} if pads follow from extents.
    """
    if attributes.get("auto_pad", "NOTSET").startswith("SAME"):
        return {}
    x, sizes = site.inputs[0], attributes["kernel_shape"]
    rank = len(sizes)
    extents = [site.extent(x, axis) for axis in range(2, rank + 2)]
    if not all(isinstance(n, int) for n in extents):
        raise ArgumentError("its gradient with ceil_mode needs the extents of X")
    spread, steps = (attributes.get(name) or (1,) * rank for name in ("dilations", "strides"))
    pads = attributes.get("pads") or (0,) * 2 * rank
    ends = [
        end_pad(n, (sizes[i] - 1) * spread[i] + 1, steps[i], pads[i], pads[rank + i])  # type: ignore[arg-type]
        for i, n in enumerate(extents)
    ]
    return {"auto_pad": "NOTSET", "pads": (*pads[:rank], *ends)}


@gradient("GlobalLpPool")
def global_lp_pool(site: Site) -> Sequence[Term | None]:
    """y^p = sum of |x|^p over a channel: dx = sign(x) |x|^(p - 1) dy y^(1 - p)."""
    p = site.attribute("p", 2)
    return [_of_norm(site, p) * _slope(site, site.inputs[0], p)]


def _of_norm(site: Site, p: int) -> Term:
    """Return dy y^(1 - p), 0 where y is 0."""
    y = site.outputs[0]
    power = site.op("Pow", y, site.number(1 - p, y))
    return site.choose(site.compare("Equal", y, 0), 0, site.dy * power)


def _slope(site: Site, x: Term, p: int) -> Term:
    """Return sign(x) |x|^(p - 1)."""
    if p == 2:
        return x
    return site.op("Sign", x) * site.op("Pow", site.op("Abs", x), site.number(p - 1, x))
