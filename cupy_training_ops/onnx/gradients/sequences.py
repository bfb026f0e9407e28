# SPDX-License-Identifier: MIT
"""Gradients of operators on sequences, which are sequences of gradients.

s = [a, b]; y = s[1]      s_grad = [0, y_grad]; a_grad = s_grad[0], b_grad = s_grad[1]

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .rules import INT64, ZERO, Site, Term, gradient

ZERO |= {"SequenceEmpty", "SequenceLength"}


def _from_front(site: Site, place: Term, sequence: Term) -> Term:
    """Return an index into a sequence as int64, one below 0 counted from the front instead."""
    place = site.cast(place, INT64)
    n = site.op("SequenceLength", sequence, dtype=INT64)
    return site.choose(site.compare("Less", place, 0), place + n, place)


@gradient("SequenceConstruct")
def sequence_construct(site: Site) -> Sequence[Term | None]:
    """dx_i = the i-th array of ds."""
    places = (site.constant(np.array(i, INT64)) for i in range(len(site.inputs)))
    pairs = zip(places, site.inputs, strict=True)
    return [site.op("SequenceAt", site.dy, place, like=x) for place, x in pairs]


@gradient("SequenceAt")
def sequence_at(site: Site) -> Sequence[Term | None]:
    """ds = zeros, but dy at the position."""
    s, place = site.inputs
    place = _from_front(site, place, s)
    rest = site.op("SequenceErase", site.zeros(s), place)
    return [site.op("SequenceInsert", rest, site.dy, place)]


@gradient("SequenceInsert")
def sequence_insert(site: Site) -> Sequence[Term | None]:
    """dx = the array of dy at the position, ds = the others."""
    s, x, place = (*site.inputs, None)[:3]
    last = site.constant(np.array(-1, INT64))
    at = last if place is None else _from_front(site, place, s)
    return [site.op("SequenceErase", site.dy, at), site.op("SequenceAt", site.dy, at, like=x)]


@gradient("SequenceErase")
def sequence_erase(site: Site) -> Sequence[Term | None]:
    """ds = dy, with zeros at the position."""
    s, place = (*site.inputs, None)[:2]
    if place is None:
        place = site.op("SequenceLength", s, dtype=INT64) - 1
    at = _from_front(site, place, s)
    zero = site.op("SequenceAt", site.zeros(s), at)
    return [site.op("SequenceInsert", site.dy, zero, at)]


@gradient("SplitToSequence")
def split_to_sequence(site: Site) -> Sequence[Term | None]:
    """dx = the arrays of dy concatenated along the axis; stacked if the split dropped the axis."""
    is_whole = len(site.inputs) > 1 or site.attribute("keepdims", 1)
    options = {"axis": site.attribute("axis", 0), "new_axis": int(not is_whole)}
    return [site.op("ConcatFromSequence", site.dy, like=site.inputs[0], **options)]


@gradient("ConcatFromSequence")
def concat_from_sequence(site: Site) -> Sequence[Term | None]:
    """ds = dy split into the arrays that were concatenated, or stacked (new_axis)."""
    axis = site.attribute("axis", 0)
    if site.attribute("new_axis", 0):
        return [site.op("SplitToSequence", site.dy, axis=axis, keepdims=0)]
    lengths = site.op("ConcatFromSequence", site.lengths(site.inputs[0], axis), axis=0)
    return [site.op("SplitToSequence", site.dy, lengths, axis=axis)]
