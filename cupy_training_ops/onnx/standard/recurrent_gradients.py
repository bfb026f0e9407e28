# SPDX-License-Identifier: MIT
"""A recurrent layer's way back through time, and RNN's gradients.

a_t = W x_t + R h_(t-1) + b, all t at once        since h is known
da_t = K_t dh_t,  dh_(t-1) = R^T da_t             one product a step, K for all t at once
dx_t = W^T da_t,  dW = sum of da_t x_t^T,  dR = sum of da_t h_(t-1)^T      one product each
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
ONE_WAY = {"direction": ("forward",), "input_forget": (False,)}  # what upstream trains


def are_defaults(names: Names, defaults: Sequence[str]) -> bool:
    """Return True of the activations that a layer has if none are named."""
    pairs = zip(names or (), itertools.cycle(defaults), strict=False)
    return all(name.lower() == default.lower() for name, default in pairs)


def refuse_others(*defaults: str) -> Callable[[Mapping[str, Any]], None]:
    """A check for the operators that give gates, whose slopes have to follow from them."""

    def check(attributes: Mapping[str, Any]) -> None:
        names = attributes.get("activations")
        if not are_defaults(names, defaults):
            raise ArgumentError(f"activations: expected {', '.join(defaults)}, got {shown(names)}")
        if attributes.get("clip") is not None:
            raise ArgumentError(f"clip: expected none, got {shown(attributes['clip'])}")

    return check


def refuse_lengths(lengths: Array) -> None:
    """Refuse sequences of several lengths, as upstream's training operators do."""
    if lengths is not None:
        raise ArgumentError("sequence_lens: expected none, so that all sequences are as long as X")


# ---- what the layers share -----------------------------------------------------------------------


class Way(Layer):
    """A layer on its way back through time."""

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
        """arrays: x, W, R and B. states: the hidden states, which the layer gave."""
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
        self._parts: list[tuple[Array, ...]] = []

    def of_steps(self, name: str, value: Array, n: int = 1) -> Array:
        """An array of each step and direction; n: of its columns, in hidden states."""
        if value is None:
            return None
        value = wide(value.transpose(1, 2, 0, 3) if self._layout else value)
        n_times, batch, _ = self.x.shape
        self.check(name, value, (n_times, len(self.backward), batch, n * self.n_hidden))
        return value

    def until_ends(self, x: Array, other: float = 0) -> Array:
        """x, and a number behind the ends of sequences."""
        return x if self.goes_on is None else self.xp.where(self.goes_on, x, scalar(x, other))

    def order(self, d: int) -> Sequence[int]:
        """The steps as a direction goes through them."""
        steps = range(len(self.x))
        return steps[::-1] if self.backward[d] else steps

    def before(self, d: int, states: Array, start: Array) -> Array:
        """The states before each step, by those behind it."""
        result = self.xp.empty_like(states)
        if not self.backward[d]:
            result[1:], result[:1] = states[:-1], start
            return result
        result[:-1], result[-1:] = states[1:], start
        if self.goes_on is not None:
            result[:-1] = self.xp.where(self.goes_on[1:], result[:-1], start)
        return result

    def open(self, function: Any, a: Array) -> tuple[Array, Array]:
        """An activation of a, and its slope there."""
        bounded = self.bound(a)
        y = function(self.xp, bounded)
        slope = SLOPES[function.func](self.xp, bounded, y, **function.keywords)
        if self._clip is not None:
            slope = self.xp.where(abs(a) <= scalar(a, self._clip), slope, scalar(a, 0))
        return y, slope

    def back(self, d: int, dy: Array, last: Array, step: Callable[[int, Array], Array]) -> Array:
        """Go back in a direction; the gradient of its initial hidden state comes back.

        step(t, dh) has the gradient of the state before step t, by that of the state behind it.
        """
        dy = None if dy is None else self.until_ends(dy[:, d])
        dh = last[d]
        for t in self.order(d)[::-1]:
            dh = dh if dy is None else dh + dy[t]
            dh = self.step_on(t, step(t, dh), dh)
        return dh

    def step_on(self, t: int, new: Array, old: Array) -> Array:
        """A state on the other side of a step; the same where a sequence has ended."""
        return new if self.goes_on is None else self.xp.where(self.goes_on[t], new, old)

    def add(self, d: int, da: Array, dr: Array, state_sums: Array, *others: Array) -> None:
        """Add a direction's gradients, by those of the inputs' part of its gates.

        state_sums: the gradient of the biases of the states' part.
        """
        dw = self.summed(da, self.x)
        biases = self.xp.concatenate([rows_of(da).sum(0), state_sums])
        self._parts.append((product(self.xp, da, self.w[d]), dw, dr, biases, *others))

    def summed(self, da: Array, x: Array) -> Array:
        """The sum of da_t x_t^T over steps and sequences."""
        return product(self.xp, rows_of(da).T, rows_of(x))

    def result(self) -> tuple[Array, ...]:
        """dX, dW, dR, dB, those of the initial states, and others."""
        dxs, *rest = zip(*self._parts, strict=True)
        others = [self.xp.stack(parts) for parts in rest]
        dx = dxs[0] if len(dxs) == 1 else dxs[0] + dxs[1]
        if self._layout:
            dx = dx.swapaxes(0, 1)
            others[3:5] = [state.swapaxes(0, 1) for state in others[3:5]]
        return tuple(array.astype(self.dtype, copy=False) for array in (dx, *others))


def rows_of(x: Array) -> Array:
    """All steps of all sequences as rows of a matrix."""
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
    """dX, dW, dR, dB and d initial_h, by the inputs, Y, dY and dY_h."""
    way = Way(xp, (x, w, r, bias), 1, y, lengths, hidden_size, direction, layout, clip)
    n = len(way.backward)
    functions = activations_of(activations or DEFAULTS * n, activation_alpha, activation_beta)
    start, last = way.start("initial_h", h), way.start("dY_h", dh)
    dy = way.of_steps("dY", dy)
    for d in range(n):
        _add_rnn(way, d, functions[d], start[d], dy, last)
    return way.result()


def _add_rnn(way: Way, d: int, function: Any, start: Array, dy: Array, last: Array) -> None:
    before = way.before(d, way.states[:, d], start)
    a = way.times(way.x, way.w[d]) + way.times(before, way.r[d]) + sum(way.biases(d))
    k = way.until_ends(way.open(function, a)[1])
    da = way.xp.empty_like(k)

    def step(t: int, dh: Array) -> Array:
        way.xp.multiply(k[t], dh, out=da[t])
        return product(way.xp, da[t], way.r[d])

    dh = way.back(d, dy, last, step)
    way.add(d, da, way.summed(da, before), rows_of(da).sum(0), dh)
