# SPDX-License-Identifier: MIT
"""Models that are refused, each with all reasons at once, and calls of one node."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import cupy_training_ops as cto


def model(body: str, inputs: str = "float[N, 4] x", outputs: str = "float[N, 4] y"):
    text = f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g ({inputs})'
    return onnx.parser.parse_model(f"{text} => ({outputs}) {{ {body} }}")


def refusal(body: str, **said: str) -> str:
    with pytest.raises(cto.OpError) as caught:
        cto.onnx.Session(model(body, **said))
    return str(caught.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    text = refusal(
        """a = Unheard(x)
        b = my.domain.Relu(a)
        c = Softmax <axes=1> (x)
        d = Gemm(x)
        e = com.microsoft.GatherGrad(x)
        y = Add(b, missing)"""
    )
    for words in (
        "(Unheard): unknown operator Unheard of ONNX's own domain",
        "(Relu): unknown operator Relu of domain 'my.domain'",
        "(Softmax): unknown attributes axes",
        "(Gemm): its input b is missing",
        "(GatherGrad): its input indices is missing",
    ):
        assert words in text
    assert "nothing makes its input 'missing'" in refusal("y = Add(x, missing)")


def test_a_node_that_has_a_name_is_called_by_it() -> None:
    assert "node 0 'first' (Unheard)" in refusal('["first"] y = Unheard(x)')


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("a = Add(x, c) c = Relu(a) y = Relu(x)", "in a circle"),
        ("y = Add(x, y)", "in a circle"),
        ("y = Relu(x) y = Neg(x)", "made twice"),
        ("x = Relu(x) y = Neg(x)", "made twice"),
        ("a = Relu(x)", "output 'y': nothing makes it"),
        ("i = Cast <to=7> (x) y = Add(x, i)", "B: expected float32 as the others, got int64"),
        ("i = Cast <to=7> (x) y = Gelu(i)", "unknown operator|not in opset"),
        ("i = Cast <to=7> (x) y = com.microsoft.Gelu(i)", "expected dtype .*, got int64"),
        ("i = Cast <to=7> (x) y = Sigmoid(i)", "X: int64 is not among what Sigmoid takes"),
        ("y = Cast <to=99> (x)", "99"),
        ("y = com.microsoft.NcclAllReduce(x)", "needs other processes"),
        ('y = com.microsoft.PythonOp <func_name="f"> (x)', "needs other processes"),
    ],
)
def test_what_cannot_run_is_refused(body: str, words: str) -> None:
    with pytest.raises(cto.OpError, match=words):
        cto.onnx.Session(model(body))


def test_nodes_in_any_order_run_in_one_that_they_can() -> None:
    proto = model("a = Relu(x) b = Neg(a) y = Exp(b)")
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    x = np.array([[1, -1, 2, 0]], np.float32)
    expected = np.exp(-np.maximum(x, 0))
    np.testing.assert_allclose(cto.onnx.Session(proto).run({"x": x})["y"], expected, rtol=1e-6)


def test_a_failing_node_is_named_when_it_runs() -> None:
    session = cto.onnx.Session(model('["inner"] y = MatMul(x, x)'))
    with pytest.raises(cto.ArgumentError, match=r"node 0 'inner' \(MatMul\)"):
        session.run({"x": np.ones((3, 4), np.float32)})


@pytest.mark.parametrize("feeds", [{}, {"x": None, "z": None}])
def test_feeds_are_those_of_the_model(feeds) -> None:
    session = cto.onnx.Session(model("y = Relu(x)"))
    array = np.ones((3, 4), np.float32)
    with pytest.raises(cto.ArgumentError, match="feeds"):
        session.run(dict.fromkeys(feeds, array))


def test_functions_of_a_model_are_put_in_place() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
    g (float[N, 4] x) => (float[N, 4] y) { y = mine.twice(x) }
    <domain: "mine", opset_import: ["" : 17]>
    twice (a) => (b) { b = Add(a, a) }"""
    session = cto.onnx.Session(onnx.parser.parse_model(text))
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], x + x)


def test_functions_have_their_default_attributes() -> None:
    """Called by the graph, by another function, and in a branch; unless the call says another."""
    text = """<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
    g (float[2] x) => (float[2] a, float[2] b, float[2] c, float[2] d) {
        a = own.f (x) b = own.g (x) d = own.f <k = 8.0> (x)
        yes = Constant <value = bool {1}> ()
        c = If (yes) <then_branch = t () => (float[2] y) { y = own.f (x) },
                      else_branch = e () => (float[2] z) { z = Identity (x) }> }
    <domain: "own", opset_import: ["" : 18]> f <k: float = 0.5> (x) => (y) {
        n = Constant <value_float: float = @k> () y = Mul (x, n) }
    <domain: "own", opset_import: ["" : 18, "own" : 1]> g (x) => (y) { z = own.f (x) y = Neg (z) }
    """
    model = onnx.parser.parse_model(text)
    before = model.SerializeToString()
    x = np.float32([2, -4])
    results = cto.onnx.Session(model).run({"x": x}).values()
    for actual, factor in zip(results, (0.5, -0.5, 0.5, 8), strict=True):
        np.testing.assert_array_equal(actual, factor * x)
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("opset", "node"), [(17, "ReduceMax <axes = [1]> (x)"), (21, "ReduceMax (x, axes)")]
)
def test_functions_of_another_opset_are_converted(opset: int, node: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
    g (float[2, 3] x) => (float[2, 1] y) {{ y = own.f (x) }}
    <domain: "own", opset_import: ["" : {opset}]> f (x) => (y) {{
        axes = Constant <value_ints = [1]> () y = {node} }}"""
    x = np.float32([[1, 3, 2], [-1, -2, -3]])
    y = cto.onnx.Session(onnx.parser.parse_model(text)).run({"x": x})["y"]
    np.testing.assert_array_equal(y, [[3], [-1]])


def test_a_value_is_not_overwritten_while_another_node_needs_it(rng) -> None:
    body = """a = Neg(x) r = Reshape(a, s) b = Relu(a) c = Exp(b) d = Add(c, b)
    e = Identity(d) f = Mul(d, d) g = Add(e, f) h = Reshape(r, t) y = Add(g, h)"""
    proto = model(body)
    proto.graph.initializer.extend(
        helper.make_tensor(name, TensorProto.INT64, [2], dims)
        for name, dims in (("s", (4, -1)), ("t", (-1, 4)))
    )
    x = rng.standard_normal((3, 4)).astype(np.float32)
    before = x.copy()
    session = cto.onnx.Session(proto)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})[0]
    for _ in range(2):
        np.testing.assert_allclose(session.run({"x": x})["y"], expected, rtol=1e-6)
    np.testing.assert_array_equal(x, before)


def test_what_a_caller_writes_into_a_result_is_the_callers() -> None:
    body = "c = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> () v = Reshape(c, s) y = Add(x, v)"
    proto = model(body, outputs="float[4] c, float[1, 4] v, float[N, 4] y")
    proto.graph.initializer.append(helper.make_tensor("s", TensorProto.INT64, [2], (1, 4)))
    session, x = cto.onnx.Session(proto), np.zeros((1, 4), np.float32)
    for _ in range(2):
        actual = session.run({"x": x})
        np.testing.assert_array_equal(actual["y"], [[1, 2, 3, 4]])
        actual["c"][:] = actual["v"][:] = 7


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("s = SequenceConstruct(c, x)", "seq(float[4]) s"),
        ("r = SequenceConstruct(c, x) y = SequenceAt(r, zero)", "float[4] y"),
        ("s = SplitToSequence<axis = 0, keepdims = 0>(d)", "seq(float[4]) s"),
        ("y = Einsum<equation = 'i->i'>(c)", "float[4] y"),
        ("y = Identity(x)", "float[4] y"),
        ("y = Reshape(x, shape)", "float[1, 4] y"),
    ],
)
def test_a_result_that_passes_on_constants_or_inputs_is_the_callers(body: str, outputs) -> None:
    head = "zero = Constant <value_int = 0> () shape = Constant <value_ints = [1, 4]> ()"
    head += " c = Constant <value_floats = [1.0, 1.0, 1.0, 1.0]> () d = Unsqueeze(c, axes)"
    head += " axes = Constant <value_ints = [0]> () "
    body = body.replace("'", '"')
    session = cto.onnx.Session(model(head + body, "float[4] x", outputs))
    x = np.ones(4, np.float32)
    for _ in range(2):
        ((name, actual),) = session.run({"x": x} if session.inputs else {}).items()
        for array in actual if name == "s" else [actual]:
            assert (array == 1).all()
            array[...] = 7
    assert (x == 1).all()


def test_an_update_reaches_the_callers_array_or_is_refused() -> None:
    proto = model("f, y = com.microsoft.InPlaceAccumulatorV2(b, x)", "float[N, 4] b, float[N, 4] x")
    buffer, value = np.zeros((4, 3), np.float32).T, np.ones((3, 4), np.float32)
    session = cto.onnx.Session(proto)
    with pytest.raises(cto.ArgumentError, match="layout"):
        session.run({"b": buffer, "x": value})
    session.run({"b": (dense := buffer.copy("C")), "x": value})
    np.testing.assert_array_equal(dense, value)


@pytest.mark.parametrize("inputs", ["string[N] x", "seq(string) x"])
def test_elements_that_are_not_computed_are_refused_at_load(inputs: str) -> None:
    said = refusal("y = Identity(x)", inputs=inputs, outputs="float[N] y")
    assert "value 'x': elements of ONNX type" in said


def test_a_value_is_not_overwritten_beside_a_view_of_it(rng) -> None:
    """The operator would refuse to write over one of two inputs that share memory."""
    x = rng.standard_normal((3, 4)).astype(np.float32)
    actual = cto.onnx.Session(model("a = Neg(x) b = Identity(a) y = com.microsoft.GeluGrad(a, b)"))
    np.testing.assert_array_equal(actual.run({"x": x})["y"], cto.gelu_grad(-x, -x))


# ---- one node ------------------------------------------------------------------------------------


def test_a_node_is_called_with_arrays_by_position() -> None:
    node = helper.make_node(
        "GatherGrad", ["shape", "i", "dy"], ["dx"], axis=1, domain="com.microsoft"
    )
    dy, i = np.ones((2, 2), np.float32), np.array([0, 2])
    (dx,) = cto.onnx.call(node, [np.array([2, 3]), i, dy])
    np.testing.assert_array_equal(dx, [[1, 0, 1], [1, 0, 1]])


def test_a_missing_input_is_none_and_lambda_is_read() -> None:
    node = helper.make_node(
        "AdamOptimizer",
        ["r", "t", "w", "g", "m", "v", "", "", "", "signal"],
        ["t2", "m2", "v2", "w2"],
        domain="com.microsoft",
        **{"lambda": 0.5},
    )
    w, g = np.ones(3, np.float32), np.zeros(3, np.float32)
    inputs = [np.float32([0.1]), np.int64([1]), w, g, g.copy(), g.copy(), None, None, None, None]
    actual = cto.onnx.call(node, inputs)
    np.testing.assert_allclose(actual[3], 0.95, rtol=1e-6)
    assert actual[3] is w


def test_a_list_spreads_over_a_nodes_inputs() -> None:
    node = helper.make_node(
        "ConcatTraining", ["a", "b"], ["c", "n"], axis=0, domain="com.microsoft"
    )
    whole, lengths = cto.onnx.call(node, [np.ones(2, np.float32), np.zeros(3, np.float32)])
    np.testing.assert_array_equal(whole, [1, 1, 0, 0, 0])
    np.testing.assert_array_equal(lengths, [2, 3])


def test_lists_take_turns_among_a_nodes_inputs() -> None:
    names = ["", "", "", "r", "t", "w1", "g1", "m1", "v1", "", "w2", "g2", "m2", "v2", ""]
    outputs = ["t2", "nw1", "", "nm1", "nv1", "", "nw2", "", "nm2", "nv2", ""]
    node = helper.make_node("LambOptimizer", names, outputs, domain="com.microsoft")
    arrays = [np.full(n, 0.5, np.float32) for n in (2, 2, 2, 2, 3, 3, 3, 3)]
    arrays = [*arrays[:4], None, *arrays[4:], None]
    actual = cto.onnx.call(node, [None, None, None, np.float32([0.1]), np.int64([1]), *arrays])
    assert actual[1].shape == (2,)
    assert actual[6].shape == (3,)
    assert (actual[1] < 0.5).all()


def test_the_reference_evaluator_runs_our_operators(rng) -> None:
    proto = model(
        "a = com.microsoft.QuickGelu(x) y = com.microsoft.QuickGeluGrad(a, x)",
    )
    x = rng.standard_normal((3, 4)).astype(np.float32)
    evaluator = ReferenceEvaluator(proto, new_ops=cto.onnx.reference_ops())
    got = evaluator.run(None, {"x": x})[0]
    np.testing.assert_array_equal(got, cto.quick_gelu_grad(cto.quick_gelu(x), x))
    np.testing.assert_array_equal(got, cto.onnx.Session(proto).run({"x": x})["y"])


def test_the_reference_evaluator_takes_sequences_and_upstreams_fused_operators() -> None:
    proto = model(
        """a = SequenceConstruct(x, x)
        f, b = com.microsoft.SGDOptimizerV2(lr, a, a)
        n = Constant <value_int = 1> ()
        c = SequenceAt(b, n)
        y = com.microsoft.FusedMatMul <transB = 1> (c, x)""",
        "float[1] lr, float[N, 4] x",
    )
    feeds = {"lr": np.float32([0.25]), "x": np.ones((2, 4), np.float32)}
    evaluator = ReferenceEvaluator(proto, new_ops=cto.onnx.reference_ops())
    np.testing.assert_array_equal(evaluator.run(None, feeds)[0], np.full((2, 2), 3.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"xp": "cupy"}, "Session: xp: expected numpy or cupy, the module, got 'cupy'"),
        ({"xp": None}, "Session: xp: expected numpy or cupy, the module, got None"),
        ({"seed": "a"}, "Session: seed: expected an integer, got 'a'"),
        ({"seed": 1.5}, "Session: seed: expected an integer, got 1.5"),
    ],
)
def test_what_a_session_cannot_be_made_with_is_refused(options, message) -> None:
    with pytest.raises(cto.ArgumentError, match=message):
        cto.onnx.Session(model("y = Relu(x)"), **options)


@pytest.mark.parametrize(
    ("session", "message"),
    [
        (cto.onnx.Session, "Session: model: expected a model, its bytes or the path of its file"),
        (cto.onnx.TrainingSession, "TrainingSession: artifacts: expected the path of a folder"),
    ],
)
def test_what_is_no_path_is_refused(session, message) -> None:
    for feed in (5, None):
        with pytest.raises(cto.ArgumentError, match=f"{message}, got {feed}"):
            session(feed)


def test_what_is_no_node_and_no_list_of_arrays_is_refused() -> None:
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    with pytest.raises(cto.ArgumentError, match=r"call: node: expected an onnx\.NodeProto, got 'R"):
        cto.onnx.call("Relu", [np.ones(3)])
    with pytest.raises(cto.ArgumentError, match="call: inputs: expected a list of arrays, got 3"):
        cto.onnx.call(node, 3)
    assert cto.onnx.call(node, (np.ones(3),))[0].sum() == 3


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        (None, r"feeds: expected a dictionary of \['x'\], got NoneType"),
        ([np.ones((1, 4), np.float32)], r"feeds: expected a dictionary of \['x'\], got list"),
        ({3: 1, "x": 2}, r"feeds: expected \['x'\], got with 3"),
        ({"x": np.ones((2, 3), np.float32)}, r"x: expected 4 as extent 1, got shape \(2, 3\)"),
    ],
)
def test_what_a_session_cannot_be_fed_with_is_refused(feeds, message) -> None:
    ones = ", ".join(["1.0"] * 16)
    weights = f"w = Constant <value = float[4, 4] {{{ones}}}> ()"
    session = cto.onnx.Session(model(f"{weights} y = Gemm(x, w)"))
    with pytest.raises(cto.ArgumentError, match=message):
        session.run(feeds)


def test_what_cannot_be_multiplied_is_refused() -> None:
    session = cto.onnx.Session(model("y = Gemm(x, x)", inputs="float[N, M] x"))
    with pytest.raises(cto.ArgumentError, match=r"Gemm.*: expected shapes .* \(2, 3\) and \(2, 3"):
        session.run({"x": np.ones((2, 3), np.float32)})
