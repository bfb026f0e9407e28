# SPDX-License-Identifier: MIT
"""Gradients of shapes."""

from __future__ import annotations

from collections.abc import Sequence

from .rules import Site, Term, gradient


@gradient("Flatten", "Reshape", "Squeeze", "Unsqueeze")
def same_elements(site: Site) -> Sequence[Term | None]:
    """dx = dy in the shape of x."""
    return [site.op("Reshape", site.dys[0], site.shape(site.inputs[0]))]


@gradient("Transpose")
def transpose(site: Site) -> Sequence[Term | None]:
    """dx = dy with the axes where they were."""
    perm = site.attribute("perm", None) or tuple(reversed(range(site.rank(site.inputs[0]))))
    back = sorted(range(len(perm)), key=lambda axis: perm[axis])
    return [site.op("Transpose", site.dys[0], perm=tuple(back))]
