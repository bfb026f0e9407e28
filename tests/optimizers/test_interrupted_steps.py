# SPDX-License-Identifier: MIT
"""Steps that are interrupted at any line, or that another thread makes: states are whole, or are
refused until one is loaded."""

from __future__ import annotations

import contextlib
import copy
import io
import sys
import threading
from collections import Counter
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import numpy as np
import pytest
from interrupts import at_each_line, at_random
from runs import Run

import cupy_training_ops as cto
from cupy_training_ops import OpError, ProviderError
from cupy_training_ops.device.marks import Whole

SHAPES = ((33, 7), (130,), ())
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (cto.SGD, {}),
    "SGD with momentum": (cto.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "Adam": (cto.Adam, {"moment_dtype": "bfloat16"}),
    "AdamW": (cto.AdamW, {}),
    "AMSGrad": (cto.AdamW, {"amsgrad": True, "maximize": True}),
    "AdamW in codes": (cto.AdamW, {"state": "8bit"}),
    "AdamW in few bits": (cto.AdamW, {"state": "4bit"}),
    "Lamb": (cto.Lamb, {}),
}
pytestmark = pytest.mark.usefixtures("large_coded")
MOST_REFUSED = 0.1  # of a step's lines
TORN = r": expected parameters and moments of one step, got those of a step that was interrupted"


class Loop:
    """Steps with the same gradients, of which one may be made again."""

    optimizer: Any
    step: Callable[[], object]

    def begin(self, arrays: list[Any], calls: list[Callable[[], object]]) -> None:
        """All that a step changes beside the state, and what is refused where it is torn."""
        self._arrays, self._calls = arrays, [self.step, *calls]
        self._start = self._values(), copy.deepcopy(self.optimizer.state_dict())
        self.before = self.state()
        self.step()
        self.after = self.state()
        assert self.before != self.after
        self.outcomes: Counter[str] = Counter()
        self.refusals: set[object] = set()

    def _values(self) -> list[np.ndarray]:
        return [on_host(x) for x in self._arrays]

    def state(self) -> list[bytes]:
        """All that steps change."""
        return [x.tobytes() for x in self._values()] + list(as_bytes(self.optimizer.state_dict()))

    def go_back(self) -> Loop:
        values, state = self._start
        assign(self._arrays, values)
        self.optimizer.load_state_dict(copy.deepcopy(state))
        return self

    def check(self, place: object) -> None:
        """The state before, or after, or none; none is as good as new once one is loaded."""
        assert sys.exception() is None  # of the interrupted call, in later tests
        try:
            actual = self.state()
        except OpError:
            for call in self._calls:
                with pytest.raises(ProviderError, match=TORN):
                    call()
            self.refusals.add(place)
            self.outcomes["refused"] += 1
            self.go_back().step()
            assert self.state() == self.after, place
            return
        assert actual in (self.before, self.after), f"torn at {place}"
        self.outcomes["after" if actual == self.after else "before"] += 1
        self.step()  # it is usable

    def interrupt(self) -> list[object]:
        """At each line of a step; all of them."""
        lines = at_each_line(self.go_back, methodcaller("step"), Loop.check)
        assert len(lines) > 100
        assert self.outcomes["before"]
        assert self.outcomes["after"]
        return lines


def on_host(array: Any) -> np.ndarray:
    """A copy in NumPy's memory, asked for by name where the array is CuPy's."""
    return array.get() if hasattr(array, "get") else np.asarray(array).copy()


def assign(arrays: list[Any], values: list[np.ndarray]) -> None:
    """Write NumPy's values into arrays of NumPy or CuPy."""
    for array, value in zip(arrays, values, strict=True):
        if hasattr(array, "set"):
            array.set(value)
        else:
            array[...] = value


def as_bytes(state: Any) -> Any:
    """All leaves of a state, one by one."""
    for value in state.values() if isinstance(state, dict) else state:
        if isinstance(value, dict | list | tuple):
            yield from as_bytes(value)
        else:
            yield on_host(value).tobytes() if hasattr(value, "shape") else repr(value).encode()


class Listed(Loop):
    """An optimizer over lists; in its steps counts are alike, or differ."""

    def __init__(self, run: Any, kind: str, seed: int, *, are_alike: bool = True) -> None:
        rng = np.random.default_rng(seed)
        make, options = KINDS[kind]
        parameters = [run.place(np.asarray(rng.standard_normal(s), "f4")) for s in SHAPES]
        copies = [run.place(np.zeros(s, np.float16)) for s in SHAPES]
        gradients = [run.place(np.asarray(rng.standard_normal(s), "f4")) for s in SHAPES]
        self.optimizer = make(parameters, 0.1, low_precision=copies, **options)
        self.optimizer.step([*gradients[:-1], gradients[-1] if are_alike else None])
        self.step = lambda: self.optimizer.step(gradients, loss_scale=2.0, max_norm=0.5)
        self.begin([*parameters, *copies], [lambda: self.optimizer.save(io.BytesIO())])


@pytest.fixture
def cpu(seed):
    with Run("cpu", seed) as run:
        yield run


@pytest.mark.parametrize("are_alike", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_at_any_line_leaves_a_whole_step(kind, are_alike, cpu, seed) -> None:
    loop = Listed(cpu, kind, seed, are_alike=are_alike)
    lines = loop.interrupt()
    assert len(loop.refusals) <= MOST_REFUSED * len(lines)


@pytest.mark.parametrize(
    ("kind", "are_alike"),
    [
        ("AdamW", True),
        *(pytest.param(k, False, marks=pytest.mark.thorough) for k in ("AdamW", "Lamb")),
    ],
)
def test_so_does_one_between_launches(kind, are_alike, run, seed) -> None:
    """Several counts have launches each, and Python's lines between them; a GPU's launches of
    one count have none."""
    loop = Listed(run, kind, seed, are_alike=are_alike)
    lines = loop.interrupt()
    assert loop.refusals or (run.on_gpu and are_alike)
    assert len(loop.refusals) <= MOST_REFUSED * len(lines)


@pytest.mark.parametrize("are_alike", [True, False])
def test_an_interrupt_at_any_moment_leaves_a_whole_step(are_alike, cpu, seed, rng) -> None:
    loop = Listed(cpu, "AdamW", seed, are_alike=are_alike)
    assert at_random(loop.go_back, methodcaller("step"), Loop.check, rng, 300) > 50


class Begun(Listed):
    """One that binds its calls anew, and takes parts apart."""

    def go_back(self) -> Loop:
        old, (values, state) = self.optimizer, self._start
        self.optimizer = cto.AdamW(old.parameters, 0.1, low_precision=old._callers_copies)
        self.optimizer.load_state_dict(state)
        assign(self._arrays, values)
        return self


@pytest.mark.thorough
def test_so_does_one_in_a_first_step(cpu, seed) -> None:
    loop = Begun(cpu, "AdamW", seed, are_alike=False)
    assert len(loop.interrupt()) > 300


class PreemptedError(Exception):
    """What a handler raises."""


def test_what_handlers_raise_leaves_a_whole_step(cpu, seed) -> None:
    loop = Listed(cpu, "AdamW", seed, are_alike=False)

    def step(made: Loop) -> None:
        with contextlib.suppress(OpError):  # "cannot be read"
            made.step()

    at_each_line(loop.go_back, step, Loop.check, error=PreemptedError)


def test_a_count_that_is_raised_early_is_noticed(cpu, seed, monkeypatch) -> None:
    loop, write = Listed(cpu, "AdamW", seed), Whole.write

    def planted(whole: Whole, writes: Any) -> None:
        (part,) = loop.optimizer._counts._parts
        np.add(part.count, 1, out=part.count)
        write(whole, writes)  # which has the number

    monkeypatch.setattr(Whole, "write", planted)
    with pytest.raises(AssertionError, match=r"torn at .*marks.py"):
        at_each_line(loop.go_back, methodcaller("step"), Loop.check)


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_step_changes_nothing(kind, cpu, seed) -> None:
    loop = Listed(cpu, kind, seed, are_alike=False)
    loop.go_back()
    g = [np.ones(s, np.float32) for s in SHAPES]
    wrong = {
        "gradients": [[*g[:2], np.ones(3, np.float32)], [None, g[0], None], g[:1], None, [1, 2, 3]],
        "lr": ["x", np.nan],
        "loss_scale": [0],
        "max_norm": [-1],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(OpError):
                loop.optimizer.step(**{"gradients": g, name: value})
            assert loop.state() == loop.before
    loop.step()
    assert loop.state() == loop.after


@pytest.mark.parametrize("kind", ["AdamW", "AdamW in codes", "AdamW in few bits", "Lamb"])
def test_a_state_is_whole_while_another_thread_steps(kind) -> None:
    """With gradients of 1 all moments follow from the count."""
    make, options = KINDS[kind]
    parameters = [np.zeros(20_000, np.float32) for _ in range(6)]
    gradients = [np.ones(20_000, np.float32) for _ in parameters]
    optimizer, is_over = make(parameters, 1e-3, **options), threading.Event()
    expected = {0: [b"", b""]}
    reference = make([np.zeros(20_000, np.float32)], 1e-3, **options)
    made = 0

    def steps() -> None:
        nonlocal made
        while not is_over.is_set():
            optimizer.step(gradients)
            made += 1

    thread = threading.Thread(target=steps)
    thread.start()
    try:
        states = [optimizer.state_dict() for _ in range(25)]
    finally:
        is_over.set()
        thread.join()
    last = states[-1]["step"]
    for k in range(1, last + 1):
        reference.step(gradients[:1])
        state = reference.state_dict()
        expected[k] = [state[m]["0"].tobytes() for m in ("moment_1", "moment_2")]
    assert made
    for state in states:
        for moment, wanted in zip(("moment_1", "moment_2"), expected[state["step"]], strict=True):
            actual = {x.tobytes() for x in state[moment].values()}
            assert actual == {wanted} or not state["step"], f"torn behind step {state['step']}"


def test_loading_is_whole(cpu, seed) -> None:
    loop = Listed(cpu, "AdamW", seed)
    state = {**loop.optimizer.state_dict(), "step": {"0": 3, "1": 3, "2": 9}}
    loop.go_back()
    before = loop.state()
    arrays = before[: len(loop._arrays)]
    wanted = arrays + list(as_bytes({"optimizer": "AdamW", **state}))

    def check(made: Loop, place: object) -> None:
        try:
            actual = made.state()
        except ProviderError:
            return
        assert actual in (before, wanted), place

    at_each_line(loop.go_back, lambda made: made.optimizer.load_state_dict(state), check)
