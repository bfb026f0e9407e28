# SPDX-License-Identifier: MIT
"""Standard operators against ONNX's own reference, and against ONNX's own test cases."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import cupy_training_ops as cto
from cupy_training_ops import registry
from cupy_training_ops.onnx.standard import TABLE

F = np.float32
NOTHING = np.zeros(0, F)

# A node and its inputs: a tuple is the shape of random numbers, a list or a number is one of int64.
NODES = [
    ("Gemm <alpha=0.5, beta=2.0, transA=1>", (4, 3), (4, 5), (5,)),
    ("MatMul", (2, 3, 4), (4, 5)),
    ("Relu", (3, 4)),
    ("LeakyRelu <alpha=0.2>", (3, 4)),
    ("Elu <alpha=0.7>", (3, 4)),
    ("Selu", (3, 4)),
    ("Sigmoid", (3, 4)),
    ("Softplus", (3, 4)),
    ("Erf", (5, 7)),
    ("Pow", (3, 4), F(2)),
    ("Div", (3, 4), (4,)),
    ("Div", [7, -7, 7, -7], [2, 2, -2, -2]),
    ("Sum", (3, 4), (4,), (3, 1)),
    ("Max", (3, 4), (4,), (3, 1)),
    ("Clip", (3, 4), F(-0.5), F(0.5)),
    ("ReduceSum <keepdims=0>", (2, 3, 4), [0, 2]),
    ("ReduceSum <noop_with_empty_axes=1>", (2, 3), np.zeros(0, np.int64)),
    ("ReduceMean <axes=[1], keepdims=1>", (2, 3, 4)),
    ("ReduceL2 <axes=[0,2]>", (2, 3, 4)),
    ("ReduceLogSumExp <axes=[1], keepdims=0>", (2, 3, 4)),
    ("Softmax <axis=1>", (2, 3, 4)),
    ("LogSoftmax <axis=-1>", (2, 3, 4)),
    ("Reshape", (2, 3, 4), [0, -1]),
    ("Transpose <perm=[2,0,1]>", (2, 3, 4)),
    ("Flatten <axis=2>", (2, 3, 4)),
    ("Unsqueeze", (3, 4), [0, 3]),
    ("Squeeze", (1, 3, 1), [0, 2]),
    ("Expand", (3, 1), [2, 3, 4]),
    ("Slice", (5, 6), [4, 1], [-9, 6], [0, 1], [-2, 2]),
    ("Gather <axis=1>", (3, 5), [4, -1, 0]),
    ("GatherElements <axis=1>", (2, 3), [[2, -1], [0, 1]]),
    ("GatherND <batch_dims=1>", (2, 3, 4), [[2], [0]]),
    ('ScatterElements <axis=1, reduction="add">', (2, 3), [[2, 2], [0, 1]], (2, 2)),
    ("Concat <axis=1>", (2, 3), (2, 4), (2, 1)),
    ("Pad", (2, 3), [1, 0, 0, 2], F(0.5)),
    ("Trilu <upper=0>", (4, 5), 1),
    ("CumSum <reverse=1, exclusive=1>", (3, 4), 1),
    ("Tile", (2, 3), [2, 1]),
    ("MaxPool <kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1]>", (2, 3, 7, 6)),
    ("MaxPool <kernel_shape=[3], ceil_mode=1, strides=[2]>", (2, 3, 8)),
    ("AveragePool <kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1]>", (2, 3, 7, 6)),
    ('AveragePool <kernel_shape=[3,3], auto_pad="SAME_UPPER">', (1, 2, 5, 4)),
    ("GlobalAveragePool", (2, 3, 4, 5)),
    ("BatchNormalization", (3, 4, 5), (4,), (4,), (4,), F([0.5, 1, 2, 3])),
    ('Resize <mode="linear">', (1, 2, 4, 5), NOTHING, F([1, 1, 2, 1.5])),
    ('Resize <mode="nearest">', (1, 2, 4, 6), NOTHING, F([1, 1, 2, 0.5])),
    ('Resize <mode="cubic">', (1, 2, 4, 6), NOTHING, F([1, 1, 2, 0.5])),
]


def input_of(item: object, rng: np.random.Generator) -> np.ndarray:
    """An input, drawn where a shape stands for it."""
    if isinstance(item, tuple):
        return rng.standard_normal(item).astype(F)
    return np.asarray(item)


def model_of(node: str, arrays: list[np.ndarray]) -> onnx.ModelProto:
    """A model of opset 17 that is one node."""
    types = {"f": "float", "i": "int64"}
    shapes = [f"[{','.join(map(str, array.shape))}]" if array.ndim else "" for array in arrays]
    said = [f"{types[a.dtype.kind]}{shapes[i]} x{i}" for i, a in enumerate(arrays)]
    name, _, attributes = node.partition(" ")
    result = types[arrays[0].dtype.kind]
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g ({", ".join(said)}) => ({result} y) '
        f"{{ y = {name} {attributes} ({', '.join(f'x{i}' for i in range(len(arrays)))}) }}"
    )


@pytest.mark.parametrize("case", NODES, ids=lambda case: case[0])
def test_a_node_is_what_the_reference_says(case, rng: np.random.Generator) -> None:
    arrays = [input_of(item, rng) for item in case[1:]]
    model, feeds = model_of(case[0], arrays), {f"x{i}": array for i, array in enumerate(arrays)}
    before = {name: array.copy() for name, array in feeds.items()}
    expected = np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])
    got = cto.onnx.Session(model).run(feeds)["y"]
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5)
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, before[name])


# ---- ONNX's own cases ----------------------------------------------------------------------------

REFUSED = (
    "uint8",
    "equal_string",
    "precomputed_strides",
)
OTHERWISE = {
    "test_training_dropout": "random numbers of our own",
    "test_bernoulli": "random numbers of our own",
    "test_einsum": "NumPy has no einsum of bfloat16",
    "test_identity_sequence": "a sequence where an array is said",
    "test_identity_opt": "an optional value",
    "test_resize_downsample_scales_linear_align_corners": "as onnxruntime, by the output's length",
    "test_resize_downsample_scales_cubic_align_corners": "as onnxruntime, by the output's length",
}


@pytest.mark.thorough
def test_nodes_of_onnx_give_what_onnx_says() -> None:
    from onnx.backend.test.case.node import collect_testcases

    known, wrong, right = {*TABLE, *registry.names()}, [], 0
    for case in cases_of(collect_testcases):
        nodes = {node.op_type for node in case.model.graph.node}
        if not nodes <= known or any(case.name.startswith(name) for name in OTHERWISE):
            continue
        try:
            session = cto.onnx.Session(case.model)
        except cto.ArgumentError:
            if not any(word in case.name for word in REFUSED):
                wrong.append(f"{case.name}: refused")
            continue
        for inputs, outputs in case.data_sets:
            names = [item.name for item in case.model.graph.input]
            feeds = dict(zip(names, map(as_array, inputs), strict=False))
            if not all(map(is_alike, session.run(feeds).values(), map(as_array, outputs))):
                wrong.append(case.name)
        right += 1
    assert not wrong
    assert right > 1100


def cases_of(collect) -> list:
    """ONNX's cases, whose making warns."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return collect(None)


def as_array(value: Any) -> Any:
    """An array, also of a tensor of ONNX's; sequences and what is left out as they are."""
    is_tensor = isinstance(value, onnx.TensorProto)
    value = onnx.numpy_helper.to_array(value) if is_tensor else value
    return value if value is None or isinstance(value, list) else np.asarray(value)


def is_alike(a: Any, b: Any) -> bool:
    if isinstance(b, list):
        return len(a) == len(b) and all(map(is_alike, a, map(as_array, b)))
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    rtol = 1e-2 if b.dtype.itemsize <= 2 and b.dtype.kind != "i" else 1e-3
    wide = (array.astype(np.float64) for array in (a, b))
    return np.allclose(*wide, rtol=rtol, atol=1e-6, equal_nan=True)
