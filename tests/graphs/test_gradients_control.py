# SPDX-License-Identifier: MIT
"""Gradients of If, Loop, Scan and of sequences beside finite differences, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx.artifacts import make

STEP = 1e-5
IF = """(bool c, double[3] x, double[3] z) => (double loss) {
    w = Exp (x)
    y, q = If (c) <
        then_branch = then () => (double[N] a, double[N] e)
            { b = Neg (x) a = Mul (b, w) e = Exp (z) },
        else_branch = other () => (double[N] a, double[N] e) <double[1] half = {0.5}>
            { a = Mul (w, half) e = Identity (w) }>
    r = Mul (y, q) loss = ReduceSum <keepdims = 0> (r)
    }"""
LOOP = """(int64 n, double[3] x, double[3] w) => (double loss) {
    go = Constant <value = bool {1}> ()
    y, all = Loop (n, go, x) <
        body = body (int64 i, bool was, double[3] s) => (bool on, double[3] t, double[3] u) {
            f = Cast <to = 11> (i) a = Mul (s, w) b = Sin (a) t = Add (b, f) u = Mul (t, x)
            limit = Constant <value = double {3}> () top = ReduceMax <keepdims = 0> (t)
            on = Less (top, limit) }>
    r = ReduceSum <keepdims = 0> (all) q = ReduceSum <keepdims = 0> (y) loss = Add (r, q)
    }"""
PRODUCTS = """(int64 n, double[3] x, double[3, 3] w) => (double loss) {
    y, k = Loop (n, , x, x) <
        body = body (int64 i, bool was, double[3] s, double[3] e)
            => (bool was, double[3] t, double[3] f)
            { a = MatMul (s, w) t = Tanh (a) f = Add (e, s) }>
    loss = ReduceSum <keepdims = 0> (y)
    }"""
SUMS = """(int64 n, double[3] x) => (double loss) {
    y = Loop (n, , x) <
        body = body (int64 i, bool was, double[3] s) => (bool was, double[3] t) { t = Add (s, x) }>
    loss = ReduceSum <keepdims = 0> (y)
    }"""
NESTED_IF = """(bool c, int64 n, double[2] x, double[2] w) => (double loss) {
    y = Loop (n, , x) <
        body = body (int64 i, bool was, double[2] s) => (bool was, double[2] t) {
            t = If (c) <
                then_branch = then () => (double[N] a)
                    { f = Cast <to = 11> (i) g = Mul (s, w) a = Add (g, f) },
                else_branch = other () => (double[N] a) { a = Mul (s, x) }> }>
    loss = ReduceSum <keepdims = 0> (y)
    }"""
NESTED_LOOP = """(int64 n, double[2] x, double[2] w) => (double loss) {
    y = Loop (n, , x) <
        body = body (int64 i, bool was, double[2] s) => (bool was, double[2] t) {
            t, all = Loop (n, , s) <
                body = inner (int64 j, bool is, double[2] q) => (bool is, double[2] p, double[2] e)
                    { m = Mul (q, w) p = Sin (m) e = Mul (p, s) }> }>
    loss = ReduceSum <keepdims = 0> (y)
    }"""
SCAN = """(double[2] start, double[4, 2] x, double[2, 4] z, double[2] w) => (double loss) {
    y, all = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1],
                   scan_output_axes = [1], scan_output_directions = [1],
        body = body (double[2] s, double[2] a, double[2] b) => (double[2] t, double[2] u) {
            p = Mul (a, b) h = Sin (s) t = Add (h, p) v = Mul (t, start) u = Sub (v, w) }>
        (start, x, z)
    k = Constant <value = double[2, 4] {1, 2, 3, 4, 5, 6, 7, 8}> ()
    m = Mul (all, k) r = ReduceSum <keepdims = 0> (m) q = ReduceSum <keepdims = 0> (y)
    loss = Add (r, q)
    }"""
APPENDED = """(int64 n, double[3] x, double[3] w) => (double loss) {
    e = SequenceEmpty <dtype = 11> ()
    y, l = Loop (n, , x, e) <
        body = body (int64 i, bool was, double[3] s, seq(double[N]) p)
            => (bool was, double[3] t, seq(double[N]) o)
            { a = Mul (s, w) t = Sin (a) u = Mul (t, x) o = SequenceInsert (p, u) }>
    z = ConcatFromSequence <axis = 0, new_axis = 1> (l)
    zz = Mul (z, z) loss = ReduceSum <keepdims = 0> (zz)
    }"""
SEQUENCE = """(int64 i, double[3] x, double[2] w, double[4] v) => (double loss) {
    s = SequenceConstruct (x, w, v)
    two = Constant <value = int64 {2}> () m = Constant <value = int64 {-1}> ()
    a = SequenceAt (s, i) b = SequenceAt (s, m) t = SequenceInsert (s, b, i)
    u = SequenceErase (t, two) o = SequenceErase (u) k = SequenceInsert (o, a)
    z = ConcatFromSequence <axis = 0> (u) e = Exp (z) p = ReduceSum <keepdims = 0> (e)
    y = ConcatFromSequence <axis = -1> (k) f = Sin (y) q = ReduceSum <keepdims = 0> (f)
    r = ReduceProd <keepdims = 0> (a) loss = Sum (p, q, r)
    }"""
PARTS = """(int64[3] lengths, int64 i, double[3, 6] x) => (double loss) {
    s = SplitToSequence <axis = 1> (x, lengths) a = SequenceAt (s, i)
    e = Exp (a) p = ReduceSum <keepdims = 0> (e)
    t = SplitToSequence <axis = -1, keepdims = 0> (x) b = SequenceAt (t, i)
    q = ReduceProd <keepdims = 0> (b)
    u = SplitToSequence (x) f = SequenceAt (u, i) g = ReduceL2 <keepdims = 0> (f)
    loss = Sum (p, q, g)
    }"""


def model_of(text: str, rng: np.random.Generator) -> onnx.ModelProto:
    """A model in which the inputs of float64 are initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {text}')
    inputs = list(model.graph.input)
    del model.graph.input[:]
    for item in inputs:
        kind = item.type.tensor_type
        if kind.elem_type == onnx.TensorProto.DOUBLE:
            array = rng.standard_normal([dim.dim_value for dim in kind.shape.dim])
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, item.name))
        else:
            model.graph.input.append(item)
    return model


def check(text: str, rng: np.random.Generator, **feeds: Any) -> None:
    """Compare gradients along random directions with differences of fourth order.

    Those of second order are 2e-6 off for some seeds: loops of sines have large third derivatives.
    """
    model = model_of(text, rng)
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
    feeds = {name: np.array(value) for name, value in feeds.items()}
    session.accumulate(**feeds)
    real = [a.name for a in model.graph.initializer if a.data_type == onnx.TensorProto.DOUBLE]
    assert sorted(session.gradients) == sorted(real)
    for name, parameter in session.parameters.items():
        original, gradient = parameter.copy(), session.gradients[name].copy()
        for direction in (rng.standard_normal(original.shape) for _ in range(3)):
            expected = 0.0
            for factor, times in ((8, 1), (-8, -1), (-1, 2), (1, -2)):
                parameter[...] = original + times * STEP * direction
                expected += factor * float(session.eval(**feeds)) / (12 * STEP)
            parameter[...] = original
            actual = float((gradient * direction).sum())
            assert abs(actual - expected) <= 1e-6 * max(1, abs(expected)), (name, actual, expected)


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("text", [IF, NESTED_IF])
def test_branches(text, chosen, rng) -> None:
    check(text, rng, c=chosen, **({"n": 3} if text == NESTED_IF else {}))


@pytest.mark.parametrize("n", [0, 1, 3, 7])
@pytest.mark.parametrize("text", [LOOP, PRODUCTS, SUMS, NESTED_LOOP])
def test_loops(text, n, rng) -> None:
    """The first may end before n runs, the second has a state that the loss does not read."""
    if not (text == PRODUCTS and n == 0):  # where the loss does not depend on w
        check(text, rng, n=min(n, 3) if text == NESTED_LOOP else n)


def test_extents_that_a_body_says_wrongly_make_no_difference(rng) -> None:
    """A body's values are said to be of one row, of which there are three."""
    head, body = LOOP.replace("u) {", "u) <double[3] a, double[3] b> {").split("body = body")
    check(f"{head.replace('[3] w', '[1] w')}body = body{body.replace('[3]', '[1]')}", rng, n=3)


def test_constants_around_a_body_are_known_in_it(rng) -> None:
    """The gradient of what is padded with elements needs the axes."""
    text = """(int64 n, double[3, 4] x) => (double loss)
            <int64[1] axes = {1}, int64[2] pads = {1, 0}> {
        y = Loop (n, , x) <
            body = body (int64 i, bool was, double[3, 4] s) => (bool was, double[3, 4] t) {
                e = Sin (s) p = Pad <mode = "edge"> (e, pads, , axes)
                m = ReduceSum <keepdims = 1> (p, axes) t = Mul (e, m) }>
        loss = ReduceSum <keepdims = 0> (y)
        }"""
    check(text, rng, n=2)


def test_branches_and_loops_that_the_loss_hardly_depends_on(rng) -> None:
    """Signs alone go through: x has the gradient of what is added to them."""
    text = """(int64 n, bool c, double[3] x) => (double loss) {
        y, q = Loop (n, , x) <
            body = body (int64 i, bool was, double[3] s) => (bool was, double[3] t, double[3] u)
                { t = Sign (s) u = Floor (x) }>
        z = If (c) <then_branch = then () => (double[3] a) { a = Ceil (x) },
            else_branch = other () => (double[3] b) { b = Sign (x) }>
        p = ReduceSum <keepdims = 0> (q) o = Sum (y, z, x)
        r = ReduceSum <keepdims = 0> (o) loss = Add (p, r)
        }"""
    check(text, rng, n=2, c=True)


def test_maps_of_sequences(rng) -> None:
    """Over two sequences, an array, a value around the body, and with two results."""
    text = """(double[3] x, double[2] w, double[1] v, double[1] k) => (double loss) {
        s = SequenceConstruct (x, w) r = SequenceConstruct (w, v)
        t, u = SequenceMap (s, r, v) <
            body = body (double[N] a, double[M] b, double[1] c) => (double[N] d, double e)
                { f = Sin (a) g = Mul (f, c) d = Mul (g, k) h = ReduceSum <keepdims = 0> (b)
                  e = Mul (h, h) }>
        z = ConcatFromSequence <axis = 0> (t) y = ConcatFromSequence <axis = 0, new_axis = 1> (u)
        p = Exp (z) q = ReduceSum <keepdims = 0> (p) m = ReduceProd <keepdims = 0> (y)
        loss = Add (q, m)
        }"""
    check(text, rng)


def test_scans_in_both_directions(rng) -> None:
    check(SCAN, rng)


@pytest.mark.parametrize("n", [1, 4])
def test_a_sequence_that_a_loop_appends_to(n, rng) -> None:
    check(APPENDED, rng, n=n)


@pytest.mark.parametrize("place", [-3, -1, 0, 2])
def test_sequences(place, rng) -> None:
    check(SEQUENCE, rng, i=place)
    check(PARTS, rng, i=place, lengths=[1, 2, 3])


def test_parts_of_a_sequence_that_nothing_reads(rng) -> None:
    text = """(double[5] x) => (double loss) {
        n = Constant <value = int64 {2}> () i = Constant <value = int64 {1}> ()
        y = Sin (x) s = SplitToSequence <axis = 0> (y, n) a = SequenceAt (s, i)
        b = Exp (a) loss = ReduceSum <keepdims = 0> (b)
        }"""
    check(text, rng)


@pytest.mark.parametrize("text", [IF, LOOP, NESTED_LOOP, SCAN, APPENDED, SEQUENCE])
def test_artifacts_are_valid_models(text, rng) -> None:
    onnx.checker.check_model(make(model_of(text, rng), loss="loss", optimizer="SGD").training)


def test_a_state_that_grows_is_refused_as_it_runs(rng) -> None:
    text = """(int64 n, double[3] x) => (double loss) {
        y = Loop (n, , x) <
            body = body (int64 i, bool was, double[M] s) => (bool was, double[N] t)
                { u = Concat <axis = 0> (s, x) t = Exp (u) }>
        loss = ReduceSum <keepdims = 0> (y)
        }"""
    session = cto.onnx.TrainingSession.from_model(model_of(text, rng), loss="loss")
    with pytest.raises(cto.ArgumentError, match=r"one shape in all runs, got \(3,\) and \(6,\)"):
        session.accumulate(n=np.array(2))
    assert not session.gradients["x"].any()


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("t, k = Unique (s)", "which elements are equal"),
        ("t = Dropout (s)", "it draws random numbers inside of a subgraph"),
    ],
)
def test_what_a_body_cannot_be_trained_with(step, words, rng) -> None:
    text = f"""(int64 n, double[3] x) => (double loss) {{
        y = Loop (n, , x) <
            body = body (int64 i, bool was, double[3] s) => (bool was, double[3] t) {{ {step} }}>
        loss = ReduceSum <keepdims = 0> (y)
        }}"""
    with pytest.raises(cto.ArgumentError, match=words):
        cto.onnx.TrainingSession.from_model(model_of(text, rng), loss="loss")


def test_a_sequence_that_runs_read_is_refused(rng) -> None:
    text = """(int64 n, double[3] x) => (double loss) {
        e = SequenceConstruct (x)
        y, l = Loop (n, , x, e) <
            body = body (int64 i, bool was, double[3] s, seq(double[N]) p)
                => (bool was, double[3] t, seq(double[N]) o)
                { z = Constant <value = int64 {0}> () a = SequenceAt (p, z) t = Mul (s, a)
                  o = SequenceInsert (p, t) }>
        loss = ReduceSum <keepdims = 0> (y)
        }"""
    with pytest.raises(cto.ArgumentError, match="needs the sequence 'p' of each run"):
        cto.onnx.TrainingSession.from_model(model_of(text, rng), loss="loss")


@pytest.mark.parametrize(("text", "feeds"), [(IF, {"c": True}), (LOOP, {"n": 3}), (SCAN, {})])
def test_a_trained_model_is_exported(text, feeds, tmp_path, rng) -> None:
    session = cto.onnx.TrainingSession.from_model(model_of(text, rng), loss="loss", optimizer="SGD")
    feeds = {name: np.array(value) for name, value in feeds.items()}
    before = float(session.step(**feeds))
    path = tmp_path / "model.onnx"
    session.export(path, ["loss"])
    onnx.checker.check_model(str(path))
    exact = float(session.eval(**feeds))
    assert exact != before
    assert float(cto.onnx.Session(path).run(feeds)["loss"]) == exact
    runtime = pytest.importorskip("onnxruntime")
    (theirs,) = runtime.InferenceSession(str(path)).run(None, feeds)
    np.testing.assert_allclose(theirs, exact, rtol=1e-9)


@pytest.mark.parametrize("is_there", [False, True])
def test_an_optional_input_is_fed_or_none(is_there, rng, tmp_path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
        g (double[2, 3] x, optional(double[2, 3]) z) => (double[2, 4] y) <double[3, 4] w> {
            has = OptionalHasElement (z)
            y = If (has) <
                then_branch = then () => (double[2, 4] a)
                    { e = OptionalGetElement (z) s = Add (x, e) a = MatMul (s, w) },
                else_branch = other () => (double[2, 4] a) { a = MatMul (x, w) }>
        }"""
    model, w = onnx.parser.parse_model(text), rng.standard_normal((3, 4))
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    x, z, labels = (rng.standard_normal(shape) for shape in ((2, 3), (2, 3), (2, 4)))
    total, fed = (x + z, z) if is_there else (x, None)
    difference = total @ w - labels
    cto.onnx.make_artifacts(model, tmp_path, loss="mse")
    for session in (
        cto.onnx.TrainingSession.from_model(model, loss="mse"),
        cto.onnx.TrainingSession(tmp_path),
    ):
        np.testing.assert_allclose(session.eval(x=x, z=fed), total @ w)
        np.testing.assert_allclose(session.accumulate(x, fed, labels), np.mean(difference**2))
        np.testing.assert_allclose(session.gradients["w"], total.T @ difference / 4)
    with pytest.raises(cto.ArgumentError, match="step: z: expected 3 as extent 1, got"):
        session.step(x, z[:, :2], labels)


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("If", []),
        ("If", ["flag"]),
        ("If", ["x"]),
        ("Loop", ["", "", "x"]),
        ("Scan", ["x"]),
        ("SequenceMap", ["x"]),
        ("SequenceAt", []),
        ("SequenceAt", ["x"]),
        ("SplitToSequence", []),
        ("ConcatFromSequence", ["x"]),
        ("SequenceInsert", ["x"]),
    ],
)
def test_damaged_nodes_are_refused_in_words(op_type, inputs, rng) -> None:
    model = model_of("(double[3] x) => (double loss) { loss = ReduceSum <keepdims = 0> (x) }", rng)
    flag = onnx.numpy_helper.from_array(np.array(True), "flag")
    model.graph.initializer.append(flag)
    model.graph.node.insert(0, onnx.helper.make_node(op_type, inputs, ["y"]))
    model.graph.node[1].input[0] = "y"
    with pytest.raises(cto.ArgumentError):
        cto.onnx.TrainingSession.from_model(model, loss="loss")
