# SPDX-License-Identifier: MIT
"""ONNX's Gradient nodes, beside derivatives by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto

OPSETS = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]> g '
NODE = "ai.onnx.preview.training.Gradient"


def run(text: str, **feeds: Any) -> dict[str, np.ndarray]:
    return cto.onnx.Session(onnx.parser.parse_model(OPSETS + text)).run(feeds)


@pytest.fixture
def a(rng) -> np.ndarray:
    return rng.standard_normal(3)


@pytest.fixture
def b(rng) -> np.ndarray:
    return rng.standard_normal(3)


def test_values_inside_and_at_the_ends(a, b) -> None:
    """c = sum of a b b, by h = a b and by a."""
    text = f"""(double[3] a, double[3] b) => (double c, double[3] dh, double[3] db, double[3] da) {{
        h = Mul (a, b) k = Mul (h, b) c = ReduceSum <keepdims = 0> (k)
        dh, db = {NODE} <xs = ["h", "b"], y = "c"> (h, b)
        da = {NODE} <xs = ["a"], zs = ["b"], y = "c"> (a, b) }}"""
    actual = run(text, a=a, b=b)
    np.testing.assert_allclose(actual["dh"], b)
    np.testing.assert_allclose(actual["db"], a * b)  # with h for itself
    np.testing.assert_allclose(actual["da"], b * b)


def test_second_derivatives_in_any_order(a, b) -> None:
    """c = a a b: dc/da = 2 a b, whose derivatives are 2 b and 2 a."""
    text = f"""(double a, double b) => (double da, double dda, double ddb) {{
        e = Mul (a, a) c = Mul (e, b)
        dda, ddb = {NODE} <xs = ["a", "b"], y = "da"> (a, b)
        da, db = {NODE} <xs = ["a", "b"], y = "c"> (a, b) }}"""
    x, y = a[0], b[0]
    actual = run(text, a=np.array(x), b=np.array(y))
    np.testing.assert_allclose(list(actual.values()), [2 * x * y, 2 * y, 2 * x])


def test_at_other_values(a, b) -> None:
    """The derivatives of sum of sin(x) z at x = b, z = a, and of one value for both inputs."""
    text = f"""(double[3] x, double[3] z, double[3] p, double[3] q)
            => (double y, double[3] dx, double[3] dboth) {{
        s = Sin (x) m = Mul (s, z) y = ReduceSum <keepdims = 0> (m)
        dx = {NODE} <xs = ["x"], zs = ["z"], y = "y"> (p, q)
        dboth = {NODE} <xs = ["x"], zs = ["z"], y = "y"> (p, p) }}"""
    actual = run(text, x=a, z=b, p=b, q=a)
    np.testing.assert_allclose(actual["y"], (np.sin(a) * b).sum())
    np.testing.assert_allclose(actual["dx"], np.cos(b) * a)
    np.testing.assert_allclose(actual["dboth"], np.cos(b) * b)


def test_zeros_and_outputs_that_are_left_out(a, b) -> None:
    text = f"""(double[3] x, double[3] z, double[3] t) => (double[3] dz, double[3] dt) {{
        m = Mul (x, z) y = ReduceSum <keepdims = 0> (m)
        , dz, dt = {NODE} <xs = ["x", "z", "t"], y = "y"> (x, z, t) }}"""
    actual = run(text, x=a, z=b, t=np.full(3, np.nan))
    np.testing.assert_allclose(actual["dz"], a)
    np.testing.assert_array_equal(actual["dt"], np.zeros(3))


def test_a_value_that_a_node_makes_beside_another(rng) -> None:
    """y = sum of p q, where p is a variable of its own, and q a part of x."""
    x = rng.standard_normal(4)
    text = f"""(double[4] x) => (double[2] p, double[2] q, double[2] dp, double[4] dx) {{
        p, q = Split (x) m = Mul (p, q) y = ReduceSum <keepdims = 0> (m)
        dp, dx = {NODE} <xs = ["p", "x"], y = "y"> (p, x) }}"""
    actual = run(text, x=x)
    np.testing.assert_allclose(actual["dp"], x[2:])
    np.testing.assert_allclose(actual["dx"], [0, 0, *x[:2]])


def test_operators_by_their_bodies_and_one_element(a) -> None:
    """A y of one element in two dimensions; the gradient of what has a body alone."""
    text = f"""(double[3] x) => (double[1, 1] y, double[3] dx) {{
        s = Softsign (x) e = ReduceSum (s) k = Constant <value = int64[2] {{1, 1}}> ()
        y = Reshape (e, k) dx = {NODE} <xs = ["x"], y = "y"> (x) }}"""
    np.testing.assert_allclose(run(text, x=a)["dx"], 1 / (1 + np.abs(a)) ** 2)


def test_a_model_with_gradients_is_trained(a) -> None:
    """loss = sum of (d/dx sum of x x w)^2 = 4 sum of x x w w."""
    text = f"""(double[3] x) => (double loss) <double[3] w = {{1, 2, 3}}> {{
        s = Mul (x, x) m = Mul (s, w) y = ReduceSum <keepdims = 0> (m)
        d = {NODE} <xs = ["x"], zs = ["w"], y = "y"> (x, w)
        q = Mul (d, d) loss = ReduceSum <keepdims = 0> (q) }}"""
    session = cto.onnx.TrainingSession.from_model(
        onnx.parser.parse_model(OPSETS + text), loss="loss", optimizer="SGD"
    )
    session.accumulate(a)
    np.testing.assert_allclose(session.gradients["w"], 8 * a * a * [1, 2, 3])


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (
            "k = Mul (a, a) c = Exp (k) d = NODE <xs = ['a'], y = 'k'> (a)",
            r"got 'k' of shape \(3,\)",
        ),
        ("c = Exp (a) d = NODE <xs = ['q'], y = 'c'> (a)", "nothing makes q"),
        ("c = Exp (a) d = NODE <xs = ['a']> (a)", "attribute y is missing"),
        ("c = Exp (a) d = NODE <y = 'c'> (a)", "attribute xs is missing"),
        ("c = Exp (a) d = NODE <xs = ['a'], y = 'c', k = 1> (a)", "unknown attributes k"),
        ("c = Exp (a) d = NODE <xs = ['a', 'c'], y = 'c'> (a)", "an input for each of xs and zs"),
        ("c = Exp (a) d, e = NODE <xs = ['a'], y = 'c'> (a)", "at most 1 outputs, got 2"),
        ("c = Mul (a, d) d = NODE <xs = ['a'], y = 'c'> (a)", "depends on its own gradient"),
        ("c = Unique (a) d = NODE <xs = ['a'], y = 'c'> (a)", "which elements are equal"),
    ],
)
def test_refusals(nodes, words) -> None:
    nodes = nodes.replace("NODE", NODE).replace("'", '"')
    with pytest.raises(cto.ArgumentError, match=words):
        run(f"(double[3] a) => (double[N] c) {{ {nodes} }}", a=np.ones(3))


def test_more_than_one_element_is_refused_as_it_runs() -> None:
    text = f'(double[N] a) => (double[N] d) {{ c = Exp (a) d = {NODE} <xs = ["a"], y = "c"> (a) }}'
    np.testing.assert_allclose(run(text, a=np.zeros(1))["d"], [1])
    with pytest.raises(cto.ArgumentError, match="'c of its gradient'"):
        run(text, a=np.zeros(3))
