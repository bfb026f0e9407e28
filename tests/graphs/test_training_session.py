# SPDX-License-Identifier: MIT
"""What a training session does beside ten plain steps."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import cupy_training_ops as cto

DATA = Path(__file__).parent / "data"


def opened(name: str = "mlp", **options) -> tuple[cto.onnx.TrainingSession, dict[str, np.ndarray]]:
    with np.load(DATA / name / "answers.npz") as file:
        return cto.onnx.TrainingSession(DATA / name, **options), dict(file)


def trained(session, answers, steps) -> list[np.ndarray]:
    return [np.array(session.step(answers["x"][i], answers["labels"][i])) for i in steps]


def assert_same_arrays(a, b) -> None:
    assert a.keys() == b.keys()
    for name, array in a.items():
        assert array.tobytes() == b[name].tobytes(), name


def test_gradients_of_two_batches_are_added() -> None:
    session, answers = opened()
    session.accumulate(answers["x"][0], answers["labels"][0])
    first = {n: g.copy() for n, g in session.gradients.items()}
    session.accumulate(answers["x"][1], answers["labels"][1])
    apart, _ = opened()
    apart.accumulate(answers["x"][1], answers["labels"][1])
    for name, gradient in session.gradients.items():
        expected = first[name].astype(np.float64) + apart.gradients[name]
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(first[name], answers[f"gradients/{name}"][0], atol=1e-6)


def test_gradients_begin_anew_after_a_step() -> None:
    session, answers = opened()
    session.lr = 0  # the parameters stay, and so the second gradients are the first
    trained(session, answers, [0])
    first = {n: g.copy() for n, g in session.gradients.items()}
    session.accumulate(answers["x"][0], answers["labels"][0])
    assert any(gradient.any() for gradient in first.values())
    assert_same_arrays(first, dict(session.gradients))


def test_the_rate_is_that_of_the_next_step() -> None:
    session, answers = opened()
    before = {n: p.copy() for n, p in session.parameters.items()}
    session.lr = 0
    trained(session, answers, [0])
    assert_same_arrays(before, dict(session.parameters))
    session.lr = 0.1
    trained(session, answers, [1])
    assert all((before[n] != p).any() for n, p in session.parameters.items())


def test_a_rate_below_zero_is_saved_as_well(tmp_path: Path) -> None:
    session, _ = opened()
    session.lr = -0.5
    session.save(tmp_path / "state.npz")
    other, _ = opened()
    other.load(tmp_path / "state.npz")
    assert other.lr == -0.5


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e39, "x", None])
def test_a_rate_that_is_no_number_is_refused(value) -> None:
    session, _ = opened()
    with pytest.raises(cto.ArgumentError, match="lr"):
        session.lr = value
    assert session.lr == 0.001


def test_a_count_that_is_set_is_that_of_the_next_step() -> None:
    """AdamW corrects the moments' biases by it: of equal moments a late step is longer."""
    start = next(iter(opened()[0].parameters.values())).copy()
    moved = []
    for count in (0, 1000):
        session, answers = opened()
        session.step_count = count
        trained(session, answers, [0])
        assert session.step_count == count + 1
        moved.append(np.abs(next(iter(session.parameters.values())) - start).max())
    corrected = (1 - 0.9) / np.sqrt((1 - 0.999) / (1 - 0.999**1001))
    np.testing.assert_allclose(moved[1] / moved[0], corrected, rtol=0.01)


@pytest.mark.parametrize("value", [-1, 1.0, "x", None, True, 2**63])
def test_a_count_that_is_none_is_refused(value) -> None:
    session, _ = opened()
    with pytest.raises(cto.ArgumentError, match=r"^TrainingSession: step_count: expected"):
        session.step_count = value
    assert session.step_count == 0


@pytest.mark.parametrize("call", ["save", "load", "save_checkpoint", "export"])
@pytest.mark.parametrize("file", [3, None, ["state.npz"]])
def test_files_that_are_none_are_refused(call: str, file) -> None:
    with pytest.raises(cto.ArgumentError, match=f"^TrainingSession: {call}: file: expected the pa"):
        getattr(opened()[0], call)(file)


TWO_INPUTS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x, float[N, 4] shift) => (float[N, 3] y)
<float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { z = Add(x, shift) y = MatMul(z, w) }"""


def test_inputs_that_give_no_scores_are_refused_by_name(rng) -> None:
    """Not with a list of all that the graph is fed with, parameters among it."""
    model = onnx.parser.parse_model(TWO_INPUTS)
    session = cto.onnx.TrainingSession.from_model(model, loss="cross_entropy")
    x = rng.standard_normal((2, 4)).astype(np.float32)
    words = "TrainingSession: eval: inputs: expected x, shift, alone or beside all others, got x"
    for _ in range(2):
        with pytest.raises(cto.ArgumentError, match=f"^{words}$"):
            session.eval(x)
    assert session.eval(x, x).shape == (2, 3)


@pytest.mark.parametrize("name", ["mlp", "dropout", "cnn_max"])
def test_what_was_saved_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    session, answers = opened(name, seed=7)
    session.lr = 0.01
    trained(session, answers, range(3))
    session.accumulate(answers["x"][3], answers["labels"][3])
    session.save(tmp_path / "state.npz")
    expected = trained(session, answers, range(4, 7))
    other, _ = opened(name)
    other.load(tmp_path / "state.npz")
    assert other.lr == 0.01
    assert other.step_count == 3
    assert trained(other, answers, range(4, 7)) == expected
    assert_same_arrays(dict(session.parameters), dict(other.parameters))


def test_a_state_of_other_artifacts_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    session, _ = opened("mse")
    session.save(tmp_path / "state.npz")
    other, _ = opened("mlp")
    before = {n: p.copy() for n, p in other.parameters.items()}
    with pytest.raises(cto.ArgumentError, match="same artifacts"):
        other.load(tmp_path / "state.npz")
    assert_same_arrays(before, dict(other.parameters))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused_since_its_steps_would_be_those_of_both(copied) -> None:
    session, _ = opened()
    with pytest.raises(TypeError, match="open another one, which loads what this one saves"):
        copied(session)


def test_a_damaged_state_changes_nothing(tmp_path: Path) -> None:
    session, answers = opened()
    trained(session, answers, [0])
    session.save(tmp_path / "state.npz")
    whole = (tmp_path / "state.npz").read_bytes()
    other, _ = opened()
    before = {n: p.copy() for n, p in other.parameters.items()}
    for end in range(0, len(whole), 97):
        (tmp_path / "cut.npz").write_bytes(whole[:end])
        with pytest.raises(cto.ArgumentError):
            other.load(tmp_path / "cut.npz")
    assert_same_arrays(before, dict(other.parameters))


def test_a_seed_says_which_elements_are_dropped() -> None:
    losses = [trained(*opened("dropout", seed=seed), range(3)) for seed in (5, 5, 6)]
    assert losses[0] == losses[1] != losses[2]
    assert len(set(map(float, losses[0]))) == 3


@pytest.mark.parametrize("name", ["mlp", "frozen", "gpt", "cnn_average"])
def test_the_exported_model_is_what_was_trained(name: str, tmp_path: Path) -> None:
    session, answers = opened(name)
    trained(session, answers, range(2))
    session.export(tmp_path / "model.onnx")
    x = answers["x"][2]
    predicted = session.eval(x)
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [item.name for item in model.graph.input] == ["x"]
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-5)
    again = cto.onnx.Session(tmp_path / "model.onnx").run({"x": x})
    np.testing.assert_array_equal(next(iter(again.values())), predicted)


def test_running_statistics_reach_the_eval_model() -> None:
    session, answers = opened("cnn_max")
    x, labels = answers["x"][0], answers["labels"][0]
    before, loss = session.eval(x), session.eval(x, labels)
    session.accumulate(x, labels)
    assert (session.eval(x) != before).any()
    assert session.eval(x, labels) != loss


def test_frozen_parameters_stay() -> None:
    session, answers = opened("frozen")
    frozen = session.parameters.keys() - session.gradients.keys()
    before = {n: session.parameters[n].copy() for n in frozen}
    trained(session, answers, range(3))
    assert frozen
    assert_same_arrays(before, {n: session.parameters[n] for n in frozen})


@pytest.mark.parametrize(
    ("inputs", "named"),
    [((), {}), ((0,), {}), ((0, 1, 2), {}), ((0, 1), {"x": 0}), ((0,), {"y": 1})],
)
def test_other_inputs_are_refused_by_name(inputs, named) -> None:
    session, answers = opened()
    both = answers["x"][0], answers["labels"][0], answers["x"][0]
    with pytest.raises(cto.ArgumentError, match="x, labels"):
        session.step(*(both[i] for i in inputs), **{n: both[i] for n, i in named.items()})
    assert session.step_count == 0


def test_inputs_of_another_type_are_refused_before_anything_is_written() -> None:
    session, answers = opened()
    with pytest.raises(cto.DtypeError, match="x: expected float32, got float64"):
        session.step(answers["x"][0].astype(np.float64), answers["labels"][0])
    assert not any(gradient.any() for gradient in session.gradients.values())


def test_a_step_without_gradients_is_refused() -> None:
    session, _ = opened()
    with pytest.raises(cto.ArgumentError, match="no gradients"):
        session.apply()


def test_what_is_not_there_is_said_when_it_is_asked_for(tmp_path: Path) -> None:
    for name in ("training_model.onnx", "checkpoint"):
        shutil.copy(DATA / "mlp" / name, tmp_path / name)
    session, (x, labels) = cto.onnx.TrainingSession(tmp_path), first_batch()
    with pytest.raises(cto.ArgumentError, match="no optimizer_model"):
        session.step(x, labels)
    assert not any(gradient.any() for gradient in session.gradients.values())
    session.accumulate(x, labels)
    with pytest.raises(cto.ArgumentError, match="no optimizer_model"):
        session.apply()
    with pytest.raises(cto.ArgumentError, match="no eval_model"):
        session.eval(x)
    with pytest.raises(cto.ArgumentError, match="no eval_model"):
        session.export(tmp_path / "model.onnx")


def first_batch() -> tuple[np.ndarray, np.ndarray]:
    _, answers = opened()
    return answers["x"][0], answers["labels"][0]


def test_outputs_beside_the_loss_stay() -> None:
    session, answers = opened()
    loss = session.step(answers["x"][0], labels=answers["labels"][0])
    assert list(session.outputs) == ["onnx::loss::2", "scores"]
    assert session.outputs["scores"].shape == (6, 4)
    assert loss.shape == ()


@pytest.mark.parametrize("name", ["cnn_max", "gpt", "transformer", "tied", "mse", "frozen"])
def test_gradients_are_added_as_soon_as_they_are_made(name: str) -> None:
    nodes = cto.onnx.TrainingSession(DATA / name).graph.nodes
    places = {output: i for i, node in enumerate(nodes) for output in node.outputs}
    sums = [node for node in nodes if node.op_type == "InPlaceAccumulatorV2"]
    apart = [places[node.outputs[0]] - places[node.inputs[1]] for node in sums]
    assert sum(apart) <= 2 * len(sums) < len(sums) ** 2


@pytest.mark.parametrize("name", ["cnn_max", "mse"])
def test_outputs_are_made_before_gradients_which_do_not_wait_for_each_other(name: str) -> None:
    """Upstream's graphs make some losses at their very end."""
    graph = cto.onnx.TrainingSession(DATA / name).graph
    places = {output: i for i, node in enumerate(graph.nodes) for output in node.outputs}
    sums = [i for i, node in enumerate(graph.nodes) if node.op_type == "InPlaceAccumulatorV2"]
    results = [item.name for item in graph.outputs if not item.name.endswith("accumulation.out")]
    gradients = [i for i, node in enumerate(graph.nodes) if node.op_type.endswith("Grad")]
    assert max(places[name] for name in results) < min(sums) < max(gradients)
