# SPDX-License-Identifier: MIT
"""`compile`: finds every kernel of every type, and says which do not compile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from never_sampled import NEVER_SAMPLED

from cupy_training_ops import CompileError, ProviderError, get_op
from cupy_training_ops.call.op import Op
from cupy_training_ops.cli import machine, main
from cupy_training_ops.cli.operators import _compiles, _failures
from cupy_training_ops.cli.processes import workers
from cupy_training_ops.declare.type_rows import combinations
from cupy_training_ops.device import compiler
from cupy_training_ops.device.source import Source, load
from cupy_training_ops.dtypes import element_type
from cupy_training_ops.registry import FAMILIES, classes
from cupy_training_ops.testing.idle import IdleBackend, Module, launches, modules
from cupy_training_ops.testing.samples import all_samples

HOPPER = compiler.device_of("90")
OP = "GistBinarizeEncoder"
ARGUMENTS = ("--op", "IsAllFinite", "--arch", "90")  # whose source compiles sooner
# Families whose samples launch their own kernels, all of them.
COMPUTING = {
    c.family for ops in FAMILIES.values() for _, c in classes(ops) if c.plan is not Op.plan
}
PLANNED = COMPUTING - {"collective"}
FEW = 5  # families
LONGEST = ("--op", "LayerNormalizationGrad", "--arch", "all")  # and later


def call(*arguments):
    result = CliRunner().invoke(main, ["compile", *arguments])
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    return result


@pytest.mark.parametrize("name", ["GistPack1Encoder", "GistPack8Decoder"])
def test_every_type_is_launched_with_its_slot(name):
    actual = [launch for s in all_samples()[name] for launch in launches(s, IdleBackend(HOPPER))]
    expected = {element_type(c["T"]).c_type for c in combinations(get_op(name).types)}
    assert {launch.slots["T"] for launch in actual} == expected


def assert_modules_hold_every_kernel(families):
    samples = [s for family in families for name in FAMILIES[family] for s in all_samples()[name]]
    actual = modules(samples, HOPPER)
    sources = {module.source.name for module in actual}
    for family in sources:
        symbols = {s for m in actual if m.source.name == family for s in m.symbols}
        assert symbols == set(load(family).kernels) - NEVER_SAMPLED.keys()
    assert len({(m.source.name, *sorted(m.slots.items())) for m in actual}) == len(actual)
    return sources


def test_modules_hold_every_kernel_of_a_source(seed):
    """Of drawn families; that a source has no kernel beside these is a test of each home."""
    drawn = random.Random(seed).sample(sorted(PLANNED), FEW)
    assert assert_modules_hold_every_kernel(drawn) >= set(drawn)


@pytest.mark.thorough
def test_modules_hold_every_kernel_of_every_source():
    assert assert_modules_hold_every_kernel(FAMILIES) >= PLANNED


def test_a_dry_run_writes_nothing():
    (sample, *_) = all_samples()[OP]
    op = get_op(OP)()
    x = sample.make(np.random.default_rng(0))[0]
    assert launches(sample, IdleBackend(HOPPER))
    assert op(x).any()  # outside, NumPy arrays run on the CPU provider again


@pytest.fixture
def _nvrtc() -> None:
    try:
        compiler.supported_architectures()
    except ProviderError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_nvrtc")
def test_kernels_compile_for_another_architecture():
    result = call(*ARGUMENTS)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("sm_90: 12 kernels in 4 modules, 0 modules failed")


def test_what_does_not_compile_is_a_failed_check(monkeypatch):
    def fails_for_double(source, options, architecture):
        if "-DCTO_T=double" in options:
            raise CompileError(f"{source.name}.cu did not compile for sm_{architecture}")

    monkeypatch.setattr(compiler, "supported_architectures", lambda: ("80", "90"))
    monkeypatch.setattr(compiler, "compile_for", fails_for_double)
    result = call("--op", OP, "--arch", "all")
    assert result.exit_code == 1
    for arch in ("80", "90"):
        assert f"sm_{arch}: 4 kernels in 4 modules, 1 modules failed" in result.stdout
        assert f"gist.cu did not compile for sm_{arch}\n" in result.stdout


@pytest.mark.usefixtures("_nvrtc")
def test_several_processes_compile_the_same():
    result = call(*ARGUMENTS, "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("sm_90: 12 kernels in 4 modules, 0 modules failed")


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("jobs", [1, 2])
def test_each_module_that_does_not_compile_is_named(capsys, jobs):
    code = 'extern "C" __global__ void one(CTO_T* y) {}'
    good, bad = ({"T": name} for name in ("float", "neither"))
    wanted = [Module(Source("some", code, {}), slots, ("one",)) for slots in (good, bad)]
    with workers(jobs) as attempts:
        failures = _failures(wanted, "sm_90", partial(attempts, partial(_compiles, "90")))
    (failure,) = failures
    assert failure.startswith("some.cu (T=neither): some.cu did not compile for sm_90 with")
    assert 'identifier "neither" is undefined' in failure
    assert "sm_90: 2 kernels in 2 modules, 1 modules failed" in capsys.readouterr().out


def test_the_longest_source_is_compiled_first():
    lengths = (3, 7, 5)
    wanted = [Module(Source("some", "x" * n, {}), {}, ()) for n in lengths]
    begun = []
    _failures(wanted, "sm_90", lambda items: begun.extend(items) or ())
    assert [len(module.source.code) for module in begun] == sorted(lengths, reverse=True)


def session_of(process) -> list[str]:
    """The processes in the session that a process leads; a zombie there is its child."""
    actual = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            _state, _parent, _group, session, *_ = path.read_text().rpartition(")")[2].split()
            if int(session) == process.pid:
                actual.append(path.parent.name)
    return actual


@pytest.mark.usefixtures("_nvrtc")
def test_an_interrupt_ends_every_process():
    command = [sys.executable, "-m", "cupy_training_ops", "compile", *LONGEST]
    process = subprocess.Popen(
        [*command, "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while len(session_of(process)) < 4:  # itself, two workers and multiprocessing's own
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "\nAborted!\n")
    deadline = time.monotonic() + 10
    while session_of(process):  # multiprocessing's own ends when it sees that the others have
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_without_a_gpu_it_is_exit_code_3(monkeypatch):
    monkeypatch.setattr(machine, "why_no_gpu", lambda: "none in here")
    result = call()
    assert (result.exit_code, result.stdout) == (3, "")


def test_bad_usage_gets_one_line():
    for arguments in (["--arch", "9"], ["--op", "Frobnicate"]):
        result = call(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_call_finds_its_kernel_in_the_cache(tmp_path, jobs):
    command = ("-m", "cupy_training_ops", "compile", "--op", OP, "--jobs", jobs)
    assert "4 kernels in 4 modules, 0 modules failed" in with_cache(tmp_path, *command)
    before = sorted(tmp_path.iterdir())
    assert len(before) == 4
    with_cache(tmp_path, "-c", CALL)
    assert sorted(tmp_path.iterdir()) == before


CALL = f"""
import cupy, cupy_training_ops
cupy_training_ops.get_op({OP!r})()(cupy.empty(100, cupy.float32))
"""


def with_cache(folder, *arguments) -> str:
    """What a new Python prints; CuPy reads where its cache is when it is imported."""
    environment = {**os.environ, "CUPY_CACHE_DIR": str(folder)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout
