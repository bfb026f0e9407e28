# SPDX-License-Identifier: MIT
"""Formulas that exporters write in place of operators, in graphs that are trained."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx import artifacts
from cupy_training_ops.onnx.steps import ACCUMULATOR, _accumulate

HALF_LAST = "d = Div(h, root) e = Erf(d) f = Add(e, one) g = Mul(h, f) y = Mul(g, half)"
HALF_FIRST = "s = Mul(half, h) d = Mul(h, inverse) e = Erf(d) f = Add(one, e) y = Mul(f, s)"
HALVED = "d = Div(h, root) e = Erf(d) f = Add(one, e) g = Mul(f, h) y = Div(g, two)"
GELUS = {"half last": HALF_LAST, "half first": HALF_FIRST, "halved": HALVED}
OTHERS = {
    "another root": HALF_LAST.replace("root", "two"),
    "another sum": HALF_LAST.replace("one", "two"),
    "another factor": HALF_LAST.replace("half", "two"),
    "a square": HALF_LAST.replace("Mul(h, f)", "Mul(f, f)"),
    "a part is read": HALF_LAST.replace("y = Mul(g, half)", "z = Mul(g, half) y = Add(z, e)"),
    "not h": HALF_LAST.replace("Erf(d)", "Erf(h)"),
    "the factor of another": HALF_FIRST.replace("Mul(half, h)", "Mul(half, x)"),
}


def model(formula: str) -> onnx.ModelProto:
    """A layer, a formula of its result, and another layer."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (double[N, 6] x) => (double[N, 6] scores)
    <double root = {{1.4142135381698608}}, double two = {{2}},
     double inverse = {{0.7071067690849304}}, double one = {{1}}, double half = {{0.5}}> {{
        h = MatMul(x, w) {formula} scores = MatMul(y, v)
    }}"""
    made = onnx.parser.parse_model(text)
    rng = np.random.default_rng(5)
    arrays = [onnx.numpy_helper.from_array(rng.standard_normal((6, 6)), name) for name in "wv"]
    made.graph.initializer.extend(arrays)
    return made


def trained(proto: onnx.ModelProto, rng: np.random.Generator) -> tuple[list[float], list, set]:
    session = cto.onnx.TrainingSession.from_model(
        proto, loss="mse", trainable=["w", "v"], optimizer="SGD"
    )
    session.lr = 0.0625
    batches = [rng.standard_normal((2, 4, 6)) for _ in range(3)]
    losses = [float(session.step(*batch)) for batch in batches]
    return losses, list(session.parameters.values()), {n.op_type for n in session.graph.nodes}


@pytest.mark.parametrize("name", [*GELUS, *OTHERS])
def test_a_formula_is_trained_as_it_is_written(name: str, seed: int, monkeypatch) -> None:
    proto = model({**GELUS, **OTHERS}[name])
    losses, parameters, operators = trained(proto, np.random.default_rng(seed))
    assert ("Gelu" in operators) == ("GeluGrad" in operators) == (name in GELUS)
    assert ("Erf" in operators) == (name in OTHERS)
    monkeypatch.setattr(artifacts, "fuse_formulas", lambda graph, _: graph)
    plain, expected, _ = trained(proto, np.random.default_rng(seed))
    np.testing.assert_allclose(losses, plain, 1e-6)
    for found, array in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(found, array, 1e-6, 1e-7)


@pytest.mark.parametrize("scalar", ["root", "one", "half"])
def test_a_number_that_is_trained_is_none_of_a_formula(scalar: str, rng) -> None:
    options = {"loss": "mse", "trainable": ["w", scalar], "optimizer": "SGD"}
    session = cto.onnx.TrainingSession.from_model(model(HALF_LAST), **options)
    before = session.parameters[scalar].copy()
    session.step(*rng.standard_normal((2, 4, 6)))
    assert session.parameters[scalar] != before
    assert "Gelu" not in {node.op_type for node in session.graph.nodes}


def test_what_is_written_keeps_the_formula(tmp_path) -> None:
    """Files of artifacts and exported models have the operators of the model."""
    proto = model(HALF_LAST)
    cto.onnx.make_artifacts(proto, tmp_path, loss="mse", trainable=["w", "v"])
    written = onnx.load(tmp_path / "training_model.onnx")
    assert "Gelu" not in {node.op_type for node in written.graph.node}
    session = cto.onnx.TrainingSession.from_model(proto, loss="mse", trainable=["w", "v"])
    session.export(tmp_path / "model.onnx")
    exported = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert "Erf" in exported
    assert "Gelu" not in exported


KEYS = "k = MatMul(x, wk) v = MatMul(x, wv)"
ATTENTIONS = {
    "plain": "t = Transpose<perm=[0, 1, 3, 2]>(k) s = MatMul(q, t) p = Softmax<axis=-1>(s)",
    "scaled": """t = Transpose<perm=[0, 1, 3, 2]>(k) s = MatMul(q, t) r = Div(s, two)
                 m = Add(r, mask) p = Softmax<axis=3>(m)""",
    "both scaled": """t = Transpose<perm=[0, 1, 3, 2]>(k) q2 = Mul(q, half) t2 = Mul(half, t)
                      s = MatMul(q2, t2) m = Add(mask, s) p = Softmax(m)""",
    "between casts": """t = Transpose<perm=[0, 1, 3, 2]>(k) s = MatMul(q, t) r = Mul(s, half)
                        f = Cast<to=1>(r) g = Softmax(f) p = Cast<to=10>(g)""",
    "turned at once": """j = Transpose<perm=[0, 2, 1, 3]>(k) t = Transpose<perm=[0, 2, 3, 1]>(j)
                         s = MatMul(q, t) p = Softmax(s)""",
    "not turned": "t = MatMul(wt, x) s = MatMul(q, t) p = Softmax(s)",
}
PLAIN = ATTENTIONS["plain"]
SCORES = {  # what stays as it is written
    "a part is read": PLAIN + " e = ReduceMean<keepdims=0>(s)",
    "another axis": PLAIN.replace("axis=-1", "axis=2"),
    "below zero": PLAIN.replace("p = Softmax", "r = Mul(s, less) p = Softmax").replace(
        "(s)", "(r)"
    ),
    "no scores": "t = Transpose<perm=[0, 1, 3, 2]>(k) s = Add(q, t) p = Softmax(s)",
    "for all heads": PLAIN.replace("(k)", "(one)"),
}


def attention_model(formula: str, rng: np.random.Generator, dtype: str) -> onnx.ModelProto:
    """Heads (2, 3, 4, 4) of x, their attention by a formula, and a layer behind it."""
    formula = formula.replace("to=10", "to=11") if dtype == "double" else formula
    read = "y2 = Add(y, e)" if " e = " in formula else "y2 = Identity(y)"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g ({dtype}[2, 3, 4, 4] x) => ({dtype}[2, 3, 4, 4] scores) {{
        q = MatMul(x, wq) {KEYS} {formula} y = MatMul(p, v) {read} scores = MatMul(y2, wo)
    }}"""
    made = onnx.parser.parse_model(text)
    shapes = {n: (4, 4) for n in ("wq", "wk", "wv", "wo", "wt")}
    shapes |= {"mask": (2, 1, 4, 4), "one": (1, 1, 4, 4)}
    arrays = {n: rng.standard_normal(shape) for n, shape in shapes.items()}
    for name in ("wq", "wk"):  # scores so small that their rounding to float16 is
        arrays[name] /= 2
    arrays |= {"half": np.array(0.5), "two": np.array(2.0), "less": np.array(-1.0)}
    read = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(a.astype(np.float16 if dtype == "float16" else float), n)
        for n, a in arrays.items()
        if n in read
    )
    return made


@pytest.mark.parametrize("name", [*ATTENTIONS, *SCORES])
def test_attention_is_trained_as_it_is_written(name: str, seed: int) -> None:
    """Gradients in float16 beside those of the formula in float64."""
    found = {}
    for dtype in ("float16", "double"):
        rng = np.random.default_rng(seed)
        proto = attention_model({**ATTENTIONS, **SCORES}[name], rng, dtype)
        unread = {"wk"} if name in ("for all heads", "not turned") else set()
        shapes = {i.name: i.dims for i in proto.graph.initializer if i.name not in unread}
        trainable = [key for key, dims in shapes.items() if len(dims) > 1]
        session = cto.onnx.TrainingSession.from_model(
            proto, loss="mse", trainable=trainable, optimizer="SGD"
        )
        batch = rng.standard_normal((2, 2, 3, 4, 4))
        session.accumulate(*batch.astype(next(iter(session.parameters.values())).dtype))
        operators = {node.op_type for node in session.graph.nodes}
        is_fused = dtype == "float16" and name in ATTENTIONS
        assert ("FlashAttention" in operators) == ("FlashAttentionGrad" in operators) == is_fused
        assert ("Softmax" in operators) != is_fused
        found[dtype] = dict(session.gradients)
    for key, expected in found["double"].items():
        actual = found["float16"][key].astype(float)
        np.testing.assert_allclose(actual, expected, 0.05, 0.02 * np.abs(expected).max(), key)


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_gradients_of_norms_and_sums_are_made_in_their_buffers(dtype: str, rng) -> None:
    """Nothing is copied there; sums of several batches are those of one."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g ({dtype}[N, 4] x) => ({dtype}[N, 4] y)
    <{dtype}[4] scale = {{1, 2, 3, 4}}, {dtype}[4] bias = {{0, 1, 0, 2}},
     {dtype}[4] last = {{1, 1, 1, 1}}> {{
        n = LayerNormalization(x, scale, bias) y = Add(n, last)
    }}"""
    session = cto.onnx.TrainingSession.from_model(onnx.parser.parse_model(text), loss="mse")
    runs = [s.run for s in session._training.program.steps if s.node.op_type == ACCUMULATOR]
    assert [getattr(run, "func", None) for run in runs] == [_accumulate] * 3
    kind = np.float32 if dtype == "float" else np.float64
    x, y = rng.standard_normal((2, 6, 4)).astype(kind)
    session.accumulate(x, y)
    whole = {n: a.copy() for n, a in session.gradients.items()}
    other = cto.onnx.TrainingSession.from_model(onnx.parser.parse_model(text), loss="mse")
    other.accumulate(x[:3], y[:3])
    other.accumulate(x[3:], y[3:])
    for name, gradient in other.gradients.items():
        np.testing.assert_allclose(gradient / 2, whole[name], 1e-5, 1e-6)
