# SPDX-License-Identifier: MIT
"""Gradients of losses.

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ArgumentError
from .rules import Site, Term, gradient

CLASSES = 1  # the axis of classes


@gradient("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(site: Site) -> Sequence[Term | None]:
    """d_scores = d_loss weight[label] (softmax - one_hot(label)) / n, by one node.

    n: by `reduction`, 1 or the sum of the labels' weights. If the output log_prob has a gradient
    too, LogSoftmax's is added.
    """
    _refuse_weights(site)
    labels, *weights = site.inputs[1:]
    d_loss, d_logarithms = (*site.dys, None)[:2]
    logarithms = site.extra_output(1)
    attributes = {"reduction": site.attribute("reduction", "mean")}
    if "ignore_index" in site.node.attributes:
        attributes["ignore_index"] = site.node.attributes["ignore_index"]
    parts = []
    if d_loss is not None:
        operands = (d_loss, logarithms, labels, *weights)
        parts.append(site.own("SoftmaxCrossEntropyLossGrad", *operands, **attributes))
    if d_logarithms is not None:
        parts.append(site.own("LogSoftmaxGrad_13", d_logarithms, logarithms, axis=CLASSES))
    return [parts[0] if len(parts) == 1 else parts[0] + parts[1]]


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(site: Site) -> Sequence[Term | None]:
    """dx[label] = -dy weight[label] / n, and 0 elsewhere; n is the sum of weights in a mean."""
    _refuse_weights(site)
    (dy,), (x, labels, *weights) = site.dys, site.inputs
    weight = weights[0] if weights else None
    ignored = site.attribute("ignore_index", None)
    is_ignored = None
    if ignored is not None:
        is_ignored = site.compare("Equal", labels, ignored)
        labels = site.choose(is_ignored, 0, labels)
    if weight is None:
        factor = site.op("Expand", site.number(1, dy), site.shape(labels))
    else:
        factor = site.op("Gather", weight, labels, axis=0)
    if is_ignored is not None:
        factor = site.choose(is_ignored, 0, factor)
    rate = -dy
    if site.attribute("reduction", "mean") == "mean":
        rate = site.divide(rate, site.op("ReduceSum", site.widened(factor), keepdims=0))
    rows, places = (
        site.op("Unsqueeze", each, site.ints(CLASSES)) for each in (rate * factor, labels)
    )
    return [site.own("GatherElementsGrad", rows, site.shape(x), places, axis=CLASSES)]


def _refuse_weights(site: Site) -> None:
    """Refuse a gradient with respect to the weights of classes, input 2."""
    if len(site.wanted) > 2 and site.wanted[2]:
        raise ArgumentError("its weights of classes have no gradient here: they have to be frozen")
