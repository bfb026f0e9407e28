# SPDX-License-Identifier: MIT
"""Frames and messages: what has a wrong length is refused, and nobody is waited for."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from cupy_training_ops.process_group import wire


def framed(*, kind=1, length=0, body=b"") -> bytes:
    return struct.pack("<BIIIQ", kind, 1, 0, 0, length) + body


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (framed(kind=77), "a frame of kind 77"),
        (framed(length=2**60), f"a frame of {2**60} bytes"),
        (framed(kind=2, length=2**17), f"a frame of {2**17} bytes"),
        (framed()[:-3], "its connection ended"),
    ],
)
def test_frames_of_a_wrong_length_are_refused(sent, message) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises((wire.WireError, EOFError), match=message):
            wire.read_frame(theirs)


def test_who_says_nothing_or_too_little_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(3)
        ours.sendall(b"abc")
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            wire.read_exactly(theirs, 10, started + 0.1)
        assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((), "without lengths"),
        ((0, 2**40), f"of {2**40} parts"),
        ((0, 1), "of 1 parts"),
        ((0, 1, 9), "do not add up"),
        ((2**63, 1, 2**63 + 8), "do not add up"),
    ],
)
def test_messages_of_a_wrong_length_are_refused(lengths, message) -> None:
    body = b"".join(struct.pack("<Q", n) for n in lengths) + b"x" * (8 if len(lengths) > 2 else 0)
    with pytest.raises(wire.WireError, match=message):
        wire.unpacked(memoryview(body))


def test_messages_come_back() -> None:
    text, parts = "söme words", [b"", b"abc", bytes(70_000)]
    body = memoryview(b"".join(wire.packed(text, parts)))
    found = wire.unpacked(body)
    assert (found.text, [bytes(part) for part in found.parts]) == (text, parts)
