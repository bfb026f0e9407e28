# SPDX-License-Identifier: MIT
"""LSTMTraining, which is LSTM with its cells and gates among the results; the gradients of LSTM.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
w, r, bias, lengths, h, c, peepholes: ONNX's W, R, B, sequence_lens, initial_h, initial_c and P.
`way` is a layer that collects its gradients, d a direction's index.
looks: peephole weights of the gates i, o and f, (3, hidden), or None. input_forget: f = 1 - i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import ArgumentError
from .elementwise import scalar, sigmoid
from .recurrent import DIRECTIONS, Floats, Layer, Names, activations_checker, activations_of
from .recurrent_gradients import ONE_WAY, Way, are_defaults, refuse_lengths, refuse_others, rows_of
from .recurrent_slopes import sigmoid_slope, tanh_slope
from .reductions import product
from .table import Array, Module, standard, wide

DEFAULTS = ("Sigmoid", "Tanh", "Tanh")


class _Memory(NamedTuple):
    """Values of one direction of an LSTM at all steps, each (steps, batch, hidden)."""

    cells: Array  # behind each step
    before: Array  # before each step
    gates: Sequence[Array]  # input, output, forget, and the new cell's tanh
    slopes: Sequence[Array]  # derivatives of the gates' activations


def _memory(
    way: Way,
    d: int,
    functions: Sequence[Any],
    before: Array,
    start: Array,
    looks: Array,
    input_forget: bool,
) -> _Memory:
    """Return the cells and gates of direction d, computed once more from the hidden states.

    functions: activations of gates, new cell, and hidden state. before: the hidden state before
    each step. start: the initial cell.
    """
    a = way.times(way.x, way.w[d]) + way.times(before, way.r[d]) + sum(way.biases(d))
    parts = _by_gate(way, a)
    if looks is not None:
        _add_looks(way, d, functions, parts, start, looks, input_forget)
    let_in, in_slope, forget, forget_slope = _inner(way, functions[0], parts, input_forget)
    out, out_slope = way.open(functions[0], parts[1])
    new, new_slope = way.open(functions[1], parts[3])
    cell, added = start, let_in * new
    cells = way.xp.empty_like(added)
    for t in way.order(d):
        cell = cells[t] = way.step_on(t, forget[t] * cell + added[t], cell)
    gates, slopes = (let_in, out, forget, new), (in_slope, out_slope, forget_slope, new_slope)
    return _Memory(cells, way.before(d, cells, start), gates, slopes)


def _by_gate(layer: Layer, x: Array) -> list[Array]:
    """Return the four parts of the last axis (4 hidden), those of i, o, f and c, as views."""
    return [x[..., k * layer.n_hidden : (k + 1) * layer.n_hidden] for k in range(4)]


def _inner(way: Way, function: Any, parts: Sequence[Array], input_forget: bool) -> Sequence[Array]:
    """Return input gate, its slope, forget gate, its slope.

    function: the gates' activation. parts: the sums i, o, f, c that activations are applied to.
    """
    let_in, in_slope = way.open(function, parts[0])
    if input_forget:
        return let_in, in_slope, scalar(let_in, 1) - let_in, way.xp.zeros_like(let_in)
    return let_in, in_slope, *way.open(function, parts[2])


def _add_looks(
    way: Way,
    d: int,
    functions: Sequence[Any],
    parts: Sequence[Array],
    cell: Array,
    looks: Array,
    input_forget: bool,
) -> None:
    """Add the peepholes' products with cells to the sums i, o and f (parts), in place.

    The cells are computed step by step for that, from the initial one, `cell`. functions:
    activations of gates and new cell.
    """
    for t in way.order(d):
        now = [part[t] for part in parts]
        now[0] += looks[0] * cell
        now[2] += looks[2] * cell
        let_in, _, forget, _ = _inner(way, functions[0], now, input_forget)
        new, _ = way.open(functions[1], now[3])
        cell = way.step_on(t, forget * cell + let_in * new, cell)
        now[1] += looks[1] * cell


@standard("LSTMTraining", only=ONE_WAY, refuse=refuse_others(*DEFAULTS))
def lstm_training(
    xp: Module,
    x: Array,
    w: Array,
    r: Array,
    bias: Array = None,
    lengths: Array = None,
    h: Array = None,
    c: Array = None,
    peepholes: Array = None,
    *,
    activation_alpha: Floats = None,
    activation_beta: Floats = None,
    activations: Names = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: bool = False,
) -> tuple[Array, ...]:
    """Return LSTM's Y, Y_h and Y_c, and its cells and gates i, o, f and c at all steps.

    Cells: (steps, 1, batch, hidden); gates: (steps, 1, batch, 4 hidden).
    """
    if peepholes is not None:
        raise ArgumentError("P: expected none, since LSTMGrad does not read peepholes beside gates")
    refuse_lengths(lengths)
    layer = Layer(xp, (x, w, r, bias), 4, hidden_size, direction, 0, None)
    hidden, cell = layer.start("initial_h", h)[0], layer.start("initial_c", c)[0]
    inputs, m = layer.times(layer.x, layer.w[0]) + sum(layer.biases(0)), layer.n_hidden
    gates = xp.empty(inputs.shape, inputs.dtype)
    states = xp.empty((2, *inputs.shape[:2], m), inputs.dtype)
    let_in, out, forget, new = _by_gate(layer, gates)
    for t in range(len(inputs)):
        a = inputs[t] + layer.times(hidden, layer.r[0])
        gates[t, :, : 3 * m], new[t] = sigmoid(xp, a[:, : 3 * m]), xp.tanh(a[:, 3 * m :])
        cell = forget[t] * cell + let_in[t] * new[t]
        hidden = out[t] * xp.tanh(cell)
        states[0, t], states[1, t] = hidden, cell
    results = states[0][:, None], hidden[None], cell[None], states[1][:, None], gates[:, None]
    return tuple(array.astype(x.dtype, copy=False) for array in results)


@standard("LSTMGrad", only={"direction": DIRECTIONS}, refuse=activations_checker(*DEFAULTS))
def lstm_grad(
    xp: Module,
    x: Array,
    w: Array,
    r: Array,
    lengths: Array = None,
    h: Array = None,
    c: Array = None,
    y: Array = None,
    cells: Array = None,
    gates: Array = None,
    dy: Array = None,
    dh: Array = None,
    dc: Array = None,
    bias: Array = None,
    peepholes: Array = None,
    *,
    activation_alpha: Floats = None,
    activation_beta: Floats = None,
    activations: Names = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: bool = False,
    layout: bool = False,
) -> tuple[Array, ...]:
    """Return dX, dW, dR, dB, d initial_h, d initial_c and dP.

    x, w, r, lengths, h, c, bias and peepholes: the LSTM's inputs. y: its Y. dy, dh, dc: gradients
    of Y, Y_h and Y_c, None if 0. cells, gates: LSTMTraining's; without them they are computed once
    more, from bias and peepholes too.
    """
    way = Way(xp, (x, w, r, bias), 4, y, lengths, hidden_size, direction, layout, clip)
    n, m = len(way.backward), way.n_hidden
    names = activations or DEFAULTS * n
    functions = activations_of(names, activation_alpha, activation_beta)
    start, last = way.start("initial_h", h), way.start("dY_h", dh)
    starts_and_lasts = way.start("initial_c", c), way.start("dY_c", dc)
    dy, cells = way.of_steps("dY", dy), way.of_steps("CAll", cells)
    gates = way.of_steps("iofc", gates, 4)
    is_usual = clip is None and not input_forget and are_defaults(activations, DEFAULTS)
    if (cells is None) != (gates is None) or (gates is not None and not is_usual):
        expected = "both or none, and none with clip, input_forget or other activations"
        raise ArgumentError(f"CAll, iofc: expected {expected}")
    if peepholes is not None:
        way.check("P", peepholes, (n, 3 * m))
        peepholes = wide(peepholes).reshape(n, 3, m)
    for d in range(n):
        before = way.before(d, way.states[:, d], start[d])
        looks = None if peepholes is None else peepholes[d]
        cell, dc_last = (each[d] for each in starts_and_lasts)
        own = functions[3 * d : 3 * d + 3]
        if gates is None:
            memory = _memory(way, d, own, before, cell, looks, input_forget)
        else:
            memory = _stored_memory(way, d, cells[:, d], gates[:, d], cell)
        _add_lstm(way, d, own[2], memory, looks, input_forget, before, dy, last, dc_last)
    return way.result()


def _stored_memory(way: Way, d: int, cells: Array, gates: Array, start: Array) -> _Memory:
    """Return LSTMTraining's cells and gates of direction d as _Memory; start: the initial cell."""
    parts = _by_gate(way, gates)
    slopes = [sigmoid_slope(way.xp, None, part) for part in parts[:3]]
    slopes.append(tanh_slope(way.xp, None, parts[3]))
    return _Memory(cells, way.before(d, cells, start), parts, slopes)


def _add_lstm(
    way: Way,
    d: int,
    function: Any,
    memory: _Memory,
    looks: Array,
    input_forget: bool,
    before: Array,
    dy: Array,
    last: Array,
    dc: Array,
) -> None:
    """Add the gradients of direction d to `way` (see Way.add).

    h = o f(c), c = f c' + i g, where c' is the cell before. At each step the gradient of c is
    dc + k_cell dh; da_o is a multiple of dh, da of the other gates of c's gradient, by factors k
    that are known for all steps. function: activation of the hidden state. before: hidden states
    before each step. dy: gradients of Y. last: of the last hidden state by direction. dc: of the
    last cell.
    """
    xp, m = way.xp, way.n_hidden
    let_in, out, forget, new = memory.gates
    in_slope, out_slope, forget_slope, new_slope = memory.slopes
    value, slope = way.open(function, memory.cells)
    k_in = (new - memory.before if input_forget else new) * in_slope
    k_out, k_forget = value * out_slope, memory.before * forget_slope
    k_cell, through = out * slope, forget
    if looks is not None:
        k_cell = k_cell + looks[1] * k_out
        through = through + looks[0] * k_in + looks[2] * k_forget
    k = way.until_ends(xp.concatenate([k_in, k_out, k_forget, let_in * new_slope], axis=-1))
    k_cell, through = way.until_ends(k_cell), way.until_ends(through, 1)
    da = xp.empty(k.shape, k.dtype)
    by_gate = (*k.shape[1:2], 4, m)

    def step(t: int, dh: Array) -> Array:
        """Fill da[t], take dc before step t, and return dh before it, without dY."""
        nonlocal dc
        whole = dc + dh * k_cell[t]
        xp.multiply(k[t].reshape(by_gate), whole[:, None], out=da[t].reshape(by_gate))
        xp.multiply(k[t, :, m : 2 * m], dh, out=da[t, :, m : 2 * m])
        dc = whole * through[t]
        return product(xp, da[t], way.r[d])

    dh = way.back(d, dy, last, step)
    pairs = zip(_by_gate(way, da), (memory.before, memory.cells, memory.before), strict=False)
    dp = [(part * cells).sum((0, 1)) for part, cells in pairs]
    dr = way.summed(da, before)
    way.add(d, da, dr, rows_of(da).sum(0), dh, dc, xp.concatenate(dp))
