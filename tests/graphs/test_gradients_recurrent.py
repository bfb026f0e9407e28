# SPDX-License-Identifier: MIT
"""Gradients of RNN, GRU and LSTM beside finite differences, PyTorch, and in trained models."""

from __future__ import annotations

import io
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import cupy_training_ops as cto

from .nodes import results
from .one_operator import check_gradients, model_of

torch = pytest.importorskip("torch")
nn = torch.nn

T, N, D, H = 4, 3, 2, 3
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
N_OUTPUTS = {"RNN": 2, "GRU": 2, "LSTM": 3}
DIRECTIONS = ("forward", "reverse", "bidirectional")
NEAR_KINKS = 2e-7  # a step that hardly ever meets one


def layer_inputs(
    kind: str,
    rng: np.random.Generator,
    *,
    direction: str = "forward",
    layout: int = 0,
    peepholes: bool = True,
    n_times: int = T,
    batch: int = N,
) -> list[Any]:
    """All inputs in ONNX's order, sequence_lens left out."""
    n, g = (2 if direction == "bidirectional" else 1), GATES[kind]
    states = [(n, batch, H)] * (1 + (kind == "LSTM"))
    shapes = [(n_times, batch, D), (n, g * H, D), (n, g * H, H), (n, 2 * g * H), None, *states]
    if kind == "LSTM" and peepholes:
        shapes.append((n, 3 * H))
    arrays = [None if shape is None else rng.standard_normal(shape) for shape in shapes]
    for place in (0, 5, 6)[: 1 + len(states)] if layout else ():
        arrays[place] = arrays[place].swapaxes(0, 1).copy()
    return arrays


def check(kind: str, inputs: list[Any], rng: np.random.Generator, **options: Any) -> set[str]:
    """Compare gradients; the operators of the training graph come back."""
    options = {"hidden_size": H, "n_outputs": N_OUTPUTS[kind], **options}
    session = check_gradients(kind, inputs, rng, **options)
    return {node.op_type for node in session.graph.nodes}


# ---- variants ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("lengths", [None, (4, 0, 2)])
def test_gradients_in_all_directions(kind, direction, lengths, rng) -> None:
    inputs = layer_inputs(kind, rng, direction=direction, peepholes=False)
    inputs[4] = None if lengths is None else np.array(lengths, np.int32)
    operators = check(kind, inputs, rng, direction=direction)
    is_upstreams = kind != "RNN" and direction == "forward" and lengths is None
    assert (f"{kind}Training" in operators) == is_upstreams


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("lengths", [None, (1, 4, 2)])
@pytest.mark.parametrize("input_forget", [0, 1])
def test_gradients_of_peepholes(direction, lengths, input_forget, rng) -> None:
    inputs = layer_inputs("LSTM", rng, direction=direction)
    inputs[4] = None if lengths is None else np.array(lengths, np.int32)
    check("LSTM", inputs, rng, direction=direction, input_forget=input_forget)


@pytest.mark.parametrize("kind", GATES)
def test_gradients_with_the_batch_first(kind, rng) -> None:
    inputs = layer_inputs(kind, rng, direction="bidirectional", layout=1)
    inputs[4] = np.array([2, 4, 3], np.int32)
    check(kind, inputs, rng, direction="bidirectional", layout=1)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_gradients_without_what_may_be_left_out(kind, is_dynamic, rng) -> None:
    """Without hidden_size and R's shape, the node stays as it is."""
    inputs = layer_inputs(kind, rng)[:3]
    operators = check(kind, inputs, rng, is_dynamic=is_dynamic, hidden_size=None)
    assert (f"{kind}Training" in operators) == (kind != "RNN" and not is_dynamic)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_gradients_of_gru_that_resets_behind_its_product(direction, has_bias, rng) -> None:
    inputs = layer_inputs("GRU", rng, direction=direction)
    inputs[3] = inputs[3] if has_bias else None
    check("GRU", inputs, rng, direction=direction, linear_before_reset=1)


@pytest.mark.parametrize("kind", GATES)
def test_gradients_of_clipped_gates(kind, rng) -> None:
    inputs = layer_inputs(kind, rng)
    operators = check(kind, inputs, rng, clip=0.75, step=NEAR_KINKS)
    assert kind in operators


ACTIVATIONS = {
    "Affine": ([0.75], [0.25]),
    "Elu": ([0.5], []),
    "HardSigmoid": ([0.3], [0.4]),
    "LeakyRelu": ([0.25], []),
    "Relu": ([], []),
    "ScaledTanh": ([1.5], [0.5]),
    "Sigmoid": ([], []),
    "Softplus": ([], []),
    "Softsign": ([], []),
    "Tanh": ([], []),
    "ThresholdedRelu": ([0.125], []),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_of_activations(name, rng) -> None:
    alphas, betas = ACTIVATIONS[name]
    numbers = {"activation_alpha": alphas or None, "activation_beta": betas or None}
    inputs = layer_inputs("RNN", rng)
    check("RNN", inputs, rng, activations=[name], step=NEAR_KINKS, **numbers)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_gradients_of_several_activations(kind, rng) -> None:
    names = ["Softsign", "Elu", "ScaledTanh"] if kind == "LSTM" else ["Softsign", "ScaledTanh"]
    inputs = layer_inputs(kind, rng, direction="bidirectional")
    check(
        kind,
        inputs,
        rng,
        direction="bidirectional",
        activations=[*names, *reversed(names)],
        activation_alpha=[0.5, 0.75, 1.25, 1.5][: 4 if kind == "LSTM" else 2],
        activation_beta=[0.5, 0.75],
        step=NEAR_KINKS,
    )


# ---- outputs -------------------------------------------------------------------------------------


def read_in_part(model: onnx.ModelProto, place: int, *, is_made: bool) -> onnx.ModelProto:
    """The model whose loss has only this output's part; others are not read, or not made."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    node = copy.graph.node[0]
    nodes = [n for n in copy.graph.node[1:] if n.op_type == "Sum" or f"y{place}" in n.output[0]]
    nodes[-1].input[:] = [f"y{place}_sum"]
    del copy.graph.node[1:]
    copy.graph.node.extend(nodes)
    if not is_made:
        node.output[:] = [y if y == f"y{place}" else "" for y in node.output[: place + 1]]
    inputs = [item for item in copy.graph.input if item.name == f"y{place}_weights"]
    del copy.graph.input[:]
    copy.graph.input.extend(inputs)
    return copy


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("is_made", [False, True])
def test_outputs_that_are_not_read_add_nothing(kind, direction, is_made, rng) -> None:
    """The gradients are those of weights of zero."""
    inputs = layer_inputs(kind, rng, direction=direction, peepholes=direction == "reverse")
    names = [f"in{i}" for i, array in enumerate(inputs) if array is not None]
    n = N_OUTPUTS[kind]
    model = model_of(kind, inputs, n_outputs=n, hidden_size=H, direction=direction)
    options = {"loss": "loss", "trainable": names, "optimizer": "SGD"}
    whole = cto.onnx.TrainingSession.from_model(model, **options)
    for place in range(n):
        shape = (T, 1, N, H) if place == 0 else (1, N, H)
        feeds = {f"y{k}_weights": np.zeros((T, 1, N, H) if k == 0 else (1, N, H)) for k in range(n)}
        feeds[f"y{place}_weights"] = rng.standard_normal(shape)
        part = read_in_part(model, place, is_made=is_made)
        session = cto.onnx.TrainingSession.from_model(part, **options)
        whole.accumulate(**feeds)
        session.accumulate(**{name: feeds[name] for name in session.inputs})
        for name in names:
            actual, exact = session.gradients[name], whole.gradients[name]
            np.testing.assert_allclose(actual, exact, rtol=1e-12, atol=1e-14, err_msg=name)
        whole = cto.onnx.TrainingSession.from_model(model, **options)


# ---- single nodes --------------------------------------------------------------------------------


def node(op_type: str, *inputs: Any, n: int, **attributes: Any) -> list[np.ndarray]:
    return list(results(op_type, *inputs, n=n, **attributes))


def test_gates_of_lstm_are_those_of_its_equations(rng) -> None:
    inputs = layer_inputs("LSTM", rng, peepholes=False)
    y, y_h, y_c, cells, gates = node("LSTMTraining", *inputs, n=5, hidden_size=H)
    for one, other in zip((y, y_h, y_c), node("LSTM", *inputs, n=3), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-14)
    let_in, out, forget, new = np.split(gates, 4, axis=-1)
    before = np.concatenate([inputs[6][None], cells[:-1]])
    np.testing.assert_allclose(cells, forget * before + let_in * new, rtol=1e-12)
    np.testing.assert_allclose(y, out * np.tanh(cells), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(cells[-1], y_c, rtol=1e-12, atol=1e-14)
    w, r = inputs[1][0], inputs[2][0]
    first = inputs[0][0] @ w.T + inputs[5][0] @ r.T + sum(np.split(inputs[3][0], 2))
    exact = 1 / (1 + np.exp(-first[:, : 3 * H]))
    np.testing.assert_allclose(gates[0, 0, :, : 3 * H], exact, rtol=1e-12)


@pytest.mark.parametrize("linear", [0, 1])
def test_gates_of_gru_are_those_of_its_equations(linear, rng) -> None:
    inputs = layer_inputs("GRU", rng)
    options = {"hidden_size": H, "linear_before_reset": linear}
    y, y_h, gates = node("GRUTraining", *inputs, n=3, **options)
    for one, other in zip((y, y_h), node("GRU", *inputs, n=2, **options), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-14)
    update, reset, new = np.split(gates, 3, axis=-1)
    before = np.concatenate([inputs[5][None], y[:-1]])
    np.testing.assert_allclose(y, (1 - update) * new + update * before, rtol=1e-10, atol=1e-12)
    x, w, r, b = inputs[0], inputs[1][0], inputs[2][0], inputs[3][0]
    a = x @ w[H : 2 * H].T + before[:, 0] @ r[H : 2 * H].T + b[H : 2 * H] + b[4 * H : 5 * H]
    np.testing.assert_allclose(reset[:, 0], 1 / (1 + np.exp(-a)), rtol=1e-12)


def gradients(kind: str, inputs: list[Any], rng: np.random.Generator, **attributes: Any) -> Any:
    """A gradient node's results, and its inputs behind those of the layer."""
    bias, peepholes = inputs[3], inputs[7] if len(inputs) > 7 else None
    ys = node(kind, *inputs, n=N_OUTPUTS[kind], **attributes)
    dys = [rng.standard_normal(y.shape).astype(y.dtype) for y in ys]
    if kind == "LSTM":
        operands = [*inputs[:3], *inputs[4:7], ys[0], None, None, *dys, bias, peepholes]
    else:
        operands = [*inputs, ys[0], *([None] if kind == "GRU" else []), *dys]
    return node(f"{kind}Grad", *operands, n=7 if kind == "LSTM" else 5, **attributes), operands


def test_gradients_by_gates_are_those_without(rng) -> None:
    inputs = layer_inputs("LSTM", rng, peepholes=False)
    exact, operands = gradients("LSTM", inputs, rng)
    operands[7:9] = node("LSTMTraining", *inputs, n=5)[3:]
    for one, other in zip(node("LSTMGrad", *operands[:12], n=7), exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    inputs = layer_inputs("GRU", rng)
    exact, operands = gradients("GRU", inputs, rng)
    operands[7] = node("GRUTraining", *inputs, n=3)[2]
    for one, other in zip(node("GRUGrad", *operands, n=5), exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("attributes", [{"clip": 0.5}, {"activations": ["Sigmoid", "Softsign"]}])
def test_gates_of_gru_whose_slopes_they_do_not_tell_are_not_read(attributes, rng) -> None:
    exact, operands = gradients("GRU", layer_inputs("GRU", rng), rng, **attributes)
    operands[7] = rng.standard_normal((T, 1, N, 3 * H))
    for one, other in zip(node("GRUGrad", *operands, n=5, **attributes), exact, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float32, 1e-4), (np.float16, 4e-2), (ml_dtypes.bfloat16, 0.3)]
)
def test_shorter_types(kind, dtype, tolerance, rng) -> None:
    arrays = layer_inputs(kind, rng, direction="bidirectional")
    inputs = [None if a is None else (a / 2).astype(dtype) for a in arrays]
    actual, operands = gradients(kind, inputs, rng, direction="bidirectional")
    long = [None if a is None else a.astype(np.float64) for a in operands]
    exact = node(f"{kind}Grad", *long, n=len(actual), direction="bidirectional")
    for one, other in zip(actual, exact, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(one.astype(np.float64), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_what_is_behind_an_end_is_not_read(kind, direction, rng) -> None:
    inputs = layer_inputs(kind, rng, direction=direction)
    inputs[4] = np.array([2, 4, 1], np.int32)
    exact, operands = gradients(kind, inputs, rng, direction=direction)
    behind = np.arange(T)[:, None] >= inputs[4]
    dy = operands[9] if kind == "LSTM" else operands[-2]
    operands[0][behind] = np.nan
    dy.swapaxes(1, 2)[behind] = np.inf
    actual = node(f"{kind}Grad", *operands, n=len(exact), direction=direction)
    for one, other in zip(actual, exact, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not actual[0][behind].any()


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("n_times", "batch"), [(0, 2), (3, 0), (1, 1)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_empty_and_single_steps(kind, n_times, batch, direction, rng) -> None:
    inputs = layer_inputs(kind, rng, direction=direction, n_times=n_times, batch=batch)
    actual, operands = gradients(kind, inputs, rng, direction=direction)
    for one, other in zip(actual[:3], inputs[:3], strict=True):
        assert one.shape == other.shape
        assert np.isfinite(one).all()
    if n_times == 0:
        last = operands[10:12] if kind == "LSTM" else operands[-1:]
        for one, other in zip(actual[4:], last, strict=False):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("op_type", "attributes", "what"),
    [
        ("LSTMTraining", {"clip": 1.0}, "clip"),
        ("LSTMTraining", {"direction": "reverse"}, "direction"),
        ("LSTMTraining", {"activations": ["Relu", "Tanh", "Tanh"]}, "activations"),
        ("LSTMTraining", {"input_forget": 1}, "input_forget"),
        ("GRUTraining", {"clip": 1.0}, "clip"),
        ("GRUTraining", {"activations": ["Sigmoid", "Relu"]}, "activations"),
        ("LSTMGrad", {"direction": "sideways"}, "direction"),
        ("RNNGrad", {"activations": ["Cube"]}, "activations"),
    ],
)
def test_attributes_that_are_refused(op_type, attributes, what, rng) -> None:
    inputs = layer_inputs(op_type.removesuffix("Training").removesuffix("Grad"), rng)
    with pytest.raises(cto.ArgumentError, match=what):
        node(op_type, *inputs, n=1, **attributes)


def test_inputs_that_are_refused(rng) -> None:
    inputs = layer_inputs("LSTM", rng)
    with pytest.raises(cto.ArgumentError, match="P: expected none"):
        node("LSTMTraining", *inputs, n=5)
    for op_type in ("LSTMTraining", "GRUTraining"):
        others = layer_inputs(op_type.removesuffix("Training"), rng, peepholes=False)
        others[4] = np.full(N, T, np.int32)
        with pytest.raises(cto.ArgumentError, match="sequence_lens: expected none"):
            node(op_type, *others, n=3)
    _, operands = gradients("LSTM", inputs, rng)
    operands[7:9] = node("LSTMTraining", *inputs[:7], n=5)[3:]
    with pytest.raises(cto.ArgumentError, match="CAll, iofc"):
        node("LSTMGrad", *operands, n=7, clip=1.0)
    operands[8] = None
    with pytest.raises(cto.ArgumentError, match="CAll, iofc"):
        node("LSTMGrad", *operands, n=7)
    operands[7], operands[9] = None, operands[9][:1]
    with pytest.raises(cto.ArgumentError, match="dY: expected shape"):
        node("LSTMGrad", *operands, n=7)
    operands[6] = None
    with pytest.raises(cto.ArgumentError, match="Y is missing"):
        node("LSTMGrad", *operands, n=7)


# ---- beside PyTorch ------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Words, recurrent layers, and scores of each word, to which the last states add."""

    def __init__(self, kind: str, n_layers: int, is_two_way: bool, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        options |= {"batch_first": True, "bidirectional": is_two_way}
        self.layers = getattr(nn, kind)(4, 5, n_layers, **options)
        self.head, self.of_last = nn.Linear(5 * (1 + is_two_way), 3), nn.Linear(5, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        y, last = self.layers(self.embed(words))
        last = last[0] + last[1] if isinstance(last, tuple) else last
        return (self.head(y) + self.of_last(last[-1])[:, None]).transpose(1, 2)


def exported(model: nn.Module, x: torch.Tensor) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (x,),
            stream,
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=["words"],
            output_names=["scores"],
        )
    return stream.getvalue()


TAGGERS = [("LSTM", False), ("LSTM", True), ("GRU", True), ("RNN", False)]
MORE_TAGGERS = [("GRU", False), ("RNN", True), ("ReLU", False), ("ReLU", True)]


@pytest.mark.parametrize(
    ("kind", "is_two_way"),
    [*TAGGERS, *(pytest.param(*each, marks=pytest.mark.thorough) for each in MORE_TAGGERS)],
)
def test_ten_steps_of_a_tagger_are_those_of_pytorch(kind, is_two_way, seed) -> None:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    options = {"nonlinearity": "relu"} if kind == "ReLU" else {}
    model = Tagger("RNN" if kind == "ReLU" else kind, 2, is_two_way, **options).double()
    batches = [(rng.integers(0, 9, (3, 6)), rng.integers(0, 3, (3, 6))) for _ in range(10)]
    file = exported(model, torch.tensor(batches[0][0]))
    session = cto.onnx.TrainingSession.from_model(file, loss="cross_entropy", optimizer="SGD")
    session.lr = 0.25
    optimizer = torch.optim.SGD(model.parameters(), 0.25)
    assert session.parameters.keys() == dict(model.named_parameters()).keys()
    for words, labels in batches:
        loss = nn.functional.cross_entropy(model(torch.tensor(words)), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert abs(float(session.step(words, labels)) - loss.item()) < 1e-9
    for name, parameter in model.named_parameters():
        actual = session.parameters[name]
        np.testing.assert_allclose(actual, parameter.detach(), rtol=1e-8, atol=1e-10, err_msg=name)
