# SPDX-License-Identifier: MIT
"""Faults become Python errors that name block and thread, and the process stays usable."""

import time

import numpy as np
import pytest

from emulator import EmulatorError, thread_order, time_limit

VICTIM = 21
FAULTS = {
    "divide": "division by zero",
    "overflow": r"signed overflow in \*",
    "shift": "shift by",
    "call_trap": r"__trap\(\) called",
    "assertion": "assertion failed: threadIdx.x < victim",
    "false_assumption": "__builtin_assume",
    "trap_among_waiting_threads": r"__trap\(\) called",
    "recursion": "stack overflow",
    "wild_pointer": "invalid memory access at 0x94: not in any array",
}


def _launch(load_kernels, name, blocks=1, threads=64):
    out = np.full(threads, -7, np.int32)
    kernel = load_kernels("faults.cu").get_function(name)
    kernel((blocks,), (threads,), (out, np.int32(VICTIM)))
    return out


def _check_still_usable(load_kernels):
    out = _launch(load_kernels, "harmless", blocks=3, threads=96)
    np.testing.assert_array_equal(out, np.repeat([31, 63, 95], 32) + VICTIM)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_name_block_thread_and_line(load_kernels, name):
    with pytest.raises(EmulatorError, match=FAULTS[name]) as caught:
        _launch(load_kernels, name)
    assert f"{name}: block (0,0,0) thread ({VICTIM},0,0): " in str(caught.value)
    assert "at kernels/faults.cu:" in str(caught.value)
    _check_still_usable(load_kernels)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_endless_loops_end(load_kernels, marked_line, order):
    start = time.process_time()
    with thread_order(order), time_limit(0.2), pytest.raises(EmulatorError) as caught:
        _launch(load_kernels, "endless_loop")
    assert f"thread ({VICTIM},0,0): time limit of 200 ms passed" in str(caught.value)
    assert marked_line("faults.cu", "loop") in str(caught.value)
    assert time.process_time() - start < 2
    _check_still_usable(load_kernels)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_a_failed_large_block_leaves_nothing_behind(load_kernels, order):
    with thread_order(order, seed=12):
        for _ in range(3):
            with pytest.raises(EmulatorError, match="__trap"):
                _launch(load_kernels, "trap_among_waiting_threads", threads=1024)
            _check_still_usable(load_kernels)
