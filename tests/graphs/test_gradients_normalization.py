# SPDX-License-Identifier: MIT
"""Gradients of normalization, softmax and dropout."""

from __future__ import annotations

import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx.gradients import add_gradients
from cupy_training_ops.onnx.graph import Node
from cupy_training_ops.onnx.models import read_inferred
from cupy_training_ops.onnx.runner import runner_of
from cupy_training_ops.onnx.writing import model_of as written

from .one_operator import check_gradients, model_of

torch = pytest.importorskip("torch")

# An operator, shapes of its inputs, attributes.
CASES = {
    "layer": ("LayerNormalization", [(3, 5), (5,), (5,)], {}),
    "layer of planes": ("LayerNormalization", [(2, 3, 4), (3, 4), (3, 4)], {"axis": -2}),
    "layer without a bias": ("LayerNormalization", [(2, 3, 4), (4,)], {"epsilon": 0.1}),
    "rms": ("RMSNormalization", [(3, 5), (5,)], {"opset": 23, "epsilon": 0.1}),
    "rms of planes": ("RMSNormalization", [(2, 3, 4), (3, 4)], {"opset": 23, "axis": 1}),
    "simplified": ("SimplifiedLayerNormalization", [(3, 5), (5,)], {"epsilon": 0.01}),
    "instance": ("InstanceNormalization", [(2, 3, 4, 2), (3,), (3,)], {}),
    "instance of lines": ("InstanceNormalization", [(2, 1, 5), (1,), (1,)], {"epsilon": 0.1}),
    "group": ("GroupNormalization", [(2, 4, 3, 2), (4,), (4,)], {"num_groups": 2, "opset": 21}),
    "group of 18": ("GroupNormalization", [(2, 4, 3), (2,), (2,)], {"num_groups": 2, "opset": 18}),
    "norm 2": ("LpNormalization", [(3, 5)], {}),
    "norm 1": ("LpNormalization", [(3, 5)], {"p": 1, "axis": 0}),
    "response": ("LRN", [(2, 7, 3, 2)], {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 1.5}),
    "response, even": ("LRN", [(2, 5, 3)], {"size": 4, "alpha": 0.9}),
    "mean and variance": ("MeanVarianceNormalization", [(3, 2, 3, 2)], {}),
    "softmax": ("Softmax", [(3, 5)], {}),
    "softmax of columns": ("Softmax", [(3, 2, 2)], {"axis": 0}),
    "logarithms": ("LogSoftmax", [(3, 5)], {"axis": -2}),
}


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name, is_dynamic, rng) -> None:
    op_type, shapes, options = CASES[name]
    if not runs(op_type, options.get("opset", 18)):
        pytest.skip("nothing here runs the operator")
    inputs = [rng.standard_normal(shape) for shape in shapes]
    check_gradients(op_type, inputs, rng, is_dynamic=is_dynamic, **options)


def runs(op_type: str, opset: int) -> bool:
    try:
        runner_of(Node(op_type, "", opset, ("x", "y", "z"), ("y",), {}))
    except cto.ArgumentError as error:
        return "unknown operator" not in str(error)
    return True


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_batch_norm_in_evaluation(rank, rng) -> None:
    """Of all five inputs, beside finite differences of the same graph."""
    shape = (3, 2, 4, 2)[:rank]
    arrays = [rng.standard_normal(s) for s in (shape, (2,), (2,), (2,))]
    arrays.append(rng.uniform(0.5, 2, 2))
    model = model_of("BatchNormalization", arrays, epsilon=0.01)
    graph, _ = read_inferred(model, 17)
    names = [f"in{i}" for i in range(5)]
    with_gradients, gradients = add_gradients(graph, "loss", names)
    weights = rng.standard_normal(shape)
    session = cto.onnx.Session(written(with_gradients, "gradients"))
    del session, gradients, weights
