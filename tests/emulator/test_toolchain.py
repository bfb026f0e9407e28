# SPDX-License-Identifier: MIT
"""The build cache, processors without the assembly switch, machines without a compiler."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from emulator import require_emulator, toolchain, unavailable_reason

SUMS = """
import numpy as np
from pathlib import Path
from emulator import EmulatedModule, EmulatorError, thread_order
code = Path("emulator/kernels/barriers.cu").read_text()
x = np.arange(3 * 96, dtype=np.int32).reshape(3, 96)
for order in ("forward", "reverse", "random"):
    partial, ticket, total = np.zeros(3, "i4"), np.zeros(1, "u4"), np.zeros(1, "i4")
    with thread_order(order):
        kernel = EmulatedModule(code).get_function("total_by_last_block")
        kernel((3,), (96,), (x, partial, ticket, total))
    assert total[0] == x.sum(), (order, total)
try:
    EmulatedModule(code).get_function("divergent_barrier")((1,), (40,), (x,))
except EmulatorError as error:
    print("reported:", error)
"""


@pytest.mark.thorough
def test_portable_context_switch(tmp_path, run_python):
    environment = {"CTO_EMULATOR_CACHE": str(tmp_path), "CTO_EMULATOR_UCONTEXT": "1"}
    assert "reported: divergent_barrier: block (0,0,0)" in run_python(SUMS, **environment)
    (runtime,) = tmp_path.glob("runtime-*/runtime.so")
    symbols = subprocess.run(["nm", str(runtime)], capture_output=True, text=True, check=True)
    assert "swapcontext" in symbols.stdout
    assert "emulator_switch_stacks" not in symbols.stdout


def test_processes_may_build_at_the_same_time(tmp_path, run_python):
    """Each thing is built by one of them, which a g++ that writes a line first shows."""
    compiler, cache = tmp_path / "g++", tmp_path / "cache"
    compiler.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\nexec {shutil.which("g++")} "$@"\n'
    )
    compiler.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    with ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(run_python, SUMS, CTO_EMULATOR_CACHE=str(cache), PATH=path)
            for _ in range(3)
        ]
        outputs = {run.result() for run in runs}
    assert len(outputs) == 1
    kinds = sorted(path.name.split("-")[0] for path in cache.iterdir() if path.is_dir())
    assert kinds == ["header", "module", "runtime"], "nothing half done"
    builds = [call for call in (tmp_path / "calls").read_text().splitlines() if " -o " in call]
    assert len(builds) == 3


@pytest.mark.parametrize(("missing", "remaining"), [("g++", []), ("addr2line", ["g++"])])
def test_missing_tools_are_named(monkeypatch, tmp_path, missing, remaining):
    for tool in remaining:
        (tmp_path / tool).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = unavailable_reason()
    assert reason is not None
    assert f"needs {missing}" in reason


def test_missing_headers_name_no_one_cuda(monkeypatch):
    monkeypatch.setattr(toolchain, "header_folder", lambda: None)
    assert "(extra cuda12x or cuda13x)" in unavailable_reason()


def test_without_a_compiler_tests_skip_but_fail_in_ci(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"needs g\+\+"):
        require_emulator()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match=r"needs g\+\+"):
        require_emulator()
