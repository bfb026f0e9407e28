# SPDX-License-Identifier: MIT
"""Faults become Python errors that name block and thread, and the process stays usable."""

import subprocess
import time

import numpy as np
import pytest

from emulator import EmulatorError, guarded_copy, thread_order, time_limit

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


@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in-place"])
def test_a_fault_is_explained_from_the_memory_that_it_found(load_kernels, in_place):
    """A launch whose behaviour is undefined is made twice: see EmulatedKernel._run."""
    values = np.full(64, 5, np.int32)
    values[VICTIM] = 32
    values = guarded_copy(values) if in_place else values
    where = np.array([(values.ctypes.data,)], [("values", np.uint64)])[0]
    kernel = load_kernels("faults.cu").get_function("take_and_shift")
    with pytest.raises(EmulatorError) as caught:
        kernel((1,), (64,), (where, np.zeros(64, np.int32)), reachable=[values])
    assert f"thread ({VICTIM},0,0): undefined behaviour: shift by" in str(caught.value)


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


# An unwinder that holds a lock for longer than the time limit's signal takes to come again.
SLOW_UNWINDER = """
#include <pthread.h>
#include <time.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long milliseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
extern "C" int backtrace(void**, int) {
  pthread_mutex_lock(&lock);
  for (const long end = milliseconds() + 100; milliseconds() < end;) {}
  pthread_mutex_unlock(&lock);
  return 0;
}
"""

FAIL_TWICE = """
import sys
from pathlib import Path
import numpy as np
from emulator import EmulatedModule, EmulatorError, time_limit
kernel = EmulatedModule(Path("emulator/kernels/faults.cu").read_text()).get_function(sys.argv[1])
for _ in range(2):
    try:
        with time_limit(0.05):
            kernel((1,), (64,), (np.zeros(64, np.int32), np.int32(21)))
    except EmulatorError as error:
        print(error)
"""


@pytest.mark.parametrize("name", ["endless_loop", "wild_pointer"])
def test_the_time_limit_does_not_interrupt_a_report(tmp_path, run_python, name):
    """Its signal comes again and again, and must not come to a handler that holds a lock."""
    (tmp_path / "unwinder.cpp").write_text(SLOW_UNWINDER)
    library = tmp_path / "unwinder.so"
    build = ["g++", "-O1", "-shared", "-fPIC", tmp_path / "unwinder.cpp", "-o", library]
    subprocess.run(build, check=True)
    expected = "time limit of 50 ms" if name == "endless_loop" else "invalid memory access at 0x94"
    lines = run_python(FAIL_TWICE, name, LD_PRELOAD=str(library)).splitlines()
    assert len(lines) == 2, "the limit holds for the next launch too"
    for line in lines:
        assert f"{name}: block (0,0,0) thread (21,0,0): {expected}" in line
