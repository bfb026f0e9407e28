# SPDX-License-Identifier: MIT
"""`onnx`: what runs each node, what nothing runs, and steps on made or given data."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import cupy_training_ops as cto
from cupy_training_ops.cli import main

DATA = Path(__file__).parents[1] / "graphs" / "data"
GRAPHS = sorted(path.name for path in DATA.iterdir())


def call(*arguments: object):
    return CliRunner().invoke(main, ["onnx", *map(str, arguments)])


def table(stdout: str, heading: str) -> list[list[str]]:
    """The rows below the first line that begins so, up to the next that is not indented."""
    lines = iter(stdout.splitlines())
    next(line for line in lines if line.startswith(heading))
    rows = []
    for line in lines:
        if not line.startswith("  "):
            break
        rows.append(line.split())
    return rows


def losses(stdout: str) -> dict[int, float]:
    pairs = (line.split() for line in stdout.splitlines())
    return {int(p[0]): float(p[1]) for p in pairs if len(p) == 2 and p[0].isdigit()}


def test_every_kind_of_node_is_listed_with_what_runs_it() -> None:
    result = call(DATA / "cnn_max")
    assert result.exit_code == 0
    heading, *rows = table(result.stdout, str(DATA / "cnn_max" / "training_model.onnx"))
    assert heading == ["operator", "domain", "run", "by", "nodes"]
    by = {row[0]: (*row[1:-1], int(row[-1])) for row in rows}
    assert by["MaxPoolGrad"] == ("ai.onnx", "cto.max_pool_grad", 2)
    assert by["Flatten"] == ("ai.onnx", "NumPy", "or", "CuPy", 1)
    model = onnx.load(DATA / "cnn_max" / "training_model.onnx")
    assert {node.op_type for node in model.graph.node} <= by.keys()
    assert "optimizer_model.onnx: 1 node\n" in result.stdout


def test_what_nothing_runs_is_named_and_no_step_is_made(tmp_path) -> None:
    folder = tmp_path / "artifacts"
    shutil.copytree(DATA / "mlp", folder)
    model = onnx.load(folder / "training_model.onnx")
    (node,) = [node for node in model.graph.node if node.op_type == "TanhGrad"]
    node.op_type = "NoSuchGrad"
    onnx.save(model, folder / "training_model.onnx")
    result = call(folder, "--steps", 1)
    assert result.exit_code == 1
    rows = table(result.stdout, str(folder / "training_model.onnx"))
    assert ["NoSuchGrad", "com.microsoft", "-", "1"] in rows
    (said,) = [line for line in result.stdout.splitlines() if "cannot be run" in line]
    assert "NoSuchGrad" in said
    assert node.name in said
    assert "step" not in result.stdout


def test_types_that_do_not_fit_are_listed_too(tmp_path) -> None:
    model = onnx.load(DATA / "mlp" / "training_model.onnx")
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.BOOL  # of the labels
    onnx.save(model, tmp_path / "model.onnx")
    result = call(tmp_path / "model.onnx")
    assert result.exit_code == 1
    assert "(SoftmaxCrossEntropyLoss)" in result.stdout


def test_one_model_is_listed_alone() -> None:
    result = call(DATA / "mlp" / "eval_model.onnx")
    assert result.exit_code == 0
    assert result.stdout.count("nodes") == 2


@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_trains_on_made_data(name) -> None:
    options = ("--steps", 12, "--lr", 0.02, "--provider", "cpu")
    result = call(DATA / name, *options)
    assert result.exit_code == 0, result.output
    actual = losses(result.stdout)
    assert list(actual) == [1, 2, 4, 6, 8, 10, 12]
    assert actual[12] < actual[1]
    assert losses(call(DATA / name, *options).stdout) == actual


def test_given_examples_are_taken_in_their_order(tmp_path) -> None:
    with np.load(DATA / "mlp" / "answers.npz") as file:
        answers = dict(file)
    x, labels = answers["x"].reshape(60, 8)[:22], answers["labels"].reshape(60)[:22]
    np.savez(tmp_path / "data.npz", x=x, labels=labels, other=np.zeros(3))
    options = ("--steps", 5, "--batch", 6, "--lr", 0.01, "--provider", "cpu")
    result = call(DATA / "mlp", *options, "--data", tmp_path / "data.npz")
    assert result.exit_code == 0, result.output
    session = cto.onnx.TrainingSession(DATA / "mlp")
    session.lr = 0.01
    expected = [session.step(answers["x"][i], answers["labels"][i]) for i in (0, 1, 2, 0, 1)]
    np.testing.assert_allclose(list(losses(result.stdout).values()), expected, rtol=1e-5)


def test_an_example_may_have_several_labels(tmp_path) -> None:
    with np.load(DATA / "gpt" / "answers.npz") as file:
        answers = dict(file)
    x, labels = answers["x"].reshape(20, 6), answers["labels"].reshape(120)
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    options = ("--steps", 2, "--batch", 2, "--lr", 0.01, "--provider", "cpu")
    result = call(DATA / "gpt", *options, "--data", tmp_path / "data.npz")
    np.testing.assert_allclose(
        list(losses(result.stdout).values()), answers["losses"][:2], rtol=1e-5
    )


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((4, 8), np.float32)}, "no array 'labels'"),
        (
            {"x": np.zeros((4, 8), np.float32), "labels": np.zeros(3, np.int64)},
            "as many examples of each input, got 4 of x, 3 of labels",
        ),
        ({"x": np.zeros((4, 8)), "labels": np.zeros(4, np.int64)}, "x: expected float32"),
        ({"x": np.zeros((4, 8), np.float32), "labels": np.array(0)}, "got 4 of x, 0 of labels"),
    ],
)
def test_data_that_does_not_fit_is_one_line(tmp_path, arrays, words) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    result = call(DATA / "mlp", "--steps", 1, "--data", tmp_path / "data.npz")
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_artifacts_that_are_not_there_are_one_line(tmp_path) -> None:
    for path, words in ((tmp_path / "no", "No such file"), (tmp_path, "training_model.onnx")):
        result = call(path)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert words in result.stderr
    (tmp_path / "model.onnx").write_bytes(b"\0" * 99)
    assert call(tmp_path / "model.onnx").exit_code == 2


def test_names_with_a_prefix(tmp_path) -> None:
    for path in (DATA / "mse").iterdir():
        shutil.copy(path, tmp_path / f"small_{path.name}")
    result = call(tmp_path, "--prefix", "small_", "--steps", 2)
    assert result.exit_code == 0
    assert len(losses(result.stdout)) == 2


# ---- make ----------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path, rng: np.random.Generator) -> Path:
    """scores = relu(x w) v, of float32, in a file."""
    arrays = {"w": rng.standard_normal((8, 6)), "v": rng.standard_normal((6, 4))}
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["a"]),
        onnx.helper.make_node("Relu", ["a"], ["b"]),
        onnx.helper.make_node("MatMul", ["b", "v"], ["scores"]),
    ]
    ends = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ("batch", n))]
        for name, n in (("x", 8), ("scores", 4))
    ]
    initial = [onnx.numpy_helper.from_array(a.astype("f4"), n) for n, a in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "net", *ends, initial)
    opsets = [onnx.helper.make_opsetid("", 17)]
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_artifacts_are_made_and_train(model, tmp_path) -> None:
    folder = tmp_path / "new" / "artifacts"
    result = call("make", model, folder, "--loss", "cross_entropy")
    assert result.exit_code == 0, result.output
    names = "training_model.onnx, eval_model.onnx, optimizer_model.onnx, checkpoint"
    assert result.output == f"{folder}: {names}\n"
    listed = call(folder)
    assert listed.exit_code == 0, listed.output
    assert "ReluGrad" in listed.output
    actual = losses(call(folder, "--steps", 12, "--lr", 0.02, "--provider", "cpu").stdout)
    assert actual[12] < actual[1]


def test_options_of_made_artifacts(model, tmp_path) -> None:
    options = ("--loss", "mse", "--prefix", "a_", "--clip-norm", 0.5)
    first = ("--frozen", "v", "--weight-decay", 0.25)
    second = ("--trainable", "v", "--optimizer", "SGD")
    assert call("make", model, tmp_path / "1", *options, *first).exit_code == 0
    assert call("make", model, tmp_path / "2", *options, *second).exit_code == 0
    sessions = [cto.onnx.TrainingSession(tmp_path / n, prefix="a_") for n in ("1", "2")]
    assert [list(session.gradients) for session in sessions] == [["w"], ["v"]]
    clip, step = onnx.load(tmp_path / "1" / "a_optimizer_model.onnx").graph.node
    assert [each.f for each in clip.attribute] == [0.5]
    assert {each.name: each.f for each in step.attribute}["weight_decay"] == 0.25
    assert "SGDOptimizerV2" in repr(sessions[1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--loss", "hinge"), "loss: expected one of"),
        (("--loss", "mse", "--frozen", "u"), "frozen: expected names of the model's parameters"),
        (("--loss", "mse", "--clip-norm", -1), "clip_norm: expected a number of at least 0"),
        (("--loss", "mse", "--weight-decay", "nan"), "weight_decay: expected a finite number"),
        (("--loss", "mse", "--optimizer", "SGD", "--weight-decay", 0), "no numbers of SGD"),
        (("--loss", "mse", "--prefix", "a/b"), "prefix: expected the beginning"),
        (("--loss", "mse", "--optimizer", "Adam"), "'Adam' is not one of"),
        ((), "Missing option '--loss'"),
    ],
)
def test_what_cannot_be_made_is_said_and_nothing_is_written(
    options, words, model, tmp_path
) -> None:
    result = call("make", model, tmp_path / "new", *options)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_model_that_is_none_or_a_folder_that_is_a_file(model, tmp_path) -> None:
    (tmp_path / "none.onnx").write_bytes(b"\0" * 99)
    for path, folder in ((tmp_path / "none.onnx", tmp_path / "new"), (model, model)):
        result = call("make", path, folder, "--loss", "mse")
        assert result.exit_code == 2
        assert not (tmp_path / "new").exists()
        assert "Traceback" not in result.output


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [(), ("--graph",)])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_gpu_trains_as_the_cpu_does(name: str, graph: tuple[str, ...]) -> None:
    options = ("--steps", 12, "--lr", 0.02, "--provider")
    result = call(DATA / name, *options, "cuda", *graph)
    assert result.exit_code == 0, result.output
    actual, expected = losses(result.stdout), losses(call(DATA / name, *options, "cpu").stdout)
    assert list(actual) == list(expected)
    np.testing.assert_allclose(list(actual.values()), list(expected.values()), rtol=1e-3)


def test_the_cpu_has_no_graphs_to_replay() -> None:
    result = call(DATA / "mlp", "--steps", 1, "--provider", "cpu", "--graph")
    assert result.exit_code != 0
    assert "NumPy, which has no CUDA graphs" in result.output
