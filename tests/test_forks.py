# SPDX-License-Identifier: MIT
"""What a forked child does while another thread of its parent has a lock, or is in a call."""

from __future__ import annotations

import contextlib
import gc
import importlib

import numpy as np
import pytest
from forks import Pause, forking, holding, status_of_child
from ranks import gathered, results

import cupy_training_ops as cto
from cupy_training_ops import GroupError, ProviderError, SplitStep, YieldOp, get_op
from cupy_training_ops.call.backends import numpy_runs_on
from cupy_training_ops.callables import contexts
from cupy_training_ops.device import compiler
from cupy_training_ops.device.marks import Marks, call_with_marks, own_marks, waiting
from cupy_training_ops.device.workspace import Workspaces
from cupy_training_ops.forks import Locked, computed_once
from cupy_training_ops.plan import Device
from cupy_training_ops.process_group.group import IN_CHILD
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.idle import IdleBackend

X = np.arange(1, 5001, dtype=np.float32)
H200 = Device(132, (9, 0), 227 * 1024)


def of_torch(module: str, name: str) -> Locked:
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    return getattr(importlib.import_module(f"cupy_training_ops.torch.{module}"), name)()


LOCKED = {
    "kernels": lambda: compiler._shared,
    "contexts": lambda: contexts._shared,
    "scratch memory": lambda: Workspaces("SomeOp"),
    "statistics": lambda: of_torch("saved", "Statistics"),
    "pending checks": lambda: of_torch("error_checks", "PendingChecks"),
}


@forking
@pytest.mark.parametrize("name", LOCKED)
def test_a_lock_is_free_in_a_child(name) -> None:
    """Whichever thread of the parent held it; there it is held as before."""
    locked = LOCKED[name]()
    before = locked.lock

    def takes() -> int:
        return 0 if locked.lock.acquire(blocking=False) else 1

    assert status_of_child(holding(before), takes) == 0
    assert locked.lock is before


@forking
def test_a_lock_of_the_thread_that_forks_stays_its_own() -> None:
    """The child goes on inside, and lets go of it."""
    locked = Locked()

    def goes_on() -> int:
        is_same = locked.lock is before
        locked.lock.release()
        return 0 if is_same else 1

    before = locked.lock
    with before:
        assert status_of_child(lambda pause: pause(), goes_on) == 0


class Slow(IdleBackend):
    """Kernels that take as long as a thread pauses."""

    name = "slow"
    pause: Pause | None = None

    def load(self, source, options):
        self._pause("load")
        return self

    def get_function(self, name):
        return lambda *_: self._pause("kernel")

    def __init__(self, at: str) -> None:
        super().__init__(H200)
        self.at = at

    def _pause(self, at: str) -> None:
        pause, self.pause = self.pause, None if self.at == at else self.pause
        if self.at == at and pause is not None:
            pause()


@forking
@pytest.mark.parametrize("at", ["load", "kernel"])
def test_a_child_calls_what_another_thread_was_calling(at) -> None:
    """While it compiles, and between two launches: scratch memory is not marked as taken."""
    backend, op = Slow(at), get_op("ReduceAllL2")()

    def calls(pause: Pause) -> None:
        backend.pause = pause
        op([X])

    def again() -> int:
        assert op.workspaces.depth == 0
        op([X])
        (store,) = op.workspaces._stores.values()
        return 0 if store.is_zero else 1

    with numpy_runs_on(backend):
        assert status_of_child(calls, again) == 0
        assert op.workspaces.depth == 0


@forking
def test_a_child_has_no_notes_of_other_threads() -> None:
    """New threads get the numbers of those: a call of theirs would say that theirs has written."""

    def waits(pause: Pause) -> None:
        call_with_marks(Marks((int,), (int,)), pause)

    def own_notes() -> int:
        return 0 if own_marks() == Marks((int,)) else 1

    assert status_of_child(waits, lambda: len(waiting)) == 0
    assert call_with_marks(Marks((int,)), status_of_child, lambda pause: pause(), own_notes) == 0


@forking
def test_a_child_computes_what_another_thread_was_computing() -> None:
    class Source:
        pause = None

        @computed_once
        def text(self) -> str:
            """Its text."""
            pause, Source.pause = Source.pause, None
            if pause:
                pause()
            return "text"

    source = Source()

    def computes(pause: Pause) -> None:
        Source.pause = pause
        assert source.text == "text"

    def again() -> int:
        Source.pause = None
        return 0 if source.text + Source().text == "texttext" else 1

    assert status_of_child(computes, again) == 0
    assert vars(source) == {"text": "text"}


@forking
def test_a_child_runs_the_step_that_another_thread_was_in() -> None:
    pauses: list[Pause] = []

    def step(x):
        if pauses:
            pauses.pop()()
        (d,) = yield YieldOp(full_shape_outputs=[0])([x])
        return d

    split = SplitStep(step)

    def runs(pause: Pause) -> None:
        pauses.append(pause)
        split.run_forward(X)

    def again() -> int:
        split.run_forward(X)
        return 0 if split.run_backward(X) is X else 1

    assert status_of_child(runs, again) == 0
    assert split.run_backward(X) is X


@forking
def test_a_step_that_forks_does_not_run_itself_in_the_child() -> None:
    def step(x):
        status.append(status_of_child(lambda pause: pause(), enters))
        (d,) = yield YieldOp(full_shape_outputs=[0])([x])
        return d

    def enters() -> int:
        with contextlib.suppress(ProviderError):
            split.run_forward(X)
            return 1
        return 0

    split, status = SplitStep(step), []
    split.run_forward(X)
    assert status == [0]


@forking
def test_a_child_has_no_part_in_its_parents_group() -> None:
    """It is refused at once, and what it closes or forgets ends nothing in the parent."""
    groups = cto.ProcessGroup.in_threads(2, 5)
    sums = [lambda group=group: cto.nccl_all_reduce([X.copy()], group=group)[0] for group in groups]

    def refuses() -> int:
        for group in groups:
            with pytest.raises(GroupError, match=IN_CHILD):
                group.check()
            with pytest.raises(GroupError, match=IN_CHILD):
                cto.nccl_all_reduce([X], group=group)
            group.close()
        groups.clear()
        gc.collect()
        return 0

    locks = [groups[0].busy, groups[1]._engine.lock]
    for lock in locks:
        assert status_of_child(holding(lock), refuses) == 0
        for result in results(gathered(sums, 10)):
            assert_matches(result, 2 * X)
    gathered([group.close for group in groups], 10)
