# SPDX-License-Identifier: MIT
"""Collectives on two GPUs: each operator against its definition, graphs, faults, training."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from ranks import ROOT, Processes

pytestmark = pytest.mark.multi_gpu

SCRIPT = Path(__file__).parent / "collective_ranks.py"
GRACE = 10.0
KILLED = -9


def ended(*parts: str, timeout: float = 60.0) -> list[tuple[int, str]]:
    with Processes(2, SCRIPT, *parts, timeout=timeout) as ranks:
        return ranks.ended()


@pytest.mark.parametrize(
    "part",
    [
        *["operators", "lists", "sharded", "captured_steps", "tensors", "capture"],
        *["first_under_capture", "other_device"],
    ],
)
def test_calls(part) -> None:
    for status, text in ended(part):
        assert status == 0, text
        assert text.strip()


def test_what_a_first_call_under_capture_and_another_device_are_told() -> None:
    for _, text in ended("first_under_capture"):
        assert "a call under graph capture needs one like it before" in text
    for _, text in ended("other_device"):
        assert "NcclAllReduce: group: expected one that communicates from cuda device" in text


@pytest.mark.large
def test_more_than_two_to_the_31_bytes_and_elements() -> None:
    for status, text in ended("large", timeout=120.0):
        assert status == 0, text


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("killed", "rank 1 is gone"),
        ("late", "a call on the GPU took longer than 4 seconds"),
        ("raises", "rank 1 failed: ValueError: no data"),
    ],
)
def test_faults_end_what_waits_on_the_gpu(part, words) -> None:
    for rank, (status, text) in enumerate(ended(part, timeout=4.0)):
        if rank == 1 and part == "killed":
            assert status == KILLED
        elif rank == 1 and part == "raises":
            assert status == 1
        else:
            assert status == 3, text
            assert words in text
            assert float(re.search(r"\[([\d.]+) s\]", text)[1]) < 2 * 4 + 5 + GRACE


def test_a_rank_that_is_stopped_ends_what_waits_on_the_gpu() -> None:
    with Processes(2, SCRIPT, "stopped", timeout=4.0) as ranks:
        ranks.started[0].wait(90)
        ranks.started[1].send_signal(signal.SIGCONT)
        (first, said), (second, own) = ranks.ended()
    assert (first, second) == (3, 3), said + own
    assert "a call on the GPU took longer than 4 seconds" in said
    assert float(re.search(r"\[([\d.]+) s\]", said)[1]) < 2 * 4 + 5 + GRACE


def test_a_rank_that_is_interrupted_in_its_calls_is_never_wrong() -> None:
    (first, said), (second, own) = ended("interrupted", timeout=10.0)
    assert first == second, said + own
    assert first in (0, 3), said + own
    if first:
        words = "rank 1 stopped in the middle of NcclAllReduce: InterruptError()"
        assert words in said
        assert words in own


@pytest.mark.parametrize("part", ["disagree", "tags"])
def test_ranks_that_disagree_are_told(part) -> None:
    for status, text in ended(part):
        assert status == 4, text
        assert "the ranks disagree" in text


def test_data_parallel_training() -> None:
    """Two ranks' losses are those of one with the joined batch; both end with the same bits."""
    script = ROOT / "scripts" / "train_data_parallel.py"
    found = []
    for n in (1, 2):
        with Processes(n, script, "--steps", "100", timeout=60.0) as ranks:
            found.append(ranks.ended())
    (one,), two = found
    assert {status for status, _ in (one, *two)} == {0}, found
    losses, checksums = zip(*(parsed(text) for _, text in (one, *two)), strict=True)
    pairs = list(zip(losses[0], losses[1], strict=True))[:50]
    assert max(abs(a - b) for a, b in pairs) < 1e-4
    assert checksums[1] == checksums[2]


def parsed(text: str) -> tuple[list[float], str]:
    found = re.search(r"^losses (.*)$", text, flags=re.MULTILINE)
    checksum = re.search(r"^checksum (\d+)$", text, flags=re.MULTILINE)[1]
    return [float(word) for word in found[1].split()] if found else [], checksum
