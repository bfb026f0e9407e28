# SPDX-License-Identifier: MIT
"""Artifacts made here load and train in onnxruntime, with the losses that they have here."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cupy_training_ops as cto
from cupy_training_ops.onnx import checkpoint
from cupy_training_ops.onnx.checkpoint import read_checkpoint

TRAINER = Path(__file__).with_name("trainer.py")
STEPS, RATE, SECONDS = 8, 0.015625, 120.0
LOSSES, PARAMETERS = 1e-6, 1e-5

Arrays = dict[str, np.ndarray]


@dataclass
class Net:
    """A model in the making: nodes over `x`, and weights that are drawn."""

    rng: np.random.Generator
    shape: tuple[int, ...]  # of x, without the batch
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    arrays: Arrays = field(default_factory=dict)

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op_type}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.arrays)}"
        scale = np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 4
        self.arrays[name] = (self.rng.standard_normal(shape) / scale).astype(np.float32)
        return name

    def ints(self, *values: int) -> str:
        name = f"ints{len(self.arrays)}"
        self.arrays[name] = np.array(values, np.int64)
        return name

    def model(self, y: str, shape: tuple[int, ...]) -> onnx.ModelProto:
        ends = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n", *each))]
            for name, each in (("x", self.shape), (y, shape))
        ]
        initial = [numpy_helper.from_array(array, name) for name, array in self.arrays.items()]
        graph = helper.make_graph(self.nodes, "net", *ends, initial)
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def perceptron(rng: np.random.Generator) -> onnx.ModelProto:
    net = Net(rng, (6,))
    y = net.op("Tanh", net.op("Gemm", "x", net.weight(6, 8), net.weight(8)))
    y = net.op("Sigmoid", net.op("Gemm", y, net.weight(7, 8), net.weight(7), transB=1, alpha=0.5))
    y = net.op("Softplus", net.op("Add", net.op("MatMul", y, net.weight(7, 5)), net.weight(5)))
    return net.model(net.op("Mul", y, net.weight(5)), (5,))


def cnn(rng: np.random.Generator) -> onnx.ModelProto:
    net = Net(rng, (2, 8, 8))
    y = net.op("Conv", "x", net.weight(4, 2, 3, 3), net.weight(4), pads=[1, 1, 1, 1])
    y = net.op("Relu", net.op("Conv", net.op("Relu", y), net.weight(6, 4, 2, 2), strides=[2, 2]))
    y = net.op("Gemm", net.op("Flatten", y), net.weight(96, 5), net.weight(5))
    return net.model(y, (5,))


def pooled(rng: np.random.Generator) -> onnx.ModelProto:
    net = Net(rng, (2, 8, 8))
    y = net.op("Conv", "x", net.weight(4, 2, 3, 3), net.weight(4), pads=[1, 1, 1, 1])
    y = net.op("MaxPool", net.op("LeakyRelu", y, alpha=0.25), kernel_shape=[2, 2], strides=[2, 2])
    y = net.op("Flatten", net.op("GlobalAveragePool", y))
    return net.model(net.op("Gemm", y, net.weight(4, 5), net.weight(5)), (5,))


def transformer(rng: np.random.Generator) -> onnx.ModelProto:
    """One block over eight tokens of six numbers: attention by two heads, a perceptron."""
    net = Net(rng, (8, 6))
    h = net.op("LayerNormalization", "x", net.weight(6), net.weight(6))

    def heads(perm: Sequence[int]) -> str:
        projected = net.op("Add", net.op("MatMul", h, net.weight(6, 6)), net.weight(6))
        return net.op("Transpose", net.op("Reshape", projected, net.ints(0, 8, 2, 3)), perm=perm)

    scores = net.op("MatMul", heads((0, 2, 1, 3)), heads((0, 2, 3, 1)))
    weights = net.op("Softmax", net.op("Div", scores, net.op("Constant", value_float=1.5)), axis=-1)
    y = net.op("Transpose", net.op("MatMul", weights, heads((0, 2, 1, 3))), perm=(0, 2, 1, 3))
    y = net.op("MatMul", net.op("Reshape", y, net.ints(0, 8, 6)), net.weight(6, 6))
    h = net.op("Add", "x", y)
    y = net.op("Tanh", net.op("MatMul", net.op("Mul", h, net.weight(6)), net.weight(6, 12)))
    y = net.op("Add", h, net.op("MatMul", y, net.weight(12, 6)))
    y = net.op("ReduceMean", y, axes=[1], keepdims=0)
    return net.model(net.op("Gemm", y, net.weight(6, 5), net.weight(5)), (5,))


def normalized(rng: np.random.Generator) -> onnx.ModelProto:
    """Statistics of the batch, which move the running ones, and of each example."""
    net = Net(rng, (2, 6, 6))
    for name, value in (("scale", 1), ("bias", 0), ("mean", 0), ("var", 1)):
        net.arrays[name] = np.full(4, value, np.float32)
    y = net.op("Conv", "x", net.weight(4, 2, 3, 3), pads=[1, 1, 1, 1])
    y = net.op("BatchNormalization", y, "scale", "bias", "mean", "var", momentum=0.75)
    y = net.op("InstanceNormalization", net.op("Elu", y), net.weight(4), net.weight(4))
    y = net.op("Gemm", net.op("Flatten", y), net.weight(144, 5), net.weight(5))
    return net.model(y, (5,))


def shaped(rng: np.random.Generator) -> onnx.ModelProto:
    """Parts that are cut, joined, padded and chosen."""
    net = Net(rng, (4, 6))
    y = net.op("MatMul", "x", net.weight(6, 6))
    net.nodes.append(helper.make_node("Split", [y], ["a", "b"], axis=1))
    y = net.op("Concat", net.op("Mul", "a", net.op("Sigmoid", "b")), "x", axis=1)
    y = net.op("Where", net.op("Greater", y, net.weight(6)), y, net.weight(6, 1))
    y = net.op("Slice", net.op("Pad", y, net.ints(0, 1, 0, 0, 0, 1)), *map(net.ints, (1, 6, 2)))
    y = net.op("Clip", y, net.op("Constant", value_float=-2.0), net.op("Constant", value_float=2.0))
    y = net.op("Gemm", net.op("Flatten", y), net.weight(35, 5), net.weight(5))
    return net.model(y, (5,))


def tied(rng: np.random.Generator) -> onnx.ModelProto:
    net = Net(rng, (5,))
    w = net.weight(5, 5)
    net.weight(3)  # which nothing reads
    return net.model(net.op("MatMul", net.op("Tanh", net.op("MatMul", "x", w)), w), (5,))


def lstm(rng: np.random.Generator) -> onnx.ModelProto:
    """All hidden states of one layer go into another, whose last states are scored."""
    net = Net(rng, (7, 4))
    y = net.op("Transpose", "x", perm=[1, 0, 2])
    weights = net.weight(1, 12, 4), net.weight(1, 12, 3), net.weight(1, 24)
    y = net.op("Squeeze", net.op("LSTM", y, *weights, hidden_size=3), net.ints(1))
    weights = net.weight(1, 20, 3), net.weight(1, 20, 5), net.weight(1, 40)
    net.nodes.append(helper.make_node("LSTM", [y, *weights], ["", "h", "c"], hidden_size=5))
    y = net.op("Squeeze", net.op("Add", "h", "c"), net.ints(0))
    return net.model(net.op("Gemm", y, net.weight(5, 5), net.weight(5)), (5,))


def gru(rng: np.random.Generator) -> onnx.ModelProto:
    """One layer of each kind of reset, the first without biases."""
    net = Net(rng, (7, 4))
    y = net.op("Transpose", "x", perm=[1, 0, 2])
    y = net.op("GRU", y, net.weight(1, 9, 4), net.weight(1, 9, 3), hidden_size=3)
    weights = net.weight(1, 15, 3), net.weight(1, 15, 5), net.weight(1, 30)
    y = [net.op("Squeeze", y, net.ints(1)), *weights]
    options = {"hidden_size": 5, "linear_before_reset": 1}
    net.nodes.append(helper.make_node("GRU", y, ["states", "last"], **options))
    y = net.op("Add", net.op("ReduceMean", "states", axes=[0], keepdims=0), "last")
    y = net.op("Squeeze", y, net.ints(0))
    return net.model(net.op("Gemm", y, net.weight(5, 5), net.weight(5)), (5,))


NETS: dict[str, Callable[[np.random.Generator], onnx.ModelProto]] = {
    net.__name__: net
    for net in (cnn, gru, lstm, normalized, perceptron, pooled, shaped, tied, transformer)
}


def drawn_batches(model: onnx.ModelProto, loss: str, rng: np.random.Generator) -> Arrays:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    x = rng.standard_normal((STEPS, 4, *shape)).astype(np.float32)
    if loss == "cross_entropy":
        return {"x": x, "labels": rng.integers(0, 5, (STEPS, 4))}
    return {"x": x, "labels": rng.random((STEPS, 4, 5), np.float32)}


def trained_upstream(python: Path, folder: Path, batches: Mapping[str, np.ndarray]) -> Arrays:
    np.savez(folder / "data.npz", **batches)
    command = [python, "-I", TRAINER, folder, folder / "data.npz", folder / "answers.npz"]
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    with np.load(folder / "answers.npz") as stored:
        return dict(stored)


def trained_here(session: cto.onnx.TrainingSession, batches: Arrays) -> list[float]:
    session.lr = RATE
    return [float(session.step(*batch)) for batch in zip(*batches.values(), strict=True)]


def assert_agrees(answers: Arrays, losses: list[float], session: cto.onnx.TrainingSession) -> None:
    np.testing.assert_allclose(losses, answers["losses"], rtol=LOSSES)
    for name, array in session.parameters.items():
        if name == "var":  # whose running mean is of the unbiased variance here, as PyTorch's
            continue
        theirs = answers[f"parameters/{name}"].reshape(array.shape)
        assert np.abs(array - theirs).max() <= PARAMETERS * np.abs(array).max(), name


@pytest.mark.thorough
@pytest.mark.parametrize("loss", ["bce_with_logits", "cross_entropy", "l1", "mse"])
@pytest.mark.parametrize("name", NETS)
def test_losses_are_equal(name, loss, upstream_interpreter, tmp_path, rng) -> None:
    model = NETS[name](rng)
    cto.onnx.make_artifacts(model, tmp_path, loss=loss, optimizer="SGD")
    batches = drawn_batches(model, loss, rng)
    answers = trained_upstream(upstream_interpreter, tmp_path, batches)
    session = cto.onnx.TrainingSession(tmp_path)
    assert_agrees(answers, trained_here(session, batches), session)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_norm": 0.25},
        {"alpha": 0.75, "beta": 0.875, "epsilon": 1e-4, "weight_decay": 0.5},
        {"frozen": ["w0", "w3"], "clip_norm": 0.25},
    ],
)
def test_options_of_adam_w(options, upstream_interpreter, tmp_path, rng) -> None:
    model = perceptron(rng)
    cto.onnx.make_artifacts(model, tmp_path, loss="cross_entropy", **{"epsilon": 1e-3, **options})
    batches = drawn_batches(model, "cross_entropy", rng)
    answers = trained_upstream(upstream_interpreter, tmp_path, batches)
    session = cto.onnx.TrainingSession(tmp_path)
    assert_agrees(answers, trained_here(session, batches), session)


@pytest.mark.thorough
@pytest.mark.parametrize("most_inside", [1 << 30, 0])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_training_goes_there_and_back(
    optimizer, most_inside, upstream_interpreter, tmp_path, rng, monkeypatch
) -> None:
    """Some steps here, some there from the checkpoint, and some here from the one made there."""
    monkeypatch.setattr(checkpoint, "MOST_INSIDE", most_inside)
    model = perceptron(rng)
    numbers = {"epsilon": 1e-3} if optimizer == "AdamW" else {}
    options = {"loss": "cross_entropy", "optimizer": optimizer, "frozen": ["w1"], **numbers}
    cto.onnx.make_artifacts(model, tmp_path, **options)
    parts = [drawn_batches(model, "cross_entropy", rng) for _ in range(3)]
    alone = cto.onnx.TrainingSession(tmp_path)
    expected = [trained_here(alone, part) for part in parts]
    session = cto.onnx.TrainingSession(tmp_path)
    assert trained_here(session, parts[0]) == expected[0]
    session.properties["epoch"] = 3
    session.save_checkpoint(tmp_path / "checkpoint")
    assert (tmp_path / "checkpoint.data").exists() == (most_inside == 0)
    answers = trained_upstream(upstream_interpreter, tmp_path, parts[1])
    np.testing.assert_allclose(answers["losses"], expected[1], rtol=LOSSES)
    for file in tmp_path.glob("after*"):
        file.replace(tmp_path / file.name.replace("after", "checkpoint"))
    again = cto.onnx.TrainingSession(tmp_path)
    assert again.step_count == 2 * STEPS
    assert again.properties == {"epoch": 3}
    np.testing.assert_allclose(trained_here(again, parts[2]), expected[2], rtol=LOSSES)
    (group,) = read_checkpoint(tmp_path / "checkpoint").groups
    assert group.moments.keys() == session.gradients.keys()
