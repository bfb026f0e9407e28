# SPDX-License-Identifier: MIT
"""Recurrent layers: RNN, GRU and LSTM, in one direction or both.

The inputs' part of all gates is one product for the whole sequence; each step adds the state's.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
w, r, bias, lengths, h, c, peepholes: ONNX's W, R, B, sequence_lens, initial_h, initial_c and P.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...errors import ArgumentError, shown
from .elementwise import (
    elu,
    hard_sigmoid,
    leaky_relu,
    relu,
    scalar,
    sigmoid,
    softplus,
    softsign,
)
from .reductions import product
from .slices import refuse_beyond
from .table import Array, Function, Module, standard, wide

DIRECTIONS = ("forward", "reverse", "bidirectional")
Names = Sequence[str] | None
Floats = Sequence[float] | None
States = tuple[Array, ...]  # hidden state, and of an LSTM the cell; each (batch, hidden)
Step = Callable[[Array, States], States]  # (W x_t + bias, states before t) to states after t


# ---- activations ---------------------------------------------------------------------------------


def _tanh(xp: Module, x: Array) -> Array:
    return xp.tanh(x)


def _affine(xp: Module, x: Array, *, alpha: float, beta: float) -> Array:
    return x * scalar(x, alpha) + scalar(x, beta)


def _scaled_tanh(xp: Module, x: Array, *, alpha: float, beta: float) -> Array:
    return scalar(x, alpha) * xp.tanh(x * scalar(x, beta))


def _thresholded_relu(xp: Module, x: Array, *, alpha: float) -> Array:
    return xp.where(x >= scalar(x, alpha), x, scalar(x, 0))


# Functions, and their attributes' defaults: None where the node has to say it.
ACTIVATIONS: Mapping[str, tuple[Function, Mapping[str, float | None]]] = {
    "Affine": (_affine, {"alpha": None, "beta": None}),
    "Elu": (elu, {"alpha": 1.0}),
    "HardSigmoid": (hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "LeakyRelu": (leaky_relu, {"alpha": 0.01}),
    "Relu": (relu, {}),
    "ScaledTanh": (_scaled_tanh, {"alpha": None, "beta": None}),
    "Sigmoid": (sigmoid, {}),
    "Softplus": (softplus, {}),
    "Softsign": (softsign, {}),
    "Tanh": (_tanh, {}),
    "ThresholdedRelu": (_thresholded_relu, {"alpha": 1.0}),
}
_BY_LOWER = {name.lower(): row for name, row in ACTIVATIONS.items()}


def activations_of(names: Sequence[str], alphas: Floats, betas: Floats) -> list[Function]:
    """Return the functions of these names, with alpha and beta bound.

    alphas, betas: the nodes' lists, of which each function that has the number takes the next one.
    """
    left = {"alpha": list(alphas or ()), "beta": list(betas or ())}
    result: list[Function] = []
    for name in names:
        if name.lower() not in _BY_LOWER:
            expected = f"expected among {', '.join(ACTIVATIONS)}, got {shown(name)}"
            raise ArgumentError(f"activations: {expected}")
        function, defaults = _BY_LOWER[name.lower()]
        numbers = {key: left[key].pop(0) if left[key] else n for key, n in defaults.items()}
        for key, number in numbers.items():
            if number is None:
                raise ArgumentError(f"activation_{key}: {name} needs one")
        result.append(partial(function, **numbers))
    for key, values in left.items():
        if values:
            expected = f"at most one for each activation that has {key}"
            raise ArgumentError(f"activation_{key}: expected {expected}, got {len(values)} more")
    return result


def activations_checker(*defaults: str) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that refuses a node's attributes with wrong activations, alphas or betas.

    defaults: the activations of one direction.
    """

    def check(attributes: Mapping[str, Any]) -> None:
        """Refuse attributes of a node (values by name) that do not fit `defaults`."""
        n = 2 if attributes.get("direction") == "bidirectional" else 1
        activations = attributes.get("activations")
        if activations is not None and len(activations) != n * len(defaults):
            expected = f"expected {n * len(defaults)}, got {len(activations)}"
            raise ArgumentError(f"activations: {expected}")
        alphas, betas = attributes.get("activation_alpha"), attributes.get("activation_beta")
        activations_of(activations or defaults * n, alphas, betas)

    return check


# ---- layers --------------------------------------------------------------------------------------


class Layer:
    """Base of RNN, GRU and LSTM over NumPy and CuPy; half types are computed in float32.

    Its attributes: x, (steps, batch, inputs); w, r, bias, ONNX's W, R, B, by direction first;
    n_hidden, elements of a state; backward, for each direction True if it goes from the last step
    to the first.

    arrays: x, w, r and bias, or None. n_gates: gates of a step. layout: 1 if inputs and outputs
    have the batch first. clip: inputs of activations are clipped to -clip and clip.
    """

    def __init__(
        self,
        xp: Module,
        arrays: Sequence[Array],
        n_gates: int,
        hidden_size: int | None,
        direction: str,
        layout: int,
        clip: float | None,
    ) -> None:
        x, w, r, bias = arrays
        if x.ndim != 3 or r.ndim != 3:
            raise ArgumentError(f"X, R: expected 3 dimensions, got {x.shape} and {r.shape}")
        self.xp, self.dtype, self._layout, self._clip = xp, x.dtype, layout, clip
        self.x = wide(x.swapaxes(0, 1) if layout else x)
        self.w, self.r, self.bias = wide(w), wide(r), wide(bias)
        n = r.shape[-1]
        self.n_hidden = n
        self.backward = {"forward": [False], "reverse": [True]}.get(direction, [False, True])
        n_directions = len(self.backward)
        if hidden_size not in (None, n):
            raise ArgumentError(f"hidden_size: expected {n}, as R has, got {hidden_size}")
        self.check("W", w, (n_directions, n_gates * n, x.shape[-1]))
        self.check("R", r, (n_directions, n_gates * n, n))
        self.check("B", bias, (n_directions, 2 * n_gates * n))

    def check(self, name: str, array: Array, shape: tuple[int, ...]) -> None:
        """Refuse an array, if there is one, of another shape; name: in the message."""
        if array is not None and array.shape != shape:
            raise ArgumentError(f"{name}: expected shape {shape}, got {array.shape}")

    def start(self, name: str, state: Array) -> Array:
        """Return an initial state as (directions, batch, hidden), zeros for None."""
        shape = (len(self.backward), self.x.shape[1], self.n_hidden)
        if state is None:
            return self.xp.zeros(shape, self.x.dtype)
        state = state.swapaxes(0, 1) if self._layout else state
        self.check(name, state, shape)
        return wide(state)

    def bound(self, x: Array) -> Array:
        """Return an activation's input, clipped if the node has `clip`."""
        if self._clip is None:
            return x
        return self.xp.minimum(self.xp.maximum(x, scalar(x, -self._clip)), scalar(x, self._clip))

    def times(self, a: Array, b: Array) -> Array:
        """Return a b^T."""
        return product(self.xp, a, b.swapaxes(-1, -2))

    def biases(self, direction: int) -> tuple[Any, Any]:
        """Return the two halves of a direction's bias: beside W x and beside R h; 0, 0 without."""
        if self.bias is None:
            return 0, 0
        n = self.bias.shape[1] // 2
        return self.bias[direction, :n], self.bias[direction, n:]

    def run(
        self, steps: Sequence[tuple[Step, Any]], starts: Sequence[Array], lengths: Array
    ) -> tuple[Array, ...]:
        """Return Y, the hidden states of all steps, and the last of each state.

        steps: for each direction, (its function of W x_t + bias and the states before, the bias).
        starts: initial states. lengths: of each sequence, or None; one that has ended keeps its
        states, and has zeros in Y.
        """
        xp, (n_times, batch, _) = self.xp, self.x.shape
        if lengths is not None:
            self.check("sequence_lens", lengths, (batch,))
            refuse_beyond("sequence_lens", lengths, n_times)
        y = xp.zeros((n_times, len(steps), batch, self.n_hidden), self.x.dtype)
        last = []
        for d, (step, bias) in enumerate(steps):
            inputs = self.times(self.x, self.w[d]) + bias
            states = tuple(start[d] for start in starts)
            for t in reversed(range(n_times)) if self.backward[d] else range(n_times):
                new = step(inputs[t], states)
                if lengths is None:
                    y[t, d] = new[0]
                else:
                    goes_on = (t < lengths)[:, None]
                    y[t, d] = xp.where(goes_on, new[0], scalar(y, 0))
                    pairs = zip(new, states, strict=True)
                    new = tuple(xp.where(goes_on, a, b) for a, b in pairs)
                states = new
            last.append(states)
        ends = [xp.stack(parts) for parts in zip(*last, strict=True)]
        if self._layout:
            y, ends = y.transpose(2, 0, 1, 3), [end.swapaxes(0, 1) for end in ends]
        return tuple(array.astype(self.dtype, copy=False) for array in (y, *ends))


@standard("RNN", since=7, only={"direction": DIRECTIONS}, refuse=activations_checker("Tanh"))
def rnn(
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
    layout: bool = False,
) -> tuple[Array, ...]:
    """Return Y and Y_h; h_t = f(W x_t + R h_(t-1) + b)."""
    layer = Layer(xp, (x, w, r, bias), 1, hidden_size, direction, layout, clip)
    n = len(layer.backward)
    functions = activations_of(activations or ("Tanh",) * n, activation_alpha, activation_beta)

    def step_of(d: int) -> tuple[Step, Any]:
        """Return direction d's step, and the bias beside W x_t in its `inputs`."""

        def step(inputs: Array, states: States) -> States:
            """Return (h_t,); inputs: W x_t + bias, (batch, hidden). states: (h_(t-1),)."""
            total = inputs + layer.times(states[0], layer.r[d])
            return (functions[d](xp, layer.bound(total)),)

        return step, sum(layer.biases(d))

    return layer.run([step_of(d) for d in range(n)], [layer.start("initial_h", h)], lengths)


@standard(
    "GRU", since=7, only={"direction": DIRECTIONS}, refuse=activations_checker("Sigmoid", "Tanh")
)
def gru(
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
    layout: bool = False,
    linear_before_reset: bool = False,
) -> tuple[Array, ...]:
    """Return Y and Y_h; gates are in the order update z, reset r, new n.

    h_t = (1 - z) n + z h_(t-1), n = g(W x_t + R (r h_(t-1)) + b), or, linear_before_reset,
    n = g(W x_t + r (R h_(t-1) + b_R) + b_W).
    """
    layer = Layer(xp, (x, w, r, bias), 3, hidden_size, direction, layout, clip)
    n, m = len(layer.backward), layer.n_hidden
    names = activations or ("Sigmoid", "Tanh") * n
    functions = activations_of(names, activation_alpha, activation_beta)

    def step_of(d: int) -> tuple[Step, Any]:
        """Return direction d's step, and the bias beside W x_t in its `inputs`."""
        f, g = functions[2 * d : 2 * d + 2]
        of_gates, of_hidden = layer.r[d, : 2 * m], layer.r[d, 2 * m :]
        own, states_own = layer.biases(d)
        hidden_bias = 0 if layer.bias is None else states_own[2 * m :]

        def step(inputs: Array, states: States) -> States:
            """Return (h_t,); inputs: W x_t + bias, (batch, 3 hidden). states: (h_(t-1),)."""
            before = states[0]
            gates = inputs[:, : 2 * m] + layer.times(before, of_gates)
            gates = f(xp, layer.bound(gates))
            update, reset = gates[:, :m], gates[:, m:]
            if linear_before_reset:
                hidden = reset * (layer.times(before, of_hidden) + hidden_bias)
            else:
                hidden = layer.times(reset * before, of_hidden) + hidden_bias
            new = g(xp, layer.bound(inputs[:, 2 * m :] + hidden))
            return ((scalar(update, 1) - update) * new + update * before,)

        if layer.bias is None:
            return step, 0
        # R's bias of the new gate is left out: `step` adds it, as r may multiply it.
        return step, xp.concatenate([own[: 2 * m] + states_own[: 2 * m], own[2 * m :]])

    return layer.run([step_of(d) for d in range(n)], [layer.start("initial_h", h)], lengths)


@standard(
    "LSTM",
    since=7,
    only={"direction": DIRECTIONS},
    refuse=activations_checker("Sigmoid", "Tanh", "Tanh"),
)
def lstm(
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
    layout: bool = False,
) -> tuple[Array, ...]:
    """Return Y, Y_h and Y_c; gates are in the order input, output, forget, cell.

    input_forget: forget = 1 - input. peepholes: (directions, 3 hidden), weights of the cell in the
    input, output and forget gate.
    """
    layer = Layer(xp, (x, w, r, bias), 4, hidden_size, direction, layout, clip)
    n, m = len(layer.backward), layer.n_hidden
    names = activations or ("Sigmoid", "Tanh", "Tanh") * n
    functions = activations_of(names, activation_alpha, activation_beta)
    if peepholes is not None and peepholes.shape != (n, 3 * m):
        raise ArgumentError(f"P: expected shape {(n, 3 * m)}, got {peepholes.shape}")

    def step_of(d: int) -> tuple[Step, Any]:
        """Return direction d's step, and the bias beside W x_t in its `inputs`."""
        f, g, h_function = functions[3 * d : 3 * d + 3]
        looks = [0, 0, 0] if peepholes is None else wide(peepholes)[d].reshape(3, m)

        def step(inputs: Array, states: States) -> States:
            """Return h_t and c_t; inputs: W x_t + bias, (batch, 4 hidden). states: h, c before."""
            before, cell = states
            total = inputs + layer.times(before, layer.r[d])
            parts = [total[:, k * m : (k + 1) * m] for k in range(4)]
            let_in = f(xp, layer.bound(parts[0] + looks[0] * cell))
            if input_forget:
                forget = scalar(let_in, 1) - let_in
            else:
                forget = f(xp, layer.bound(parts[2] + looks[2] * cell))
            cell = forget * cell + let_in * g(xp, layer.bound(parts[3]))
            let_out = f(xp, layer.bound(parts[1] + looks[1] * cell))
            return let_out * h_function(xp, layer.bound(cell)), cell

        return step, sum(layer.biases(d))

    starts = [layer.start("initial_h", h), layer.start("initial_c", c)]
    return layer.run([step_of(d) for d in range(n)], starts, lengths)
