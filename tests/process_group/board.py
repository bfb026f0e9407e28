# SPDX-License-Identifier: MIT
"""What stands for NCCL between threads that run emulated kernels: memory is read by its address."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import runs
from runs import Run, reason_not_to_run

from cupy_training_ops.families.collective.queue import MEAN, NUMBERS, CallsAtAddresses, Row
from cupy_training_ops.process_group import nccl

DTYPES = {number: dtype for dtype, number in NUMBERS.items()}
TIMEOUT = 10.0


def memory(address: int, row: Row, times: int = 1) -> np.ndarray:
    """The array of a call at an address, or one that is so many times as large."""
    dtype = DTYPES[row.rest[1]]
    raw = (ctypes.c_uint8 * (times * row.rest[0] * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, np.uint8).view(dtype)


def taken_apart(call: tuple[str, tuple[int, ...]]) -> tuple[Row, int, int]:
    """What is called, and the addresses that are read and written."""
    method, given = call
    n = 1 if method in ("send", "recv") else 2
    return Row(method, given[n:]), given[0], given[n - 1]


@contextlib.contextmanager
def emulated_ranks(monkeypatch: pytest.MonkeyPatch, seed: int) -> Iterator[Run]:
    """NumPy's arrays run on emulated kernels, one thread's at a time."""
    reason = reason_not_to_run("emulated-forward")
    if reason:
        pytest.skip(reason)
    lock, inner = threading.Lock(), runs.EmulatedFunctions.get_function

    def get_function(self, name):
        kernel = inner(self, name)

        def launch(*args):
            with lock:
                return kernel(*args)

        return launch

    monkeypatch.setattr(runs.EmulatedFunctions, "get_function", get_function)
    # Guarded memory is for one thread.
    monkeypatch.setattr(runs.emulator, "guarded_copy", np.copy)
    monkeypatch.setattr(nccl, "connect", Board().connect)
    monkeypatch.setattr(CallsAtAddresses, "queue", lambda prepared, to, _: to.queue(prepared))
    with Run("emulated-forward", seed) as run:
        yield run


class Board:
    """Where the ranks of a group put their calls, and take the others' arrays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rounds: dict[Any, threading.Barrier] = {}
        self.calls: dict[Any, dict[int, list[Any]]] = {}

    def connect(self, group: Any, op: str, members: Any) -> Communicator:
        with self._lock:
            self._rounds.setdefault(members, threading.Barrier(len(members), timeout=TIMEOUT))
            self.calls.setdefault(members, {})
        return Communicator(self, members, members.index(group.rank))

    def together(self, members: Any) -> None:
        self._rounds[members].wait()


class Communicator:
    """The part of process_group/nccl.py's that operators see."""

    device = 0
    current_stream = staticmethod(lambda: None)

    def __init__(self, board: Board, members: Any, rank: int) -> None:
        self.board, self.members, self.rank = board, members, rank

    def queue(self, prepared: CallsAtAddresses) -> None:
        """All ranks' calls at once: what each has to give, then what each takes."""
        calls = list(map(taken_apart, prepared.calls))
        shared = self.board.calls[self.members]
        times = {"reduceScatter": len(self.members)}
        shared[self.rank] = [
            (row, None if row.method == "recv" else memory(s, row, times.get(row.method, 1)).copy())
            for row, s, _ in calls
        ]
        self.board.together(self.members)
        for i, (row, _, target) in enumerate(calls):
            value = self._value(row, i, shared)
            if value is not None:
                memory(target, row, value.size // row.rest[0])[:] = value
        self.board.together(self.members)

    def _value(self, row: Row, i: int, shared: Any) -> np.ndarray | None:
        every = [shared[rank] for rank in range(len(self.members))]
        if row.method in ("allReduce", "reduce", "reduceScatter"):
            if row.method == "reduce" and row.rest[3] != self.rank:
                return None
            kind = DTYPES[row.rest[1]]
            wide = kind if kind.kind in "iu" else np.dtype(np.float64)
            total = sum(calls[i][1].astype(wide) for calls in every)
            total = total / len(every) if row.rest[2] == MEAN else total
            own = slice(self.rank * row.rest[0], (self.rank + 1) * row.rest[0])
            return total[own] if row.method == "reduceScatter" else total
        if row.method == "allGather":
            return np.concatenate([calls[i][1] for calls in every])
        if row.method == "broadcast":
            return every[row.rest[2]][i][1]
        if row.method == "recv":
            peer = row.rest[2]
            earlier = [
                r for r, _ in shared[self.rank][:i] if (r.method, r.rest[2]) == ("recv", peer)
            ]
            sent = [x for r, x in every[peer] if (r.method, r.rest[2]) == ("send", self.rank)]
            return sent[len(earlier)]
        return None

    def trouble(self) -> str:
        return ""

    def end(self, is_well: bool = False) -> None:
        pass
