# SPDX-License-Identifier: MIT
"""Training an inference model: artifacts in files and in memory, beside PyTorch in float64."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import cupy_training_ops as cto
from cupy_training_ops.onnx import artifacts
from cupy_training_ops.onnx.checkpoint import read_checkpoint
from cupy_training_ops.onnx.gradients.rules import RULES, UNDEFINED

FILES = ["checkpoint", "eval_model.onnx", "optimizer_model.onnx", "training_model.onnx"]
NUMBERS = {"alpha": 0.75, "beta": 0.875, "epsilon": 2.0**-20, "weight_decay": 0.0625}  # of float32
Arrays = dict[str, np.ndarray]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple],
    outputs: Mapping[str, tuple | None],
    arrays: Mapping[str, np.ndarray],
    *,
    opset: int = 17,
    ir_version: int = 9,
    kind: int = TensorProto.DOUBLE,
) -> onnx.ModelProto:
    """A model whose inputs and outputs are of one type."""
    ends = [
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in each.items()]
        for each in (inputs, outputs)
    ]
    initial = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "model", *ends, initial)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def drawn_weights(rng: np.random.Generator, dtype: Any = np.float64) -> Arrays:
    shapes = {"w0": (6, 8), "b0": (8,), "w1": (8, 4), "b1": (4,)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def perceptron(weights: Arrays, **options: Any) -> onnx.ModelProto:
    """scores = tanh(x w0 + b0) w1 + b1"""
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["a"]),
        helper.make_node("Tanh", ["a"], ["h"]),
        helper.make_node("Gemm", ["h", "w1", "b1"], ["scores"]),
    ]
    return model_of(nodes, {"x": ("n", 6)}, {"scores": ("n", 4)}, weights, **options)


def product(w: np.ndarray, **options: Any) -> onnx.ModelProto:
    """y = x w"""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model_of([node], {"x": ("n", 3)}, {"y": ("n", 3)}, {"w": w}, **options)


def batch(rng: np.random.Generator, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((5, 6)).astype(dtype), rng.integers(0, 4, 5)


def opened(model: Any, **options: Any) -> cto.onnx.TrainingSession:
    return cto.onnx.TrainingSession.from_model(model, **options)


# ---- beside PyTorch ------------------------------------------------------------------------------


@pytest.fixture
def losses() -> dict[str, Callable[..., Any]]:
    functional = pytest.importorskip("torch").nn.functional
    return {
        "cross_entropy": functional.cross_entropy,
        "mse": functional.mse_loss,
        "l1": functional.l1_loss,
        "bce_with_logits": functional.binary_cross_entropy_with_logits,
    }


def labels_of(loss: str, rng: np.random.Generator, n: int = 5) -> np.ndarray:
    return rng.integers(0, 4, n) if loss == "cross_entropy" else rng.random((n, 4))


def trained_by_torch(
    weights: Arrays, loss: Callable, make: Callable, batches: list, clip_norm: float | None
) -> tuple[list[float], Arrays]:
    """The losses of steps, and the parameters after them."""
    import torch

    w = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    optimizer, values = make(list(w.values())), []
    for x, labels in batches:
        scores = (torch.tensor(x) @ w["w0"] + w["b0"]).tanh() @ w["w1"] + w["b1"]
        value = loss(scores, torch.tensor(labels))
        optimizer.zero_grad()
        value.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(w.values()), clip_norm)
        optimizer.step()
        values.append(value.item())
    return values, {name: array.detach().numpy() for name, array in w.items()}


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
@pytest.mark.parametrize("loss", ["bce_with_logits", "cross_entropy", "l1", "mse"])
def test_steps_are_those_of_torch(loss, optimizer, clip_norm, losses, rng) -> None:
    import torch

    weights = drawn_weights(rng)
    batches = [(batch(rng)[0], labels_of(loss, rng)) for _ in range(6)]
    numbers = NUMBERS if optimizer == "AdamW" else {}
    session = opened(
        perceptron(weights), loss=loss, optimizer=optimizer, clip_norm=clip_norm, **numbers
    )
    session.lr = 0.03125
    actual = [float(session.step(*each)) for each in batches]

    def make(parameters: list) -> Any:
        if optimizer == "SGD":
            return torch.optim.SGD(parameters, lr=0.03125)
        betas = NUMBERS["alpha"], NUMBERS["beta"]
        rest = {"eps": NUMBERS["epsilon"], "weight_decay": NUMBERS["weight_decay"]}
        return torch.optim.AdamW(parameters, lr=0.03125, betas=betas, **rest)

    expected, parameters = trained_by_torch(weights, losses[loss], make, batches, clip_norm)
    np.testing.assert_allclose(actual, expected, rtol=1e-8)
    for name, array in parameters.items():
        np.testing.assert_allclose(session.parameters[name], array, rtol=0, atol=1e-8)


def test_numbers_that_are_left_out_are_those_of_the_docstring(rng) -> None:
    model = artifacts.make(perceptron(drawn_weights(rng)), loss="mse").optimizer
    (node,) = model.graph.node
    actual = {item.name: item.f for item in node.attribute}
    expected = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "weight_decay": 0.01}
    assert actual == {name: np.float32(value) for name, value in expected.items()}


def test_several_losses_of_pixels(losses, rng) -> None:
    """Classes along axis 1, further axes behind it."""
    import torch

    w = rng.standard_normal((3, 2, 1, 1))
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    model = model_of([node], {"x": ("n", 2, 4, 5)}, {"y": ("n", 3, 4, 5)}, {"w": w})
    session = opened(model, loss="cross_entropy", optimizer="SGD")
    x, labels = rng.standard_normal((2, 2, 4, 5)), rng.integers(0, 3, (2, 4, 5))
    theirs = torch.tensor(w, requires_grad=True)
    loss = losses["cross_entropy"](torch.conv2d(torch.tensor(x), theirs), torch.tensor(labels))
    loss.backward()
    assert abs(float(session.accumulate(x, labels)) - loss.item()) < 1e-12
    np.testing.assert_allclose(session.gradients["w"], theirs.grad, atol=1e-12)


# ---- files and memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_files_and_memory_train_alike(optimizer, dtype, tmp_path, rng) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = perceptron(drawn_weights(rng, dtype), kind=kind)
    options = {"loss": "cross_entropy", "frozen": ["b0"], "clip_norm": 1, "optimizer": optimizer}
    cto.onnx.make_artifacts(model, tmp_path / "new" / "folder", **options)
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == FILES
    sessions = [opened(model, **options), cto.onnx.TrainingSession(tmp_path / "new" / "folder")]
    data = [batch(rng, dtype) for _ in range(4)]
    actual = [[np.asarray(s.step(*each)).tobytes() for each in data] for s in sessions]
    assert actual[0] == actual[1]
    first, second = sessions
    for name, array in first.parameters.items():
        assert array.tobytes() == second.parameters[name].tobytes()
    assert first.eval(*data[0]).tobytes() == second.eval(*data[0]).tobytes()
    first.export(tmp_path / "a.onnx")
    second.export(tmp_path / "b.onnx")
    x = data[0][0]
    scores = [cto.onnx.Session(tmp_path / f"{n}.onnx").run({"x": x})["scores"] for n in "ab"]
    assert scores[0].tobytes() == scores[1].tobytes() == first.eval(x).tobytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_moments_of_16_bits_are_float32(dtype) -> None:
    """In float16 the squares of small gradients would be 0, and steps infinite."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    session = opened(product(np.eye(3).astype(dtype), kind=kind), loss="mse")
    x = np.full((2, 3), 2.0**-8).astype(dtype)
    before = session.parameters["w"].astype(np.float64)
    for _ in range(3):
        session.step(x, np.zeros((2, 3), dtype))
    moved = np.abs(session.parameters["w"].astype(np.float64) - before).max()
    assert 0 < moved < 0.1
    assert {a.dtype for m in session._moments.values() for a in m.values()} == {np.dtype("f4")}


def test_an_existing_folder_gets_whole_files(tmp_path, rng) -> None:
    model, options = perceptron(drawn_weights(rng)), {"loss": "mse"}
    cto.onnx.make_artifacts(perceptron(drawn_weights(rng)), tmp_path, loss="l1", prefix="a_")
    (tmp_path / "a_checkpoint").write_bytes(b"x" * 100_000)
    (tmp_path / "other").write_text("left alone")
    cto.onnx.make_artifacts(model, tmp_path, **options, prefix="a_")
    cto.onnx.make_artifacts(model, tmp_path / "plain", **options)
    for name in FILES:
        ours = (tmp_path / f"a_{name}").read_bytes()
        assert ours == (tmp_path / "plain" / name).read_bytes()
    assert (tmp_path / "other").read_text() == "left alone"
    session = cto.onnx.TrainingSession(tmp_path, prefix="a_")
    assert session.inputs == ("x", "labels")
    assert len(list(tmp_path.iterdir())) == 6


def test_no_file_is_replaced_if_one_cannot_be_written(tmp_path, rng) -> None:
    cto.onnx.make_artifacts(perceptron(drawn_weights(rng)), tmp_path, loss="mse")
    (tmp_path / "optimizer_model.onnx").unlink()
    (tmp_path / "optimizer_model.onnx").mkdir()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    with pytest.raises(OSError, match="optimizer_model"):
        cto.onnx.make_artifacts(perceptron(drawn_weights(rng)), tmp_path, loss="l1")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_models_that_are_written_are_valid(tmp_path, rng) -> None:
    cto.onnx.make_artifacts(perceptron(drawn_weights(rng), opset=18), tmp_path, loss="mse")
    for path in tmp_path.glob("*.onnx"):
        model = onnx.load(path)
        assert model.ir_version == 9
        onnx.checker.check_model(model)


# ---- what is trained -----------------------------------------------------------------------------


def test_trainable_and_frozen(rng) -> None:
    weights = drawn_weights(rng)
    model, data = perceptron(weights), batch(rng)
    cases: list[tuple[dict, set]] = [
        ({}, {"w0", "b0", "w1", "b1"}),
        ({"frozen": ("w0", "b1")}, {"b0", "w1"}),
        ({"trainable": iter(["b1", "w0"])}, {"w0", "b1"}),
        ({"trainable": {"w0", "b0"}, "frozen": ["b0"]}, {"w0"}),
        ({"trainable": np.array(["w1"]), "frozen": []}, {"w1"}),
    ]
    for options, expected in cases:
        session = opened(model, loss="cross_entropy", optimizer="SGD", **options)
        assert session.parameters.keys() == weights.keys()
        assert session.gradients.keys() == expected
        session.step(*data)
        moved = {n for n, array in session.parameters.items() if (array != weights[n]).any()}
        assert moved == expected


def test_a_single_number_is_trained_if_it_is_named(rng) -> None:
    nodes = [helper.make_node("Mul", ["x", "c"], ["a"]), helper.make_node("Mul", ["a", "w"], ["y"])]
    arrays = {"c": np.array(2.0), "w": np.ones(3)}
    model = model_of(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, arrays)
    assert opened(model, loss="mse").gradients.keys() == {"w"}
    session = opened(model, loss="mse", optimizer="SGD", trainable=["c"])
    x = rng.standard_normal((4, 3))
    session.accumulate(x, np.zeros((4, 3)))
    np.testing.assert_allclose(session.gradients["c"], (2 * 2 * x * x).mean())


def test_one_initializer_that_is_read_twice(losses, rng) -> None:
    import torch

    w, x = rng.standard_normal((3, 3)), rng.standard_normal((4, 3))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Tanh", ["a"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, {"w": w})
    session = opened(model, loss="mse")
    session.accumulate(x, x)
    theirs = torch.tensor(w, requires_grad=True)
    losses["mse"]((torch.tensor(x) @ theirs).tanh() @ theirs, torch.tensor(x)).backward()
    np.testing.assert_allclose(session.gradients["w"], theirs.grad, atol=1e-12)


def shared_by_identity(**arrays: np.ndarray) -> onnx.ModelProto:
    """y = ((x + a) a' + b) b', where a' and b' are Identity of a and b; c is read by it alone."""
    names = ["a", "a2", "b", "b2", "c2"]
    nodes = [helper.make_node("Identity", [name], [f"{name}2"]) for name in ("a", "b", "c")]
    ops = ["Add", "Mul", "Add", "Mul", "Add"]
    for k, (op_type, name) in enumerate(zip(ops, names, strict=True)):
        nodes.append(helper.make_node(op_type, [f"h{k}" if k else "x", name], [f"h{k + 1}"]))
    nodes.append(helper.make_node("Identity", ["h5"], ["y"]))
    return model_of(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, arrays)


@pytest.mark.parametrize(
    ("tied", "expected"),
    [
        (None, {"a", "a2", "b", "c"}),
        ([], {"a", "a2", "b", "b2", "c"}),
        (["a"], {"a", "b", "b2", "c"}),
        (["a", "b"], {"a", "b", "c"}),
    ],
)
def test_initializers_that_identity_gives_other_names(tied, expected, rng) -> None:
    """By default those of one number are trained apart, and the others as one."""
    w, x = rng.standard_normal(3), rng.standard_normal((4, 3))
    arrays = {"a": np.ones(3), "b": w, "c": np.zeros(3)}
    session = opened(shared_by_identity(**arrays), loss="mse", optimizer="SGD", tied=tied)
    assert session.gradients.keys() == expected
    session.accumulate(x, np.zeros((4, 3)))
    h = (x + 1) * 1 + w
    slope = 2 * h * w / x.size  # of y = h w + c
    own = {"a": slope * w, "a2": slope * w * (x + 1), "b": slope * w, "b2": slope * h}
    own = {name: array.sum(axis=0) for name, array in own.items()}
    for name in ("a", "b"):
        gradient = own[name] + (0 if f"{name}2" in expected else own[f"{name}2"])
        np.testing.assert_allclose(session.gradients[name], gradient, atol=1e-12)


@pytest.mark.parametrize("tied", [["c"], ["x"], "a", 3])
def test_only_what_identity_shares_is_tied(tied) -> None:
    arrays = {name: np.ones(3) for name in ("a", "b", "c")}
    with pytest.raises(cto.ArgumentError, match="artifacts: tied"):
        opened(shared_by_identity(**arrays), loss="mse", tied=tied)


@pytest.mark.parametrize("name", ["lazy_reset_grad", "w_grad.accumulation.buffer"])
@pytest.mark.parametrize("kind", ["initializer", "value", "input"])
def test_names_that_training_adds_are_refused(kind, name, rng) -> None:
    w = {"w": rng.standard_normal(3)}
    x, h = (name if kind == other else letter for other, letter in (("input", "x"), ("value", "h")))
    arrays = {name: w["w"], **w} if kind == "initializer" else w
    nodes = [
        helper.make_node("Mul", [x, name if kind == "initializer" else "w"], [h]),
        helper.make_node("Mul", [h, "w"], ["y"]),
    ]
    model = model_of(nodes, {x: ("n", 3)}, {"y": ("n", 3)}, arrays)
    with pytest.raises(cto.ArgumentError, match=f"model: expected no value called .* '{name}'"):
        opened(model, loss="mse")


def two_heads(rng: np.random.Generator) -> onnx.ModelProto:
    """Outputs y, z and one number, m, of z; an initializer that nothing reads."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("MatMul", ["x", "v"], ["z"]),
        helper.make_node("ReduceMean", ["z"], ["m"], keepdims=0),
    ]
    arrays = {name: rng.standard_normal((3, 3)) for name in ("w", "v", "unused")}
    return model_of(nodes, {"x": ("n", 3)}, {"y": ("n", 3), "z": ("n", 3), "m": ()}, arrays)


def test_what_the_loss_does_not_depend_on_is_not_trained(tmp_path, rng) -> None:
    session = opened(two_heads(rng), loss="mse")
    assert session.gradients.keys() == {"w"}
    assert session.parameters.keys() == {"w", "v", "unused"}
    x = rng.standard_normal((4, 3))
    session.step(x, x)
    assert list(session.outputs)[1:] == ["y", "z", "m"]
    assert [np.shape(each) for each in session.eval(x)] == [(4, 3), (4, 3), ()]
    session.export(tmp_path / "model.onnx")
    assert cto.onnx.Session(tmp_path / "model.onnx").outputs == ("y", "z", "m")
    with pytest.raises(cto.ArgumentError, match=r"trainable: .* depends on, got \['v', 'unused'\]"):
        opened(two_heads(rng), loss="mse", trainable=["w", "v", "unused"])


def test_an_output_is_the_loss(rng) -> None:
    session = opened(two_heads(rng), loss="m", optimizer="SGD")
    assert session.inputs == ("x",)
    assert session.gradients.keys() == {"v"}
    x = rng.standard_normal((4, 3))
    loss = session.step(x)
    assert list(session.outputs) == ["m", "y", "z"]
    assert loss.tobytes() == session.outputs["m"].tobytes()
    np.testing.assert_allclose(session.gradients["v"], np.outer(x.sum(0), np.ones(3)) / 12)


def test_what_a_function_adds_is_cut_off_again(tmp_path, rng) -> None:
    """Its loss is no output of an exported model."""
    nodes = [helper.make_node("Sub", ["s", "t"], ["d"]), helper.make_node("Abs", ["d"], ["e"])]
    nodes.append(helper.make_node("ReduceMax", ["e"], ["largest"], keepdims=1))
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "Largest", ["s", "t"], ["largest"], nodes, opsets)
    session = opened(product(rng.standard_normal((3, 3))), loss=function)
    x = rng.standard_normal((2, 3))
    assert session.step(x, x).shape == ()
    assert session.eval(x).shape == (2, 3)
    session.export(tmp_path / "model.onnx")
    exported = cto.onnx.Session(tmp_path / "model.onnx")
    assert (exported.inputs, exported.outputs) == (("x",), ("y",))


@pytest.mark.parametrize("shape", [(1, 1), (1,), (None, None), None])
def test_an_output_of_one_element_is_a_loss(shape, rng) -> None:
    """It may be of any rank, or of an unknown one."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Reshape", ["y", "shape"], ["r"]),
    ]
    extents = (1,) * (2 if shape is None else len(shape))
    inputs = {"x": (1, 3)}
    model = model_of(nodes, inputs, {"r": shape}, {"w": rng.standard_normal((3, 1))})
    if shape is None or None in shape:
        model.graph.input.append(helper.make_tensor_value_info("shape", TensorProto.INT64, None))
        feeds = {"shape": np.array(extents)}
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.array(extents), "shape"))
        feeds = {}
    x = rng.standard_normal((1, 3))
    session = opened(model, loss="r", optimizer="SGD")
    assert session.step(x=x, **feeds).shape == ()
    np.testing.assert_allclose(session.gradients["w"], x.T)


def test_a_loss_and_outputs_that_are_views_of_a_parameter_stay(rng) -> None:
    """The optimizer's step comes behind them."""
    nodes = [
        helper.make_node("Squeeze", ["w"], ["r"]),
        helper.make_node("Transpose", ["w"], ["same"]),
    ]
    w = rng.standard_normal(1)
    model = model_of(nodes, {}, {"r": (), "same": (1,)}, {"w": w})
    session = opened(model, loss="r", optimizer="SGD")
    actual = [session.step(), *session.outputs.values()]
    actual += [session.eval(), *session.outputs.values()]
    behind = session.parameters["w"].copy()
    assert behind != w
    session.step()
    assert [float(a.item()) for a in actual] == [*[w.item()] * 3, *[behind.item()] * 3]


def test_an_output_that_turns_out_to_be_several_numbers_is_refused() -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    model = model_of(nodes, {"x": None}, {"y": None}, {"w": np.ones(1)})
    session = opened(model, loss="y", optimizer="SGD")
    session.step(np.ones(1))
    with pytest.raises(cto.ArgumentError, match="Reshape"):
        session.step(np.ones(2))


def test_running_statistics_are_in_the_checkpoint(tmp_path, rng) -> None:
    names = ["x", "scale", "bias", "mean", "var"]
    arrays = {n: rng.uniform(1, 2, 3) for n in names[1:]} | {"w": rng.standard_normal((3, 3))}
    nodes = [
        helper.make_node("BatchNormalization", names, ["n"]),
        helper.make_node("MatMul", ["n", "w"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, arrays)
    options = {"loss": "mse", "frozen": ["scale", "bias"]}
    cto.onnx.make_artifacts(model, tmp_path, **options)
    session, other = opened(model, **options), cto.onnx.TrainingSession(tmp_path)
    x = rng.standard_normal((6, 3))
    assert session.step(x, x) == other.step(x, x)
    np.testing.assert_allclose(
        session.parameters["mean"], 0.9 * arrays["mean"] + 0.1 * x.mean(0), rtol=1e-6
    )
    session.save_checkpoint(tmp_path / "checkpoint")
    again = cto.onnx.TrainingSession(tmp_path)
    assert again.eval(x).tobytes() == session.eval(x).tobytes() == other.eval(x).tobytes()


# ---- models of many kinds ------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 15, 17, 18, 21, 23])
def test_models_of_each_opset(opset, rng) -> None:
    weights, data = drawn_weights(rng), batch(rng)
    session = opened(perceptron(weights, opset=opset), loss="cross_entropy")
    expected = opened(perceptron(weights, opset=17), loss="cross_entropy")
    for _ in range(2):
        assert abs(float(session.step(*data)) - float(expected.step(*data))) < 1e-12
    assert {n.version for n in session.graph.nodes if n.is_standard} <= {max(opset, 17)}


@pytest.mark.parametrize("opset", [8, 17])
def test_initializers_that_are_inputs(opset, rng) -> None:
    """As models of IR 3 have them."""
    model = product(rng.standard_normal((3, 3)), opset=opset, ir_version=3)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.DOUBLE, (3, 3)))
    session = opened(model, loss="mse")
    assert session.inputs == ("x", "labels")
    x = rng.standard_normal((2, 3))
    session.step(x, x)
    assert session.gradients["w"].any()


@pytest.mark.parametrize("opset", [11, 17])
def test_data_in_another_file(opset, tmp_path, rng) -> None:
    weights, data = drawn_weights(rng), batch(rng)
    model = perceptron(weights, opset=opset)
    expected = opened(model, loss="cross_entropy").step(*data)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data.bin", size_threshold=0)
    assert opened(path, loss="cross_entropy").step(*data) == expected
    assert opened(str(path), loss="cross_entropy").step(*data) == expected
    cto.onnx.make_artifacts(path, tmp_path / "artifacts", loss="cross_entropy")
    assert cto.onnx.TrainingSession(tmp_path / "artifacts").step(*data) == expected
    with pytest.raises(cto.ArgumentError, match="came without its folder"):
        opened(path.read_bytes(), loss="mse")
    shutil.move(tmp_path / "data.bin", tmp_path / "other.bin")
    with pytest.raises(cto.ArgumentError, match=r"no file 'data\.bin'"):
        opened(path, loss="mse")


@pytest.mark.parametrize("opset", [9, 12, 18])
def test_shapes_are_inferred_without_the_elements_of_large_arrays(opset, rng, monkeypatch) -> None:
    """ONNX's functions take models of at most 2 GiB; those are the smaller ones without."""
    from cupy_training_ops.onnx import models

    def at_most(limit: int, function: Callable) -> Callable:
        def limited(proto: onnx.ModelProto, *args: Any, **options: Any) -> Any:
            assert len(proto.SerializeToString()) < limit
            return function(proto, *args, **options)

        return limited

    arrays = {"w": rng.standard_normal((64, 64)), "s": np.array([0, 4, -1, 4])}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "s"], ["y"]),
    ]
    model = model_of(nodes, {"x": ("n", 64)}, {"y": None}, arrays, opset=opset)
    expected, _ = models.read_inferred(model, 17)
    assert expected.shapes["y"] == ("n", 4, 4, 4)
    for module, name in (
        (onnx.shape_inference, "infer_shapes"),
        (onnx.version_converter, "convert_version"),
    ):
        monkeypatch.setattr(module, name, at_most(4096, getattr(module, name)))
    actual, initializers = models.read_inferred(model, 17)
    assert initializers == {"w", "s"}
    assert actual.shapes == expected.shapes
    assert actual.constants["w"].tobytes() == arrays["w"].tobytes()
    monkeypatch.setattr(models, "MOST_ELEMENTS", 1 << 30)
    with pytest.raises(cto.ArgumentError, match="its shapes cannot be inferred"):
        models.read_inferred(model, 17)


@pytest.mark.large
def test_a_model_above_2_gib(tmp_path) -> None:
    from cupy_training_ops.onnx import models, parts

    n = 23_200
    model = product(np.zeros((0, 3)), kind=TensorProto.FLOAT)
    (w,) = model.graph.initializer
    w.CopyFrom(
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(n, n), raw_data=bytes(4 * n * n))
    )
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = n
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = n
    graph, _ = models.read_inferred(model, 17)
    assert graph.constants["w"].nbytes > 1 << 31
    with pytest.raises(cto.ArgumentError, match="export: a model of at most 2 GiB is written"):
        parts.write_part(graph, model, {}, ["y"], tmp_path / "model.onnx", sync=False)
    assert not list(tmp_path.iterdir())


def test_functions_of_the_model_are_put_in_place_before_shapes_are_inferred(rng) -> None:
    body = [helper.make_node("Mul", ["a", "b"], ["c"]), helper.make_node("Tanh", ["c"], ["d"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "Scaled", ["a", "b"], ["d"], body, opsets)
    node = helper.make_node("Scaled", ["x", "w"], ["y"], domain="own")
    model = model_of([node], {"x": ("n", 3)}, {"y": ("n", 3)}, {"w": rng.standard_normal(3)})
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    session, x = opened(model, loss="mse"), rng.standard_normal((4, 3))
    session.accumulate(x, x)
    w = session.parameters["w"]
    y = np.tanh(x * w)
    expected = (2 * (y - x) * (1 - y * y) * x).sum(0) / 12
    np.testing.assert_allclose(session.gradients["w"], expected, atol=1e-12)
    assert "BroadcastGradientArgs" not in {node.op_type for node in session.graph.nodes}


@pytest.mark.parametrize("name", ["labels", "onnx::loss::0", "w_grad", "y_Grad/MatMul"])
def test_names_that_are_there_already(name, rng) -> None:
    w, x = rng.standard_normal((3, 3)), rng.standard_normal((2, 3))
    expected = opened(product(w), loss="mse").step(x, x)
    node = helper.make_node("MatMul", ["x", "w"], [name])
    session = opened(model_of([node], {"x": ("n", 3)}, {name: ("n", 3)}, {"w": w}), loss="mse")
    assert session.step(x, x) == expected
    node = helper.make_node("MatMul", [name, "w"], ["y"])
    session = opened(model_of([node], {name: ("n", 3)}, {"y": ("n", 3)}, {"w": w}), loss="mse")
    assert session.step(x, x) == expected
    assert len(set(session.inputs)) == 2


def test_an_empty_list_as_an_attribute(tmp_path) -> None:
    """A transposition of a single number."""
    node = helper.make_node("Transpose", ["w"], ["t"])
    empty = helper.make_attribute("perm", [], attr_type=onnx.AttributeProto.INTS)
    node.attribute.append(empty)
    nodes = [node, helper.make_node("Mul", ["t", "x"], ["y"])]
    model = model_of(nodes, {"x": (3,)}, {"y": (3,)}, {"w": np.array(2.0)})
    cto.onnx.make_artifacts(model, tmp_path, loss="mse", trainable=["w"], optimizer="SGD")
    session, x = cto.onnx.TrainingSession(tmp_path), np.array([1.0, 2.0, 3.0])
    session.accumulate(x, np.zeros(3))
    np.testing.assert_allclose(session.gradients["w"], 2 * 2 * (x * x).mean())


# ---- refusals ------------------------------------------------------------------------------------

REFUSED = [
    ({"loss": "hinge"}, "loss: expected one of cross_entropy, token_.*, got 'hinge'"),
    *(({"loss": value}, "loss: expected one of") for value in (None, 3, [], {}, np.zeros(2))),
    ({"loss": "scores"}, r"loss: expected an output .* one number, got one of shape \('n', 4\)"),
    *(({"trainable": v}, "trainable: expected a list") for v in ("w0", b"w0", 3, [3], [[]])),
    ({"trainable": ["w0", "w9"]}, r"trainable: .*parameters: w0, b0, w1, b1, got \['w9'\]"),
    ({"trainable": []}, "trainable: expected parameters .* got none"),
    ({"frozen": "w0"}, "frozen: expected a list of names of parameters, got 'w0'"),
    ({"frozen": ["x"]}, r"frozen: expected names of the model's parameters: .*, got \['x'\]"),
    ({"frozen": ["w0", "b0", "w1", "b1"]}, "trainable: expected parameters .* got none"),
    *(({"optimizer": v}, "optimizer: expected 'AdamW' or 'SGD'") for v in ("Adam", None, [], 3)),
    *(({"clip_norm": v}, "clip_norm: expected a") for v in ("1", -1.0, np.nan, True, [1])),
    ({"alpha": 1.0}, "alpha: expected a number below 1"),
    ({"beta": -0.5}, "beta: expected a finite number of at least 0"),
    ({"epsilon": -1e-8}, "epsilon: expected a number of at least 0"),
    ({"weight_decay": None}, "weight_decay: expected a number, got None"),
    ({"weight_decay": 1e300}, "weight_decay: expected a finite number"),
    ({"momentum": 0.9}, "momentum: expected numbers among alpha, beta, epsilon, weight_decay, got"),
    ({"optimizer": "SGD", "alpha": 0.9}, "alpha: expected no numbers of SGD, got 0.9"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_a_refusal_names_the_argument_and_writes_nothing(options, words, tmp_path, rng) -> None:
    model, options = perceptron(drawn_weights(rng)), {"loss": "mse", **options}
    with pytest.raises(cto.ArgumentError, match=f"^artifacts: {words}"):
        opened(model, **options)
    with pytest.raises(cto.ArgumentError, match=f"^artifacts: {words}"):
        cto.onnx.make_artifacts(model, tmp_path / "new", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", [None, 3, b"x"])
def test_a_folder_that_is_none_is_refused(folder, rng) -> None:
    with pytest.raises(cto.ArgumentError, match=r"^make_artifacts: folder: expected the path"):
        cto.onnx.make_artifacts(perceptron(drawn_weights(rng)), folder, loss="mse")


@pytest.mark.parametrize("prefix", [None, 3, "a/", "../a", "/"])
def test_a_prefix_that_leads_elsewhere_is_refused(prefix, tmp_path, rng) -> None:
    model = perceptron(drawn_weights(rng))
    with pytest.raises(cto.ArgumentError, match=r"^make_artifacts: prefix: expected"):
        cto.onnx.make_artifacts(model, tmp_path / "new", loss="mse", prefix=prefix)
    assert not list(tmp_path.iterdir())


def test_parameters_of_two_types_are_refused(rng, monkeypatch) -> None:
    monkeypatch.setitem(RULES, "Pow", lambda site: site.inputs)  # any gradients
    node = helper.make_node("Pow", ["w", "v"], ["y"])
    arrays = {"w": rng.uniform(1, 2, 3), "v": np.ones(3, np.float32)}
    model = model_of([node], {"x": (3,)}, {"y": (3,)}, arrays)
    words = r"trainable: expected parameters of one type .*, got float64 \('w'\), float32 \('v'\)"
    with pytest.raises(cto.ArgumentError, match=words):
        opened(model, loss="mse")


def test_operators_without_a_gradient_are_all_named(tmp_path, monkeypatch) -> None:
    for name in ("Sigmoid", "Softplus"):
        monkeypatch.delitem(RULES, name)
        monkeypatch.setitem(UNDEFINED, name, "it has none here")
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["a"], name="no parameter before it"),
        helper.make_node("Mul", ["a", "w"], ["b"]),
        helper.make_node("Sigmoid", ["b"], ["c"], name="first"),
        helper.make_node("Softplus", ["c"], ["y"], name="second"),
    ]
    model = model_of(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, {"w": np.ones(3)})
    with pytest.raises(cto.ArgumentError) as refusal:
        cto.onnx.make_artifacts(model, tmp_path / "new", loss="mse")
    named = [line.split("'")[1] for line in str(refusal.value).splitlines()[1:]]
    assert named == ["second", "first"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Mul", ["w"], {}),
        ("Gemm", ["x", "w"], {"transA": [1, 2]}),
        ("Transpose", ["w"], {"perm": [0, 7]}),
        ("Reshape", ["w"], {}),
        ("Conv", ["x", "w"], {"strides": "text"}),
    ],
)
def test_damaged_nodes_are_refused_in_words(op_type, inputs, attributes) -> None:
    nodes = [
        helper.make_node(op_type, inputs, ["a"], name="damaged", **attributes),
        helper.make_node("Mul", ["a", "x"], ["y"]),
    ]
    model = model_of(nodes, {"x": (3, 3)}, {"y": (3, 3)}, {"w": np.eye(3)})
    with pytest.raises(cto.OpError):
        opened(model, loss="mse").step(np.eye(3), np.eye(3))


def test_changed_bytes_are_refused_or_trained(rng) -> None:
    """No other error than the package's own comes out."""
    whole = np.frombuffer(perceptron(drawn_weights(rng)).SerializeToString(), np.uint8)
    counts = [0, 0]
    for _ in range(400):
        data = whole.copy()
        places = rng.integers(0, 300, int(rng.integers(1, 4)))
        data[places] = rng.integers(0, 256, len(places))
        try:
            artifacts.make(data.tobytes(), loss="mse")
            counts[0] += 1
        except cto.OpError:
            counts[1] += 1
    assert min(counts) > 0


def test_a_model_without_outputs_or_parameters_is_refused() -> None:
    with pytest.raises(
        cto.ArgumentError, match="artifacts: model: expected one that has an output"
    ):
        opened(model_of([], {"x": (3,)}, {}, {}), loss="mse")
    node = helper.make_node("Tanh", ["x"], ["y"])
    with pytest.raises(cto.ArgumentError, match=r"trainable: expected parameters .* got none"):
        opened(model_of([node], {"x": (3,)}, {"y": (3,)}, {}), loss="mse")


# ---- sessions ------------------------------------------------------------------------------------


def test_a_session_says_what_it_is(tmp_path, rng) -> None:
    session = opened(perceptron(drawn_weights(rng)), loss="mse", clip_norm=1)
    session.step(rng.standard_normal((5, 6)), rng.standard_normal((5, 4)))
    assert repr(session) == (
        "TrainingSession(inputs=('x', 'labels'), parameters=92, optimizer='AdamWOptimizer', "
        "step_count=1)"
    )
    cto.onnx.make_artifacts(perceptron(drawn_weights(rng)), tmp_path, loss="mse")
    (tmp_path / "optimizer_model.onnx").unlink()
    assert "optimizer=None, step_count=0" in repr(cto.onnx.TrainingSession(tmp_path))


def test_errors_name_the_call(rng) -> None:
    session = opened(perceptron(drawn_weights(rng)), loss="cross_entropy")
    x, labels = batch(rng)
    for call in ("step", "accumulate", "eval"):
        for feeds in (
            (x[:, :3], labels),
            (x.astype("f4"), labels),
            (x[0], labels),
            (x, labels[:2]),
        ):
            with pytest.raises((cto.ArgumentError, cto.DtypeError)) as refusal:
                getattr(session, call)(*feeds)
            name = "labels" if feeds[0] is x else "x"
            assert str(refusal.value).startswith(f"TrainingSession: {call}: {name}: expected")
    assert session.step_count == 0


def test_the_checkpoint_has_all_parameters(tmp_path, rng) -> None:
    weights = drawn_weights(rng, np.float32)
    model = perceptron(weights, kind=TensorProto.FLOAT)
    cto.onnx.make_artifacts(model, tmp_path, loss="mse", frozen=["b0"])
    checkpoint = read_checkpoint(tmp_path / "checkpoint")
    assert checkpoint.frozen.keys() == {"b0"}
    for name, array in {**checkpoint.trained, **checkpoint.frozen}.items():
        assert array.tobytes() == weights[name].tobytes()


def _model_of_nodes(
    nodes: list, initial: dict[str, np.ndarray], inputs: list, outputs: list
) -> onnx.ModelProto:
    """A model of x (n, 3), float64, to its loss."""
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ("n", 3))
    loss = helper.make_tensor_value_info("loss", TensorProto.DOUBLE, ())
    nodes = [*nodes, helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)]
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in initial.items()]
    graph = helper.make_graph(nodes, "g", [x, *inputs], [loss, *outputs], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("flag", [True, False])
def test_subgraphs_before_all_parameters_are_run(flag, tmp_path, rng) -> None:
    k = onnx.numpy_helper.from_array(np.array(2.0), "k")
    parts = {}
    for name, node in (
        ("then_branch", helper.make_node("Mul", ["a", "k"], ["r"])),
        ("else_branch", helper.make_node("Tanh", ["a"], ["r"])),
    ):
        result = helper.make_tensor_value_info("r", TensorProto.DOUBLE, ("n", 3))
        constants = [k] if name == "then_branch" else []
        parts[name] = helper.make_graph([node], name, [], [result], constants)
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("If", ["flag"], ["b"], **parts),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    flags = [helper.make_tensor_value_info("flag", TensorProto.BOOL, ())]
    model = _model_of_nodes(nodes, {"w": rng.standard_normal((3, 2))}, flags, [])
    cto.onnx.make_artifacts(model, tmp_path, loss="loss")
    x = rng.standard_normal((4, 3))
    b = 2 * abs(x) if flag else np.tanh(abs(x))
    of_model = cto.onnx.TrainingSession.from_model(model, loss="loss")
    for session in (of_model, cto.onnx.TrainingSession(tmp_path)):
        loss = session.accumulate(x=x, flag=np.array(flag))
        np.testing.assert_allclose(loss, (b @ session.parameters["w"]).sum())
        np.testing.assert_allclose(session.gradients["w"], b.sum(0)[:, None] * [[1, 1]])


def test_constants_may_be_outputs(rng) -> None:
    u, v = rng.standard_normal(4), rng.standard_normal(2)
    nodes = [
        helper.make_node("Constant", [], ["v"], value=onnx.numpy_helper.from_array(v)),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    others = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in ("u", "v")]
    model = _model_of_nodes(nodes, {"w": rng.standard_normal((3, 2)), "u": u}, [], others)
    session = cto.onnx.TrainingSession.from_model(model, loss="loss")
    session.step(rng.standard_normal((4, 3)))
    np.testing.assert_array_equal(session.outputs["u"], u)
    np.testing.assert_array_equal(session.outputs["v"], v)


def test_outputs_that_no_node_makes_are_evaluated_and_exported(tmp_path, rng) -> None:
    """An input, a parameter, a constant."""
    w, u, x = rng.standard_normal((3, 2)), rng.standard_normal(4), rng.standard_normal((4, 3))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    kinds = {"x": ("n", 3), "w": (3, 2), "u": (4,)}
    model = model_of(nodes, {"x": ("n", 3)}, {"y": ("n", 2), **kinds}, {"w": w, "u": u})
    session = opened(model, loss="mse", optimizer="SGD", trainable=["w"])
    session.step(x, rng.standard_normal((4, 2)))
    w = session.parameters["w"]
    session.export(tmp_path / "model.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "model.onnx"), full_check=True)
    exported = cto.onnx.Session(tmp_path / "model.onnx").run({"x": x})
    for actual, expected in zip(session.eval(x), (x @ w, x, w, u), strict=True):
        np.testing.assert_allclose(actual, expected)
    for name, expected in {"y": x @ w, "x": x, "w": w, "u": u}.items():
        np.testing.assert_allclose(exported[name], expected)


def test_running_statistics_that_are_read_elsewhere_are_refused(rng) -> None:
    names = ("scale", "bias", "mean", "variance")
    nodes = [
        helper.make_node("BatchNormalization", ["x", *names], ["a"], name="norm"),
        helper.make_node("Mul", ["a", "mean"], ["y"], name="product"),
    ]
    model = _model_of_nodes(nodes, {name: rng.uniform(1, 2, 3) for name in names}, [], [])
    with pytest.raises(cto.ArgumentError, match=r"running statistics.*'mean', which.*product"):
        cto.onnx.TrainingSession.from_model(model, loss="loss")


def test_shapes_may_be_in_another_file(tmp_path) -> None:
    """MatMul's gradient needs the rank of b, which a shape outside of the model says."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    arrays = {"w": np.ones((4, 6)), "shape": np.array([-1, 3]), "v": np.ones((3, 2))}
    model = model_of(nodes, {"x": ("n", 4)}, {"y": (None, 2)}, arrays)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="model.data")
    session = cto.onnx.TrainingSession.from_model(path, loss="mse", optimizer="SGD")
    loss = session.step(np.ones((2, 4)), np.ones((4, 2)))
    assert loss == 121  # each score is 3 times 4, its label 1
