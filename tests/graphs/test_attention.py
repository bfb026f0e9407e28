# SPDX-License-Identifier: MIT
"""ONNX's Attention by FlashAttention: which nodes, their results, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import cupy_training_ops as cto
from cupy_training_ops.onnx import artifacts, bodies

from .one_operator import check_gradients

# In 1.23 ONNX corrected its body and reference: lengths of causal nodes, queries that see no key.
IS_CORRECTED = tuple(map(int, onnx.__version__.split(".")[:2])) >= (1, 23)
Q, K, V = (2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)
FLAT = (2, 3, 32), (2, 5, 16), (2, 5, 12)
BY_HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
# Attributes, shapes of Q, K and V, shape of the mask and its type, lengths, opset.
NODES: dict[str, tuple[Any, ...]] = {
    "plain": ({}, (Q, K, V), None, "", None, 23),
    "causal": ({"is_causal": 1}, (Q, K, V), None, "", None, 24),
    "softcap": ({"softcap": 2.0, "scale": 0.5}, (Q, K, V), (3, 5), "added", None, 23),
    "bool": ({"softmax_precision": 1}, (Q, K, V), (2, 1, 3, 5), "bool", None, 23),
    "one-key": ({}, (Q, K, V), (4, 3, 1), "added", None, 23),
    "short": ({"is_causal": 1}, (Q, K, V), (3, 4), "bool", None, 24),
    "short-one-key": ({}, (Q, K, V), (2, 1, 1, 1), "added", None, 24),
    "lengths": ({}, (Q, K, V), None, "", [0, 4], 24),
    "causal-lengths": ({"is_causal": 1}, (Q, K, V), (3, 5), "added", [2, 5], 24),
    "flat": ({"is_causal": 1, **BY_HEADS}, FLAT, (3, 5), "added", None, 24),
}


def inputs_of(rng, shapes, mask, kind, lengths, dtype=np.float64) -> list[np.ndarray | None]:
    """Q, K, V, the mask, no caches, lengths; without what is left out at the end."""
    arrays: list[Any] = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    if mask is not None:
        added = rng.standard_normal(mask)
        arrays.append(added > -0.5 if kind == "bool" else added.astype(dtype))
    if lengths is not None:
        arrays += [None] * (6 - len(arrays)) + [np.array(lengths)]
    return arrays


def model_of(
    arrays: list[np.ndarray | None],
    opset: int,
    outputs: tuple[str, ...] = ("y",),
    shapes: bool = True,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and its feeds."""
    feeds = {f"in{i}": a for i, a in enumerate(arrays) if a is not None}
    names = [f"in{i}" if a is not None else "" for i, a in enumerate(arrays)]
    node = helper.make_node("Attention", names, outputs, **attributes)
    given = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape if shapes else [None] * a.ndim
        )
        for name, a in feeds.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
    graph = helper.make_graph([node], "attention", given, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), feeds


def operators(model: onnx.ModelProto, monkeypatch) -> set[str]:
    """The operators that a session runs the model's nodes by."""
    actual: set[str] = set()
    whole = bodies.expand

    def watched(*args: Any) -> Any:
        graph = whole(*args)
        actual.update(node.op_type for node in graph.nodes)
        return graph

    with monkeypatch.context() as patch:
        patch.setattr(bodies, "expand", watched)
        cto.onnx.Session(model)
    return actual


@pytest.mark.parametrize("form", NODES)
def test_results_are_those_of_the_body(form, rng, monkeypatch) -> None:
    """And of ONNX's reference, up to the opset in which it pads masks."""
    attributes, shapes, mask, kind, lengths, opset = NODES[form]
    arrays = inputs_of(rng, shapes, mask, kind, lengths)
    model, feeds = model_of(arrays, opset, **attributes)
    assert operators(model, monkeypatch) == {"FlashAttention"}
    actual = cto.onnx.Session(model).run(feeds)["y"]
    with monkeypatch.context() as patch:
        patch.setattr(bodies, "_flash_attention", lambda *_: None)
        assert "FlashAttention" not in operators(model, patch)
        expected = cto.onnx.Session(model).run(feeds)["y"]
    expected = expected if IS_CORRECTED else np.nan_to_num(expected)
    if lengths is None or IS_CORRECTED:
        np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-13)
    if form != "one-key" and IS_CORRECTED:
        (reference,) = ReferenceEvaluator(model).run(None, feeds)
        np.testing.assert_allclose(actual, reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        ({"outputs": ("y", "", "", "scores")}, np.float32),
        ({"outputs": ("y", "key", "value")}, np.float32),
        ({"shapes": False}, np.float32),
        ({"softmax_precision": 11}, np.float32),
        ({"qkv": [(2, 1, 3, 160)] * 3}, np.float32),
        ({"qkv": [(2, 1, 3, 96)] * 3}, np.float64),
        ({"caches": "keys alone"}, np.float32),
        ({"caches": "of a query", "qkv": [(2, 4, 1, 8), *(K, V)]}, np.float32),
        ({"mask": np.float32}, np.float16),
    ],
)
def test_what_needs_scores_goes_by_the_body(change, dtype, rng, monkeypatch) -> None:
    """Scores as results, caches of a part or for one query, heads that are wide or unknown, other
    types."""
    options = dict(change)
    arrays = inputs_of(rng, options.pop("qkv", (Q, K, V)), None, "", None, dtype)
    if "mask" in options:
        arrays.append(np.zeros((3, 5), options.pop("mask")))
    elif caches := options.pop("caches", ""):
        widths = (8,) if caches == "keys alone" else (8, 6)
        arrays += [None, *(rng.standard_normal((2, 2, 1, n)).astype(dtype) for n in widths)]
        options["outputs"] = ("y", "key", "value")
    model, _ = model_of(arrays, 23, **options)
    assert "FlashAttention" not in operators(model, monkeypatch)


CACHED = {
    "plain": ({}, (Q, K, V), None),
    "causal": ({"is_causal": 1}, (Q, (2, 2, 3, 8), (2, 2, 3, 6)), None),
    "causal, fewer queries": ({"is_causal": 1}, (Q, K, V), None),
    "causal, more queries": ({"is_causal": 1}, ((2, 4, 7, 8), K, V), None),
    "masked": ({"is_causal": 1, "softcap": 2.0}, (Q, K, V), (3, 9)),
}


@pytest.mark.parametrize("outputs", [("y",), ("y", "key", "value"), ("y", "", "value")])
@pytest.mark.parametrize("form", CACHED)
@pytest.mark.parametrize("opset", [23, 24])
def test_caches_are_joined_before(form, outputs, opset, rng, monkeypatch) -> None:
    """Results are those of the body, and of ONNX's reference."""
    attributes, shapes, mask = CACHED[form]
    arrays = inputs_of(rng, shapes, mask, "added", None)
    arrays += [None] * (4 - len(arrays))
    arrays += [rng.standard_normal((2, 2, 4, n)) for n in (8, 6)]
    model, feeds = model_of(arrays, opset, outputs, **attributes)
    assert "FlashAttention" in operators(model, monkeypatch)
    actual = cto.onnx.Session(model).run(feeds)
    with monkeypatch.context() as patch:
        patch.setattr(bodies, "_flash_attention", lambda *_: None)
        assert "FlashAttention" not in operators(model, patch)
        expected = cto.onnx.Session(model).run(feeds)
    assert actual.keys() == expected.keys() == set(filter(None, outputs))
    for name, array in actual.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-11, atol=1e-13, err_msg=name)
    if IS_CORRECTED:
        results = ReferenceEvaluator(model).run(None, feeds)
        np.testing.assert_allclose(actual["y"], results[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("form", "is_dynamic"), [*((form, False) for form in NODES), ("plain", True), ("one-key", True)]
)
def test_gradients(form, is_dynamic, rng) -> None:
    """Beside finite differences: that of an added mask, too. Without shapes by the body."""
    attributes, shapes, mask, kind, lengths, opset = NODES[form]
    arrays = inputs_of(rng, shapes, mask, kind, lengths)
    check_gradients(
        "Attention", arrays, rng, opset=opset, is_dynamic=is_dynamic, has_ranks=is_dynamic,
        **attributes,
    )  # fmt: skip


@pytest.mark.skipif(not IS_CORRECTED, reason="ONNX's body makes NaN of such queries")
@pytest.mark.parametrize("kind", ["bool", "added"])
@pytest.mark.parametrize("by_body", [True, False])
def test_a_query_that_sees_no_key_has_a_gradient_of_zeros(by_body, kind, rng) -> None:
    arrays = inputs_of(rng, (Q, K, V), (3, 5), "bool", None)
    arrays[3][0] = False
    if kind == "added":
        arrays[3] = np.where(arrays[3], 0, -np.inf)
    check_gradients(
        "Attention", arrays, rng, opset=24, trainable=[0, 1, 2], is_dynamic=by_body,
        has_ranks=by_body,
    )  # fmt: skip


@pytest.mark.parametrize("form", ["plain", "causal", "masked"])
def test_gradients_through_caches(form, rng) -> None:
    """Gradients reach the caches, too, and keys that are results."""
    attributes, shapes, mask = CACHED[form]
    arrays = inputs_of(rng, shapes, mask, "added", None)
    arrays += [None] * (4 - len(arrays))
    arrays += [rng.standard_normal((2, 2, 4, n)) for n in (8, 6)]
    check_gradients("Attention", arrays, rng, opset=24, n_outputs=3, **attributes)


def test_halves_are_trained(rng) -> None:
    """Gradients in float32 and float16 beside those in float64."""
    arrays = inputs_of(rng, (Q, K, V), (3, 5), "added", None)
    actual = []
    for dtype, exact in ((np.float64, True), (np.float32, False), (np.float16, False)):
        rounded = [a.astype(np.float16).astype(dtype) for a in arrays]
        model = trained_model(rounded)
        session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
        session.accumulate()
        actual.append({n: g.astype(np.float64) for n, g in session.gradients.items()})
        tolerance = 0 if exact else 1e-5 if dtype == np.float32 else 2e-2
        for name, gradient in actual[-1].items():
            scale = np.abs(actual[0][name]).max()
            assert np.abs(gradient - actual[0][name]).max() <= tolerance * scale, (name, dtype)


def trained_model(arrays: list[np.ndarray]) -> onnx.ModelProto:
    """A model whose parameters are Q, K, V and the mask; loss: the sum of the squares of Y."""
    names = [f"in{i}" for i in range(len(arrays))]
    nodes = [
        helper.make_node("Attention", names, ["y"]),
        helper.make_node("ReduceSumSquare", ["y"], ["loss"], keepdims=0),
    ]
    initial = [onnx.numpy_helper.from_array(a, n) for n, a in zip(names, arrays, strict=True)]
    number = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    loss = helper.make_tensor_value_info("loss", number, ())
    graph = helper.make_graph(nodes, "g", [], [loss], initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_steps_on_a_gpu_are_those_of_numpy(rng, dtype) -> None:
    """Eager, and captured as a graph."""
    import cupy

    arrays = inputs_of(
        rng, ((2, 4, 70, 16), (2, 2, 90, 16), (2, 2, 90, 8)), (70, 90), "added", None
    )
    model = trained_model([a.astype(dtype) for a in arrays])
    actual = []
    for xp, options in ((np, {}), (cupy, {}), (cupy, {"graph": True})):
        session = cto.onnx.TrainingSession.from_model(
            model, loss="loss", optimizer="SGD", xp=xp, **options
        )
        session.lr = 0.0078125
        losses = [float(session.step()) for _ in range(4)]
        actual.append((losses, [cupy.asnumpy(x) for x in session.parameters.values()]))
    tolerance = 1e-5 if dtype == np.float32 else 1e-2
    for losses, parameters in actual[1:]:
        np.testing.assert_allclose(losses, actual[0][0], rtol=tolerance)
        for one, other in zip(parameters, actual[0][1], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
    assert actual[1][0] == actual[2][0]


def test_a_training_step_has_no_scores(rng) -> None:
    """The nodes of its graph: one forward, one gradient, nothing of the size of scores."""
    arrays = inputs_of(rng, (Q, K, V), None, "", None)
    graph = artifacts.make(trained_model(arrays), loss="loss").training.graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("FlashAttention") == kinds.count("FlashAttentionGrad") == 1
    assert not {"MatMul", "Softmax", "Transpose"} & set(kinds)
    (forward,) = (n for n in graph.node if n.op_type == "FlashAttention")
    assert len(forward.output) == 2
    types = {v.name: v.type.tensor_type.elem_type for v in graph.value_info}
    assert types[forward.output[1]] == TensorProto.DOUBLE


def test_shapes_that_do_not_fit_are_named(rng) -> None:
    """As the session runs: the model says no batch."""
    arrays = inputs_of(rng, (Q, K, V), None, "", None)
    model, feeds = model_of(arrays, 24)
    for item in model.graph.input:
        item.type.tensor_type.shape.dim[0].dim_param = "n"
        item.type.tensor_type.shape.dim[2].ClearField("dim_value")
    feeds["in2"] = feeds["in2"][:, :, :4]
    with pytest.raises(cto.ArgumentError, match="FlashAttention: V: expected"):
        cto.onnx.Session(model).run(feeds)
