# SPDX-License-Identifier: MIT
"""Two threads at one byte of shared memory, one of which writes: ordered, or an error."""

import numpy as np
import pytest

from emulator import EmulatorError, thread_order

ORDERS = ("NOTHING", "SYNCWARP", "SYNCTHREADS", "SHUFFLE")
PAIRS = ("read_after_write", "write_after_read", "write_after_write")
EXPRESSIONS = tuple(f"{pair}<{order}>" for pair in PAIRS for order in ORDERS)
SAME_WARP, OTHER_WARP = 5, 40

every_order = pytest.mark.parametrize("order", ["forward", "reverse", "random"])


@pytest.fixture
def run(load_kernels):
    """Launch a kernel of two blocks of 64 threads, twice."""

    def run(name, other):
        out = np.zeros(1, np.int32)
        kernel = load_kernels("races.cu", (), EXPRESSIONS).get_function(name)
        for _ in range(2):
            kernel((2,), (64,), (np.int32(other), out), shared_mem=8)
        return out[0]

    return run


@every_order
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    ("synchronized", "other"),
    [("SYNCTHREADS", SAME_WARP), ("SYNCTHREADS", OTHER_WARP), ("SYNCWARP", SAME_WARP)],
)
def test_what_is_ordered(run, pair, synchronized, other, order) -> None:
    with thread_order(order, seed=1):
        assert run(f"{pair}<{synchronized}>", other) == 7


@every_order
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    ("synchronized", "other"),
    [
        ("NOTHING", SAME_WARP),
        ("NOTHING", OTHER_WARP),
        ("SYNCWARP", OTHER_WARP),
        ("SHUFFLE", SAME_WARP),
    ],
)
def test_a_race_is_an_error_in_any_order_whatever_is_written(
    run, pair, synchronized, other, order
) -> None:
    """Values are exchanged by shuffles, memory is not ordered by them."""
    with thread_order(order, seed=1), pytest.raises(EmulatorError, match="a race") as caught:
        run(f"{pair}<{synchronized}>", other)
    message = str(caught.value)
    assert "no barrier divides" in message
    assert "races.cu:" in message
    assert ("dynamic" if pair == "write_after_write" else "static") in message


@every_order
@pytest.mark.parametrize(("name", "expected"), [("bytes", 7), ("atomics", 64)])
def test_what_needs_no_order(run, name, expected, order) -> None:
    with thread_order(order, seed=1):
        assert run(name, OTHER_WARP) == expected


@every_order
def test_a_plain_read_among_atomic_operations_is_a_race(run, order) -> None:
    with thread_order(order, seed=1), pytest.raises(EmulatorError, match="a race"):
        run("read_among_atomics", SAME_WARP)


@every_order
@pytest.mark.parametrize("other", [SAME_WARP, OTHER_WARP])
def test_what_is_written_where_it_was_read_is_noticed(run, order, other) -> None:
    with thread_order(order, seed=1), pytest.raises(EmulatorError, match="a race"):
        run("sum_without_order", other)
