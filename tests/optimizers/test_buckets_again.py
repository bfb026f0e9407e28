# SPDX-License-Identifier: MIT
"""Buckets of CuPy's own arrays, whose memory is not there: what streams and NCCL are told, which
are played."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, GroupError
from cupy_training_ops.optimizers import buckets as module
from cupy_training_ops.process_group import nccl

cupy = pytest.importorskip("cupy", reason="CuPy is in the extras")
hollows = pytest.importorskip("cupy_training_ops.testing.hollow")
hollow = hollows.hollow


class Side:
    """Streams of CUDA, played by a list."""

    def __init__(self, log: list) -> None:
        self.log = log

    def current(self):
        return "current"

    def fork(self):
        self.log.append("fork")

    def side_after(self, stream):
        self.log.append(("side_after", stream))
        return SimpleNamespace(ptr=9)

    def on_side(self, function):
        self.log.append("on_side")
        function()
        self.log.append("end")

    def mark(self):
        return "mark"

    def join(self, *arguments):
        self.log.append(arguments)


@pytest.fixture
def played(monkeypatch):
    """With CuPy's own arrays, whose memory is not there: what streams and NCCL are told."""

    class Binding:
        def __getattr__(self, name):
            return lambda *args: log.append((name, *args))

    log: list = []
    monkeypatch.setattr(module, "Cuda", lambda *_, **__: Side(log))
    monkeypatch.setattr(cupy.cuda, "Event", lambda **_: None)
    made = nccl.Communicator(Binding(), Binding(), 0, 10.0)
    monkeypatch.setattr(nccl, "connect", lambda *_: made)
    monkeypatch.setattr(nccl.Communicator, "trouble", lambda _: "")
    group = two_ranks_of_which_one_is_here(monkeypatch)
    with hollows.hollow_launches() as launches:
        yield SimpleNamespace(group=group, log=log, launches=launches)
    group.close()


def test_on_a_gpu_they_travel_beside_the_callers_stream(played) -> None:
    arrays = [hollow((1000,), np.float32) for _ in range(3)]
    buckets = cto.GradientBuckets(arrays, played.group, megabytes=0.004)
    for place in (2, 1):
        buckets.ready(place, arrays[place])
        assert played.log == ["fork", "on_side", "end"]
        assert [name for name, _ in played.launches] == ["call"]
        played.log.clear()
        played.launches.clear()
    buckets.ready(0, arrays[0])
    played.log.clear()
    buckets.wait()
    assert played.log == [("current", "mark")]


def means(arrays, stream: int = 9) -> list:
    """What NCCL is told of a bucket."""
    each = [("allReduce", x.data.ptr, x.data.ptr, x.size, KINDS[x.dtype.char], 4, stream)
            for x in arrays]  # fmt: skip
    return each if len(each) == 1 else [("groupStart",), *each, ("groupEnd",)]


KINDS = {"e": 6, "f": 7, "d": 8}  # ncclDataType_t


def test_a_bucket_like_one_before_goes_to_nccl_at_once(played) -> None:
    """By where its gradients are now; another type, and one that is missing, are looked at."""
    like = [hollow((300, 2), np.float32), hollow((7,), np.float32), hollow((0,), np.float32)]
    buckets = cto.GradientBuckets(like, played.group)

    def step(*dtypes):
        given = [t and hollow(x.shape, t) for x, t in zip(like, dtypes, strict=True)]
        played.log.clear()
        for place in (2, 1, 0):
            if given[place] is not None:
                buckets.ready(place, given[place])
        assert buckets.wait() == given
        return [given[place] for place in (2, 1, 0) if given[place] is not None]

    again = lambda given: [("side_after", 0), *means([x for x in given if x.size]),  # noqa: E731
                           ("current", "mark")]  # fmt: skip
    anew = ["fork", "on_side", "end", ("current", "mark")]
    for dtypes in ("fff", "eff", "ff\0", "ddd"):
        dtypes = [None if char == "\0" else char for char in dtypes]
        step(*dtypes)
        assert played.log == anew
        for _ in range(2):
            given = step(*dtypes)
            assert played.log == again(given)


def one_step(buckets, gradients) -> None:
    for place in reversed(range(len(gradients))):
        buckets.ready(place, gradients[place])
    buckets.wait()


def test_gradients_that_share_memory_are_refused_each_time(played) -> None:
    """The group goes on where nobody has heard of the step; else the others would wait."""
    both = hollow((2000,), np.float32)
    apart, same = [both[:1000], both[1000:]], [both[:1000], both[999:1999]]
    others = [hollow((1000,), np.float32) for _ in range(2)]
    buckets = cto.GradientBuckets(others * 2, played.group, megabytes=0.008)
    for _ in range(2):
        one_step(buckets, others + apart)
    with pytest.raises(ArgumentError, match=r"gradients\[2\]: expected memory of its own, got mem"):
        one_step(buckets, others + same)
    one_step(buckets, apart + others)
    with pytest.raises(GroupError, match=r"gradients\[0\]: expected memory of its own, got memory"):
        one_step(buckets, same + others)
    with pytest.raises(GroupError, match=r"gradients\[0\]: expected memory of its own, got memory"):
        one_step(buckets, apart + others)


@pytest.mark.parametrize("place", [0, 1])
def test_a_step_that_is_interrupted_ends_the_group_once_something_was_sent(
    place, played, monkeypatch
) -> None:
    arrays = [hollow((1000,), np.float32) for _ in range(2)]
    buckets = cto.GradientBuckets(arrays, played.group, megabytes=0.001)
    for _ in range(2):
        one_step(buckets, arrays)
    with monkeypatch.context() as patch:

        def side_after(*_):
            if buckets._next == place:
                raise KeyboardInterrupt
            return SimpleNamespace(ptr=9)

        patch.setattr(buckets._streams, "side_after", side_after)
        with pytest.raises(KeyboardInterrupt):
            one_step(buckets, arrays)
    if place:
        with pytest.raises(GroupError, match="stopped in the middle of GradientBuckets: Keyboard"):
            one_step(buckets, arrays)
    else:
        one_step(buckets, arrays)


def test_gradients_elsewhere_are_refused(played) -> None:
    like = [hollow((3,), np.float32)]
    buckets = cto.GradientBuckets(like, played.group)
    words = "expected an array on cuda device 0, got one on the host"
    with pytest.raises(ArgumentError, match=words):
        buckets.ready(0, np.ones(3, np.float32))
    buckets.ready(0, like[0])
    buckets.wait()


def two_ranks_of_which_one_is_here(monkeypatch) -> cto.ProcessGroup:
    """Nothing is compared, and an order is the own one."""
    group, _ = cto.ProcessGroup.in_threads(2)
    monkeypatch.setattr(cto.ProcessGroup, "exchange", lambda *given: given[4] if given[4:] else ())
    return group
