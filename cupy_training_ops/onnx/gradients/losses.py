# SPDX-License-Identifier: MIT
"""Gradients of losses."""

from __future__ import annotations

from collections.abc import Sequence

from .rules import Site, Term, gradient


@gradient("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(site: Site) -> Sequence[Term | None]:
    """d_scores = dy weight[label] (softmax - [label]) / n."""
    _, labels, *weights = site.inputs
    logarithms = site.extra_output(1)
    dy = site.dys[0]
    attributes = {"reduction": site.attribute("reduction", "mean")}
    if "ignore_index" in site.node.attributes:
        attributes["ignore_index"] = site.node.attributes["ignore_index"]
    return [site.own("SoftmaxCrossEntropyLossGrad", dy, logarithms, labels, *weights, **attributes)]
