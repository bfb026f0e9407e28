# SPDX-License-Identifier: MIT
"""Extents that models declare, and gradients that are larger than their parameters."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cupy_training_ops as cto

from .test_training_session import opened

DATA = Path(__file__).parent / "data"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def everything(session) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in session._state_arrays().items()}


@pytest.mark.parametrize("call", ["step", "accumulate", "eval"])
@pytest.mark.parametrize("shape", [(1, 1), (None, 1), (1, 3), (None, 2)])
def test_a_target_that_would_be_broadcast_is_refused(call: str, shape: tuple) -> None:
    """A model's ('batch', 3), beside an x of ('batch', 6)."""
    session, answers = opened("mse")
    x, target = answers["x"][0], answers["labels"][0]
    before = everything(session)
    wrong = np.zeros([len(x) if n is None else n for n in shape], np.float32)
    with pytest.raises(cto.ArgumentError, match=r"target: expected \d.* as extent [01], got shape"):
        getattr(session, call)(x, wrong)
    assert everything(session) == before
    getattr(session, call)(x, target)


def said(name: str, shape: list, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def session_of(inputs: list, nodes: list, values: list = (), **constants) -> cto.onnx.Session:
    initial = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    outputs = [onnx.ValueInfoProto(name="y")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initial, value_info=list(values))
    return cto.onnx.Session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize(
    ("declared", "fits", "wrong", "words"),
    [
        ([2, 3], (2, 3), (1, 3), "expected 2 as extent 0"),
        ([0, 3], (0, 3), (2, 3), "expected 0 as extent 0"),
        ([-1, 3], (5, 3), (5, 2), "expected 3 as extent 1"),
        (["?", "?"], (5, 3), (5,), "expected 2 dimensions"),
        ([None, 3], (5, 3), (5, 1), "expected 3 as extent 1"),
    ],
)
def test_a_declared_extent_holds(declared: list, fits: tuple, wrong: tuple, words: str) -> None:
    session = session_of([said("x", declared)], [helper.make_node("Neg", ["x"], ["y"])])
    assert session.run({"x": np.ones(fits, np.float32)})["y"].shape == fits
    with pytest.raises(cto.ArgumentError, match=f"x: {words}"):
        session.run({"x": np.ones(wrong, np.float32)})


@pytest.mark.parametrize("shapes", [((4, 3), (1, 3)), ((3, 5), (5, 3)), ((2, 2), (2, 2))])
def test_a_name_of_several_extents_is_none_in_a_model_that_does_not_train(shapes: tuple) -> None:
    """ONNX Runtime takes such models, which some exporters write."""
    joined = helper.make_node("Einsum", ["x", "z"], ["y"], equation="ij,kl->ijkl")
    session = session_of([said("x", ["b", "b"]), said("z", ["b", "c"])], [joined])
    x, z = (np.ones(shape, np.float32) for shape in shapes)
    assert session.run({"x": x, "z": z})["y"].shape == (*x.shape, *z.shape)


def test_a_name_is_one_extent_in_all_inputs_of_a_step() -> None:
    session, answers = opened("mse")
    x, target = answers["x"][0], answers["labels"][0]
    words = rf"expected {len(x)} \(batch\) as extent 0, got shape \(1"
    for call in (session.step, session.accumulate, session.eval):
        with pytest.raises(cto.ArgumentError, match=words):
            call(x, target[:1])


@pytest.mark.parametrize("declared", [["b", 5, 8], ["b", 8, 8]])
@pytest.mark.parametrize("known", ["scores", "log_prob", None])
def test_labels_that_contradict_the_scores_are_the_losses(declared, known, rng) -> None:
    """Upstream declares labels of (b, 8, 8) as ('b', 5, 8)."""
    nodes = [
        helper.make_node("Relu", ["x"], ["scores"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["y", "log_prob"]),
    ]
    values = [said(known, ["b", 5, 8, 8])] if known else []
    inputs = [said("x", ["b", 5, 8, 8]), said("labels", declared, INT64)]
    session = session_of(inputs, nodes, values)
    x, labels = rng.random((2, 5, 8, 8)).astype(np.float32), rng.integers(0, 5, (2, 8, 8))
    picked = np.take_along_axis(x - np.log(np.exp(x).sum(1, keepdims=True)), labels[:, None], 1)
    np.testing.assert_allclose(session.run({"x": x, "labels": labels})["y"], -picked.mean(), 1e-5)
    for wrong in (labels[:, :5], labels[:1], labels[:, :, :1]):
        with pytest.raises(cto.ArgumentError, match="labels: expected"):
            session.run({"x": x, "labels": wrong})


def with_where(folder: Path, values: bool) -> Path:
    """The artifacts of `mse`, whose graph makes a gradient by a Where that repeats it."""
    shutil.copytree(DATA / "mse", folder, ignore=shutil.ignore_patterns("answers.npz"))
    path = folder / "training_model.onnx"
    model = onnx.load(path)
    graph = model.graph
    name = "0.bias_grad"
    maker = next(node for node in graph.node if name in node.output)
    (rows,) = (node.input[0] for node in graph.node if maker.input[0] in node.output)
    where = helper.make_node("Where", ["positive", rows, rows], [name], name="unsummed")
    zero = numpy_helper.from_array(np.float32(0), "zero")
    at = list(graph.node).index(maker)
    graph.node.remove(maker)
    graph.node.insert(at, where)
    graph.node.insert(at, helper.make_node("Greater", [rows, "zero"], ["positive"]))
    graph.initializer.append(zero)
    if values:
        graph.value_info.append(said("positive", ["batch", 12], TensorProto.BOOL))
    onnx.save(model, path)
    return folder


@pytest.mark.parametrize("values", [True, False])
def test_a_gradient_that_is_not_summed_is_refused_by_names(values: bool, tmp_path: Path) -> None:
    """When it is opened if shapes are known, else in the first step."""
    folder = with_where(tmp_path / "a", values)
    words = r"the gradient of parameter '0\.bias', which node \d+ 'unsummed' \(Where\) makes: "
    _, answers = opened("mse")

    def open_and_step() -> None:
        session = cto.onnx.TrainingSession(folder)
        assert not values
        before = everything(session)
        try:
            session.step(answers["x"][0], answers["labels"][0])
        finally:
            assert session.step_count == 0
            assert all(everything(session)[n] == before[n] for n in before if "parameter" in n)

    with pytest.raises(cto.ArgumentError, match=words + r"expected shape \(\d+,\), got"):
        open_and_step()
