# SPDX-License-Identifier: MIT
"""Warp operations against a model in NumPy, and their misuse."""

import ml_dtypes
import numpy as np
import pytest

from emulator import EmulatorError, thread_order

LANES = np.arange(32)
every_order = pytest.mark.parametrize("order", ["forward", "reverse", "random"])

SHUFFLED_TYPES = {
    "int": np.int32,
    "unsigned": np.uint32,
    "long long": np.int64,
    "unsigned long long": np.uint64,
    "float": np.float32,
    "double": np.float64,
    "__half": np.float16,
    "__nv_bfloat16": ml_dtypes.bfloat16,
}
EXPRESSIONS = tuple(f"shuffles<{name}>" for name in SHUFFLED_TYPES)


def _sources(argument, width):
    """For the four shuffles, the lane that each lane reads, by the PTX manual."""
    first = LANES // width * width
    last = first + width - 1
    up, down, xor = LANES - argument, LANES + argument, LANES ^ argument
    return np.stack(
        [
            first + argument % width,
            np.where(up < first, LANES, up),
            np.where(down > last, LANES, down),
            np.where(xor > last, LANES, xor),
        ]
    )


def _shuffles(load_kernels, name, x, argument, width):
    out = np.zeros((4, 32), x.dtype)
    kernel = load_kernels("warps.cu", (), EXPRESSIONS).get_function(f"shuffles<{name}>")
    kernel((1,), (32,), (x, out, np.int32(argument), np.int32(width)))
    return out


@every_order
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_shuffles_of_all_widths(load_kernels, rng, order, width):
    x = rng.integers(-(2**31), 2**31, 32).astype(np.int32)
    with thread_order(order, seed=width):
        for argument in range(32):
            out = _shuffles(load_kernels, "int", x, argument, width)
            np.testing.assert_array_equal(out, x[_sources(argument, width)])


@pytest.mark.parametrize("name", SHUFFLED_TYPES)
def test_shuffles_of_all_types(load_kernels, rng, name):
    dtype = np.dtype(SHUFFLED_TYPES[name])
    x = rng.integers(0, 256, 32 * dtype.itemsize, np.uint8).view(dtype)
    out = _shuffles(load_kernels, name, x, 5, 16)
    bits = f"u{dtype.itemsize}"
    np.testing.assert_array_equal(out.view(bits), x.view(bits)[_sources(5, 16)])


@every_order
@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0x0000FFFF, 0xAAAAAAAA, 0x00000100, 0x80000001])
def test_votes_of_the_lanes_in_a_mask(load_kernels, rng, order, mask):
    x = rng.integers(0, 2, 32, np.int32)
    member = (mask >> LANES & 1).astype(bool)
    ballot, any_, all_ = np.zeros(32, np.uint32), np.zeros(32, np.int32), np.zeros(32, np.int32)
    kernel = load_kernels("warps.cu", (), EXPRESSIONS).get_function("warp_votes")
    with thread_order(order, seed=4):
        kernel((1,), (32,), (x, ballot, any_, all_, np.uint32(mask)))
    votes = (x != 0) & member
    np.testing.assert_array_equal(ballot, np.where(member, (votes << LANES).sum(), 0))
    np.testing.assert_array_equal(any_, member & votes.any())
    np.testing.assert_array_equal(all_, member & (votes == member).all())


@pytest.mark.parametrize("distinct", [1, 2, 7])
def test_matches(load_kernels, rng, distinct):
    x = rng.integers(0, distinct, 32, np.int32) - 1
    same, everywhere = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    all_equal = np.full(32, -1, np.int32)
    kernel = load_kernels("warps.cu", (), EXPRESSIONS).get_function("warp_matches")
    kernel((1,), (32,), (x, same, everywhere, all_equal))
    np.testing.assert_array_equal(same, ((x[:, None] == x) << LANES).sum(1))
    uniform = len(set(x)) == 1
    np.testing.assert_array_equal(everywhere, np.full(32, 0xFFFFFFFF if uniform else 0))
    np.testing.assert_array_equal(all_equal, np.full(32, uniform))


def test_reductions(load_kernels, rng):
    x = rng.integers(-(2**31), 2**31, 32).astype(np.int32)
    signed, bits = np.zeros((3, 32), np.int32), np.zeros((5, 32), np.uint32)
    kernel = load_kernels("warps.cu", (), EXPRESSIONS).get_function("warp_reductions")
    kernel((1,), (32,), (x, signed, bits))
    u = x.view(np.uint32)
    total = x.sum(dtype=np.int64).astype(np.int32)
    expected = [u.min(), u.max(), *(f.reduce(u) for f in _BITWISE)]
    np.testing.assert_array_equal(signed, np.tile([[total], [x.min()], [x.max()]], 32))
    np.testing.assert_array_equal(bits, np.tile(np.array(expected)[:, None], 32))


_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)


@every_order
def test_halves_of_a_warp_work_apart(load_kernels, rng, order):
    x = rng.integers(-50, 50, 32).astype(np.float32)
    out = np.zeros(32, np.float32)
    with thread_order(order, seed=6):
        load_kernels("warps.cu", (), EXPRESSIONS).get_function("half_warps")((1,), (32,), (x, out))
    np.testing.assert_array_equal(out, np.repeat([x[:16].sum(), x[16:].max()], 16))


@every_order
def test_syncwarp_orders_memory(load_kernels, rng, order):
    x = rng.integers(-1000, 1000, 32, np.int32)
    out = np.zeros(32, np.int32)
    kernel = load_kernels("warps.cu", (), EXPRESSIONS).get_function("neighbour_through_memory")
    with thread_order(order, seed=7):
        kernel((1,), (32,), (x, out))
    np.testing.assert_array_equal(out, np.roll(x, -1) + np.roll(x, 1))


@every_order
def test_planted_missing_syncwarp_is_a_race(load_kernels, rng, order):
    x = rng.integers(-1000, 1000, 32, np.int32)
    out = np.zeros(32, np.int32)
    kernel = load_kernels("warps.cu", ("-DCTO_NO_BARRIER",)).get_function(
        "neighbour_through_memory"
    )
    with thread_order(order, seed=8), pytest.raises(EmulatorError, match="a race"):
        kernel((1,), (32,), (x, out))


@every_order
def test_active_mask_names_the_lanes_that_ask(load_kernels, order):
    out = np.zeros(32, np.uint32)
    kernel = load_kernels("warps.cu", (), EXPRESSIONS).get_function("active_lanes")
    with thread_order(order, seed=9):
        kernel((1,), (32,), (out, np.int32(11)))
    np.testing.assert_array_equal(out, np.where(LANES < 11, 2**11 - 1, 0))


@every_order
def test_exited_lanes_take_no_part(load_kernels, order):
    out = np.zeros((2, 32), np.int32)
    kernel = load_kernels("warps.cu", (), EXPRESSIONS).get_function("exited_lanes")
    with thread_order(order, seed=10):
        kernel((1,), (32,), (out, np.int32(20)))
    np.testing.assert_array_equal(out[0], np.where(LANES < 20, 2**20 - 1, 0))
    np.testing.assert_array_equal(out[1], np.where(LANES < 20, -1, 0), "lane 31 reads as all ones")


@every_order
@pytest.mark.parametrize(
    ("name", "message", "mark"),
    [
        ("masks_disagree", "lanes disagree: __shfl_sync with mask", "masks"),
        ("operations_disagree", "lanes disagree: .*(vote.*__shfl_sync|__shfl_sync.*vote)", None),
        ("not_in_own_mask", r"thread \(0,0,0\): __shfl_sync: mask 0xfffffffe lacks the call", None),
        ("product_of_some", "mma.sync: .* only lanes 0xffffffdf take part", "product"),
        ("lane_never_comes", "deadlock.*lanes 0xffffffdf wait at vote", "vote"),
    ],
)
def test_misuse_is_reported(load_kernels, marked_line, order, name, message, mark):
    kernel = load_kernels("warps.cu", (), EXPRESSIONS).get_function(name)
    with thread_order(order, seed=11), pytest.raises(EmulatorError, match=message) as caught:
        kernel((1,), (32,), (np.zeros(32, np.int32),))
    assert mark is None or marked_line("warps.cu", mark) in str(caught.value)


@pytest.mark.parametrize("width", [0, 3, 33, 64, -1])
def test_widths_that_are_no_power_of_two_are_refused(load_kernels, width):
    kernel = load_kernels("warps.cu", (), EXPRESSIONS).get_function("odd_width")
    with pytest.raises(EmulatorError, match="is not a power of two up to 32 at kernels/warps"):
        kernel((1,), (32,), (np.zeros(32, np.int32), np.int32(width)))
