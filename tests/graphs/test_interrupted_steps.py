# SPDX-License-Identifier: MIT
"""Calls of training sessions that are interrupted once at each line: all or nothing."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from interrupts import at_each_line, at_random

import cupy_training_ops as cto
from cupy_training_ops.onnx import activations, training
from cupy_training_ops.onnx.session import Session

from .interrupted import DATA, GRAPHS, NORMALISED, Trained, with_inputs

CODED = {"activations": "default"}


def trained(name: str, tmp_path, monkeypatch, *call: str, **options) -> Trained:
    monkeypatch.setattr(activations, "LEAST", 0)
    return Trained(name, tmp_path / name, monkeypatch, *call, **options)


@pytest.mark.parametrize(
    ("name", "call", "options"),
    [
        ("cnn_max", "step", {"statistics": "parameters"}),
        ("dropout", "accumulate", {"added": True} | CODED),
        ("tied", "step", {}),
    ],
)
def test_a_call_interrupted_at_any_line_is_made_or_not(
    name: str, call: str, options: dict[str, Any], tmp_path, monkeypatch
) -> None:
    trained(name, tmp_path, monkeypatch, call, **options).at_each_line()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("call", "options"),
    [("step", {}), ("step", {"added": True} | CODED), ("accumulate", CODED), ("apply", {})],
)
@pytest.mark.parametrize("name", GRAPHS)
def test_all_graphs_are_made_or_not(name: str, call: str, options, tmp_path, monkeypatch) -> None:
    trained(name, tmp_path, monkeypatch, call, **options).at_each_line()


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, CODED])
@pytest.mark.parametrize("statistics", ["fed", "parameters"])
@pytest.mark.parametrize("name", NORMALISED)
def test_statistics_that_are_inputs_are_put_back(
    name: str, statistics: str, options, tmp_path, monkeypatch
) -> None:
    trained(name, tmp_path, monkeypatch, statistics=statistics, **options).at_each_line()


@pytest.mark.parametrize("statistics", ["constants", "parameters", "fed"])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("call", ["step", "accumulate"])
def test_a_refused_call_changes_nothing_wherever_statistics_are(
    call: str, added: bool, statistics: str, tmp_path, monkeypatch
) -> None:
    """Nor does one that is refused and then interrupted."""
    actual = trained("cnn_max", tmp_path, monkeypatch, call, added=added, statistics=statistics)
    short, wrong = actual.labels[3][:-1], np.full_like(actual.labels[3], 10**6)
    for labels in (short, wrong):
        with pytest.raises(cto.ArgumentError):
            actual.back().call(labels=labels)
        assert actual.state() == actual.before
        actual.call()
        assert actual.state() == actual.after

    def refused(subject: Trained) -> None:
        with pytest.raises(cto.ArgumentError):
            subject.call(labels=wrong)

    def check(subject: Trained, place: Any) -> None:
        subject.call()  # what was stopped while it was put back is so now
        assert subject.state() == subject.after, place

    if (call, added, statistics) == ("step", False, "parameters"):
        at_each_line(actual.back, refused, check)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file is open
def test_a_rate_or_a_state_that_is_stopped_is_there_or_not(tmp_path, monkeypatch) -> None:
    """Loading is refused to go on with where it had begun to write."""
    actual = trained("mlp", tmp_path, monkeypatch)
    actual.session.save(tmp_path / "state.npz")

    def load(subject: Trained) -> None:
        subject.session.load(tmp_path / "state.npz")

    def check(subject: Trained, place: Any) -> None:
        if subject.session._point.is_torn:
            actual.outcomes["torn"] += 1
            with pytest.raises(cto.ProviderError, match="load a state"):
                subject.call()
            load(subject)
        assert subject.state() in (actual.before, actual.after), place

    def behind(_: object = None) -> Trained:
        actual.back().call()
        return actual

    lines = at_each_line(behind, load, check)
    assert actual.outcomes["torn"] <= 0.1 * len(lines)

    def rate(subject: Trained) -> None:
        subject.session.lr = 0.25

    def is_set(subject: Trained, place: Any) -> None:
        assert subject.session.lr in (before, 0.25), place
        subject.session.lr = before

    before = actual.session.lr
    at_each_line(actual.back, rate, is_set)


def test_evaluation_changes_nothing(tmp_path, monkeypatch) -> None:
    actual = trained("cnn_max", tmp_path, monkeypatch)

    def check(subject: Trained, place: Any) -> None:
        assert subject.state() == actual.before, place

    at_each_line(actual.back, lambda s: s.session.eval(s.x[0], s.labels[0]), check)


NOISY = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] x) => (float[N, 2] y)
<float[2] w = {1, 2}, float[2] b = {0, 0}, float[2] mean = {0, 0}, float[2] var = {1, 1}>
{ h = BatchNormalization(x, w, b, mean, var) noise = RandomNormalLike(h) y = Add(h, noise) }"""


@pytest.mark.parametrize("inputs", [1, 2])
def test_an_evaluation_that_is_stopped_as_it_is_put_back_is_so_before_the_next_call(
    inputs: int, rng, monkeypatch
) -> None:
    """Steps behind it have other statistics and random states, which a later one leaves alone."""
    model = onnx.parser.parse_model(NOISY)
    open_ = cto.onnx.TrainingSession.from_model
    stopped, plain = (open_(model, loss="cross_entropy", seed=3) for _ in range(2))
    batch = rng.random((4, 2), np.float32), rng.integers(0, 2, 4)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_run", interrupt)
        patch.setattr(Session, "put_back", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stopped.eval(*batch[:inputs])
    for call in (plain.step, plain.eval, plain.step):
        assert getattr(stopped, call.__name__)(*batch) == call(*batch)
    assert stopped.eval(batch[0]).tobytes() == plain.eval(batch[0]).tobytes()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a finalizer
@pytest.mark.parametrize("name", ["cnn_max", "dropout"])
def test_signals_at_random_moments(name: str, tmp_path, monkeypatch, rng) -> None:
    actual = trained(name, tmp_path, monkeypatch, **CODED)
    assert at_random(actual.back, lambda s: s.call(), actual.check, rng, 100)
    assert not actual.outcomes["torn"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a finalizer
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["cnn_global", "tied"])
def test_two_thousand_signals(name: str, tmp_path, monkeypatch, rng) -> None:
    actual = trained(name, tmp_path, monkeypatch, **CODED)
    assert at_random(actual.back, lambda s: s.call(), actual.check, rng, 1000) > 100
    assert not actual.outcomes["torn"]


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"graph": True}, CODED])
@pytest.mark.parametrize("name", ["cnn_max", "dropout", "tied"])
def test_steps_on_a_gpu_are_made_or_not(name: str, options, tmp_path, monkeypatch) -> None:
    import cupy

    trained(name, tmp_path, monkeypatch, xp=cupy, **options).at_each_line()


# ---- what the tests above would notice -----------------------------------------------------------


def without_return(monkeypatch) -> None:
    """Statistics are written before the commit, and stay so."""
    monkeypatch.setattr(Session, "put_back", lambda _: None)


def in_two_calls(monkeypatch) -> None:
    """Gradients of a step that is stopped before its optimizer stay."""

    def step(self: Any, *inputs: Any, **named: Any) -> Any:
        loss = self.accumulate(*inputs, **named)
        self.apply()
        return loss

    monkeypatch.setattr(training.TrainingSession, "step", step)


def counted_early(monkeypatch) -> None:
    """The count is raised before parameters are written."""
    real = training.TrainingSession._apply

    def apply(self: Any, optimizer: Any, run: Any) -> None:
        early = self._point._replace(step_count=self.step_count + 1)

        def counted(*arguments: Any) -> Any:
            self._point = early
            return run(*arguments)

        real(self, optimizer, counted)

    monkeypatch.setattr(training.TrainingSession, "_apply", apply)


def counted_late(monkeypatch) -> None:
    """The count is raised behind what writes parameters."""
    name = "cupy_training_ops.onnx.session.call_with_marks"
    monkeypatch.setattr(name, lambda _, run, *arguments: run(*arguments))


@pytest.mark.parametrize("fault", [without_return, in_two_calls, counted_early, counted_late])
def test_planted_faults_are_noticed(fault, tmp_path, monkeypatch) -> None:
    actual = trained("cnn_max", tmp_path, monkeypatch)
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        actual.at_each_line()


# ---- several callers -----------------------------------------------------------------------------


def test_a_call_inside_of_another_is_refused(tmp_path, monkeypatch) -> None:
    """As a signal's handler makes one."""
    actual = trained("mlp", tmp_path, monkeypatch)
    inner = actual.session._training
    steps = itertools.count()

    def run(*arguments: Any) -> None:
        if next(steps) == 3:
            with pytest.raises(cto.ProviderError, match="save: expected no call inside of another"):
                actual.session.save(tmp_path / "state.npz")
        Session._run_step(inner, *arguments)

    monkeypatch.setattr(inner, "_run_step", run)
    actual.call()
    assert actual.state() == actual.after


def test_a_state_that_is_saved_beside_a_thread_that_steps_is_whole(tmp_path, monkeypatch) -> None:
    actual = trained("mlp", tmp_path, monkeypatch)
    n, states = 60, []
    for _ in range(n):
        actual.call()
        states.append(actual.state())
    actual.back()
    with ThreadPoolExecutor(1) as pool:
        steps = pool.submit(lambda: [actual.call() for _ in range(n)])
        while not steps.done():
            actual.session.save(tmp_path / f"{len(list(tmp_path.iterdir()))}.npz")
        steps.result()
    assert actual.state() == states[-1]
    for path in tmp_path.glob("*.npz"):
        actual.session.load(path)
        assert actual.state() in (actual.before, *states)


def test_a_session_of_plain_runs_puts_back_what_is_fed(tmp_path) -> None:
    folder, arrays = with_inputs("cnn_max", tmp_path / "fed")
    session = cto.onnx.Session(folder / "training_model.onnx")
    whole = cto.onnx.TrainingSession(DATA / "cnn_max")
    with np.load(DATA / "cnn_max" / "answers.npz") as file:
        x, labels = file["x"][0], file["labels"][0]
    fed = {n: a.copy() for n, a in arrays.items()}
    buffers = {n: np.zeros_like(a) for n, a in whole.gradients.items()}
    feeds = {
        **whole.parameters,
        **{n + training.BUFFER: a for n, a in buffers.items()},
        **fed,
        training.RESET: np.ones(1, bool),
        "x": x,
    }
    with pytest.raises(cto.ArgumentError, match="labels from 0"):
        session.run({**feeds, "labels": np.full_like(labels, 99)})
    assert all(fed[n].tobytes() == a.tobytes() for n, a in arrays.items())
    session.run({**feeds, "labels": labels})
    assert all(fed[n].tobytes() != a.tobytes() for n, a in arrays.items())
