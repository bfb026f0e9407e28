# SPDX-License-Identifier: MIT
"""Gradients of reductions."""

from __future__ import annotations

from collections.abc import Sequence

from .rules import INT64, Site, Term, gradient, onnx_type


@gradient("ReduceSum")
def reduce_sum(site: Site) -> Sequence[Term | None]:
    """dx = dy, repeated."""
    shape = site.op("Shape", site.inputs[0], dtype=INT64)
    return [site.op("Expand", _with_reduced_axes(site, site.dys[0]), shape)]


@gradient("ReduceMean")
def reduce_mean(site: Site) -> Sequence[Term | None]:
    """dx = dy / n, repeated."""
    (dy,), x = site.dys, site.inputs[0]
    sizes = (site.op("Size", each, dtype=INT64) for each in (x, site.outputs[0]))
    n = site.op("Cast", site.op("Div", *sizes), to=onnx_type(site.dtype(x)), dtype=site.dtype(x))
    dy = _with_reduced_axes(site, dy)
    return [site.op("Expand", dy / n, site.op("Shape", x, dtype=INT64))]


def _with_reduced_axes(site: Site, dy: Term) -> Term:
    """dy in a form that repeats to x: with 1 where an axis was reduced, or one number."""
    axes = site.inputs[1] if len(site.inputs) > 1 else None
    if axes is None and "axes" in site.node.attributes:
        axes = site.ints(*site.node.attributes["axes"])
    if axes is None or site.attribute("keepdims", 1):
        return dy
    return site.op("Unsqueeze", dy, axes)
