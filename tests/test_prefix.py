# SPDX-License-Identifier: MIT
"""Sums over ranges of tiles, of which a block adds up what others said."""

from __future__ import annotations

import numpy as np
from probe.prefix_probe import THREADS, ProbeSums, probe_sums

from cupy_training_ops.testing.compare import assert_matches

# About what a thread asks for at a time, 3 words, and beyond.
LENGTHS = (0, 1, 31, 33, THREADS, 3 * THREADS - 1, 3 * THREADS, 3 * THREADS + 1, 7 * THREADS + 5)


def test_sums_of_ranges(run, rng) -> None:
    has = rng.integers(0, 2000, 10 * THREADS).astype(np.uint32)
    first = np.array([has.size - n for n in LENGTHS] + [17] * len(LENGTHS), np.uint32)
    end = first + np.array(LENGTHS * 2, np.uint32)
    for _ in range(2):  # the second finds nothing that the first said
        result = run.host(ProbeSums()(*map(run.place, (has, first, end))))
        assert_matches(result, probe_sums(has, first, end), 0)
        has = has[::-1].copy()


def test_sums_beyond_32_bits(run) -> None:
    has = np.full(4 * THREADS, 2**25 - 1, np.uint32)
    first, end = np.array([0], np.uint32), np.array([has.size], np.uint32)
    result = run.host(ProbeSums()(*map(run.place, (has, first, end))))
    assert_matches(result, probe_sums(has, first, end), 0)
    assert int(result[0]) > 2**32


def test_a_lane_waits_for_what_another_says(run) -> None:
    has, first, end = np.arange(1, 65, dtype=np.uint32), np.array([1]), np.array([32])
    result = ProbeSums()(*map(run.place, (has, first.astype(np.uint32), end.astype(np.uint32))))
    assert run.host(result)[0] == sum(range(2, 33))
