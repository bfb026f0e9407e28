# SPDX-License-Identifier: MIT
"""Gradients of recurrent layers, one node each.

Where ONNX Runtime's LSTMTraining and GRUTraining have the variant, LSTM and GRU become these, whose
further outputs, cells and gates, LSTMGrad and GRUGrad read; else these compute them again, from Y.

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..standard import gru_gradients, lstm_gradients
from ..standard.recurrent_gradients import are_defaults
from .rules import MICROSOFT, Site, Term, gradient

Operands = tuple[Term | None, ...]
LENGTHS = 4  # index of the input sequence_lens, which has no gradient
PEEPHOLES = 7  # of an LSTM's input P


@gradient("RNN")
def rnn(site: Site) -> Sequence[Term | None]:
    """dX, dW, dR, dB and d initial_h."""
    return _results(site, "RNNGrad", *_inputs(site, 6), site.extra_output(0), *_dys(site, 2))


@gradient("GRU")
def gru(site: Site) -> Sequence[Term | None]:
    """dX, dW, dR, dB and d initial_h."""
    inputs, dys = _inputs(site, 6), _dys(site, 2)
    gates = site.extra_output(2) if _becomes_upstreams(site, gru_gradients.DEFAULTS) else None
    return _results(site, "GRUGrad", *inputs, site.extra_output(0), gates, *dys)


@gradient("LSTM")
def lstm(site: Site) -> Sequence[Term | None]:
    """dX, dW, dR, dB, d initial_h, d initial_c and dP."""
    inputs, dys = _inputs(site, 8), _dys(site, 3)
    x, w, r, bias, *states, peepholes = inputs
    stored: Operands = None, None
    others: Operands = bias, peepholes
    if _becomes_upstreams(site, lstm_gradients.DEFAULTS):
        stored, others = (site.extra_output(3), site.extra_output(4)), ()
    y = site.extra_output(0)
    return _results(site, "LSTMGrad", x, w, r, *states, y, *stored, *dys, *others)


def _inputs(site: Site, n: int) -> Operands:
    """Return the node's inputs, with None for those left out, n in all."""
    return (*site.inputs, *[None] * (n - len(site.inputs)))


def _dys(site: Site, n: int) -> Operands:
    """Return the gradients of the first n outputs, None without one."""
    return (*site.dys[:n], *[None] * (n - len(site.dys)))


def _results(site: Site, op_type: str, *operands: Term | None) -> Sequence[Term | None]:
    """Add the gradient's node `op_type` over `operands`; return each input's gradient.

    That of sequence_lens is None. The node has outputs up to that of the last input.
    """
    n = len(site.inputs)
    n_outputs = n if n <= LENGTHS else n - 1
    attributes = site.node.attributes
    terms = site.ops(n_outputs, op_type, *operands, domain=MICROSOFT, **attributes)
    return (*terms[:LENGTHS], None, *terms[LENGTHS:])


def _becomes_upstreams(site: Site, defaults: Sequence[str]) -> bool:
    """Replace the node by ONNX Runtime's LSTMTraining or GRUTraining where they compute the same.

    They are forward, with the activations `defaults`, without clipping, lengths and peepholes.
    Return True if it was replaced.
    """
    inputs, attributes = _inputs(site, 8), dict(site.node.attributes)
    extents = site.extents(site.inputs[2])
    n_hidden = attributes.pop("hidden_size", extents[-1] if extents else None)
    linear = {k: v for k, v in attributes.items() if k == "linear_before_reset"}
    is_usual = are_defaults(attributes.pop("activations", None), defaults)
    is_forward = attributes.pop("direction", "forward") == "forward"
    others = {name: value for name, value in attributes.items() if value and name not in linear}
    if not (is_usual and is_forward and isinstance(n_hidden, int)) or others:
        return False
    if inputs[LENGTHS] is not None or inputs[PEEPHOLES] is not None:
        return False
    site.replace_node(
        op_type=f"{site.node.op_type}Training",
        domain=MICROSOFT,
        version=1,
        attributes={"hidden_size": n_hidden, **linear},
    )
    return True
