# SPDX-License-Identifier: MIT
"""Models that ONNX Runtime refuses, refused here with names; flags that are neither 0 nor 1."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cupy_training_ops as cto
from cupy_training_ops.onnx.standard import TABLE

VALUES = {"int": 1, "float": 1.0, "str": "1", "Sequence[int]": (1,), "HostArray": np.ones(1)}
FLOAT = TensorProto.FLOAT


def model(
    nodes: list[Any], inputs: dict[str, Any] | None = None, **constants: np.ndarray
) -> onnx.ModelProto:
    """A model that gives y; of inputs the shape, or a type and the shape."""
    said = {"x": (2, 3)} if inputs is None else inputs
    types = {n: s if isinstance(s, list) else [FLOAT, s] for n, s in said.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *type_) for name, type_ in types.items()],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports)


def refusal(actual: onnx.ModelProto) -> str:
    with pytest.raises(cto.OpError) as caught:
        cto.onnx.Session(actual)
    return str(caught.value)


def parameters() -> list[Any]:
    """Each attribute of the table: its operator, its place there, its annotation."""
    return [
        pytest.param(item, p.name, p.annotation, id=f"{name}-{item.since}-{p.name}")
        for name, items in TABLE.items()
        for item in items
        for p in inspect.signature(item.function).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.name != "n_outputs"
    ]


@pytest.mark.parametrize("op", ["Gemm", "FusedMatMul"])
@pytest.mark.parametrize("folded", [False, True])
def test_a_flag_of_a_product_is_any_integer_but_0(op: str, folded: bool, rng) -> None:
    x, w = (rng.uniform(-1, 1, (3, 3)).astype(np.float32) for _ in "xw")
    domain = "com.microsoft" if op == "FusedMatMul" else ""
    for a, b in [(2, 0), (-1, 3), (0, -2), (3, 1), (0, 0)]:
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
            helper.make_node(
                op, ["t" if folded else "x", "w"], ["p"], domain=domain, transA=a, transB=b
            ),
            helper.make_node("Transpose" if folded else "Identity", ["p"], ["y"]),
        ]
        if folded:
            nodes[-1].attribute.append(helper.make_attribute("perm", [1, 0]))
        factors = (x.T if folded else x), w
        expected = np.matmul(*(f.T if flag else f for f, flag in zip(factors, (a, b), strict=True)))
        actual = cto.onnx.Session(model(nodes, {"x": (3, 3)}, w=w)).run({"x": x})["y"]
        np.testing.assert_allclose(actual, expected.T if folded else expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("item", "name", "kind"), parameters())
def test_an_attribute_of_another_type_is_refused(item: Any, name: str, kind: str) -> None:
    own = {"bool": "int", "Axes": "Sequence[int]"}.get(kind, kind.removesuffix(" | None"))
    for value in (value for other, value in VALUES.items() if other != own):
        with pytest.raises(cto.ArgumentError, match=f"^{name}: expected "):
            item.check([], {name: value})


@pytest.mark.parametrize(
    ("op", "flag", "rest", "others"),
    [
        ("AveragePool", "count_include_pad", {"kernel_shape": [2], "pads": [1, 1]}, ()),
        ("AveragePool", "ceil_mode", {"kernel_shape": [2], "strides": [2]}, ()),
        ("ArgMax", "select_last_index", {}, ()),
        ("CumSum", "exclusive", {}, (np.array(2),)),
        ("ReduceMax", "keepdims", {"axes": [2]}, ()),
        ("ReduceSum", "noop_with_empty_axes", {}, ()),
        ("Trilu", "upper", {}, ()),
    ],
)
def test_a_flag_is_any_integer_but_0(op: str, flag: str, rest: Any, others: Any, rng) -> None:
    """Of operators of this package and of functions of the table."""
    x = rng.integers(0, 3, (4, 3, 25)).astype(np.float32)  # 75 maxima of 4: surely one is twice
    names = ["x", "other"][: 1 + len(others)]

    def result(value: int) -> np.ndarray:
        node = helper.make_node(op, names, ["y"], **{flag: value}, **rest)
        return cto.onnx.call(node, [x, *others], version=17)[0]

    off, on = result(0), result(1)
    assert off.shape != on.shape or not np.array_equal(off, on)
    for value in (-1, 2, 2**40):
        np.testing.assert_array_equal(result(value), on)


def test_a_number_of_another_type_is_refused_by_operators_of_this_package() -> None:
    for op, name, value in [
        ("LayerNormalization", "epsilon", 1),
        ("Softmax", "axis", 1.0),
        ("AveragePool", "count_include_pad", 1.0),
        ("AveragePool", "kernel_shape", 2),
        ("AveragePool", "auto_pad", 2),
    ]:
        node = helper.make_node(op, ["x"], ["y"], **{name: value})
        assert f"({op}): {name}: expected " in refusal(model([node]))


def test_what_is_set_twice_is_refused() -> None:
    twice = model([helper.make_node("ReduceMean", ["x"], ["y"], keepdims=1)])
    twice.graph.node[0].attribute.append(helper.make_attribute("keepdims", 0))
    assert "(ReduceMean): attribute 'keepdims' is set twice" in refusal(twice)
    twice = model([helper.make_node("Neg", ["x"], ["y"])])
    twice.graph.input.append(twice.graph.input[0])
    assert "input 'x': it is declared twice" in refusal(twice)


def test_a_model_without_opsets_is_refused() -> None:
    actual = model([helper.make_node("Neg", ["x"], ["y"])])
    del actual.opset_import[:]
    assert "imports no opset" in refusal(actual)


def test_a_domain_that_is_not_imported_has_its_newest_operators() -> None:
    actual = model([helper.make_node("ReduceSum", ["x", "axes"], ["y"])], axes=np.array([1]))
    del actual.opset_import[0]
    result = cto.onnx.Session(actual).run({"x": np.ones((2, 3), np.float32)})["y"]
    np.testing.assert_array_equal(result, [[3], [3]])


@pytest.mark.parametrize("op", ["Add", "Equal", "Max", "MatMul", "Div", "Mod"])
def test_elements_of_two_types_are_refused(op: str) -> None:
    """Those that a model says, those that follow from nodes, and those of a call."""
    node = helper.make_node(op, ["a", "x"], ["y"])
    name = "data_0" if op == "Max" else "B"
    words = f"({op}): {name}: expected int64 as the others, got float32"
    shape = helper.make_node("Shape", ["x"], ["a"])
    assert words in refusal(model([node], {"a": [TensorProto.INT64, (3,)], "x": (3,)}))
    assert words in refusal(model([shape, node], {"x": (1,)}))
    with pytest.raises(cto.DtypeError, match="B: expected int64 as the others, got float32"):
        cto.onnx.call(node, [np.ones((3, 3), np.int64), np.ones((3, 3), np.float32)])


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integers_are_not_divided_by_zero(op: str) -> None:
    node = helper.make_node(op, ["x", "z"], ["y"])
    inputs = {"x": [TensorProto.INT64, (3,)], "z": [TensorProto.INT64, (3,)]}
    words = rf"\({op}\): B: expected no 0 among integers that are divided by"
    with pytest.raises(cto.ArgumentError, match=words):
        cto.onnx.Session(model([node], {"x": inputs["x"]}, z=np.array([1, 0, 2])))
    session = cto.onnx.Session(model([node], inputs))
    x = np.array([7, -7, 5])
    with pytest.raises(cto.ArgumentError, match=words):
        session.run({"x": x, "z": np.array([1, 0, 2])})
    expected = [3, -3, -2] if op == "Div" else [1, 1, -1]
    np.testing.assert_array_equal(session.run({"x": x, "z": np.array([2, 2, -2])})["y"], expected)


def test_an_output_of_another_type_than_is_said_is_refused() -> None:
    actual = model([helper.make_node("Shape", ["x"], ["y"])])
    actual.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, None))
    assert "output 'y': expected float32, got int64" in refusal(actual)


def test_constants_and_seeds_of_another_type_are_refused() -> None:
    add = helper.make_node("Add", ["x", "c"], ["y"])
    for values in ({"value_float": "a"}, {"value_int": 1.5}, {"value_float": 1.0, "value_int": 1}):
        constant = helper.make_node("Constant", [], ["c"], **values)
        assert "(Constant): " in refusal(model([constant, add]))
    for seed in ("1", 1.0):
        node = helper.make_node("Dropout", ["x"], ["y"], seed=seed)
        assert "(Dropout): seed: expected an integer" in refusal(model([node]))


def test_a_map_as_input_is_refused() -> None:
    actual = model([helper.make_node("Identity", ["x"], ["y"])])
    inner = helper.make_tensor_type_proto(FLOAT, (2, 3))
    actual.graph.input[0].type.CopyFrom(helper.make_map_type_proto(TensorProto.INT64, inner))
    assert "value 'x': values of map type are not read here" in refusal(actual)


def test_more_outputs_than_there_are_are_refused() -> None:
    more = helper.make_node("Neg", ["x"], ["y", "z"])
    assert "(Neg): expected at most 1 outputs" in refusal(model([more]))
