# SPDX-License-Identifier: MIT
"""Nodes over constants are replaced by their results, and shapes follow from lists of extents."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx.folding import fold
from cupy_training_ops.onnx.graph import Graph
from cupy_training_ops.onnx.models import read_inferred


def graph_of(body: str, ends: str = "(double[n,3] x) => (double[m] y)") -> Graph:
    """The graph of nodes between x and y."""
    text = f'<ir_version: 9, opset_import: ["" : 18]> g {ends} {{ {body} }}'
    return read_inferred(onnx.parser.parse_model(text), 17)[0]


def test_nodes_over_constants_are_folded() -> None:
    graph = graph_of(
        "a = Constant <value_ints=[40, 50]> () b = Constant <value_ints=[2]> () "
        "c = Concat <axis=0> (a, b) d = Mul (c, c) e = ConstantOfShape (d) "
        "f = ReduceSum <keepdims=0> (e) g = CastLike (f, x) h = Mul (x, g) y = Flatten (h)"
    )
    folded = fold(graph, ())
    assert [node.op_type for node in folded.nodes] == [
        "ConstantOfShape",
        "ReduceSum",
        "CastLike",
        "Mul",
        "Flatten",
    ]
    np.testing.assert_array_equal(folded.constants["d"], [1600, 2500, 4])


@pytest.mark.parametrize(
    ("body", "operators"),
    [
        ("a = Constant <value_ints=[4]> () y = Cast <to=11> (a)", ["Cast"]),
        ("a = Constant <value_float=0.5> () b = Bernoulli (a) y = CastLike (b, x)", None),
        ("s = Shape (x) y = Cast <to=11> (s)", None),
    ],
    ids=["an output", "what is random", "a shape with a name"],
)
def test_others_stay(body, operators) -> None:
    graph = graph_of(body)
    folded = fold(graph, ())
    assert [n.op_type for n in folded.nodes] == (operators or [n.op_type for n in graph.nodes])


def test_parameters_are_not_folded() -> None:
    graph = graph_of("w = Constant <value_floats=[4.0]> () v = Neg (w) y = CastLike (v, x)")
    assert "Neg" in [node.op_type for node in fold(graph, {"w"}).nodes]
    assert "Neg" not in [node.op_type for node in fold(graph, ()).nodes]


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ("t = Concat <axis=0> (s, b)", ("n", 3, 2)),
        ("o = Constant <value_ints=[-1, 0]> () t = Gather (s, o)", (3, "n")),
        ("o = Constant <value_ints=[7]> () t = Gather (s, o)", None),
        ("o = Constant <value_int=0> () i = Gather (s, o) t = Unsqueeze (i, z)", ("n",)),
        ("t = Slice (s, z, b)", ("n", 3)),
        ("o = Constant <value_ints=[-1]> () e = Constant <value_ints=[-9]> () "
         "t = Slice (s, o, e, z, o)", (3, "n")),
        ("o = Constant <value_ints=[-1]> () t = Concat <axis=0> (s, o)", None),
        ("t = Mul (s, b)", None),
    ],
)  # fmt: skip
def test_a_shape_follows_from_a_list_of_extents(lists, expected) -> None:
    graph = graph_of(
        "s = Shape (x) b = Constant <value_ints=[2]> () z = Constant <value_ints=[0]> () "
        f"{lists} y = Reshape (x, t)"
    )
    known = dict(graph.shapes)
    known.pop("y", None)  # what ONNX knows of it
    shapes = fold(
        Graph(graph.nodes, graph.inputs, (), graph.constants, graph.types, known), ()
    ).shapes
    assert shapes.get("y") == expected


@pytest.mark.parametrize(
    ("known", "expected"), [((5, 3), (5, 3)), (("k", 3), ("n", 3)), ((1, 2, 3), (1, 2, 3))]
)
def test_numbers_that_are_known_stay(known, expected) -> None:
    graph = graph_of("s = Shape (x) y = Reshape (x, s)", "(double[n,3] x) => (double[n,3] y)")
    shapes = {**graph.shapes, "y": known}
    part = Graph(graph.nodes, graph.inputs, (), graph.constants, graph.types, shapes)
    assert fold(part, ()).shapes["y"] == expected


@pytest.mark.parametrize("chosen", [0, 1])
def test_a_branch_whose_condition_is_known_is_put_in_place(chosen, rng) -> None:
    """Two nodes with branches whose values have the same names."""

    def branches(of: str) -> str:
        return f"""If (c) <
            then_branch = then () => (double[N] a)
                {{ b = Neg ({of}) k = Exp (b) a = Mul (k, {of}) }},
            else_branch = other () => (double[N] a) <double[1] k = {{0.5}}>
                {{ a = Mul ({of}, k) }}>"""

    graph = graph_of(
        f"i = Constant <value_int={chosen}> () c = Cast <to=9> (i) v = Sin (x) "
        f"w = {branches('v')} u = Cos (w) z = {branches('u')} y = Flatten (z)"
    )
    folded = fold(graph, ())
    assert not any(node.op_type == "If" for node in folded.nodes)
    x = rng.standard_normal((4, 3))
    expected = cto.onnx.Session(graph).run({"x": x})["y"]
    np.testing.assert_array_equal(cto.onnx.Session(folded).run({"x": x})["y"], expected)


def test_a_branch_of_an_input_stays() -> None:
    graph = graph_of(
        "y = If (c) <then_branch = then () => (double[m] a) { a = Neg (x) }, "
        "else_branch = other () => (double[m] b) { b = Abs (x) }>",
        "(double[m] x, bool c) => (double[m] y)",
    )
    assert [node.op_type for node in fold(graph, ()).nodes] == ["If"]
