# SPDX-License-Identifier: MIT
"""A call like the one before goes from its arrays to NCCL, past all else; played, without a GPU."""

from __future__ import annotations

import contextlib
import copy
import gc
from types import SimpleNamespace

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import GroupError
from cupy_training_ops.call.op import Op
from cupy_training_ops.families.collective import queue
from cupy_training_ops.process_group import nccl

cupy = pytest.importorskip("cupy", reason="CuPy is in the extras")
hollows = pytest.importorskip("cupy_training_ops.testing.hollow")
hollow, WORK = hollows.hollow, pytest.importorskip("cupy_training_ops.device.cuda").WORK


class Played:
    """NCCL, which notes what is called."""

    class NcclError(RuntimeError):
        pass

    def __init__(self) -> None:
        self.log: list[tuple] = []

    def __getattr__(self, name: str):
        return lambda *args: self.log.append((name, *args))


@pytest.fixture
def played(monkeypatch):
    """A rank of two, what NCCL is called, the current stream, and calls that the frame sees."""
    stream, binding = SimpleNamespace(ptr=7, is_capturing=lambda: False), Played()
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda *_: stream)
    monkeypatch.setattr(cupy.cuda, "Event", lambda **_: None)
    monkeypatch.setattr(hollows.HOLLOW, "work", WORK.__getitem__)
    monkeypatch.setattr(nccl.Communicator, "trouble", lambda _: "")
    monkeypatch.setattr(nccl, "connect", lambda *_: nccl.Communicator(binding, binding, 0, 10.0))
    seen, through = [], Op.__call__
    monkeypatch.setattr(Op, "__call__", lambda *a, **k: seen.append(1) or through(*a, **k))
    groups = cto.ProcessGroup.in_threads(2, 10.0)
    groups[0].agree = lambda *_: None
    with hollows.hollow_launches():
        yield SimpleNamespace(group=groups[0], log=binding.log, stream=stream, seen=seen)
    for group in groups:
        group.close()


def reduced(x, stream: int = 7) -> tuple:
    return ("allReduce", x.data.ptr, x.data.ptr, x.size, 7, 0, stream)


def test_the_same_arrays_again_are_queued_at_once(played) -> None:
    op, x = cto.NcclAllReduce(group=played.group), hollow((5, 3), np.float32)
    for _ in range(4):
        (y,) = op([x])  # another list of the same
        assert y is x
    assert played.log == [reduced(x)] * 4
    assert len(played.seen) < 3
    op((x,))
    played.stream.ptr = 9
    op([x])
    assert played.log[4:] == [reduced(x), reduced(x, 9)]
    assert len(played.seen) < 3


def test_other_arrays_and_other_arguments_are_looked_at(played) -> None:
    op, out = cto.NcclAllReduce(group=played.group), hollow((5,), np.float32)
    x, y = (hollow((5,), np.float32) for _ in range(2))
    for arrays in ([x], [x], [y], [x, y], [x]):
        op(arrays)
    assert played.log[:3] == [reduced(x), reduced(x), reduced(y)]
    assert played.log[3:7] == [("groupStart",), reduced(x), reduced(y), ("groupEnd",)]
    assert played.log[7:] == [reduced(x)]
    for written in (out, out, y, out):
        op([x], out=(written,))
        assert played.log[-1] == ("allReduce", x.data.ptr, written.data.ptr, 5, 7, 0, 7)
    op([x, out])
    assert played.log[-4:] == [("groupStart",), reduced(x), reduced(out), ("groupEnd",)]
    assert op(input=[x])[0] is x
    with pytest.raises(cto.ArgumentError, match=r"expected \(input\), got 2 arguments"):
        op([x], [x])
    with pytest.raises(cto.ArgumentError):
        op(x)
    assert played.log[-1] == reduced(x)


def test_on_another_device_the_frame_changes_to_that_of_the_arrays(played, monkeypatch) -> None:
    op, x, left = cto.NcclAllReduce(group=played.group), hollow((5,), np.float32), []
    for _ in range(3):
        op([x])
    seen = len(played.seen)
    monkeypatch.setattr(hollows.HOLLOW, "is_current", lambda _: False)
    monkeypatch.setattr(hollows.HOLLOW, "on", lambda d: left.append(d) or contextlib.nullcontext())
    op([x])
    assert len(played.seen) == seen + 1
    assert left == [0]
    assert played.log == [reduced(x)] * 4


def test_an_array_in_the_place_of_one_that_is_gone_is_looked_at(played) -> None:
    op = cto.NcclAllReduce(group=played.group)
    addresses = set()
    for _ in range(50):
        x = hollow((5,), np.float32)
        addresses.add(x.data.ptr)
        op([x])
        op([x])
        assert played.log[-2:] == [reduced(x)] * 2
        del x
        gc.collect(0)  # of what is new; a session of tests has a million objects more
    assert len(addresses) == 50  # whatever the objects' identities were


def test_what_ended_the_group_is_said(played) -> None:
    op, x = cto.NcclAllReduce(group=played.group), hollow((5,), np.float32)
    for _ in range(3):
        op([x])
    played.group._engine.end("rank 1 is tired")
    with pytest.raises(GroupError, match="NcclAllReduce: group: rank 1 is tired"):
        op([x])
    assert played.log == [reduced(x)] * 3
    played.group.close()
    with pytest.raises(GroupError):
        op([x])


def test_a_call_of_another_thread_is_refused_here_too(played) -> None:
    op, x = cto.NcclAllReduce(group=played.group), hollow((5,), np.float32)
    for _ in range(3):
        op([x])
    played.group.busy.acquire()
    with pytest.raises(GroupError, match="a call of another thread is under way"):
        op([x])
    played.group.busy.release()
    assert played.log == [reduced(x)] * 3


@pytest.mark.parametrize("is_bound", [False, True])
def test_an_interrupt_behind_what_was_queued_ends_the_group(is_bound, played, monkeypatch) -> None:
    """Who catches it and calls again would be a call ahead of the others."""
    op, x = cto.NcclAllReduce(group=played.group), hollow((5,), np.float32)
    call = op.bound([x]) if is_bound else lambda: op([x])
    call()
    again = queue.Calls.again

    def interrupted(*arguments) -> None:
        again(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(queue.Calls, "again", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call()
    with pytest.raises(GroupError, match="stopped in the middle of NcclAllReduce"):
        played.group.check()


# ---- bound calls ---------------------------------------------------------------------------------


def test_a_bound_call_queues_what_it_queued(played, monkeypatch) -> None:
    """On the stream that is current, and on the device of its arrays."""
    x, y = hollow((5,), np.float32), hollow((3,), np.float32)
    for op, arrays, out, expected in (
        (cto.NcclAllReduce, [x], None, [reduced(x)]),
        (cto.NcclAllReduce, [x, y], None,
         [("groupStart",), reduced(x), reduced(y), ("groupEnd",)]),
        (cto.NcclAllReduce, [x], (y,), None),
        (cto.MegatronG, x, None, [reduced(x)]),
    ):  # fmt: skip
        played.log.clear()
        if expected is None:
            with pytest.raises(cto.ArgumentError):
                op(group=played.group).bound(arrays, out=out)
            continue
        bound = op(group=played.group).bound(arrays)
        answers = [bound() for _ in range(3)]
        assert played.log == expected * 3
        assert all(a is answers[0] for a in answers)
        assert (answers[0] if op is cto.MegatronG else answers[0][0]) is x
    played.stream.ptr = 9
    bound()
    assert played.log[-1] == reduced(x, 9)
    left: list = []
    monkeypatch.setattr(hollows.HOLLOW, "is_current", lambda _: False)
    monkeypatch.setattr(hollows.HOLLOW, "on", lambda d: left.append(d) or contextlib.nullcontext())
    bound()
    assert left == [0]
    assert played.log[-1] == reduced(x, 9)
    played.group._engine.end("rank 1 is tired")
    with pytest.raises(GroupError, match="MegatronG: group: rank 1 is tired"):
        bound()
    with pytest.raises(TypeError, match="MegatronG: a bound call holds its arrays"):
        copy.copy(bound)


def test_an_open_call_is_as_before(played) -> None:
    x, y = hollow((5,), np.float32), hollow((5,), np.float32)
    opened = cto.MegatronG(group=played.group).bound(...)
    for array in (x, y, x):
        assert opened(input=array) is array
        assert played.log[-1] == reduced(array)
    with pytest.raises(cto.ArgumentError):
        opened(input=3)
