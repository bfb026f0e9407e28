# SPDX-License-Identifier: MIT
"""Graphs of products, scales, transposes and other names, changed and as they are written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import cupy_training_ops as cto

N = 3  # rows and columns of all values


def drawn_model(rng: np.random.Generator, n_nodes: int) -> onnx.ModelProto:
    """Each node takes values that are there; what nothing takes is an output, and some others."""
    scalars = {"half": 0.5, "three": 3.0, "zero": 0.0, "minus": -0.25}
    names, nodes = ["x", "y"], []
    for i in range(n_nodes):
        a, b = (names[-1 - int(k)] for k in rng.integers(0, min(4, len(names)), 2))
        c, out = str(rng.choice(list(scalars))), f"v{i}"
        flags = {f"trans{x}": int(rng.integers(2)) for x in "AB"}
        nodes.append(
            [
                helper.make_node("MatMul", [a, b], [out]),
                helper.make_node("Gemm", [a, b], [out], alpha=0.75, **flags),
                helper.make_node("Gemm", [a, b, a], [out], beta=0.5, **flags),
                helper.make_node("Transpose", [a], [out], perm=[1, 0]),
                helper.make_node("Identity", [a], [out]),
                helper.make_node("Mul", [a, c] if rng.integers(2) else [c, a], [out]),
                helper.make_node("Div", [a, "three"], [out]),
                helper.make_node("Add", [a, b], [out]),
                helper.make_node("Tanh", [a], [out]),
            ][rng.integers(9)]
        )
        names.append(out)
    read = {name for node in nodes for name in node.input}
    outputs = [n for n in names[2:] if n not in read or rng.random() < 0.15]
    info = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [N, N])  # noqa: E731
    constants = [numpy_helper.from_array(np.float32(v), n) for n, v in scalars.items()]
    graph = helper.make_graph(
        nodes, "g", [info("x"), info("y")], list(map(info, outputs)), constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("part", range(10))
def test_values_are_those_of_the_graph_as_it_is_written(part: int, rng) -> None:
    rng = np.random.default_rng([int(rng.integers(2**31)), part])
    for _ in range(20):
        model = drawn_model(rng, int(rng.integers(2, 14)))
        feeds = {n: rng.uniform(-1, 1, (N, N)).astype(np.float32) for n in "xy"}
        expected = ReferenceEvaluator(model).run(None, feeds)
        before = {n: a.copy() for n, a in feeds.items()}
        actual = cto.onnx.Session(model).run(feeds)
        for name, value in zip(actual, expected, strict=True):
            most = 1e-5 * max(1.0, float(np.abs(value).max()))
            np.testing.assert_allclose(actual[name], value, 1e-4, most, err_msg=str(model))
        for name, array in feeds.items():
            np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize(
    ("a", "b"), [((3,), (4, 3, 5)), ((2, 4, 3), (3,)), ((3,), (2, 4, 3, 5)), ((2, 4, 3), (3, 5))]
)
def test_a_product_that_is_transposed_may_be_of_a_vector(a, b, rng) -> None:
    x, y = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in (a, b))
    expected = (x @ y).swapaxes(-1, -2)
    perm = [*range(expected.ndim - 2), expected.ndim - 1, expected.ndim - 2]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[{",".join(map(str, a))}] x, float[{",".join(map(str, b))}] y) => (float z)
        {{ p = com.microsoft.FusedMatMul <alpha = 0.5> (x, y) z = Transpose <perm={perm}> (p) }}"""
    )
    session = cto.onnx.Session(model.SerializeToString())
    np.testing.assert_allclose(session.run({"x": x, "y": y})["z"], 0.5 * expected, 1e-5, 1e-5)


def operators(text: str) -> list[str]:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> {text}'
    )
    return [node.op_type for node in cto.onnx.Session(model).graph.nodes]


def test_what_stands_around_a_product_is_part_of_it() -> None:
    head = "g (float[2, 2] x) => (float[2, 2] y) <float c = {2}>"
    assert operators(f"{head} {{ a = MatMul(x, x) y = Div(a, c) }}") == ["FusedMatMul"]
    assert operators(f"{head} {{ a = Gemm(x, x) y = Transpose<perm=[1, 0]>(a) }}") == ["Gemm"]
    batch = "g (float[4, 2, 3] x) => (float[4, 3, 3] y)"
    turned = "{ a = com.microsoft.FusedMatMul<transA=1>(x, x) y = Transpose<perm=[0, 2, 1]>(a) }"
    assert operators(f"{batch} {turned}") == ["FusedMatMul"]
    scaled = "{ a = Mul(c, x) b = Identity(a) d = MatMul(x, b) e = MatMul(b, x) y = Add(d, e) }"
    assert operators(f"{head} {scaled}") == ["FusedMatMul", "FusedMatMul", "Add"]
    text = "{ a = MatMul(x, x) b = Div(a, c) y = Add(a, b) }"
    assert operators(f"{head} {text}") == ["MatMul", "Div", "Add"]


@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_turned_product_of_batches_is_that_of_turned_factors(left, right, rng) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[4, 5, N] a, float[M, 5, K] b) => (float[4, 5, P] y) {{
        p = com.microsoft.FusedMatMul<transA={left}, transB={right}, alpha=2.0>(a, b)
        y = Transpose<perm=[0, 2, 1]>(p) }}"""
    session = cto.onnx.Session(onnx.parser.parse_model(text))
    assert len(session.graph.nodes) == 1
    a, b = rng.standard_normal((2, 4, 5, 5)).astype(np.float32)
    factors = [x.swapaxes(1, 2) if flag else x for x, flag in ((a, left), (b, right))]
    actual = session.run({"a": a, "b": b})["y"]
    np.testing.assert_allclose(
        actual, 2 * (factors[0] @ factors[1]).swapaxes(1, 2), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "nodes", ["a = MatMul(x, x) y = Mul(a, c)", "a = Div(s, c) y = MatMul(a, a)"]
)
def test_a_number_of_one_dimension_makes_a_vector_of_a_scalar(nodes: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[3] x, float s) => (float[N] y) <float[1] c = {{2}}> {{ {nodes} }}"""
    )
    feeds = {"x": np.float32([1, 2, 3]), "s": np.float32(6)}
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    actual = cto.onnx.Session(model).run(feeds)["y"]
    assert actual.shape == np.shape(expected)
    np.testing.assert_array_equal(actual, expected)
