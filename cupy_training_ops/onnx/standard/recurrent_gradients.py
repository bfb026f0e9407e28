# SPDX-License-Identifier: MIT
"""Backpropagation through time, as recurrent layers share it, and RNN's gradients.

a_t = W x_t + R h_(t-1) + b, all t at once        since h is known
da_t = K_t dh_t,  dh_(t-1) = R^T da_t             one product a step, K for all t at once
dx_t = W^T da_t,  dW = sum of da_t x_t^T,  dR = sum of da_t h_(t-1)^T      one product each

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
w, r, bias, lengths, h, c, peepholes: ONNX's W, R, B, sequence_lens, initial_h, initial_c and P.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import ArgumentError, shown
from .elementwise import scalar
from .recurrent import (
    DIRECTIONS,
    Floats,
    Layer,
    Names,
    activations_checker,
    activations_of,
)
from .recurrent_slopes import SLOPES
from .reductions import product
from .table import Array, Module, standard, wide

DEFAULTS = ("Tanh",)
ONE_WAY = {"direction": ("forward",), "input_forget": (False,)}  # all that LSTMTraining has


def are_defaults(names: Names, defaults: Sequence[str]) -> bool:
    """Return True if `names`, None or for one or two directions, are the default activations."""
    pairs = zip(names or (), itertools.cycle(defaults), strict=False)
    return all(name.lower() == default.lower() for name, default in pairs)


def refuse_others(*defaults: str) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that refuses a node's attributes with clip, or not these activations.

    With these, the slopes follow from the gates that LSTMTraining and GRUTraining give.
    """

    def check(attributes: Mapping[str, Any]) -> None:
        names = attributes.get("activations")
        if not are_defaults(names, defaults):
            raise ArgumentError(f"activations: expected {', '.join(defaults)}, got {shown(names)}")
        if attributes.get("clip") is not None:
            raise ArgumentError(f"clip: expected none, got {shown(attributes['clip'])}")

    return check


def refuse_lengths(lengths: Array) -> None:
    """Refuse sequences of several lengths, as ONNX Runtime's training operators do."""
    if lengths is not None:
        raise ArgumentError("sequence_lens: expected none, so that all sequences are as long as X")


# ---- what the layers share -----------------------------------------------------------------------


class Way(Layer):
    """A Layer with the steps backwards; d is a direction's index, t a step's.

    states: the hidden states behind all steps, (steps, directions, batch, hidden). goes_on: (steps,
    batch, 1), True until a sequence ends; None if all are as long as x.
    """

    def __init__(
        self,
        xp: Module,
        arrays: Sequence[Array],
        n_gates: int,
        states: Array,
        lengths: Array,
        hidden_size: int | None,
        direction: str,
        layout: int,
        clip: float | None,
    ) -> None:
        """Prepare; arrays: x, W, R and B (or None). states: the layer's Y. n_gates: of a step.

        lengths: of each sequence, or None. The others are attributes of the layer's node.
        """
        super().__init__(xp, arrays, n_gates, hidden_size, direction, layout, clip)
        self.goes_on = None
        if lengths is not None:
            self.check("sequence_lens", lengths, self.x.shape[1:2])
            self.goes_on = (xp.arange(len(self.x))[:, None] < lengths)[:, :, None]
            self.x = self.until_ends(self.x)  # what is behind an end may be no number
        if self.bias is None:
            self.bias = xp.zeros((len(self.backward), 2 * n_gates * self.n_hidden), self.x.dtype)
        if states is None:
            raise ArgumentError("its input Y is missing")
        self.states = self.of_steps("Y", states)
        self._parts: list[tuple[Array, ...]] = []  # of each direction: (dX, dW, dR, dB, others)

    def of_steps(self, name: str, value: Array, n: int = 1) -> Array:
        """Return an input such as Y as (steps, directions, batch, n hidden), checked; or None."""
        if value is None:
            return None
        value = wide(value.transpose(1, 2, 0, 3) if self._layout else value)
        n_times, batch, _ = self.x.shape
        self.check(name, value, (n_times, len(self.backward), batch, n * self.n_hidden))
        return value

    def until_ends(self, x: Array, other: float = 0) -> Array:
        """Return x (steps, batch, ...) with the number `other` behind the ends of sequences."""
        return x if self.goes_on is None else self.xp.where(self.goes_on, x, scalar(x, other))

    def order(self, d: int) -> Sequence[int]:
        """Return the indices of steps in the order in which direction d goes through them."""
        steps = range(len(self.x))
        return steps[::-1] if self.backward[d] else steps

    def before(self, d: int, states: Array, start: Array) -> Array:
        """Return the state before each step; states: those behind each step; start: the first."""
        result = self.xp.empty_like(states)
        if not self.backward[d]:
            result[1:], result[:1] = states[:-1], start
            return result
        result[:-1], result[-1:] = states[1:], start
        if self.goes_on is not None:
            result[:-1] = self.xp.where(self.goes_on[1:], result[:-1], start)
        return result

    def open(self, function: Any, a: Array) -> tuple[Array, Array]:
        """Return an activation of `a`, and its slope there; 0 where `a` is clipped."""
        bounded = self.bound(a)
        y = function(self.xp, bounded)
        slope = SLOPES[function.func](self.xp, bounded, y, **function.keywords)
        if self._clip is not None:
            slope = self.xp.where(abs(a) <= scalar(a, self._clip), slope, scalar(a, 0))
        return y, slope

    def back(self, d: int, dy: Array, last: Array, step: Callable[[int, Array], Array]) -> Array:
        """Go back through direction d's steps; return the gradient of its initial hidden state.

        dy: gradients of Y, or None. last: of the last hidden states. step(t, dh): returns the
        gradient of the state before step t by that of the state behind it.
        """
        dy = None if dy is None else self.until_ends(dy[:, d])
        dh = last[d]
        for t in self.order(d)[::-1]:
            dh = dh if dy is None else dh + dy[t]
            dh = self.step_on(t, step(t, dh), dh)
        return dh

    def step_on(self, t: int, new: Array, old: Array) -> Array:
        """Return `new` for sequences that step t belongs to, `old` for those that have ended."""
        return new if self.goes_on is None else self.xp.where(self.goes_on[t], new, old)

    def add(self, d: int, da: Array, dr: Array, state_sums: Array, *others: Array) -> None:
        """Add a direction's gradients to the results.

        da: of W x + b of the gates, at all steps. dr: of R. state_sums: of the bias beside R h.
        others: of initial states, and of peepholes.
        """
        dw = self.summed(da, self.x)
        biases = self.xp.concatenate([rows_of(da).sum(0), state_sums])
        self._parts.append((product(self.xp, da, self.w[d]), dw, dr, biases, *others))

    def summed(self, da: Array, x: Array) -> Array:
        """Return the sum of da_t x_t^T over steps and batch."""
        return product(self.xp, rows_of(da).T, rows_of(x))

    def result(self) -> tuple[Array, ...]:
        """Return dX, dW, dR, dB, gradients of initial states, and others, of all directions."""
        dxs, *rest = zip(*self._parts, strict=True)
        others = [self.xp.stack(parts) for parts in rest]
        dx = dxs[0] if len(dxs) == 1 else dxs[0] + dxs[1]
        if self._layout:
            dx = dx.swapaxes(0, 1)
            others[3:5] = [state.swapaxes(0, 1) for state in others[3:5]]
        return tuple(array.astype(self.dtype, copy=False) for array in (dx, *others))


def rows_of(x: Array) -> Array:
    """Return (steps, batch, n) as a matrix (steps batch, n)."""
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2])


# ---- RNN -----------------------------------------------------------------------------------------


@standard("RNNGrad", only={"direction": DIRECTIONS}, refuse=activations_checker(*DEFAULTS))
def rnn_grad(
    xp: Module,
    x: Array,
    w: Array,
    r: Array,
    bias: Array = None,
    lengths: Array = None,
    h: Array = None,
    y: Array = None,
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
) -> tuple[Array, ...]:
    """Return dX, dW, dR, dB and d initial_h.

    x to h: the RNN's inputs. y: its Y. dy, dh: gradients of Y and Y_h, None if 0.
    """
    way = Way(xp, (x, w, r, bias), 1, y, lengths, hidden_size, direction, layout, clip)
    n = len(way.backward)
    functions = activations_of(activations or DEFAULTS * n, activation_alpha, activation_beta)
    start, last = way.start("initial_h", h), way.start("dY_h", dh)
    dy = way.of_steps("dY", dy)
    for d in range(n):
        _add_rnn(way, d, functions[d], start[d], dy, last)
    return way.result()


def _add_rnn(way: Way, d: int, function: Any, start: Array, dy: Array, last: Array) -> None:
    """Add direction d's gradients to `way`.

    function: the activation. start: the initial state. dy: gradients of Y. last: of Y_h.
    """
    before = way.before(d, way.states[:, d], start)
    a = way.times(way.x, way.w[d]) + way.times(before, way.r[d]) + sum(way.biases(d))
    k = way.until_ends(way.open(function, a)[1])
    da = way.xp.empty_like(k)

    def step(t: int, dh: Array) -> Array:
        way.xp.multiply(k[t], dh, out=da[t])
        return product(way.xp, da[t], way.r[d])

    dh = way.back(d, dy, last, step)
    way.add(d, da, way.summed(da, before), rows_of(da).sum(0), dh)
