# SPDX-License-Identifier: MIT
"""Nodes that run graphs of their own: If, Loop, Scan, SequenceMap."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import cupy_training_ops as cto
from cupy_training_ops.onnx import control, parts, session

from . import boxes
from .boxes import Device, opened

IF = """(bool c, float[3] x) => (float[N] y) {
    w = Relu (x)
    y = If (c) <
        then_branch = then () => (float[N] a) { b = Neg (x) a = Add (b, w) },
        else_branch = other () => (float[N] a) <float[1] half = {0.5}> { a = Mul (w, half) }>
    }"""
LOOP = """(int64 n, float[2] x) => (float[2] y, float[N, 2] all) {
    go = Constant <value = bool {1}> ()
    y, all = Loop (n, go, x) <
        body = body (int64 i, bool was, float[2] s) => (bool on, float[2] t, float[2] u) {
            f = Cast <to = 1> (i)
            t = Add (s, f)
            u = Mul (t, x)
            most = Constant <value = float[2] {9, 9}> ()
            less = Less (t, most)
            some = Cast <to = 6> (less)
            least = ReduceMin <keepdims = 0> (some)
            on = Cast <to = 9> (least) }>
    }"""
SCAN = """(float[2] start, float[4, 2] x, float[2, 4] z) => (float[2] y, float[2, 4] all) {
    y, all = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1],
                   scan_output_axes = [1], scan_output_directions = [1],
        body = body (float[2] s, float[2] a, float[2] b) => (float[2] t, float[2] u) {
            p = Mul (a, b) t = Add (s, p) u = Sub (t, start) }> (start, x, z)
    }"""
NESTED = """(bool c, int64 n, float x) => (float y) {
    go = Constant <value = bool {1}> ()
    y = Loop (n, go, x) <
        body = body (int64 i, bool was, float s) => (bool was, float t) {
            t = If (c) <
                then_branch = then () => (float a) { f = Cast <to = 1> (i) a = Add (s, f) },
                else_branch = other () => (float a) { a = Mul (s, x) }> }>
    }"""


SCALARS = """(float start, float[4] x) => (float y, float[4] all) {
    y, all = Scan <num_scan_inputs = 1,
        body = body (float s, float a) => (float t, float u) {
            shape = Shape (a) t = Add (s, a) r = Reshape (t, shape) u = Mul (r, a) }> (start, x)
    }"""


def model_of(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> g {text}')


def compare(text: str, opset: int = 17, **feeds: Any) -> None:
    """The outputs, beside those of ONNX's reference."""
    model = model_of(text, opset)
    actual = cto.onnx.Session(model).run(feeds)
    for got, expected in zip(
        actual.values(), ReferenceEvaluator(model).run(None, feeds), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("chosen", [True, False])
def test_a_branch_reads_values_around_it(chosen, rng) -> None:
    compare(IF, c=np.array(chosen), x=rng.standard_normal(3).astype(np.float32))


def test_elements_of_an_array_are_scanned(rng) -> None:
    """NumPy's are no arrays, but numbers with a type."""
    compare(SCALARS, start=np.float32(2), x=rng.standard_normal(4).astype(np.float32))


@pytest.mark.parametrize("n", [0, 1, 4, 100])
def test_a_loop_ends_by_number_or_condition(n, rng) -> None:
    """0 + 1 + ... + i reaches 9 before 100 times; no time at all gives an empty stack."""
    x = rng.random(2).astype(np.float32)
    model = model_of(LOOP)
    actual = cto.onnx.Session(model).run({"n": np.array(n), "x": x})
    state, rows = x, []
    for i in range(n):
        state = state + np.float32(i)
        rows.append(state * x)
        if not (state < 9).all():
            break
    np.testing.assert_allclose(actual["y"], state, rtol=1e-6)
    np.testing.assert_allclose(actual["all"], np.array(rows).reshape(-1, 2), rtol=1e-6)


def test_a_scan_takes_slices_along_axes_and_backward(rng) -> None:
    start, x, z = (rng.standard_normal(n).astype(np.float32) for n in ((2,), (4, 2), (2, 4)))
    actual = cto.onnx.Session(model_of(SCAN)).run({"start": start, "x": x, "z": z})
    sums = start + np.cumsum(x * z.T[::-1], 0)
    np.testing.assert_allclose(actual["y"], sums[-1], rtol=1e-5)
    np.testing.assert_allclose(actual["all"], (sums - start)[::-1].T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chosen", [True, False])
def test_a_branch_in_a_loop_reads_values_of_both_graphs_around(chosen, rng) -> None:
    compare(NESTED, c=np.array(chosen), n=np.array(3), x=np.float32(rng.random()))


def test_a_result_is_nobody_else_s_memory(rng) -> None:
    """A branch that gives a constant, or a value around it, as it is."""
    text = """(bool c, float[3] x) => (float[3] y, float[3] z) <float[3] ones = {1, 1, 1}> {
        w = Neg (x)
        y = If (c) <then_branch = a () => (float[3] k) { k = Identity (ones) },
                    else_branch = b () => (float[3] k) <float[3] k = {1, 2, 3}> { }>
        u = If (c) <then_branch = a () => (float[3] k) { k = Identity (w) },
                    else_branch = b () => (float[3] k) { k = Neg (w) }>
        v = Relu (u) z = Add (v, w) }"""
    x = rng.standard_normal(3).astype(np.float32)
    x[0] = 1
    actual = cto.onnx.Session(model_of(text))
    for chosen, constant in ((True, [1, 1, 1]), (False, [1, 2, 3])) * 2:
        results = actual.run({"c": np.array(chosen), "x": x})
        np.testing.assert_array_equal(results["y"], constant)
        np.testing.assert_array_equal(results["z"], np.maximum(-x if chosen else x, 0) - x)
        results["y"][:] = 7


def test_what_branches_read_on_the_host_is_there(monkeypatch) -> None:
    """On a device a condition made of a shape fetches nothing, nor does a shape for a branch."""
    monkeypatch.setattr(session, "node_runners", boxes.runners)
    monkeypatch.setattr(control, "node_runners", boxes.runners)
    text = """(float[N] x) => (float[M] y) <int64[1] two = {2}, int64 most = {3}> {
        s = Shape (x) d = Mul (s, two) n = Size (x) c = Less (n, most)
        y = If (c) <then_branch = a () => (float[M] k) { k = Expand (x, d) },
                    else_branch = b () => (float[M] k) { k = Neg (x) }> }"""
    device = Device()
    actual = cto.onnx.Session(model_of(text), device)
    for x in (np.ones(1, np.float32), np.ones(5, np.float32)):
        y = opened(actual.run({"x": x})["y"])
        np.testing.assert_array_equal(y, [1, 1] if len(x) == 1 else -x)
    assert not device.fetched
    loop = cto.onnx.Session(model_of(LOOP), device)
    results = loop.run({"n": np.array(2), "x": np.ones(2, np.float32)})
    np.testing.assert_array_equal(opened(results["all"]), [[1, 1], [2, 2]])
    assert len(device.fetched) == 2  # conditions, each made on the device


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("(int64 i, bool was,", "(bool was,"), "inputs of the body: expected 3, got 2"),
        (("u = Mul (t, x)", "u = Mul (t, i)"), "expected float32 as the others, got int64"),
        (("u = Mul (t, x)", "u = Mul (t, lost)"), "nothing makes its input 'lost'"),
        (("u = Mul (t, x)", "u = Frob (t)"), "its graph body cannot be run"),
        (("f = Cast <to = 1> (i)", "f = RandomNormal <shape = [2]> ()"), "RandomNormal"),
        (("(bool on, float[2] t, float[2] u)", "(bool on, float[2] t)"), "outputs of the body"),
    ],
)
def test_refusals(change, words) -> None:
    with pytest.raises(cto.ArgumentError, match=words):
        cto.onnx.Session(model_of(LOOP.replace(*change)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (IF.replace("If (c)", 'If ("")'), "its input 0 is missing"),
        (IF.replace("then_branch", "other_branch"), "its attribute then_branch is missing"),
        (SCAN.replace("num_scan_inputs = 2", "num_scan_inputs = 5"), "does not fit its inputs"),
        (SCAN.replace("axes = [0, 1]", "axes = [0]"), "scan_input_axes: expected 2 integers"),
        (SCAN.replace("num_scan_inputs", "frob"), "unknown attributes"),
    ],
)
def test_nodes_that_do_not_fit_are_refused(text, words) -> None:
    model = model_of(text.replace('("")', "(c)"))
    if '("")' in text:
        model.graph.node[1].input[0] = ""
    with pytest.raises(cto.ArgumentError, match=words):
        cto.onnx.Session(model)


def test_scans_of_other_lengths_and_empty_ones() -> None:
    start, x = np.zeros(2, np.float32), np.zeros((0, 2), np.float32)
    model = model_of(SCAN.replace("[4, 2] x", "[N, 2] x").replace("[2, 4] z", "[2, M] z"))
    actual = cto.onnx.Session(model)
    empty = actual.run({"start": start, "x": x, "z": x.T})
    np.testing.assert_array_equal(empty["y"], start)
    assert empty["all"].shape == (2, 0)
    with pytest.raises(cto.ArgumentError, match="expected one length of what is scanned"):
        actual.run({"start": start, "x": x, "z": np.zeros((2, 3), np.float32)})


def test_random_numbers_inside_are_refused() -> None:
    text = """(bool c, float[3] x, float r) => (float[3] y) {
        y = If (c) <then_branch = a () => (float[3] k) { k = Dropout (x, r, c) },
                    else_branch = b () => (float[3] k) { k = Dropout (x) }> }"""
    with pytest.raises(cto.ArgumentError, match="draws random numbers inside of a subgraph"):
        cto.onnx.Session(model_of(text))


def test_an_exported_part_has_what_branches_read(tmp_path, rng) -> None:
    """A value, and a constant, that a branch alone reads."""
    text = """(bool c, float[3] x) => (float[3] y, float[3] z) <float[3] k = {1, 2, 3}> {
        w = Neg (x)
        y = If (c) <then_branch = a () => (float[3] r) { r = Add (w, k) },
                    else_branch = b () => (float[3] r) { r = Identity (x) }>
        z = Relu (x) }"""
    model = model_of(text)
    actual = cto.onnx.Session(model)
    path = tmp_path / "part.onnx"
    parts.write_part(actual.graph, model, {}, ["y"], path, sync=False)
    x = rng.standard_normal(3).astype(np.float32)
    result = ReferenceEvaluator(str(path)).run(None, {"c": np.array(True), "x": x})
    np.testing.assert_allclose(result[0], [1, 2, 3] - x, rtol=1e-6)


def test_errors_of_a_run_name_the_node_inside() -> None:
    text = IF.replace("a = Add (b, w)", "i = Constant <value_ints = [5]> () a = Gather (b, i)")
    with pytest.raises(cto.ArgumentError, match="Gather"):
        cto.onnx.Session(model_of(text)).run({"c": np.array(True), "x": np.ones(3, np.float32)})


def test_a_node_by_itself_runs_its_graphs(rng) -> None:
    node = model_of(LOOP).graph.node[1]
    x = rng.random(2).astype(np.float32)
    state, rows = cto.onnx.call(without_captures(node), [np.array(2), np.array(True), x])
    np.testing.assert_allclose(state, x + 1, rtol=1e-6)
    np.testing.assert_allclose(rows, [x, x + 1], rtol=1e-6)
    with pytest.raises(cto.ArgumentError, match="reads its inputs alone, got one that reads x"):
        cto.onnx.call(node, [np.array(2), np.array(True), x])


def without_captures(node: onnx.NodeProto) -> onnx.NodeProto:
    """The loop, whose body stacks its states."""
    own = onnx.NodeProto()
    own.CopyFrom(node)
    multiply = own.attribute[0].g.node[2]
    del multiply.input[1]
    multiply.op_type = "Identity"
    return own


def test_what_updates_a_branch_s_result_leaves_its_constant() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (bool c, float[2] x) => (float[2] y)
        { b = If(c) <then_branch = t () => (float[2] a)
        { a = Constant <value = float[2] {1.0, 1.0}> () },
        else_branch = e () => (float[2] d) { d = Identity(x) }>
        y = com.microsoft.InPlaceAccumulator(b, x) }"""
    )
    session = cto.onnx.Session(model)
    for _ in range(3):
        y = session.run({"c": np.array(True), "x": np.ones(2, np.float32)})["y"]
        np.testing.assert_array_equal(y, [2, 2])
