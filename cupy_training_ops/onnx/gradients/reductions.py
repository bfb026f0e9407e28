# SPDX-License-Identifier: MIT
"""Gradients of reductions."""

from __future__ import annotations

from collections.abc import Sequence

from .rules import Site, Term, gradient


@gradient("ReduceMean")
def reduce_mean(site: Site) -> Sequence[Term | None]:
    """dx = dy / n, repeated."""
    (dy,), x = site.dys, site.inputs[0]
    n = site.op("Div", site.op("Size", x), site.op("Size", site.outputs[0]))
    dy = _with_reduced_axes(site, dy)
    return [site.op("Expand", dy / site.op("CastLike", n, dy), site.op("Shape", x))]


def _with_reduced_axes(site: Site, dy: Term) -> Term:
    """dy of the rank of x, with 1 where an axis was reduced."""
    if site.attribute("keepdims", 1):
        return dy
    axes = site.inputs[1] if len(site.inputs) > 1 else None
    if axes is None and "axes" in site.node.attributes:
        axes = site.ints(*site.node.attributes["axes"])
    if axes is None:  # of all
        return site.op("Reshape", dy, site.ints(*[1] * site.rank(site.inputs[0])))
    return site.op("Unsqueeze", dy, axes)
