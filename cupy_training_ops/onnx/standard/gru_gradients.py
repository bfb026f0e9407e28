# SPDX-License-Identifier: MIT
"""GRUTraining, which is GRU with its gates among the results, and the gradients of GRU.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
w, r, bias, lengths, h, c, peepholes: ONNX's W, R, B, sequence_lens, initial_h, initial_c and P.
`way` is a layer that collects its gradients, d a direction's index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .elementwise import scalar, sigmoid
from .recurrent import DIRECTIONS, Floats, Layer, Names, activations_checker, activations_of
from .recurrent_gradients import ONE_WAY, Way, are_defaults, refuse_lengths, refuse_others, rows_of
from .recurrent_slopes import sigmoid_slope, tanh_slope
from .reductions import product
from .table import Array, Module, standard

DEFAULTS = ("Sigmoid", "Tanh")


class _Reset(NamedTuple):
    """A GRU's gates at all steps: update z, reset r, new n; (steps, batch, hidden) each."""

    both: Array  # z, then r along the last axis, 2 hidden
    both_slopes: Array  # derivatives of their activations
    new: Array
    new_slope: Array  # derivative of its activation
    hidden: Array  # R_n h + its bias with linear_before_reset, where r multiplies that; else None


def _gru_gates(
    way: Way, d: int, functions: Sequence[Any], before: Array, gates: Array, is_linear: bool
) -> _Reset:
    """Return direction d's gates, computed once more unless they are known.

    functions: activations of z and r, and of n. before: the hidden state before each step. gates:
    z, r, n of GRUTraining, (steps, directions,
    batch, 3 hidden), or None. is_linear: linear_before_reset.
    """
    m = 2 * way.n_hidden
    r, (own, states_own) = way.r[d], way.biases(d)
    hidden = way.times(before, r[m:]) + states_own[m:] if is_linear else None
    if gates is not None:
        both, new = gates[:, d, :, :m], gates[:, d, :, m:]
        slopes = sigmoid_slope(way.xp, None, both), tanh_slope(way.xp, None, new)
        return _Reset(both, slopes[0], new, slopes[1], hidden)
    inputs = way.times(way.x, way.w[d]) + own
    of_both = inputs[..., :m] + way.times(before, r[:m]) + states_own[:m]
    both, both_slopes = way.open(functions[0], of_both)
    reset = both[..., way.n_hidden :]
    of_new = inputs[..., m:]
    of_new += reset * hidden if is_linear else way.times(reset * before, r[m:]) + states_own[m:]
    new, new_slope = way.open(functions[1], of_new)
    return _Reset(both, both_slopes, new, new_slope, hidden)


@standard("GRUTraining", only=ONE_WAY, refuse=refuse_others(*DEFAULTS))
def gru_training(
    xp: Module,
    x: Array,
    w: Array,
    r: Array,
    bias: Array = None,
    lengths: Array = None,
    h: Array = None,
    *,
    activation_alpha: Floats = None,
    activation_beta: Floats = None,
    activations: Names = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    linear_before_reset: bool = False,
) -> tuple[Array, ...]:
    """Return GRU's Y and Y_h, and its gates z, r, n at all steps: (steps, 1, batch, 3 hidden)."""
    refuse_lengths(lengths)
    layer = Layer(xp, (x, w, r, bias), 3, hidden_size, direction, 0, None)
    m, hidden = layer.n_hidden, layer.start("initial_h", h)[0]
    # B: z, r, n beside W x, then z, r, n beside R h; only the last is not added to W x at once.
    own = xp.zeros(6 * m, layer.x.dtype) if layer.bias is None else layer.bias[0]
    of_both, new_bias = own[: 2 * m] + own[3 * m : 5 * m], own[5 * m :]
    inputs = layer.times(layer.x, layer.w[0]) + xp.concatenate([of_both, own[2 * m : 3 * m]])
    gates = xp.empty(inputs.shape, inputs.dtype)
    states = xp.empty((*inputs.shape[:2], m), inputs.dtype)
    for t in range(len(inputs)):
        both = sigmoid(xp, inputs[t, :, : 2 * m] + layer.times(hidden, layer.r[0, : 2 * m]))
        update, reset = both[:, :m], both[:, m:]
        if linear_before_reset:
            of_states = reset * (layer.times(hidden, layer.r[0, 2 * m :]) + new_bias)
        else:
            of_states = layer.times(reset * hidden, layer.r[0, 2 * m :]) + new_bias
        new = xp.tanh(inputs[t, :, 2 * m :] + of_states)
        hidden = (scalar(update, 1) - update) * new + update * hidden
        gates[t, :, : 2 * m], gates[t, :, 2 * m :], states[t] = both, new, hidden
    results = states[:, None], hidden[None], gates[:, None]
    return tuple(array.astype(x.dtype, copy=False) for array in results)


@standard("GRUGrad", only={"direction": DIRECTIONS}, refuse=activations_checker(*DEFAULTS))
def gru_grad(
    xp: Module,
    x: Array,
    w: Array,
    r: Array,
    bias: Array = None,
    lengths: Array = None,
    h: Array = None,
    y: Array = None,
    gates: Array = None,
    dy: Array = None,
    dh: Array = None,
    *,
    activation_alpha: Floats = None,
    activation_beta: Floats = None,
    activations: Names = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: bool = False,
    linear_before_reset: bool = False,
) -> tuple[Array, ...]:
    """Return dX, dW, dR, dB and d initial_h.

    x to h: the GRU's inputs. y: its Y. gates: GRUTraining's, or None: they are computed once more.
    dy, dh: gradients of Y and Y_h, None if 0.
    """
    way = Way(xp, (x, w, r, bias), 3, y, lengths, hidden_size, direction, layout, clip)
    n = len(way.backward)
    names = activations or DEFAULTS * n
    functions = activations_of(names, activation_alpha, activation_beta)
    start, last = way.start("initial_h", h), way.start("dY_h", dh)
    dy, gates = way.of_steps("dY", dy), way.of_steps("ZRH", gates, 3)
    if clip is not None or not are_defaults(activations, DEFAULTS):
        gates = None  # whose slopes do not follow from them
    for d in range(n):
        before = way.before(d, way.states[:, d], start[d])
        own = functions[2 * d : 2 * d + 2]
        values = _gru_gates(way, d, own, before, gates, linear_before_reset)
        add = _add_linear_gru if linear_before_reset else _add_gru
        add(way, d, values, before, dy, last)
    return way.result()


def _add_linear_gru(way: Way, d: int, gates: _Reset, before: Array, dy: Array, last: Array) -> None:
    """Add direction d's gradients, with linear_before_reset.

    n = g(W_n x + r q), q = R_n h: dn, dq = r dn and dr = q dn are multiples of dh, by factors k
    that are known for all steps. before: hidden states before each step. dy: gradients of Y. last:
    of Y_h.
    """
    xp, m = way.xp, way.n_hidden
    update, reset = gates.both[..., :m], gates.both[..., m:]
    of_new = way.until_ends((scalar(update, 1) - update) * gates.new_slope)
    of_update = way.until_ends((before - gates.new) * gates.both_slopes[..., :m])
    of_reset = of_new * gates.hidden * gates.both_slopes[..., m:]
    # da_t = k_t dh_t: of z, r, and of R_n h + its bias.
    k = xp.stack([of_update, of_reset, of_new * reset], axis=2)
    da, dhs = xp.empty(k.shape, k.dtype), xp.empty_like(of_new)
    rows = da.reshape(*da.shape[:2], 3 * m)

    def step(t: int, dh: Array) -> Array:
        """Fill dhs[t] and da[t]; return dh before step t."""
        dhs[t] = dh
        xp.multiply(k[t], dh[:, None], out=da[t])
        return dh * update[t] + product(xp, rows[t], way.r[d])

    dh = way.back(d, dy, last, step)
    # Beside W x, the new gate's gradient has no factor r.
    of_inputs = xp.concatenate([rows[..., : 2 * m], dhs * of_new], axis=-1)
    way.add(d, of_inputs, way.summed(rows, before), rows_of(rows).sum(0), dh)


def _add_gru(way: Way, d: int, gates: _Reset, before: Array, dy: Array, last: Array) -> None:
    """Add direction d's gradients, without linear_before_reset.

    before: hidden states before each step. dy: gradients of Y. last: of Y_h.
    n = g(W_n x + R_n (r h)): dr = h R_n^T dn, which takes a product of its own at each step.
    """
    xp, m, r = way.xp, way.n_hidden, way.r[d]
    update, reset = gates.both[..., :m], gates.both[..., m:]
    of_new = way.until_ends((scalar(update, 1) - update) * gates.new_slope)
    of_update = way.until_ends((before - gates.new) * gates.both_slopes[..., :m])
    of_reset = before * gates.both_slopes[..., m:]
    da = xp.empty((*update.shape[:2], 3 * m), update.dtype)

    def step(t: int, dh: Array) -> Array:
        """Fill da[t], for z, r, n; return dh before step t."""
        xp.multiply(dh, of_update[t], out=da[t, :, :m])
        xp.multiply(dh, of_new[t], out=da[t, :, 2 * m :])
        through = product(xp, da[t, :, 2 * m :], r[2 * m :])
        xp.multiply(through, of_reset[t], out=da[t, :, m : 2 * m])
        through = dh * update[t] + through * reset[t]
        return through + product(xp, da[t, :, : 2 * m], r[: 2 * m])

    dh = way.back(d, dy, last, step)
    dr = [way.summed(da[..., : 2 * m], before), way.summed(da[..., 2 * m :], reset * before)]
    way.add(d, da, xp.concatenate(dr), rows_of(da).sum(0), dh)
