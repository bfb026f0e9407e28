# SPDX-License-Identifier: MIT
"""Steps that are refused, or stopped: what they leave behind. Labels are what is refused most."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto
from cupy_training_ops.families.adam import reference
from cupy_training_ops.onnx import session as sessions
from cupy_training_ops.onnx.checks import Labels
from cupy_training_ops.onnx.runner import Runner

from . import boxes
from .interrupted import DATA, with_inputs
from .test_training_session import opened, trained


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


def test_statistics_that_cannot_be_written_are_refused_and_the_session_goes_on(tmp_path) -> None:
    """As those that other libraries lend."""
    folder, fed = with_inputs("cnn_max", tmp_path)
    session, plain = (cto.onnx.TrainingSession(folder, seed=3) for _ in range(2))
    with np.load(DATA / "cnn_max" / "answers.npz") as file:
        x, labels = file["x"][0], file["labels"][0]
    before, read_only = everything(session), {n: a.copy() for n, a in fed.items()}
    last = read_only[max(read_only)]
    last.flags.writeable = False
    for _ in range(2):
        with pytest.raises(cto.ArgumentError, match="expected an array to write to"):
            session.step(x, labels, **read_only)
        assert everything(session) == before
        assert all(a.tobytes() == read_only[n].tobytes() for n, a in fed.items())
    own, others = ({n: a.copy() for n, a in fed.items()} for _ in range(2))
    assert session.step(x, labels, **own) == plain.step(x, labels, **others)
    assert everything(session) == everything(plain)
    assert all(a.tobytes() == others[n].tobytes() for n, a in own.items())


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
    n, sums = len(program.steps), min(program.writers)
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
    session._point = session._point._replace(is_reset=is_reset)


def stopping(session, place: int):
    """What runs a step and is stopped behind so many."""
    steps = iter(range(place, -1, -1))

    def run(*arguments) -> None:
        type(session)._run_step(session, *arguments)
        if not next(steps):
            raise KeyboardInterrupt

    return run


def stopped_apply(session, monkeypatch, at) -> None:
    with monkeypatch.context() as context:
        at(context)
        with pytest.raises(KeyboardInterrupt):
            session.apply()


def while_computed(error: BaseException):
    """Once, while what is to be written is computed."""

    def at(context) -> None:
        real, errors = reference.adam_optimizer_list, iter([error])

        def computed(*arguments, **named):
            for each in errors:
                raise each
            return real(*arguments, **named)

        context.setattr(reference, "adam_optimizer_list", computed)

    return at


def behind_all(context) -> None:
    """When all is written and nobody knows yet."""

    def ran(self, values, notes, _) -> None:
        self._run(values, notes.steps)
        raise KeyboardInterrupt

    context.setattr(sessions.Session, "_run_saving", ran)


def test_an_optimizer_that_is_stopped_behind_its_step_has_made_it(monkeypatch) -> None:
    """No gradient is added twice."""
    session, answers = opened()
    other, _ = opened()
    session.accumulate(answers["x"][0], answers["labels"][0])
    stopped_apply(session, monkeypatch, behind_all)
    with pytest.raises(cto.ArgumentError, match="no gradients since the last step"):
        session.apply()
    trained(other, answers, [0])
    for each in (session, other):
        each.accumulate(answers["x"][1], answers["labels"][1])
    assert everything(session) == everything(other)


@pytest.mark.parametrize("error", [cto.ArgumentError, KeyboardInterrupt])
def test_an_optimizer_that_is_stopped_before_it_writes_goes_on(monkeypatch, error) -> None:
    plain, answers = opened()
    session, _ = opened()
    for each in (plain, session):
        each.accumulate(answers["x"][0], answers["labels"][0])
    with monkeypatch.context() as context:
        while_computed(error("no"))(context)
        with pytest.raises(error, match="no"):
            session.apply()
    assert session.step_count == 0
    for each in (plain, session):
        each.apply()
    assert everything(session) == everything(plain)


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
    labels.note_range(loss.inputs[1], [0, 7])
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
def test_labels_of_several_losses_are_compared_with_the_classes_of_each(
    label: int, other: int, expected: str | None, monkeypatch, rng
) -> None:
    """On a device that computes NaN of what is out of range."""
    monkeypatch.setattr(sessions, "node_runners", boxes.runners)
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
    actual = labels.runners(session.graph, dict.fromkeys(range(len(session.graph.nodes)), PLAIN))
    place = next(i for i, node in enumerate(session.graph.nodes) if name in node.inputs)
    run = actual[place].make(np)
    for wrong in (-1, 4):
        labels.note_range(name, np.array([0, wrong]))
        with pytest.raises(cto.ArgumentError, match=f"labels from 0 to 3, got {wrong}"):
            run([np.zeros((2, 4)), None])
        with pytest.raises(cto.ArgumentError, match="labels from 0 to 3"):
            labels.check(labels.classes)
    labels.note_range(name, answers["labels"][0])
    labels.check(labels.classes)
    assert run([np.zeros((2, 4)), None]) == "done"


PLAIN = Runner(lambda _: lambda _: "done")
