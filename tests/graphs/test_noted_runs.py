# SPDX-License-Identifier: MIT
"""Noted steps without a GPU: what is noted of a step on the device is a function that computes its
results anew, into the same memory.

So what is played is all that is around launches: forms, places of feeds and results, marks, steps
that are run anew between them, what is refused, and what is left where a step is stopped.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto
from cupy_training_ops.device import recording
from cupy_training_ops.device.marks import Marks
from cupy_training_ops.onnx import program, session

from . import boxes
from .boxes import SLOW, Box, CapturedDevice, Device, batch, placed, state

noted_runs = pytest.importorskip("cupy_training_ops.onnx.noted_runs")
REAL_ARENA = noted_runs.Arena


class CudaDevice(Device):
    """A device whose sessions note their steps."""

    __name__ = "cupy"


class Arena:
    """Memory that stays: each step has the boxes that it had in the noted run."""

    def __init__(self, *_: Any) -> None:
        self.place, self.is_used = 0, True

    def malloc(self, nbytes: int) -> None:
        raise AssertionError("NumPy allocates")


class Played:
    """Runners whose steps on the device are noted, but for those that `is_anew` draws."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.share = rng, 0.0
        self.anew: set[str] = set()  # operators, beside the share that is drawn
        self.n_again = 0
        self.form: Any = None  # that is noted, or whose run is made again

    def in_form(self, method: Any) -> Any:
        """The method of a form, which is known inside."""

        def call(runs: Any, form: Any, *given: Any) -> Any:
            self.form = form
            try:
                return method(runs, form, *given)
            finally:
                self.form = None

        return call

    def runners(self, graph: Any, *given: Any, **options: Any) -> Any:
        """In place of node_runners."""
        actual = program.node_runners(graph, *given, **options)
        return {i: self._played(runner, graph.nodes[i].op_type) for i, runner in actual.items()}

    def _played(self, known: Any, op_type: str) -> Any:
        is_noted = self.rng.random() >= self.share and op_type not in self.anew
        made = replace(boxes._boxed(known), noted=is_noted, views={} if is_noted else known.views)
        return replace(made, make=lambda xp: self._run_of(made.make(xp), xp))

    def _run_of(self, run: Any, xp: Any) -> Any:
        if xp is np:
            return run
        kept: dict[int, list[Any]] = {}  # results of noted runs, by the form

        def on_device(values: list[Any], **over: Any) -> Any:
            noting, inputs = recording.current(), list(values)
            results = run(list(values), **over)
            if noting is not None and not all(isinstance(r, np.ndarray) for r in results):
                kept[id(self.form)] = results

                def again() -> None:
                    self.n_again += 1
                    for target, new in zip(results, run(list(inputs), **over), strict=True):
                        write(target, new)

                noting.calls.append(again)
            elif id(self.form) in kept:  # anew, in the memory that it had
                pairs = zip(kept[id(self.form)], results, strict=True)
                results = [stay(target, new) for target, new in pairs]
            return results

        return on_device


def write(target: Any, new: Any) -> None:
    if isinstance(target, list):
        for pair in zip(target, new, strict=True):
            write(*pair)
    elif isinstance(target, Box) and target.inside.flags.writeable:  # else its base was written
        target.inside[...] = new.inside


def stay(target: Any, new: Any) -> Any:
    if isinstance(target, Box) and target.inside.shape == new.inside.shape:
        write(target, new)
        return target
    return new


@pytest.fixture
def played(rng) -> Played:
    return Played(rng)


@pytest.fixture
def opened_pair(monkeypatch, played):
    """Opens a session of the device whose steps are noted, and one of NumPy's like it."""
    monkeypatch.setattr(session, "node_runners", played.runners)
    stream = SimpleNamespace(ptr=0)
    cuda = SimpleNamespace(
        get_current_stream=lambda: stream,
        get_allocator=lambda: None,
        using_allocator=lambda _: contextlib.nullcontext(),
        alloc=lambda n: SimpleNamespace(mem=SimpleNamespace(size=n)),
        runtime=SimpleNamespace(getDevice=lambda: 0),
    )
    plan = SimpleNamespace(nbytes=0)
    recorder = SimpleNamespace(malloc=None, plan=lambda _: plan)
    monkeypatch.setattr(noted_runs, "cupy", SimpleNamespace(cuda=cuda, ndarray=Box))
    monkeypatch.setattr(noted_runs, "Arena", Arena)
    monkeypatch.setattr(noted_runs, "Recorder", lambda _: recorder)
    monkeypatch.setattr(noted_runs, "_place", lambda box: (id(box), box.shape))
    for name in ("_note", "_run_between"):
        method = getattr(noted_runs.NotedRuns, name)
        monkeypatch.setattr(noted_runs.NotedRuns, name, played.in_form(method))

    def both(name: str, share: float = 0.0) -> Any:
        played.share = share
        return boxes.opened_beside(name, CudaDevice())

    return both


def is_noted(trained: Any) -> bool:
    return any(form.noted is not None for form in trained._run_training._forms.values())


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("name", ["mlp", "cnn_max", "dropout", *SLOW])
def test_noted_steps_are_steps(name: str, share: float, opened_pair, played, rng) -> None:
    """Losses are the caller's: later steps do not write them."""
    noted, plain, answers = opened_pair(name, share)
    losses = []
    for i in range(20):
        x, labels = batch(rng, answers, i)
        losses.append((noted.accumulate(*placed(rng, x, labels)), plain.accumulate(x, labels)))
        if rng.integers(2):
            noted.apply()
            plain.apply()
        assert state(noted) == state(plain), i
    assert is_noted(noted)
    assert played.n_again
    for a, b in losses:
        np.testing.assert_array_equal(a.inside, b)


def test_the_first_run_of_a_form_is_plain(opened_pair) -> None:
    """Then one notes its memory, the next one its launches, and from then on these are made."""
    noted, _, answers = opened_pair("mlp")
    x, labels = answers["x"][0], answers["labels"][0]
    form, counts = None, []
    for _ in range(5):
        noted.step(x, labels)
        (form,) = noted._run_training._forms.values()
        counts.append((form.plan is not None, form.noted is not None))
    assert counts == [(False, False), (True, False), *[(True, True)] * 3]
    assert form.noted.is_whole
    assert len(form.noted.groups) <= 3  # one before the first sum, the sum with its marks, the rest
    noted.step(x[1:], labels[1:])
    assert len(noted._run_training._forms) == 2


@pytest.mark.usefixtures("opened_pair")
def test_sequences_are_fed_to_noted_steps(played, rng) -> None:
    """A form has the shapes of all arrays, on the host or the device."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (seq(float[N, 3]) s) => (float[M, 3] y)
        <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
        { x = ConcatFromSequence<axis = 0>(s) y = MatMul(x, w) }"""
    )
    noted, plain = (
        cto.onnx.TrainingSession.from_model(model, loss="cross_entropy", xp=xp)
        for xp in (CudaDevice(), np)
    )
    for i in range(12):
        lengths = [(2, 3), (3, 2), (5,)][i % 3]
        s = [rng.random((n, 3), np.float32) for n in lengths]
        labels = rng.integers(0, 3, 5)
        loss = noted.step(placed(rng, *s), *placed(rng, labels))
        assert loss.inside == plain.step(s, labels)
    assert len(noted._run_training._forms) == 3
    assert is_noted(noted)
    assert played.n_again


@pytest.mark.parametrize("name", ["cnn_max", "dropout", "mlp"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_steps_that_are_refused_or_stopped_leave_no_half(
    name: str, share: float, opened_pair, rng
) -> None:
    noted, plain, answers = opened_pair(name, share)
    n_stopped, forms = 0, noted._run_training._forms
    for i in range(30):
        if rng.integers(3) == 0:
            noted.step(answers["x"][0], answers["labels"][0])
            plain.step(answers["x"][0], answers["labels"][0])
        x, labels = answers["x"][i % 10], answers["labels"][i % 10]
        wrong, before = labels.copy(), state(noted)
        wrong[rng.integers(len(wrong))] = rng.choice([-1, 4])
        kind = rng.integers(3)
        if kind == 0:
            with pytest.raises(cto.ArgumentError, match="labels from 0 to"):
                noted.accumulate(x, wrong)
            assert state(noted) == before
        elif kind == 1 and len(forms) == 2 and all(form.noted for form in forms.values()):
            stop(noted, rng, x, labels)
            assert noted._point.is_reset or state(noted) == before
            plain._point = noted._point
            n_stopped += 1
            continue
        noted.accumulate(x, labels)
        plain.accumulate(x, labels)
        assert state(noted) == state(plain), i
    assert n_stopped


def stop(trained: Any, rng: np.random.Generator, x: Any, labels: Any) -> None:
    """Stop a noted accumulation before one of its launches; it is noted anew later."""
    for form in trained._run_training._forms.values():
        groups = list(form.noted.groups) if form.noted else []
        with_calls = [k for k, group in enumerate(groups) if group.calls]
        if with_calls:
            k = rng.choice(with_calls)
            calls = list(groups[k].calls)
            calls.insert(rng.integers(len(calls)), interrupt)
            groups[k] = groups[k]._replace(calls=tuple(calls))
            form.noted = form.noted._replace(groups=tuple(groups))
    with pytest.raises(KeyboardInterrupt):
        trained.accumulate(x, labels)
    assert not is_noted(trained)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_failing_launch_is_refused_with_the_name_of_its_node(opened_pair) -> None:
    noted, plain, answers = opened_pair("mlp")
    first_batch = answers["x"][0], answers["labels"][0]
    for _ in range(4):
        noted.step(*first_batch)
        plain.step(*first_batch)
    (form,) = noted._run_training._forms.values()
    first = form.noted.groups[0]
    broken = first._replace(calls=(lambda: 7, *first.calls))
    form.noted = form.noted._replace(groups=(broken, *form.noted.groups[1:]))
    with pytest.raises(cto.ProviderError, match=r"node \d+ .* or behind it: .*launch"):
        noted.step(*first_batch)
    noted.step(*first_batch)
    plain.step(*first_batch)
    assert state(noted) == state(plain)


@pytest.mark.usefixtures("opened_pair")
def test_a_step_with_another_result_ends_the_noted_part(played, rng) -> None:
    """How many elements are chosen depends on them: a run with others is a plain one from there."""
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N] x) => (float[M] y) {
        z = Mul(x, x) big = Greater(z, x) c = Compress(z, big) y = Add(c, c)
    }"""
    model = onnx.parser.parse_model(text)
    played.anew = {"Compress"}
    runs = noted_runs.NotedRuns(cto.onnx.Session(model, CudaDevice()), {})
    plain = cto.onnx.Session(model)
    n_noted = 0
    for _ in range(30):
        x = rng.choice([0.5, 2.0], 3).astype(np.float32)
        actual, expected = runs({"x": x})["y"], plain.run({"x": x})["y"]
        np.testing.assert_array_equal(actual.inside, expected)
        n_noted += any(form.noted is not None for form in runs._forms.values())
    assert n_noted
    (form,) = runs._forms.values()
    assert form.tries <= noted_runs.MOST_TRIES


def test_marks_are_made_with_their_launches() -> None:
    made: list[object] = []
    calls = [lambda: made.append("a"), lambda: made.append("b")]
    marks = Marks((lambda: made.append("first"),), (lambda: made.append("last"),))
    recording.make_again(calls, marks)
    assert made == ["a", "first", "b", "last"]
    with pytest.raises(RuntimeError):
        recording.make_again([lambda: 1, lambda: made.append("c")], marks)
    assert made == ["a", "first", "b", "last"]


def test_an_arena_allocates_elsewhere_once_a_block_is_another() -> None:
    """Once a block has another size than the plan says, all later blocks come from the pool."""
    from cupy_training_ops.onnx.arena import Block, place_blocks
    from cupy_training_ops.testing.hollow import hollow

    plan = place_blocks([Block(100, 0, 3), Block(1000, 1, 4), Block(100, 3, 5)])
    memory, elsewhere = hollow((plan.nbytes,), np.uint8).data.mem, []
    arena = REAL_ARENA(plan, memory, lambda n: elsewhere.append(n) or "elsewhere")
    assert arena.malloc(100).ptr - memory.ptr == plan.offsets[0]
    assert arena.malloc(0).ptr == memory.ptr
    assert arena.malloc(1000).ptr - memory.ptr == plan.offsets[1]
    assert not arena.is_used
    assert arena.malloc(200) == "elsewhere"
    assert arena.malloc(100) == "elsewhere"
    assert elsewhere == [200, 100]
    assert not arena.is_used
    whole = REAL_ARENA(plan, memory, None)
    for nbytes in plan.sizes:
        whole.malloc(nbytes)
    assert whole.is_used
    with pytest.raises(cto.ProviderError):
        whole.malloc(100)


def test_a_run_that_takes_other_memory_is_not_noted(opened_pair, monkeypatch) -> None:
    """Its results are copies all the same; it is recorded anew, and in the end left alone."""
    noted, plain, answers = opened_pair("mlp")
    runs, n_copies = noted._run_training, []
    monkeypatch.setattr(Box, "copy", lambda box: n_copies.append(1) or Box(box.inside.copy()))
    monkeypatch.setattr(Arena, "is_used", False, raising=False)
    monkeypatch.setattr(Arena, "__init__", lambda self, *_: setattr(self, "place", 0))
    for _ in range(12):
        x, labels = answers["x"][0], answers["labels"][0]
        loss = noted.step(x, labels)
        np.testing.assert_array_equal(loss.inside, plain.step(x, labels))
    (form,) = runs._forms.values()
    assert form.noted is None
    assert form.tries == noted_runs.MOST_TRIES
    assert len(n_copies) >= 3 * (noted_runs.MOST_TRIES - 1)  # of x, labels and the loss


def test_copies_that_outlive_a_run_are_in_no_memory_of_a_plan(monkeypatch) -> None:
    """A later run would write there, as where a loop has more numbers than copies have room."""
    allocators: list[Any] = ["arena"]
    device = CapturedDevice()

    @contextlib.contextmanager
    def using(allocator: Any) -> Any:
        allocators.append(allocator)
        yield
        allocators.pop()

    device.cuda = SimpleNamespace(using_allocator=using)
    monkeypatch.setattr(device, "get_default_memory_pool", lambda: SimpleNamespace(malloc="pool"))
    made: list[Any] = []
    monkeypatch.setattr(device, "asarray", lambda array: made.append(allocators[-1]) or Box(array))
    upload = program.Upload(device, repeats=True)
    numbers = [np.array(i) for i in range(program.MOST_BYTES // program.BLOCK + 1)]
    for number in (*numbers[:-1], *numbers[:-1]):
        assert upload.copy(number).inside == number
    assert made == ["pool"] * (len(numbers) - 1)
    upload.copy(numbers[-1])
    upload.copy(np.zeros(program.LARGEST_COPY + 1, np.uint8))
    assert made[-2:] == ["pool", "arena"]
