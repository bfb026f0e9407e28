# SPDX-License-Identifier: MIT
"""Collectives on two GPUs, or CTO_RANKS of them, a power of two: each operator against its
definition, graphs, faults, training."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from ranks import ROOT, Processes

pytestmark = pytest.mark.multi_gpu

SCRIPT = Path(__file__).parent / "collective_ranks.py"
RANKS = int(os.environ.get("CTO_RANKS", "2"))
GRACE = 10.0
KILLED = -9


def ended(*parts: str, timeout: float = 60.0) -> list[tuple[int, str]]:
    with Processes(RANKS, SCRIPT, *parts, timeout=timeout) as ranks:
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
    with Processes(RANKS, SCRIPT, "stopped", timeout=4.0) as ranks:
        ranks.started[0].wait(90)
        ranks.started[1].send_signal(signal.SIGCONT)
        results = ranks.ended()
    assert {status for status, _ in results} == {3}, results
    said = results[0][1]
    assert "a call on the GPU took longer than 4 seconds" in said
    assert float(re.search(r"\[([\d.]+) s\]", said)[1]) < 2 * 4 + 5 + GRACE


def test_a_rank_that_is_interrupted_in_its_calls_is_never_wrong() -> None:
    statuses, texts = zip(*ended("interrupted", timeout=10.0), strict=True)
    assert statuses in ((0,) * RANKS, (3,) * RANKS), texts
    if any(statuses):
        words = "rank 1 stopped in the middle of NcclAllReduce: InterruptError()"
        assert all(words in text for text in texts), texts


@pytest.mark.parametrize("part", ["disagree", "tags"])
def test_ranks_that_disagree_are_told(part) -> None:
    for status, text in ended(part):
        assert status == 4, text
        assert "the ranks disagree" in text


def test_data_parallel_training() -> None:
    """Losses are those of one rank with the joined batch; all ranks end with the same bits."""
    script = ROOT / "scripts" / "train_data_parallel.py"
    losses = {}
    for n in sorted({1, 2, RANKS}):
        arguments = "--steps", "100", "--dtype", "float64"
        with Processes(n, script, *arguments, timeout=60.0) as ranks:
            results = ranks.ended()
        assert {status for status, _ in results} == {0}, results
        assert len({checksum(text) for _, text in results}) == 1, results
        losses[n] = losses_of(results[0][1])
    for own in losses.values():
        assert len(own) == 100
        assert max(abs(a - b) for a, b in zip(own, losses[1], strict=True)) < 1e-6


def losses_of(text: str) -> list[float]:
    line = re.search(r"^losses (.*)$", text, flags=re.MULTILINE)
    return [float(word) for word in line[1].split()]


def checksum(text: str) -> str:
    return re.search(r"^checksum (\d+)$", text, flags=re.MULTILINE)[1]
