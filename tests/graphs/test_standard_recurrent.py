# SPDX-License-Identifier: MIT
"""Recurrent layers against PyTorch, and one sequence at a time by their equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx.standard import recurrent

from .nodes import results

torch = pytest.importorskip("torch")
T, B, N, H = 5, 3, 4, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}  # PyTorch's gates here
DIRECTIONS = ["forward", "reverse", "bidirectional"]


def layer(kind: str, direction: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    n, g = (2 if direction == "bidirectional" else 1), GATES[kind]
    shapes = {"x": (T, B, N), "w": (n, g * H, N), "r": (n, g * H, H), "b": (n, 2 * g * H)}
    shapes |= {"h": (n, B, H), "c": (n, B, H), "p": (n, 3 * H)}
    return {name: rng.uniform(-1, 1, shape) for name, shape in shapes.items()}


def outputs(kind: str, a: dict[str, Any], lengths: Any = None, **attributes: Any) -> Any:
    inputs = [a["x"], a["w"], a["r"], a.get("b"), lengths, a.get("h")]
    inputs += [a.get("c"), a.get("p")] if kind == "LSTM" else []
    return results(kind, *inputs, n=3 if kind == "LSTM" else 2, **attributes)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("layout", [0, 1])
def test_layers_are_those_of_torch(kind: str, direction: str, layout: int, rng) -> None:
    """GRU with linear_before_reset, which is the only one that PyTorch has."""
    a = layer(kind, direction, rng)
    del a["p"]
    lengths = np.array([5, 2, 3], np.int32)
    module = getattr(torch.nn, kind)(N, H, bidirectional=direction == "bidirectional")
    module = module.double()
    with torch.no_grad():
        for d, suffix in enumerate(["", "_reverse"][: len(a["w"])]):
            for name, part in (("ih", a["w"][d]), ("hh", a["r"][d])):
                blocks = part.reshape(GATES[kind], H, -1)[ORDER[kind]]
                getattr(module, f"weight_{name}_l0{suffix}")[:] = torch.tensor(
                    blocks.reshape(part.shape)
                )
            for name, part in zip(("ih", "hh"), np.split(a["b"][d], 2), strict=True):
                blocks = part.reshape(GATES[kind], H)[ORDER[kind]]
                getattr(module, f"bias_{name}_l0{suffix}")[:] = torch.tensor(blocks.reshape(-1))
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            torch.tensor(a["x"]), torch.tensor(lengths), enforce_sorted=False
        )
        h, c = torch.tensor(a["h"]), torch.tensor(a["c"])
        y, ends = module(packed, (h, c) if kind == "LSTM" else h)
        y = torch.nn.utils.rnn.pad_packed_sequence(y)[0].numpy()
    exact = [y.reshape(T, B, len(a["w"]), H).swapaxes(1, 2)]
    exact += [end.numpy() for end in (ends if kind == "LSTM" else [ends])]
    attributes = {"linear_before_reset": 1} if kind == "GRU" else {}
    if layout:
        a |= {name: a[name].swapaxes(0, 1) for name in "xhc"}
        exact = [exact[0].transpose(2, 0, 1, 3), *[end.swapaxes(0, 1) for end in exact[1:]]]
    actual = outputs(kind, a, lengths, direction=direction, layout=layout, **attributes)
    for one, other in zip(actual, exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def by_equations(kind: str, a: dict[str, Any], d: int, i: int, order: Any, **options: Any) -> Any:
    """The hidden states of sequence i by time, and the last states; f, g, h by `functions`."""
    blocks = {name: np.split(a[name][d], GATES[kind]) for name in "wr"}
    wb, rb = (np.split(part, GATES[kind]) for part in np.split(a["b"][d], 2))
    p = np.split(a["p"][d], 3)
    h, c = a["h"][d, i], a["c"][d, i]
    clip = options.get("clip", np.inf)
    functions = [lambda x, f=f: f(np.clip(x, -clip, clip)) for f in options["functions"]]
    y = np.zeros((T, H))
    for t in order:
        below = [w @ a["x"][t, i] + b for w, b in zip(blocks["w"], wb, strict=True)]
        gates = [x + r @ h + b for x, r, b in zip(below, blocks["r"], rb, strict=True)]
        if kind == "RNN":
            h = functions[0](gates[0])
        elif kind == "GRU":
            f, g = functions
            z, r = f(gates[0]), f(gates[1])
            if options.get("linear_before_reset"):
                new = below[2] + r * (blocks["r"][2] @ h + rb[2])
            else:
                new = below[2] + blocks["r"][2] @ (r * h) + rb[2]
            h = (1 - z) * g(new) + z * h
        else:
            f, g, last = functions
            enter = f(gates[0] + p[0] * c)
            forget = 1 - enter if options.get("input_forget") else f(gates[2] + p[2] * c)
            c = forget * c + enter * g(gates[3])
            h = f(gates[1] + p[1] * c) * last(c)
        y[t] = h
    return y, h, c


FUNCTIONS = {
    "Affine": lambda x, a, b: a * x + b,
    "Elu": lambda x, a, _: np.where(x >= 0, x, a * np.expm1(x)),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "LeakyRelu": lambda x, a, _: np.where(x >= 0, x, a * x),
    "Relu": lambda x, _a, _b: np.maximum(x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "Sigmoid": lambda x, _a, _b: sigmoid(x),
    "Softplus": lambda x, _a, _b: np.log(1 + np.exp(x)),
    "Softsign": lambda x, _a, _b: x / (1 + np.abs(x)),
    "Tanh": lambda x, _a, _b: np.tanh(x),
    "ThresholdedRelu": lambda x, a, _: np.where(x >= a, x, 0),
}
CASES = [
    ("LSTM", ["Sigmoid", "Tanh", "Tanh"], {}),
    ("LSTM", ["HardSigmoid", "Affine", "ScaledTanh"], {"clip": 0.4}),
    ("LSTM", ["sigmoid", "Softsign", "Elu"], {"input_forget": 1}),
    ("GRU", ["Sigmoid", "Tanh"], {}),
    ("GRU", ["HardSigmoid", "LeakyRelu"], {"linear_before_reset": 1, "clip": 0.5}),
    ("RNN", ["Relu"], {"clip": 0.3}),
    ("RNN", ["ThresholdedRelu"], {}),
    ("RNN", ["Softplus"], {}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_layers_follow_their_equations(case: Any, direction: str, rng) -> None:
    """A backward direction goes from the end of each sequence to its beginning."""
    kind, names, options = case
    a = layer(kind, direction, rng)
    lengths = np.array([3, 5, 1], np.int32)
    spelled = {name.lower(): name for name in FUNCTIONS}
    numbers = {name: rng.uniform(0.2, 0.9, 2) for name in names}
    functions = [lambda x, n=name: FUNCTIONS[spelled[n.lower()]](x, *numbers[n]) for name in names]
    n = len(a["w"])
    takes = [recurrent.ACTIVATIONS[spelled[name.lower()]][1] for name in names * n]
    attributes: dict[str, Any] = {"activations": names * n, "direction": direction, **options}
    for k, key in enumerate(("alpha", "beta")):
        values = [numbers[m][k] for m, t in zip(names * n, takes, strict=True) if key in t]
        if values:
            attributes[f"activation_{key}"] = values
    actual = outputs(kind, a, lengths, **attributes)
    for d in range(n):
        for i, length in enumerate(lengths):
            order = range(length)
            order = order[::-1] if direction == "reverse" or d else order
            y, *ends = by_equations(kind, a, d, i, order, functions=functions, **options)
            np.testing.assert_allclose(actual[0][:, d, i], y, rtol=1e-6, atol=1e-7)
            for one, other in zip(actual[1:], ends, strict=False):
                np.testing.assert_allclose(one[d, i], other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", GATES)
def test_what_is_left_out_is_zero(kind: str, rng) -> None:
    a = layer(kind, "forward", rng)
    whole = {**a, **{name: np.zeros_like(a[name]) for name in "bhcp"}}
    actual = outputs(kind, {name: a[name] for name in "xwr"}, hidden_size=H)
    for one, other in zip(actual, outputs(kind, whole), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", GATES)
def test_half_types_are_computed_in_float32(kind: str, rng) -> None:
    a = {n: x.astype(np.float16) for n, x in layer(kind, "bidirectional", rng).items()}
    actual = outputs(kind, a, direction="bidirectional")
    wide = outputs(kind, {n: x.astype(np.float32) for n, x in a.items()}, direction="bidirectional")
    for one, other in zip(actual, wide, strict=True):
        np.testing.assert_array_equal(one, other.astype(np.float16))


@pytest.mark.parametrize("kind", GATES)
def test_no_steps_leave_the_states(kind: str, rng) -> None:
    a = layer(kind, "forward", rng)
    actual = outputs(kind, {**a, "x": a["x"][:0]})
    assert actual[0].shape == (0, 1, B, H)
    np.testing.assert_array_equal(actual[1], a["h"])


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"activations": ["Tanh"]}, "activations: expected 3, got 1"),
        ({"activations": ["Tanh", "Gelu", "Tanh"]}, "activations: expected among"),
        ({"activations": ["Affine", "Tanh", "Tanh"]}, "activation_alpha: Affine needs one"),
        ({"activation_alpha": [0.1]}, "activation_alpha: expected at most one for each"),
        ({"direction": "sideways"}, "direction='sideways' is not computed here"),
        ({"hidden_size": 4}, "hidden_size: expected 6, as R has, got 4"),
        ({"direction": "bidirectional"}, r"W: expected shape \(2, 24, 4\)"),
    ],
)
def test_layers_that_do_not_fit_are_refused(attributes: Any, words: str, rng) -> None:
    with pytest.raises(cto.ArgumentError, match=words):
        outputs("LSTM", layer("LSTM", "forward", rng), **attributes)


def test_inputs_of_another_rank_are_refused(rng) -> None:
    a = layer("RNN", "forward", rng)
    with pytest.raises(cto.ArgumentError, match="X, R: expected 3 dimensions"):
        outputs("RNN", {**a, "x": a["x"][0]})


def test_lengths_beyond_the_sequence_are_refused(rng) -> None:
    with pytest.raises(cto.ArgumentError, match="sequence_lens: expected from 0 to 5, got 6"):
        outputs("GRU", layer("GRU", "forward", rng), np.array([6, 1, 1], np.int32))
