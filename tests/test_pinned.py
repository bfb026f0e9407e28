# SPDX-License-Identifier: MIT
"""Rows of page-locked memory are used again, and only when nothing writes to them any more."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra")

from cupy_training_ops.torch import pinned  # noqa: E402


class Event:
    """Of work that is done when the test says so."""

    def __init__(self) -> None:
        self.done = True

    def query(self) -> bool:
        return self.done

    def record(self, _stream) -> None:
        pass


@pytest.fixture
def rows(monkeypatch):
    """Rows without a GPU, two at a time."""

    def pinned_rows():
        return [pinned.Row(row, row.data_ptr(), Event()) for row in torch.zeros(2, 4).unbind()]

    monkeypatch.setattr(pinned, "_allocate_rows", pinned_rows)
    return pinned.Rows()


def test_a_row_is_used_again_when_its_work_is_done(rows) -> None:
    first, second = rows.take(), rows.take()
    assert first.address != second.address
    first.event.done = False
    rows.give_back(first)
    rows.give_back(second)
    taken = [rows.take() for _ in range(2)]
    assert first.address not in [row.address for row in taken]
    first.event.done = True
    assert {rows.take().address, rows.take().address} == {first.address, second.address}


def test_who_drops_numbers_gives_their_row_back(monkeypatch, rows) -> None:
    monkeypatch.setitem(pinned._ROWS, 7, rows)
    monkeypatch.setattr(pinned, "_current_stream", lambda _: None)  # a machine has no GPU 7
    unrecorded = pinned.PinnedNumbers(7)  # an exception came before the event
    lost = unrecorded.data_ptr()
    del unrecorded
    numbers = pinned.PinnedNumbers(7, 3)
    address, row = numbers.data_ptr(), numbers._row
    numbers.copy(torch.tensor([1.0, 2.0, 3.0]))
    row.numbers[3] = float("nan")
    assert numbers.tolist() == [1, 2, 3]
    numbers.record()
    del numbers
    others = [pinned.PinnedNumbers(7).data_ptr() for _ in range(4)]
    assert address in others
    assert lost not in others


def test_a_streams_object_is_kept(monkeypatch) -> None:
    indices, raw = [], {0: 7}
    monkeypatch.setattr(pinned, "raw_stream", raw.get)
    monkeypatch.setattr(pinned, "_STREAMS", {})
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda index: indices.append(index) or object()
    )
    first = pinned._current_stream(0)
    raw[0] = 8
    other = pinned._current_stream(0)
    raw[0], raw[1] = 7, 7  # the same address of another GPU, as that of default streams
    assert pinned._current_stream(0) is first
    assert len({first, other, pinned._current_stream(1)}) == 3
    assert indices == [0, 0, 1]


def test_threads_never_have_the_same_row(rows) -> None:
    taken, lock, twice = set(), threading.Lock(), []

    def work():
        for _ in range(2000):
            row = rows.take()
            with lock:
                twice.extend([row.address] if row.address in taken else [])
                taken.add(row.address)
            with lock:
                taken.remove(row.address)
            rows.give_back(row)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not twice
