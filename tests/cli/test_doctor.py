# SPDX-License-Identifier: MIT
"""`doctor`: a line for each part, a command for each missing one, and the exit code."""

from __future__ import annotations

import functools
import sys

import pytest
from click.testing import CliRunner

from cupy_training_ops.cli import doctor, main

NO_DEVICE, SYSTEM_NOT_READY = 100, 802  # CUDA's numbers of these errors
PARTS = ["GPU", "driver", "CuPy", "NVRTC", "headers", "NCCL", "ranks", "cache"]


def call():
    result = CliRunner().invoke(main, ["doctor"])
    assert isinstance(result.exception, SystemExit | None)
    return result


def states(result):
    """Part to state."""
    return dict(line.split()[:2] for line in result.stdout.splitlines()[: len(PARTS)])


def mends(result):
    """Part to command."""
    pairs = [line[8:].split(": ", 1) for line in result.stdout.splitlines() if "to mend " in line]
    return {part: mend for parts, mend in pairs for part in parts.split(", ")}


def hide_cupy(monkeypatch):
    for name in ("cupy", "cupy.cuda", "cupy_backends", "cupy_backends.cuda.libs"):
        monkeypatch.setitem(sys.modules, name, None)


def plant(monkeypatch, **findings):
    """Everything well but for these."""
    well = {part: doctor.Finding("there") for part in PARTS}
    planted = {part: functools.partial(lambda f: f, f) for part, f in (well | findings).items()}
    monkeypatch.setattr(doctor, "EXAMINATIONS", planted)


def test_every_part_has_a_line_here():
    result = call()
    assert list(states(result)) == PARTS
    missing = "missing" in states(result).values()
    assert result.exit_code == (1 if missing else 0)
    assert missing <= ("to mend" in result.stdout)


def test_all_well_is_exit_code_0(monkeypatch):
    plant(monkeypatch)
    result = call()
    assert set(states(result).values()) == {"ok"}
    assert (result.exit_code, "to mend" in result.stdout) == (0, False)


def test_nccl_alone_is_optional(monkeypatch):
    plant(monkeypatch, NCCL=doctor.Finding("gone", "pip install nccl", required=False))
    result = call()
    assert states(result)["NCCL"] == "optional"
    assert result.exit_code == 0
    assert "to mend NCCL: pip install nccl\n" in result.stdout


def test_one_command_is_named_once(monkeypatch):
    gone = doctor.Finding("gone", "pip install it")
    plant(monkeypatch, CuPy=gone, NVRTC=gone)
    result = call()
    assert result.exit_code == 1
    assert "to mend CuPy, NVRTC: pip install it\n" in result.stdout
    assert result.stdout.count("to mend") == 1


@pytest.mark.parametrize(("driver", "extra"), [(None, "12"), (12_080, "12"), (13_000, "13")])
def test_missing_cupy_is_mended_for_the_driver_that_is_here(monkeypatch, driver, extra):
    hide_cupy(monkeypatch)
    monkeypatch.setattr(doctor, "driver_version", lambda: driver)
    result = call()
    assert states(result)["CuPy"] == "missing"
    assert mends(result)["CuPy"] == f"pip install 'cupy-training-ops[cuda{extra}x]'"
    assert result.stdout.count("pip install 'cupy-training-ops[cuda") == 1


@pytest.mark.parametrize(("driver", "extra"), [(12_000, "12"), (13_000, "13")])
def test_a_driver_without_cupy_needs_cupy(monkeypatch, driver, extra):
    hide_cupy(monkeypatch)
    monkeypatch.setattr(doctor, "driver_version", lambda: driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = call()
    assert (states(result)["GPU"], states(result)["driver"]) == ("missing", "ok")
    assert mends(result)["GPU"] == f"pip install 'cupy-training-ops[cuda{extra}x]'"


def test_without_a_driver_the_driver_comes_first(monkeypatch):
    hide_cupy(monkeypatch)
    monkeypatch.setattr(doctor, "driver_version", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = call()
    assert mends(result)["GPU"] == mends(result)["driver"] == doctor.INSTALL_DRIVER
    assert mends(result)["CuPy"].startswith("pip install")


@pytest.mark.parametrize("with_cupy", [True, False])
def test_a_driver_older_than_every_extra_has_to_be_newer(monkeypatch, with_cupy):
    if with_cupy:
        pytest.importorskip("cupy")
    else:
        hide_cupy(monkeypatch)
    reason = "cudaErrorInsufficientDriver: CUDA driver version is insufficient"
    monkeypatch.setattr(doctor, "why_no_gpu", lambda: reason)
    monkeypatch.setattr(doctor, "driver_version", lambda: 11_080)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = call()
    assert states(result)["driver"] == "missing"
    assert "runs CUDA up to 11.8, 12.0 is needed" in result.stdout
    assert mends(result)["GPU"] == mends(result)["driver"] == doctor.NEWER_DRIVER
    cupy = "install a newer driver: " if with_cupy else "pip install 'cupy-training-ops[cuda12x]'"
    assert mends(result)["CuPy"].startswith(cupy)


def test_a_driver_older_than_cupy_is_said(monkeypatch):
    pytest.importorskip("cupy")
    monkeypatch.setattr(doctor, "driver_version", lambda: 11_040)
    assert "newer than the driver" in call().stdout


def test_missing_headers_are_said(monkeypatch):
    monkeypatch.setattr(doctor, "header_folder", lambda: None)
    assert states(call())["headers"] == "missing"


def cupy_answers(monkeypatch, error):
    """CuPy as it is with a driver that answers a question for devices with an error."""
    runtime = pytest.importorskip("cupy").cuda.runtime

    def raises():
        raise runtime.CUDARuntimeError(error)

    monkeypatch.setattr(runtime, "getDeviceCount", raises)
    monkeypatch.setattr(doctor, "driver_version", lambda: runtime.runtimeGetVersion())


def test_hidden_devices_are_shown_again(monkeypatch):
    cupy_answers(monkeypatch, NO_DEVICE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert mends(call())["GPU"] == "unset CUDA_VISIBLE_DEVICES"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert mends(call())["GPU"] == doctor.INSTALL_DRIVER


def test_devices_that_fail_are_not_hidden_ones(monkeypatch):
    cupy_answers(monkeypatch, SYSTEM_NOT_READY)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    result = call()
    assert "cudaErrorSystemNotReady" in result.stdout
    assert mends(result)["GPU"] == doctor.INSTALL_DRIVER


def test_the_cache_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    (tmp_path / "a").write_bytes(bytes(3 * 2**20))
    assert f"{tmp_path}, 1 files, 3.0 MiB" in call().stdout


def test_a_cache_that_cannot_be_written_is_said(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "file" / "cache"))
    result = call()
    assert states(result)["cache"] == "missing"
    assert "export CUPY_CACHE_DIR=" in result.stdout


def test_it_says_what_can_carry_the_messages_of_ranks(monkeypatch):
    for there in ({"torch", "mpi4py"}, {"mpi4py"}, set()):
        monkeypatch.setattr(doctor.importlib.util, "find_spec", there.__contains__)
        line = next(line for line in call().stdout.splitlines() if line.startswith("ranks"))
        names = {"torch": "torch (torchrun)", "mpi4py": "MPI (mpirun, srun)"}
        assert "embedded (launch)" in line
        assert {name for name, text in names.items() if text in line} == there
