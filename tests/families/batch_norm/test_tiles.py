# SPDX-License-Identifier: MIT
"""Batch normalisation's tiles in shared memory, and the slots of a thread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupy_training_ops.families.batch_norm import plan as planning
from cupy_training_ops.families.batch_norm import plan_shared_memory
from cupy_training_ops.families.batch_norm.plan_shared_memory import Channels
from cupy_training_ops.plan import Device


@pytest.mark.parametrize("kib", [227, 163, 99, 64])
def test_tiles_and_rings_fit_into_shared_memory(rng, kib) -> None:
    """Tiles of all blocks of a multiprocessor fit, with what the system takes for each."""
    for outer, n, length in rng.integers((1, 64, 1), (600, 2048, 300), (300, 3)).tolist():
        for of_arrays in ((1, 2, 3), (2, 2, 2), (1, 4, 3), (2, 4, 2)):
            result = tiles_of(kib, Channels(outer, n, length), *of_arrays)
            if result is not None:
                assert result.blocks * (result.shared_nbytes + 1024) <= (kib + 1) * 1024
                assert result.ring.rows >= result.depth


@pytest.mark.parametrize(
    ("kib", "channels", "of_arrays"),
    [
        (227, Channels(7, 1304, 242), (1, 2, 3)),
        (163, Channels(179, 342, 11), (1, 4, 3)),
        (99, Channels(22, 817, 34), (2, 4, 2)),
        (64, Channels(270, 747, 6), (1, 4, 3)),
    ],
)
def test_a_ring_has_the_rows_of_more_tiles_where_they_fit(kib, channels, of_arrays) -> None:
    result = tiles_of(kib, channels, *of_arrays)
    assert result is not None
    assert result.ring.rows >= 2 * result.depth


def tiles_of(kib: int, channels: Channels, n_arrays: int, itemsize: int, n_fields: int):
    device = Device(132, (9, 0), kib * 1024)
    return plan_shared_memory.fit_tiles(device, channels, n_arrays, itemsize, 4, n_fields)


@given(
    st.integers(1, 6), st.integers(1, 5), st.integers(1, 40), st.sampled_from([1, 2, 4]),
    st.sampled_from([32, 64, 256]),
)  # fmt: skip
def test_slots_of_a_thread_follow_each_other(outer, n, length, width, threads) -> None:
    """Steps from slot to slot, as batch_norm/pieces.cuh makes them, meet each slot's element."""
    channels = Channels(outer, n, length * width)
    struct = planning.pieces(channels, width, channels.elements // width, threads)
    of_piece = int(struct["slots"]["value"])
    for thread in range(min(threads, int(struct["n_slots"]))):
        slot, element = thread % of_piece, thread // of_piece * n * length * width
        element += slot * width
        for flat in range(thread, int(struct["n_slots"]), threads):
            assert element == flat // length * n * length * width + flat % length * width
            slot, element = slot + int(struct["slots_on"]), element + int(struct["elements_on"])
            if slot >= of_piece:
                slot, element = slot - of_piece, element + int(struct["wrap"])
