# SPDX-License-Identifier: MIT
"""Block barriers: votes, early exits, divergence, tickets, and barriers that are missing."""

import numpy as np
import pytest

from emulator import EmulatorError, thread_order

every_order = pytest.mark.parametrize("order", ["forward", "reverse", "random"])


def _reverse_in_blocks(load_kernels, x, *options):
    y = np.full_like(x, -1)
    kernel = load_kernels("barriers.cu", options).get_function("reverse_in_blocks")
    kernel((x.size // 256,), (256,), (x, y), 256 * 4)
    return y


@every_order
def test_reversal_through_shared_memory(load_kernels, rng, order):
    x = rng.standard_normal(1024).astype(np.float32)
    with thread_order(order, seed=5):
        y = _reverse_in_blocks(load_kernels, x)
    np.testing.assert_array_equal(y, x.reshape(4, 256)[:, ::-1].ravel())


@every_order
def test_planted_missing_barrier_is_a_race(load_kernels, rng, order):
    x = rng.standard_normal(1024).astype(np.float32)
    with thread_order(order, seed=5), pytest.raises(EmulatorError, match="a race"):
        _reverse_in_blocks(load_kernels, x, "-DCTO_BARRIER=((void)0)")


@every_order
@pytest.mark.parametrize("threads", [1, 2, 32, 256, 1024])
def test_tree_reduction(load_kernels, rng, order, threads):
    x = rng.integers(-1000, 1000, (3, threads), np.int32)
    sums = np.full(3, -1, np.int32)
    with thread_order(order, seed=threads):
        load_kernels("barriers.cu").get_function("block_sum")((3,), (threads,), (x, sums))
    np.testing.assert_array_equal(sums, x.sum(1))


@every_order
def test_votes_of_a_block(load_kernels, rng, order):
    x = rng.integers(0, 3, (6, 70), np.int32)
    x[0], x[1] = 0, 2
    count, any_, all_ = (np.full(6, -1, np.int32) for _ in range(3))
    with thread_order(order, seed=1):
        load_kernels("barriers.cu").get_function("votes")((6,), (70,), (x, count, any_, all_))
    np.testing.assert_array_equal(count, (x != 0).sum(1))
    np.testing.assert_array_equal(any_, (x != 0).any(1))
    np.testing.assert_array_equal(all_, (x != 0).all(1))


@every_order
@pytest.mark.parametrize("stay", [1, 31, 32, 33, 100])
def test_exited_threads_do_not_count(load_kernels, order, stay):
    out = np.full(100, -1, np.int32)
    with thread_order(order, seed=stay):
        load_kernels("barriers.cu").get_function("early_exit")((1,), (100,), (out, np.int32(stay)))
    neighbours = (np.arange(stay) + 1) % stay + 1
    np.testing.assert_array_equal(out[:stay], neighbours * 10000 + stay)
    assert (out[stay:] == -1).all()


@every_order
def test_divergent_barriers_are_reported_with_both_lines(load_kernels, marked_line, order):
    kernel = load_kernels("barriers.cu").get_function("divergent_barrier")
    with thread_order(order), pytest.raises(EmulatorError, match="divergent barrier") as caught:
        kernel((1,), (40,), (np.zeros(40, np.int32),))
    for mark in ("some", "others"):
        assert marked_line("barriers.cu", mark) in str(caught.value)


@every_order
def test_deadlock_names_who_waits_where(load_kernels, marked_line, order):
    kernel = load_kernels("barriers.cu").get_function("barrier_against_shuffle")
    with thread_order(order), pytest.raises(EmulatorError) as caught:
        kernel((1,), (32,), (np.zeros(32, np.int32),))
    text = str(caught.value)
    assert "deadlock" in text
    barrier, shuffle = (marked_line("barriers.cu", mark) for mark in ("barrier", "shuffle"))
    assert f"lanes 0x00000008 wait at the block barrier ({barrier})" in text
    assert f"lanes 0xfffffff7 wait at __shfl_sync (mask 0xffffffff, {shuffle})" in text


@every_order
@pytest.mark.parametrize("blocks", ["forward", "reverse"])
def test_last_block_takes_the_ticket(load_kernels, rng, order, blocks):
    x = rng.integers(-1000, 1000, (9, 64), np.int32)
    partial, ticket, total = np.zeros(9, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.int32)
    kernel = load_kernels("barriers.cu").get_function("total_by_last_block")
    with thread_order(order, seed=2, blocks=blocks):
        kernel((9,), (64,), (x, partial, ticket, total))
    assert (total[0], ticket[0]) == (x.sum(), 0)
    np.testing.assert_array_equal(partial, x.sum(1))


@every_order
@pytest.mark.parametrize(("groups", "threads"), [(4, 32), (3, 96), (8, 64)])
def test_groups_meet_at_barriers_of_their_own(load_kernels, rng, order, groups, threads):
    numbers = rng.integers(0, 1000, (groups, threads), np.int32)
    actual = numbers.copy()
    with thread_order(order, seed=threads):
        kernel = load_kernels("barriers.cu").get_function("turn_in_groups")
        kernel((1,), (groups * threads,), (actual.ravel(), np.int32(threads)))
    for group in range(groups):
        np.testing.assert_array_equal(actual[group], np.roll(numbers[group], -group - 1))


@pytest.mark.parametrize(
    ("number", "threads", "words"),
    [
        (0, 32, "no such barrier"),
        (16, 32, "no such barrier"),
        (1, 33, "no such barrier"),
        (1, 64, "deadlock.*lanes 0xffffffff wait at the block barrier"),
    ],
)
def test_wrong_barriers_of_groups(load_kernels, marked_line, number, threads, words):
    kernel = load_kernels("barriers.cu").get_function("sync_group")
    with pytest.raises(EmulatorError, match=words) as caught:
        kernel((1,), (32,), (np.int32(number), np.int32(threads)))
    assert marked_line("barriers.cu", "group") in str(caught.value)
