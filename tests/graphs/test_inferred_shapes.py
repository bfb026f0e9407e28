# SPDX-License-Identifier: MIT
"""Gradients of models that say wrong extents, or for which ONNX infers such."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cupy_training_ops as cto


def _session(
    nodes: list[onnx.NodeProto], x: tuple, w: np.ndarray, *, opset: int = 17, **said: tuple
) -> cto.onnx.TrainingSession:
    """A session of nodes from x and w to the loss; `said`: shapes of other values."""
    infos = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, s) for n, s in said.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, x)],
        [helper.make_tensor_value_info("loss", TensorProto.DOUBLE, ())],
        [onnx.numpy_helper.from_array(w, "w")],
        value_info=infos,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")


@pytest.mark.parametrize("said", [{"a": (1, 2)}, {"b": (1, 2)}, {"a": (1, 2), "b": (1, 2)}])
def test_a_batch_that_is_another_inside_the_model_makes_no_difference(said, rng) -> None:
    x, w = rng.standard_normal((8, 3)), rng.standard_normal((3, 2))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "a"], ["b"]),
        helper.make_node("ReduceMean", ["b"], ["loss"], keepdims=0),
    ]
    session = _session(nodes, ("N", 3), w, **said)
    assert float(session.accumulate(x)) == pytest.approx(((x @ w) ** 2).mean())
    np.testing.assert_allclose(session.gradients["w"], 2 * x.T @ (x @ w) / 16)


@pytest.mark.parametrize("opset", [18, 22])
@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
@pytest.mark.parametrize(
    ("shape", "pool"),
    [
        ((1, 1, 3, 2), {"kernel_shape": [1, 1], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((1, 1, 5, 5), {"kernel_shape": [3, 1], "strides": [2, 3], "auto_pad": "SAME_LOWER"}),
        ((1, 1, 1, 4), {"kernel_shape": [2, 2], "strides": [1, 2], "pads": [1, 0, 1, 1]}),
        ((1, 1, 1, 4), {"kernel_shape": [1, 2], "strides": [1, 2], "pads": [1, 0, 1, 1]}),
    ],
)
def test_windows_that_pads_alone_would_have(op_type, shape, pool, opset, rng) -> None:
    if op_type == "MaxPool" and pool["kernel_shape"] == [1, 2]:
        pool = {**pool, "pads": [0, 0, 0, 1]}  # as a window of pads alone has no maximum
    x = rng.standard_normal(shape)
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["m"]),
        helper.make_node(op_type, ["m"], ["a"], ceil_mode=1, **pool),
        helper.make_node("ReduceSum", ["a"], ["loss"], keepdims=0),
    ]
    session = _session(nodes, x.shape, np.array([0.5]), opset=opset)
    loss = float(session.accumulate(x))
    assert session.gradients["w"][0] == pytest.approx(loss / 0.5)


@pytest.mark.parametrize("auto_pad", ["SAME_LOWER", "SAME_UPPER"])
@pytest.mark.parametrize("says_kernel", [False, True])
@pytest.mark.parametrize(
    ("kernel", "steps"), [((1, 3), (2, 2)), ((2, 1), (3, 1)), ((1, 1), (3, 2))]
)
def test_an_output_is_as_large_as_the_strides_say(
    kernel, steps, says_kernel, auto_pad, rng
) -> None:
    """Where a kernel is smaller than a stride, too."""
    x, w = rng.standard_normal((1, 1, 2, 3)), rng.standard_normal((1, 1, *kernel))
    options = {"strides": steps, "auto_pad": auto_pad}
    if says_kernel:
        options["kernel_shape"] = kernel
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w"], ["a"], **options),
        helper.make_node("ReduceMean", ["a"], ["loss"], keepdims=0),
    ]
    session = _session(nodes, x.shape, w)
    loss = float(session.accumulate(x))
    assert (session.gradients["w"] * w).sum() == pytest.approx(loss)
    if kernel[0] <= steps[0] and kernel[1] <= steps[1]:
        n = x.size * np.prod(steps)
        np.testing.assert_allclose(session.gradients["w"], np.full_like(w, x.sum() / n))


@pytest.mark.parametrize("opset", [13, 17, 19, 22])
@pytest.mark.parametrize("options", [{}, {"auto_pad": "VALID"}])
@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool"])
def test_windows_behind_all_elements_are_not_counted(op_type, options, opset, rng) -> None:
    x = rng.standard_normal((2, 1, 5, 4))
    pool = {"kernel_shape": [1, 2], "strides": [3, 2], "ceil_mode": 1, **options}
    rest = {"kernel_shape": [1, 1], "strides": [1, 2], "ceil_mode": 1, **options}
    nodes = [
        helper.make_node(op_type, ["x"], ["a"], **pool),
        helper.make_node(op_type, ["a"], ["b"], **rest),
        helper.make_node("Mul", ["b", "w"], ["c"]),
        helper.make_node("ReduceSum", ["c"], ["loss"], keepdims=0),
    ]
    session = _session(nodes, x.shape, np.array([0.5]), opset=opset)
    loss = float(session.accumulate(x))
    assert session.gradients["w"][0] == pytest.approx(loss / 0.5)
    if op_type == "MaxPool" and not options:
        torch = pytest.importorskip("torch")
        y = torch.tensor(x)
        y = torch.nn.functional.max_pool2d(y, (1, 2), (3, 2), ceil_mode=True)
        y = torch.nn.functional.max_pool2d(y, (1, 1), (1, 2), ceil_mode=True)
        assert loss == pytest.approx(0.5 * y.sum().item())


def test_arrays_of_a_sequence_may_differ_in_extents(rng) -> None:
    """ONNX infers one name for the extents of all; here a row is broadcast to a matrix."""
    x, w = rng.standard_normal((3, 2)), rng.standard_normal((3, 2))
    nodes = [
        helper.make_node("ReduceMean", ["w"], ["row"], axes=[0]),
        helper.make_node("SequenceConstruct", ["row", "x"], ["s"]),
        helper.make_node("Constant", [], ["first"], value_int=0),
        helper.make_node("Constant", [], ["second"], value_int=1),
        helper.make_node("SequenceAt", ["s", "first"], ["a"]),
        helper.make_node("SequenceAt", ["s", "second"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["c"]),
        helper.make_node("ReduceSum", ["c"], ["loss"], keepdims=0),
    ]
    session = _session(nodes, x.shape, w)
    session.accumulate(x)
    expected = np.broadcast_to(x.sum(axis=0) / 3, w.shape)
    np.testing.assert_allclose(session.gradients["w"], expected)


MAP = """s = SequenceConstruct (row, x) t = SequenceMap (s) <
    body = body (double[n] each) => (double[n] y) { y = Sin (each) }>"""
LOOP = """k = Constant <value = int64 {1}> () s = SequenceConstruct (row)
    t = Loop (k, , s) <
        body = body (int64 i, bool was, seq(double[n]) u) => (bool on, seq(double[n]) y)
            { on = Identity (was) v = SequenceInsert (u, x) y = Identity (v) }>"""


@pytest.mark.parametrize("made", [MAP, LOOP])
def test_arrays_of_a_sequence_that_a_body_makes(made, rng) -> None:
    """ONNX takes the body's name n for the model's, or the extent of the first array for all."""
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (double[n] x) => (double loss) {{
        second = Constant <value = int64 {{1}}> () zero = Constant <value = int64 {{0}}> ()
        row = ReduceMean (w) {made}
        a = SequenceAt (t, zero) b = SequenceAt (t, second)
        c = Mul (a, b) loss = ReduceSum <keepdims = 0> (c) }}"""
    model = onnx.parser.parse_model(text)
    x, w = rng.standard_normal((2, 5))
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
    session.accumulate(x)
    slope = np.cos(w.mean()) * np.sin(x).sum() if made is MAP else x.sum()
    np.testing.assert_allclose(session.gradients["w"], np.full(5, slope / 5))
