# SPDX-License-Identifier: MIT
"""ActivationStash on streams that are simulated: nothing is let go too early, or held too long."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from late_events import Event

import cupy_training_ops as cto
from cupy_training_ops import ActivationStash, ArgumentError
from cupy_training_ops.activations.pending import PendingChecks
from cupy_training_ops.device.streams import Cuda

from .activations import activation

CODEC = {"lossless": "sparse", "default": "msfp15_signed", "small": "sparse_fp10"}


class Late:
    """A stream beside that runs nothing before somebody waits for it, as late as a GPU may.

    What the caller lets go before is gone: its memory is another array's by then.
    """

    def __init__(self) -> None:
        self.queue: deque = deque()
        self.forks, self.joins = 0, 0
        self.events: list[Event] = []  # behind what the host reads

    def current(self):
        return "caller's"

    def fork(self) -> None:
        self.forks += 1

    def on_side(self, function):
        """Runs now, for its result, and once more when it is waited for."""
        result = function()
        held = [weakref.ref(x) for x in arrays_of(function)]
        self.queue.append((function.__qualname__, held))
        return result

    def mark(self):
        return len(self.queue)

    def join(self, stream, mark) -> None:
        assert stream == "caller's"
        self.joins += 1
        for place, (name, held) in enumerate(self.queue):
            if place < mark:
                assert all(x() is not None for x in held), f"{name} reads what was let go"
        for place in range(mark):
            self.queue[place] = ("done", [])

    def copy_to_host(self, numbers):
        self.events.append(Event())
        return numbers.copy(), self.events[-1]


def late_stash(policy):
    """One whose streams are such."""
    stash = ActivationStash(policy)
    stash._streams[-1] = Late()
    return stash


def arrays_of(function):
    """Arrays that were made by the caller, not beside: those that a closure reads."""
    if not hasattr(function, "__code__"):
        return []
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [c.cell_contents for name, c in cells if name in ("x", "target")]


@pytest.mark.parametrize("policy", ["lossless", "default", "small"])
def test_nothing_is_let_go_before_its_stream_waits(rng, policy) -> None:
    arrays = [activation(rng, (9, 50 + i)) for i in range(5)]
    with late_stash(policy) as stash:
        for i, x in enumerate(arrays):
            stash.put(str(i), x.copy())
            assert len(stash._leaving) <= 1
        for i in reversed(range(5)):
            y = stash.get(str(i))
            assert y.tobytes() == cto.compress(arrays[i], CODEC[policy]).decompress().tobytes()
            ahead = [e for e in stash._entries.values() if e.decoded is not None]
            assert [e.name for e in ahead] == ([str(i - 1)] if i else [])
        assert not stash._leaving
    codes = [cto.compress(x, CODEC[policy]).nbytes for x in arrays]
    assert stash.report()["after"] == sum(codes)  # also of the last, which was taken untrimmed
    late = stash._streams[-1]
    assert late.forks == 10  # before every encoding and every decoding
    assert late.joins == 10


def test_what_was_decoded_ahead_is_copied_into_out(rng) -> None:
    arrays = [activation(rng) for _ in range(2)]
    out = np.empty_like(arrays[0])
    with late_stash("lossless") as stash:
        for i, x in enumerate(arrays):
            stash.put(str(i), x)
        stash.get("1")
        assert stash.get("0", out=out) is out
    assert (out == arrays[0]).all()
    assert stash.report()["peak"] < sum(x.nbytes for x in arrays) * 2


@pytest.mark.parametrize("is_ahead", [True, False])
def test_out_is_checked_alike_whether_decoded_ahead_or_not(rng, is_ahead) -> None:
    x = activation(rng)
    outs = np.empty((2, *x.shape), x.dtype), np.empty(x.shape), np.empty(x.shape[::-1], x.dtype).T
    with late_stash("lossless") as stash:
        stash.put("0", x)
        if is_ahead:
            stash.put("1", x)
            stash.get("1")
        for out, message in zip(outs, ("shape", "dtype", "a C-contiguous array"), strict=True):
            with pytest.raises(cto.OpError, match=rf"Decoder: out \(Y\): expected {message}"):
                stash.get("0", out=out)
        assert (stash.get("0") == x).all()
        assert stash._statistics.held == 0


class Memory(bytearray):
    """Page-locked."""

    ptr = 4096


class FakeCuda:
    """The part of CuPy that copies to the host are made with; nothing is copied."""

    def __init__(self) -> None:
        self.copies, self.events = [], []
        self.runtime = SimpleNamespace(
            memcpyAsync=lambda *given: self.copies.append(given), memcpyDeviceToHost=2
        )
        self.Device = lambda _: nullcontext()
        self.Stream = lambda **_: SimpleNamespace(ptr=7)
        self.alloc_pinned_memory = Memory

    def Event(self, **_):  # noqa: N802 - CuPy's name
        self.events.append(SimpleNamespace(done=False, record=lambda _: None, synchronize=None))
        return self.events[-1]


def test_memory_is_held_until_the_device_has_written_it(monkeypatch) -> None:
    """Also where nobody reads it any more: the pool would hand it out again."""
    cuda = FakeCuda()
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    streams, there = Cuda(0), []
    for i in range(4):
        given = SimpleNamespace(dtype=np.float32, size=3, nbytes=12, data=SimpleNamespace(ptr=i))
        numbers, event = streams.copy_to_host(given)
        assert (numbers.dtype, numbers.shape, event.query()) == (np.float32, (3,), False)
        there.append(weakref.ref(numbers))
        del numbers, event
        cuda.events[0].done = i >= 1
    gc.collect()
    assert [each() is not None for each in there] == [False, True, True, True]
    assert cuda.copies == [(4096, i, 12, 2, 7) for i in range(4)]


# ---- what is decided late ------------------------------------------------------------------------


def put(stash, name, x, need):
    """Put a copy that nobody else holds; what tells whether it is there."""
    given = x.copy()
    stash.put(name, given, need)
    return weakref.ref(given)


def test_an_original_goes_when_the_device_says_that_its_codes_do(rng) -> None:
    arrays = [activation(rng) for _ in range(4)]
    with late_stash("default") as stash:
        (events,) = [streams.events for streams in stash._streams.values()]
        there = [put(stash, str(i), x, "linear") for i, x in enumerate(arrays)]
        plain = put(stash, "plain", arrays[0], "value")
        gc.collect()
        assert all(each() is not None for each in (*there, plain))
        for event in events[:2]:
            event.done = True
        stash.put("next", arrays[0])
        gc.collect()
        assert [each() is not None for each in there] == [False, False, True, True]
        assert plain() is None  # nothing is asked of its codes
        assert [event.waits for event in events] == [0] * 4
        for i in reversed(range(4)):
            expected = cto.compress(arrays[i], "msfp15_signed").decompress()
            assert stash.get(str(i)).tobytes() == expected.tobytes()


def test_the_host_waits_where_too_many_originals_would(rng) -> None:
    arrays = [activation(rng, (64, 64)) for _ in range(5)]
    stash = late_stash("default")
    stash._pending = PendingChecks(2 * arrays[0].nbytes)
    with stash:
        for i, x in enumerate(arrays):
            put(stash, str(i), x, "normalised")
            waits = [event.waits for event in stash._streams[-1].events]
            assert waits == [1] * max(i - 1, 0) + [0] * min(i + 1, 2)


@pytest.mark.parametrize("asked", ["get", "report", "in time"])
def test_what_codes_do_not_do_for_is_kept(rng, asked) -> None:
    """Whoever asks first, the array itself comes back, and is counted."""
    x, small = activation(rng) + 100, activation(rng)
    with late_stash("default") as stash:
        there = put(stash, "x", x, "linear")
        stash.put("small", small)
        if asked == "report":
            stash.report()
        elif asked == "in time":
            stash._streams[-1].events[0].done = True
            stash.put("next", small)
        actual = stash.get("x")
        assert actual is there()
        assert (actual == x).all()
    report = stash.report()
    assert report["names"]["x"] | {"need": ""} == {
        "codec": None,
        "need": "",
        "before": x.nbytes,
        "after": x.nbytes,
    }
    codes = cto.compress(small, "msfp15_signed").nbytes
    assert report["peak"] == x.nbytes + (2 if asked == "in time" else 1) * codes


@pytest.mark.parametrize("asked", ["get", "next put", "report"])
def test_a_lost_index_is_refused_when_it_is_known(asked) -> None:
    index = np.array([0, 15, 16, 3])
    with late_stash("default") as stash:
        stash.put("i", index, "index")
        stash._streams[-1].events[0].done = asked != "get"
        calls = {
            "get": lambda: stash.get("i"),
            "next put": lambda: stash.put("j", index % 16, "index"),
            "report": stash.report,
        }
        with pytest.raises(ArgumentError, match="array: expected indices from 0 to 15 of 'i'"):
            calls[asked]()
        stash.put("i", index % 16, "index")  # the name is free
        assert (stash.get("i") == index % 16).all()
