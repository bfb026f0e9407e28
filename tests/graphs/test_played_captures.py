# SPDX-License-Identifier: MIT
"""Captured steps without a GPU: a capture runs and is undone, a replay runs the session again.

So what is played is all that is around a graph: forms, places of feeds and results, what is
refused, and what is left where a step is stopped.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx import control, session, training

from . import boxes
from .boxes import SLOW, Box, CapturedDevice, batch, each, placed, state

graphs = pytest.importorskip("cupy_training_ops.device.graphs")
capture = pytest.importorskip("cupy_training_ops.onnx.capture")


class Graph:
    """One graph: runs the session again on the arrays of the capture."""

    def __init__(self, runs: Any) -> None:
        self._runs = runs

    def launch(self) -> None:
        form = next(f for f in self._runs._forms.values() if f.graph is self)
        actual = self._runs._session.run_checked({**self._runs._fixed, **form.inputs})
        for name, result in form.results.items():
            for target, value in zip(listed(result), listed(actual[name]), strict=True):
                if target is not value:
                    target[...] = value


def listed(item: Any) -> list[Any]:
    return item if isinstance(item, list) else [item]


class Played(capture.Captures):
    """Captures that note no memory, and whose graphs are played."""

    def _record(self, form: Any, feeds: Any, notes: Any) -> dict[str, Any]:
        results = self._session.run_checked({**self._fixed, **self._copies(feeds)}, notes)
        form.tries, form.plan = form.tries + 1, SimpleNamespace(nbytes=0)
        return results

    def _room(self, plan: Any) -> None:
        return None

    @contextlib.contextmanager
    def played(self, stream: Any) -> Any:
        """In place of a capture: what runs inside has written nothing."""
        fixed = [a for item in self._fixed.values() for a in listed(item)]
        arrays = [*fixed, *self._session.states.values()]
        before = [array.copy() for array in arrays]
        try:
            with graphs.capture(stream) as actual:
                yield actual
        finally:
            for array, old in zip(arrays, before, strict=True):
                array[...] = old
        actual.graph = Graph(self)

    def _capture(self, form: Any, feeds: Any, stream: Any) -> bool:
        self._graphs.capture = self.played
        return super()._capture(form, feeds, stream)


@pytest.fixture
def opened(monkeypatch):
    """Opens a session of the device whose captures are played, and one of NumPy's like it."""
    for module in (session, control):
        monkeypatch.setattr(module, "node_runners", boxes.runners)
    stream = SimpleNamespace(ptr=0, begin_capture=lambda _: None)
    stream.end_capture = lambda: SimpleNamespace(graph=None)
    monkeypatch.setattr(graphs, "copies_with_the_host", lambda _: 0)
    nothing = contextlib.nullcontext
    side = SimpleNamespace(go_on=lambda _: None, beside=nothing, stream=stream)
    actual = SimpleNamespace(side_stream=lambda _: side, capture=None)
    cuda = SimpleNamespace(
        MemoryPool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
        get_current_stream=lambda: stream,
        using_allocator=lambda _: nothing(),
    )
    arena = SimpleNamespace(malloc=None, is_used=True)
    monkeypatch.setattr(capture, "graphs", actual)
    monkeypatch.setattr(capture, "cupy", SimpleNamespace(cuda=cuda, ndarray=Box))
    monkeypatch.setattr(capture, "workspace", SimpleNamespace(behind_graphs=nothing))
    monkeypatch.setattr(capture, "Arena", lambda *_: arena)
    monkeypatch.setattr(Played, "_graphs", actual, raising=False)
    monkeypatch.setattr(capture, "Captures", Played)
    monkeypatch.setattr(training, "_refuse_uncapturable", lambda *_: None)

    def both(name: str) -> Any:
        return boxes.opened_beside(name, CapturedDevice(), graph=True)

    return both


def is_captured(trained: Any) -> bool:
    return any(form.graph is not None for form in trained._run_training._forms.values())


@pytest.mark.parametrize("name", ["mlp", "cnn_max", "dropout", *SLOW])
def test_replays_are_steps(name: str, opened, rng) -> None:
    """Sizes and places of what is fed change; losses are the caller's."""
    played, plain, answers = opened(name)
    losses = []
    for i in range(12):
        x, labels = batch(rng, answers, i)
        losses.append((played.accumulate(*placed(rng, x, labels)), plain.accumulate(x, labels)))
        if rng.integers(2):
            played.apply()
            plain.apply()
        assert state(played) == state(plain), i
    assert is_captured(played)
    for a, b in losses:
        np.testing.assert_array_equal(a.inside, b)


@pytest.mark.usefixtures("opened")
def test_sequences_and_parameters_of_the_host_are_fed_to_replays(rng) -> None:
    """Another value of a frozen one is another form; views of inputs among the outputs stay."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (seq(float[N, 3]) s) => (float[M, 5] y, float[3, 3] t)
        <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[1] v = {0.5}, int64[4] p = {0, 1, 0, 1}>
        { x = ConcatFromSequence<axis = 0>(s) h = MatMul(x, w) c = Squeeze(v) y = Pad(h, p, c)
          t = Transpose(w) }"""
    )
    played, plain = (
        cto.onnx.TrainingSession.from_model(model, loss="mse", frozen=["v"], **options)
        for options in ({"xp": CapturedDevice(), "graph": True}, {})
    )
    for i in range(16):
        s = [rng.random((n, 3), np.float32) for n in [(2, 3), (5,)][i % 2]]
        labels, before = rng.random((5, 5), np.float32), plain.parameters["w"].T.copy()
        loss = played.step(placed(rng, *s), *placed(rng, labels))
        assert loss.inside == plain.step(s, labels)
        np.testing.assert_array_equal(played.outputs["t"].inside, before)
        if i % 6 == 5:
            for array in (played.parameters["v"].inside, plain.parameters["v"]):
                array += 1
    assert len(played._run_training._forms) == 6
    assert is_captured(played)


@pytest.mark.parametrize("name", ["cnn_max", "dropout", "mlp"])
def test_steps_that_are_refused_or_stopped_leave_no_half(name: str, opened, rng) -> None:
    played, plain, answers = opened(name)
    n_steps = len(plain._training.program.steps)
    n_stopped = 0
    for i in range(24):
        x, labels = answers["x"][i % 10], answers["labels"][i % 10]
        wrong, before = labels.copy(), state(played)
        wrong[rng.integers(len(wrong))] = rng.choice([-1, 4])
        kind = rng.integers(3)
        if kind == 0:
            with pytest.raises(cto.ArgumentError, match="labels from 0 to"):
                played.accumulate(x, wrong)
            assert state(played) == before
        elif kind == 1 and not is_captured(played):
            stop(played, int(rng.integers(n_steps)), x, labels)
            assert played._point.is_reset or state(played) == before
            plain._point = played._point
            n_stopped += 1
            continue
        played.accumulate(x, labels)
        plain.accumulate(x, labels)
        assert state(played) == state(plain), i
        if rng.integers(3) == 0:
            played._run_training._forms.clear()
    assert n_stopped


def stop(trained: Any, place: int, x: Any, labels: Any) -> None:
    """An accumulation that is stopped behind so many steps of the graph."""
    inner = trained._training
    steps = iter(range(place, -1, -1))

    def run(*arguments: Any) -> None:
        type(inner)._run_step(inner, *arguments)
        if not next(steps):
            raise KeyboardInterrupt

    inner._run_step = run
    try:
        with pytest.raises(KeyboardInterrupt):
            trained.accumulate(x, labels)
    finally:
        del inner._run_step


CONTRAST = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, K] x, int64[N] labels) => (float loss) {
    t = Transpose <perm = [1, 0]> (x) scores = MatMul(x, t)
    loss = SoftmaxCrossEntropyLoss(scores, labels)
}"""


@pytest.mark.usefixtures("opened")
def test_labels_of_a_form_are_compared_with_its_own_classes(rng) -> None:
    """Each sample of a batch is a class of its own."""
    import onnx

    text = onnx.parser.parse_model(CONTRAST)
    runs, plain = Played(cto.onnx.Session(text, CapturedDevice()), {}), cto.onnx.Session(text)
    for n in (3, 3, 3, 5, 5, 5, 3, 5):
        feeds = {"x": rng.standard_normal((n, 4)).astype(np.float32), "labels": np.arange(n)}
        actual, expected = runs(feeds)["loss"], plain.run(feeds)["loss"]
        np.testing.assert_allclose(each(actual, lambda box: box.inside), expected, 1e-6)
        with pytest.raises(cto.ArgumentError, match=f"labels from 0 to {n - 1}, got {n}"):
            runs({**feeds, "labels": np.arange(n) + 1})
    assert all(form.graph is not None for form in runs._forms.values())


TURN = "(int64 i, bool go, float[2] s) => (bool stays, float[2] r, float[2] y)"
PARTS = {
    "a number of the loop among arrays": (
        f"""k = Constant <value_int = 100> () go = Constant <value = bool {{1}}> ()
        l, y = Loop(k, go, x) <body = t {TURN} {{ stays = Identity(go) f = Cast <to = 1> (i)
        r = Add(s, f) y = Mul(s, f) }}>"""
    ),
    "a condition that is a constant around": (
        f"""k = Constant <value_int = 12> () on = Constant <value = bool {{1}}> ()
        always = Constant <value = bool {{1}}> ()
        l, y = Loop(k, on, x) <body = t {TURN} {{ stays = Identity(always) r = Neg(s)
        y = Identity(s) }}>"""
    ),
    "a list of the host": (
        """k = Shape(x) f = Cast <to = 1> (k) a = SequenceConstruct(f, f)
        b = SequenceInsert(a, x) y = ConcatFromSequence <axis = 0> (b)"""
    ),
    "an empty list": (
        """e = SequenceEmpty <dtype = 1> () b = SequenceInsert(e, x)
        y = ConcatFromSequence <axis = 0> (b)"""
    ),
    "a value of the host out of a branch": (
        """k = Shape(x) yes = Cast <to = 9> (k) f = Cast <to = 1> (k)
        c = If(yes) <then_branch = t () => (float[1] a) { a = Neg(f) },
        else_branch = e () => (float[1] b) { b = Identity(f) }> y = Mul(x, c)"""
    ),
}


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("text", PARTS.values(), ids=PARTS)
def test_values_of_the_host_go_into_loops_and_lists(text: str, rng) -> None:
    """The graph keeps their copies alive."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float y) {{ {text} }}'
    )
    runs, plain = Played(cto.onnx.Session(model, CapturedDevice()), {}), cto.onnx.Session(model)
    for _ in range(4):
        x = rng.standard_normal(2 if "Loop" in text else 1).astype(np.float32)
        actual, expected = runs({"x": x})["y"], plain.run({"x": x})["y"]
        np.testing.assert_array_equal(actual.inside, expected)
        actual.inside[...] = 0
    (form,) = runs._forms.values()
    assert form.graph is not None
    assert form.sent or "SequenceEmpty" in text or "always" in text
