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
    monkeypatch.setattr(artifacts, "fuse_gelu", lambda graph: graph)
    plain, expected, _ = trained(proto, np.random.default_rng(seed))
    np.testing.assert_allclose(losses, plain, 1e-6)
    for found, array in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(found, array, 1e-6, 1e-7)


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
