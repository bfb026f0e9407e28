# SPDX-License-Identifier: MIT
"""Operators that run by their bodies: against PyTorch, ONNX's reference and formulas; and how
bodies are put in place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import cupy_training_ops as cto
from cupy_training_ops.onnx import session
from cupy_training_ops.onnx.bodies import expand
from cupy_training_ops.onnx.models import read_model

from . import boxes

torch = pytest.importorskip("torch")
functional = torch.nn.functional

TYPES = {"float64": 11, "float32": 1, "int64": 7, "bool": 9}


def model_of(node: str, arrays: dict[str, np.ndarray | None], opset: int = 24) -> onnx.ModelProto:
    """A model that is one node of these inputs (None is left out), whose result is y."""
    said = {n: a for n, a in arrays.items() if a is not None}
    inputs = [
        helper.make_tensor_value_info(n, TYPES[str(a.dtype)], a.shape) for n, a in said.items()
    ]
    name, _, attributes = node.partition(" ")
    body = onnx.parser.parse_graph(f"g () => (y) {{ y = {name} {attributes} () }}")
    body.node[0].input.extend(n if a is not None else "" for n, a in arrays.items())
    graph = helper.make_graph(body.node, "g", inputs, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def run(node: str, arrays: dict[str, np.ndarray | None], opset: int = 24) -> np.ndarray:
    session = cto.onnx.Session(model_of(node, arrays, opset))
    return session.run({n: a for n, a in arrays.items() if a is not None})["y"]


def drawn(rng: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


# ---- against PyTorch -----------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("form", ["plain", "causal", "mask", "bool", "scale"])
def test_attention(heads, form, rng) -> None:
    """Grouped heads: each head of k serves several of q."""
    n, m = heads
    x = drawn(rng, q=(2, n, 3, 5), k=(2, m, 4, 5), v=(2, m, 4, 7))
    mask, attributes = None, ""
    if form in ("mask", "bool"):
        mask = rng.standard_normal((3, 4)) if form == "mask" else rng.random((3, 4)) < 0.7
        if form == "bool":
            mask[:, 0] = True
        x["mask"] = mask
    if form == "causal":
        attributes = "<is_causal=1>"
    if form == "scale":
        attributes = "<scale=0.3>"
    repeated = [torch.tensor(x[name]).repeat_interleave(n // m, 1) for name in "kv"]
    expected = functional.scaled_dot_product_attention(
        torch.tensor(x["q"]),
        *repeated,
        attn_mask=None if mask is None else torch.tensor(mask),
        is_causal=form == "causal",
        scale=float(np.float32(0.3)) if form == "scale" else None,
    )
    np.testing.assert_allclose(run(f"Attention {attributes}", x), expected, rtol=1e-11, atol=1e-13)


def test_attention_of_flat_heads(rng) -> None:
    """Heads that lie in the last dimension."""
    x = drawn(rng, q=(2, 3, 8), k=(2, 4, 8), v=(2, 4, 8))
    actual = run("Attention <q_num_heads=2, kv_num_heads=2>", x)
    split = [torch.tensor(x[n]).unflatten(2, (2, 4)).transpose(1, 2) for n in "qkv"]
    expected = functional.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-13)


def test_normalizations(rng) -> None:
    x = drawn(rng, x=(2, 6, 5), scale=(5,))
    expected = functional.rms_norm(
        torch.tensor(x["x"]), (5,), torch.tensor(x["scale"]), eps=float(np.float32(1e-3))
    )
    actual = run("RMSNormalization <epsilon=0.001>", x)
    np.testing.assert_allclose(actual, expected, rtol=1e-11)
    x = drawn(rng, x=(2, 6, 5), scale=(6,), bias=(6,))
    tensors = [torch.tensor(array) for array in x.values()]
    expected = functional.group_norm(tensors[0], 3, *tensors[1:], eps=float(np.float32(1e-5)))
    actual = run("GroupNormalization <num_groups=3>", x, 21)
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-13)


def test_groups_of_opset_18_share_a_scale(rng) -> None:
    """Later each channel has its own."""
    x = drawn(rng, x=(2, 6, 5), scale=(3,), bias=(3,))
    rows = x["x"].reshape(2, 3, -1)
    centred = rows - rows.mean(-1, keepdims=True)
    unit = centred / np.sqrt(rows.var(-1, keepdims=True) + np.float32(1e-5))
    expected = unit * x["scale"][:, None] + x["bias"][:, None]
    actual = run("GroupNormalization <num_groups=3>", x, 18)
    np.testing.assert_allclose(actual, expected.reshape(2, 6, 5), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_of_logarithms(reduction, weighted, rng) -> None:
    x: dict[str, np.ndarray] = drawn(rng, x=(3, 5, 4))
    x["labels"] = rng.integers(0, 5, (3, 4))
    x["labels"][0, 1] = 2  # to be ignored
    if weighted:
        x["weight"] = rng.random(5)
    actual = run(f'NegativeLogLikelihoodLoss <reduction="{reduction}", ignore_index=2>', x, 22)
    tensors = [torch.tensor(array) for array in x.values()]
    expected = functional.nll_loss(*tensors, ignore_index=2, reduction=reduction)
    np.testing.assert_allclose(actual, expected, rtol=1e-11)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotation(interleaved, rng) -> None:
    """Pairs of features (i, i + n / 2), or (2i, 2i + 1), turn by an angle: (a + bi)(c + si)."""
    x = drawn(rng, x=(2, 3, 4, 6), cos=(2, 4, 3), sin=(2, 4, 3))
    actual = run(f"RotaryEmbedding <interleaved={interleaved}>", x)
    halves = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(3), slice(3, 6))
    turned = (x["x"][..., halves[0]] + 1j * x["x"][..., halves[1]]) * (
        x["cos"][:, None] + 1j * x["sin"][:, None]
    )
    np.testing.assert_allclose(actual[..., halves[0]], turned.real, rtol=1e-11)
    np.testing.assert_allclose(actual[..., halves[1]], turned.imag, rtol=1e-11)


def test_a_body_that_needs_a_rank_has_it_inferred(rng) -> None:
    """Heads of three dimensions are split; the model says nothing of the value that is turned."""
    x = drawn(rng, x=(2, 4, 12), w=(12, 12), cos=(2, 4, 3), sin=(2, 4, 3))
    model = model_of("RotaryEmbedding <num_heads=2>", {n: x[n] for n in ("x", "cos", "sin")})
    model.graph.node[0].input[0] = "z"
    model.graph.node.insert(0, helper.make_node("MatMul", ["x", "w"], ["z"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(x["w"], "w"))
    feeds = {n: x[n] for n in ("x", "cos", "sin")}
    actual = cto.onnx.Session(model).run(feeds)["y"].reshape(2, 4, 2, 6)
    z = (x["x"] @ x["w"]).reshape(2, 4, 2, 6)
    turned = (z[..., :3] + 1j * z[..., 3:]) * (x["cos"] + 1j * x["sin"])[:, :, None]
    np.testing.assert_allclose(actual[..., :3], turned.real, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(actual[..., 3:], turned.imag, rtol=1e-11, atol=1e-13)


# ---- against ONNX's reference --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "shapes", "opset"),
    [
        ("Swish <alpha=0.5>", {"x": (3, 4)}, 24),
        ("Swish", {"x": (0, 4)}, 24),
        ("Shrink <lambd=0.4, bias=0.1>", {"x": (3, 4)}, 9),
        ("MeanVarianceNormalization <axes=[0, 2]>", {"x": (2, 3, 4)}, 13),
        ("MeanVarianceNormalization", {"x": (2, 3, 4, 2)}, 9),
        ("RMSNormalization <axis=-2>", {"x": (2, 3, 4), "scale": (3, 4)}, 23),
    ],
)
def test_against_the_reference(node, shapes, opset, rng) -> None:
    arrays = {n: a.astype(np.float32) for n, a in drawn(rng, **shapes).items()}
    expected = ReferenceEvaluator(model_of(node, arrays, opset)).run(None, arrays)[0]
    np.testing.assert_allclose(run(node, arrays, opset), expected, rtol=1e-5, atol=1e-6)


# ---- in place ------------------------------------------------------------------------------------


def graph_of(text: str, opset: int = 24):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> g {text}')
    return read_model(model)[0]


def test_values_have_names_of_their_own() -> None:
    """Two nodes of one operator, and a value that is called as one of a body would be."""
    text = (
        "(float[3] x) => (float[3] z) { y = Swish (x) v = Relu (x) w = Add (y, v) z = Swish (w) }"
    )
    graph = graph_of(text)
    graph = graph.with_nodes(
        replace(
            node,
            inputs=tuple(n.replace("v", "y/Swish/Alpha") for n in node.inputs),
            outputs=tuple(n.replace("v", "y/Swish/Alpha") for n in node.outputs),
        )
        for node in graph.nodes
    )
    wider = expand(graph, lambda node: node.op_type == "Swish")
    names = [name for node in wider.nodes for name in node.outputs]
    assert len(names) == len(set(names)) == 12
    x = np.array([-1, 0, 2], np.float32)
    actual = cto.onnx.Session(wider).run({"x": x})["z"]
    w = np.maximum(x, 0) + x / (1 + np.exp(-x))
    np.testing.assert_allclose(actual, w / (1 + np.exp(-w)), rtol=1e-6)


def test_a_body_within_a_body() -> None:
    graph = expand(graph_of("(float[3] x) => (float[3] y) { y = Celu (x) }", 12), lambda _: True)
    assert not {node.op_type for node in graph.nodes} & {"Celu", "Elu"}


def test_a_body_keeps_its_opset_and_its_node_s_attributes(rng) -> None:
    """HardSigmoid of opset 6 in a newer graph; attributes that are not said have their defaults."""
    text = "(float[3] x) => (float[3] y) { y = HardSigmoid <alpha=0.7> (x) }"
    graph = expand(graph_of(text, 20), lambda node: node.op_type == "HardSigmoid")
    assert {node.version for node in graph.nodes} == {18}
    values = [node.attributes for node in graph.nodes if node.op_type == "Constant"]
    assert {round(v["value_float"], 6) for v in values if "value_float" in v} >= {0.7, 0.5}
    x = rng.standard_normal(3).astype(np.float32) * 3
    session = cto.onnx.Session(graph)
    np.testing.assert_allclose(session.run({"x": x})["y"], np.clip(0.7 * x + 0.5, 0, 1), rtol=1e-6)


def test_a_body_that_needs_a_type_is_refused_without_it() -> None:
    model = model_of("RMSNormalization", {"x": np.ones((2, 3)), "scale": np.ones(3)})
    model.graph.input[0].type.tensor_type.elem_type = 0
    with pytest.raises(cto.ArgumentError, match="the type of X, 'x': expected one that the model"):
        cto.onnx.Session(model)


def test_a_node_by_itself_runs_by_its_body(rng) -> None:
    """With inputs that are left out, and one input twice."""
    x = drawn(rng, x=(2, 4, 3, 5))["x"]
    node = helper.make_node("Attention", ["x", "x", "x", "", ""], ["y"], is_causal=1)
    actual = cto.onnx.call(node, [x, x, x, None, None])
    q = torch.tensor(x)
    expected = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    np.testing.assert_allclose(actual[0], expected, rtol=1e-11, atol=1e-13)
    with pytest.raises(cto.ArgumentError, match="unknown operator Frob"):
        cto.onnx.call(helper.make_node("Frob", ["x"], ["y"]), [x])


@pytest.mark.parametrize(
    ("node", "inputs", "words"),
    [
        ("Attention <is_causal=0.5>", "qkv", "is_causal: expected an integer, got 0.5"),
        ("Attention <q_num_heads=[1]>", "qkv", "q_num_heads: expected an integer"),
        ("Attention <heads=2>", "qkv", "unknown attributes heads"),
        ("Attention", "qk", "expected from 3 to 6 inputs, got 2"),
        ("Attention", "qk-", "its input V is missing"),
        ("MeanVarianceNormalization <axes=[0.5]>", "q", "axes: expected a list of integers"),
        ("AffineGrid <align_corners=1>", "q-", "its input size is missing"),
    ],
)
def test_nodes_that_do_not_fit_their_schema_are_refused(node, inputs, words) -> None:
    """Though a body might be computed."""
    arrays = {n if n != "-" else "": np.ones((1, 2, 3, 4)) if n != "-" else None for n in inputs}
    with pytest.raises(cto.ArgumentError, match=words):
        cto.onnx.Session(model_of(node, arrays, 23))


def test_an_output_that_a_body_does_not_make_is_refused() -> None:
    model = model_of("Attention", {n: np.ones((1, 2, 3, 4)) for n in "qkv"}, 23)
    model.graph.node[0].output.extend(["a", "b", "c", "d"])
    with pytest.raises(cto.ArgumentError, match="its output 4 is not computed for these inputs"):
        cto.onnx.Session(model)
    del model.graph.node[0].output[:]
    with pytest.raises(cto.ArgumentError, match="expected at least 1 outputs"):
        cto.onnx.Session(model)


@pytest.mark.skipif(
    not onnx.defs.has("FlexAttention", domain="ai.onnx.preview"), reason="an older onnx"
)
def test_a_body_that_is_made_of_the_node_s_graph(rng) -> None:
    """Attention's scores, which a graph halves."""
    text = """<ir_version: 11, opset_import: ["" : 25, "ai.onnx.preview" : 1]>
        g (double[1, 2, 3, 4] q, double[1, 2, 5, 4] k, double[1, 2, 5, 4] v)
        => (double[1, 2, 3, 4] y) {
        y = ai.onnx.preview.FlexAttention <score_mod = m (double[B, H, L, S] s)
            => (double[B, H, L, S] t) { half = Constant <value = double {0.5}> ()
            t = Mul (s, half) }> (q, k, v) }"""
    x = drawn(rng, q=(1, 2, 3, 4), k=(1, 2, 5, 4), v=(1, 2, 5, 4))
    actual = cto.onnx.Session(onnx.parser.parse_model(text)).run(x)["y"]
    expected = functional.scaled_dot_product_attention(*map(torch.tensor, x.values()), scale=0.25)
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("node", "shapes"),
    [
        ("Attention <is_causal=1>", {"q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 8)}),
        (
            "Attention <q_num_heads=4, kv_num_heads=2, softcap=3.0>",
            {"q": (2, 3, 8), "k": (2, 5, 4), "v": (2, 5, 4), "mask": (3, 5)},
        ),
        (
            "Attention <is_causal=1>",
            {"q": (2, 2, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 8), "bools": (3, 5)},
        ),
        ("RMSNormalization", {"x": (2, 3, 4), "scale": (4,)}),
        ("GroupNormalization <num_groups=2>", {"x": (2, 4, 3), "scale": (4,), "bias": (4,)}),
        ("RotaryEmbedding", {"x": (2, 3, 4, 6), "cos": (2, 4, 3), "sin": (2, 4, 3)}),
    ],
)
def test_bodies_fetch_nothing_from_a_device(node, shapes, rng, monkeypatch) -> None:
    """Their shapes are computed on the host."""
    monkeypatch.setattr(session, "node_runners", boxes.runners)
    x = {n: a.astype(np.float32) for n, a in drawn(rng, **shapes).items()}
    if "bools" in x:
        x["bools"] = x["bools"] > 0
    device = boxes.Device()
    actual = cto.onnx.Session(model_of(node, x), device).run(x)["y"]
    np.testing.assert_array_equal(boxes.opened(actual), run(node, x))
    assert not device.fetched
    assert len(device.sent) <= len(x) + 12, "numbers and masks of shapes"
