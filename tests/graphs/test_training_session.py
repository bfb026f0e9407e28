# SPDX-License-Identifier: MIT
"""What a training session does beside ten plain steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import cupy_training_ops as cto
from cupy_training_ops.onnx import session as sessions
from cupy_training_ops.onnx.kinds import Runner
from cupy_training_ops.onnx.labels import Labels

from . import boxes

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


@pytest.mark.parametrize("value", [np.nan, np.inf, "x", None])
def test_a_rate_that_is_no_number_is_refused(value) -> None:
    session, _ = opened()
    with pytest.raises(cto.ArgumentError, match="lr"):
        session.lr = value
    assert session.lr == 0.001


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


def test_outputs_beside_the_loss_are_kept() -> None:
    session, answers = opened()
    loss = session.step(answers["x"][0], labels=answers["labels"][0])
    assert list(session.outputs) == ["onnx::loss::2", "scores"]
    assert session.outputs["scores"].shape == (6, 4)
    assert loss.shape == ()


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_no_class_is_refused_and_changes_nothing(label: int) -> None:
    session, answers = opened()
    labels = answers["labels"][0].copy()
    labels[2] = label
    with pytest.raises(cto.ArgumentError, match=f"labels from 0 to 3, got {label}"):
        session.step(answers["x"][0], labels)
    assert not any(gradient.any() for gradient in session.gradients.values())
    assert session.step_count == 0


def everything(session) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in session._state_arrays().items()}


@pytest.mark.parametrize("name", ["cnn_max", "gpt"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_refused_step_has_changed_nothing(name: str, begun: bool) -> None:
    """Neither running statistics nor gradients of the batches before."""
    session, answers = opened(name, seed=3)
    if begun:
        session.accumulate(answers["x"][0], answers["labels"][0])
    before = everything(session)
    labels = answers["labels"][1].copy()
    labels[-1] = 10**6
    with pytest.raises(cto.ArgumentError, match="labels from 0"):
        session.step(answers["x"][1], labels)
    assert everything(session) == before
    plain, _ = opened(name, seed=3)
    for i in range(not begun, 2):
        plain.accumulate(answers["x"][i], answers["labels"][i])
    session.accumulate(answers["x"][1], answers["labels"][1])
    assert everything(session) == everything(plain)


@pytest.mark.parametrize("name", ["cnn_max", "dropout"])
def test_a_step_stopped_anywhere_leaves_states_and_no_half_sum(name: str, monkeypatch, rng) -> None:
    session, answers = opened(name, seed=3)
    x, labels = answers["x"], answers["labels"]
    session.accumulate(x[0], labels[0])
    start = {n: array.copy() for n, array in session._state_arrays().items()}
    session.accumulate(x[1], labels[1])
    added = everything(session)
    began_anew(session, start, True)
    session.accumulate(x[1], labels[1])
    anew = everything(session)
    program = session._training.program
    n, sums = len(program.steps), program.n_before_sums
    for place in (0, sums - 1, sums, n - 1, *rng.integers(n, size=4)):
        began_anew(session, start, False)
        with monkeypatch.context() as context:
            context.setattr(session._training, "_run_step", stopping(session._training, place))
            with pytest.raises(KeyboardInterrupt):
                session.accumulate(x[1], labels[1])
        session.accumulate(x[1], labels[1])
        assert everything(session) == (added if place < sums else anew), place


def began_anew(session, start, is_reset: bool) -> None:
    for name, array in session._state_arrays().items():
        array[...] = start[name]
    session._is_reset = is_reset


def stopping(session, place: int):
    """What runs a step and is stopped behind so many."""
    steps = iter(range(place, -1, -1))

    def run(*given) -> None:
        type(session)._run_step(session, *given)
        if not next(steps):
            raise KeyboardInterrupt

    return run


def test_sums_come_behind_all_that_may_refuse() -> None:
    """A bias beside the loss, whose gradient is a constant."""
    model = onnx.parser.parse_model(BESIDE)
    session = cto.onnx.Session(model)
    buffer, x = np.ones((), np.float32), np.ones((2, 3), np.float32)
    feeds = {
        "x": x,
        "b": buffer,
        "buffer": buffer.copy(),
        "one": buffer,
        "reset": np.zeros(1, bool),
    }
    with pytest.raises(cto.ArgumentError, match="labels from 0 to 2, got 3"):
        session.run({**feeds, "labels": np.array([0, 3])})
    assert feeds["buffer"] == 1
    session.run({**feeds, "labels": np.array([0, 2])})
    assert feeds["buffer"] == 2


BESIDE = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[2, 3] x, int64[2] labels, float b, float buffer, float one, bool[1] reset)
=> (float loss, bool[1] done) {
    db = Identity(one)
    done = com.microsoft.InPlaceAccumulatorV2(buffer, db, reset)
    of_labels = SoftmaxCrossEntropyLoss(x, labels)
    loss = Add(of_labels, b)
}"""


def test_labels_in_a_list_are_looked_at_as_well() -> None:
    session, _ = opened()
    labels = Labels(session.graph)
    (loss,) = labels._losses
    labels.look_at(loss.inputs[1], [0, 7])
    with pytest.raises(cto.ArgumentError, match="labels from 0 to 3, got 7"):
        labels.check({loss.outputs[0]: 4})
    labels.check({loss.outputs[0]: 8})


TWO_LOSSES = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[2, 3] x, float[2, 4, 9] y, int64[2] labels, int64[2, 4] others)
=> (float a, float b, float c) {
    a = SoftmaxCrossEntropyLoss(x, labels)
    wide = Concat <axis = 1> (x, x)
    b = SoftmaxCrossEntropyLoss <ignore_index = 5> (wide, labels)
    c, log = com.microsoft.SparseSoftmaxCrossEntropy(y, others)
}"""


@pytest.mark.parametrize(
    ("label", "other", "expected"),
    [(2, 8, None), (3, 0, "0 to 2, got 3"), (5, 0, "0 to 2, got 5"), (0, 9, "0 to 8, got 9")],
)
def test_labels_of_several_losses_are_held_against_the_classes_of_each(
    label: int, other: int, expected: str | None, monkeypatch, rng
) -> None:
    """On a device that computes NaN of what is out of range."""
    monkeypatch.setattr(sessions, "runners", boxes.runners)
    session = cto.onnx.Session(onnx.parser.parse_model(TWO_LOSSES), boxes.Device())
    feeds = {"x": rng.standard_normal((2, 3)).astype(np.float32)}
    feeds |= {"y": rng.standard_normal((2, 4, 9)).astype(np.float32)}
    feeds |= {"labels": np.array([0, label]), "others": np.full((2, 4), other)}
    if expected is None:
        assert len(session.run(feeds)) == 3
    else:
        with pytest.raises(cto.ArgumentError, match=f"labels from {expected}"):
            session.run(feeds)


def test_labels_from_the_host_are_looked_at_before_a_device_has_them() -> None:
    session, answers = opened()
    labels = Labels(session.graph)
    (loss,) = labels._losses
    name = loss.inputs[1]
    found = labels.runners(session.graph, dict.fromkeys(range(len(session.graph.nodes)), PLAIN))
    place = next(i for i, node in enumerate(session.graph.nodes) if name in node.inputs)
    run = found[place].make(np)
    for wrong in (-1, 4):
        labels.look_at(name, np.array([0, wrong]))
        with pytest.raises(cto.ArgumentError, match=f"labels from 0 to 3, got {wrong}"):
            run([np.zeros((2, 4)), None])
        with pytest.raises(cto.ArgumentError, match="labels from 0 to 3"):
            labels.check(labels.classes)
    labels.look_at(name, answers["labels"][0])
    labels.check(labels.classes)
    assert run([np.zeros((2, 4)), None]) == "done"


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


PLAIN = Runner(lambda _: lambda _: "done")
