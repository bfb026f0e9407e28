# SPDX-License-Identifier: MIT
"""Steps over ranks whose gradients come again: parts of them are cut once, and keep no memory."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from optimizers.test_sharded_steps import Noted

import cupy_training_ops as cto
from cupy_training_ops.families.collective.queue import CallsAtAddresses
from cupy_training_ops.optimizers import sharded
from cupy_training_ops.optimizers.state import Counts
from cupy_training_ops.process_group import nccl

hollows = pytest.importorskip("cupy_training_ops.testing.hollow")

SHAPES = ((33, 21), (5,), (256,), (5,))


def made(shapes=SHAPES) -> list:
    return [hollows.hollow(shape, np.float32) for shape in shapes]


@pytest.fixture
def played(monkeypatch):
    """An optimizer of the second of two ranks, what it queues, and how often gradients are cut."""
    log, cuts = Noted(), []
    work = lambda _, name: lambda f, *args: f(*args) if name == "call" else None  # noqa: E731
    monkeypatch.setattr(hollows.HollowBackend, "work", work)
    monkeypatch.setattr(nccl, "connect", lambda *_: log)
    monkeypatch.setattr(CallsAtAddresses, "queue", lambda prepared, to, _: to.queue(prepared))
    monkeypatch.setattr(cto.ProcessGroup, "exchange", lambda *_: ())
    inner = sharded.AdamW._prepare
    monkeypatch.setattr(sharded.AdamW, "_prepare", lambda *a: cuts.append(1) or inner(*a))
    with hollows.hollow_launches() as launches:
        _, group = cto.ProcessGroup.in_threads(2)
        optimizer = cto.AdamW(made(), group=group)

        def step(gradients, **numbers) -> tuple:
            launches.clear()
            log.log.clear()
            cuts.clear()
            optimizer.step(gradients, **numbers)
            kernels = [(name, [np.array(a).tobytes() for a in args]) for name, args in launches]
            return len(cuts), list(log.log), kernels

        yield step


def test_gradients_that_come_again_are_cut_once(played) -> None:
    gradients = made()
    first = played(gradients, max_norm=1.0, lr=0.1)
    assert first[0] == 1
    assert played(gradients, max_norm=1.0, lr=0.1)[1:] == first[1:]
    again = played(list(gradients), max_norm=2.0, lr=0.2)  # numbers may change
    assert again[:2] == (0, first[1])
    assert [name for name, _ in again[2]] == [name for name, _ in first[2]]
    assert again[2] != first[2]
    assert played(gradients, max_norm=1.0, lr=0.1) == (0, *first[1:])


def test_other_gradients_are_looked_at(played) -> None:
    gradients = made()
    first = played(gradients)
    others = [*gradients[:2], *made(SHAPES[2:3]), gradients[3]]
    actual = played(others)
    assert actual[0] == 1
    assert actual[1] != first[1]
    assert played([gradients[0], None, *gradients[2:]])[0] == 1
    of_one, of_other = ([None] * i + gradients[1:2] + [None] * (3 - i) for i in (1, 3))
    assert [played(of_one)[0], played(of_other)[0]] == [1, 1]  # the same array
    assert played(gradients)[0] == 1
    assert played(gradients, max_norm=1.0)[0] == 1  # None before
    with pytest.raises(cto.ArgumentError, match=r"gradients\[2\]: expected shape \(256,\)"):
        played([*gradients[:2], hollows.hollow((255,), np.float32), gradients[3]])
    assert played(gradients, max_norm=1.0)[1] == first[1]


def test_the_memory_of_gradients_is_not_kept(played) -> None:
    gradients = made()
    before = [sys.getrefcount(x.data.mem) for x in gradients]
    played(gradients)
    played(gradients)
    gc.collect()
    assert [sys.getrefcount(x.data.mem) for x in gradients] == before
    for _ in range(20):  # those that come may have the identities of those that went
        gradients = made()
        expected = [x.data.ptr for x in gradients]
        means = played(gradients)[1][0]
        places = [expected[0], expected[0] + 4 * 512, *expected[1:]]
        assert [source for _, source, *_ in means] == places


def test_a_step_that_stops_as_counts_are_taken_apart_leaves_no_calls(played, monkeypatch) -> None:
    """Calls of the step before it have one count for all parameters."""
    gradients, of = made(), Counts.of
    assert [played(gradients)[0] for _ in range(2)] == [1, 0]

    def stopped(counts, places) -> None:
        of(counts, places)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Counts, "of", stopped)
        with pytest.raises(KeyboardInterrupt):
            played([None, *gradients[1:]])
    assert played(gradients)[0] == 1
