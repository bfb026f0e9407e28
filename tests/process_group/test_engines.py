# SPDX-License-Identifier: MIT
"""Every operator over torch.distributed and over MPI, and how faults end a job of MPI's."""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from mpi import by_mpiexec, library, needs_mpi
from process_group.moments import KINDS
from ranks import ROOT

import cupy_training_ops as cto
from cupy_training_ops import GroupError, ProviderError

FOLDER = Path(__file__).parent
CHECKS = 48
TIMEOUT = 3.0

# ---- torch.distributed ---------------------------------------------------------------------------


def by_torchrun(n: int, script: Path) -> str:
    arguments = ["--standalone", "--nproc-per-node", str(n), str(script)]
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_operator_under_torchrun() -> None:
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    said = by_torchrun(3, FOLDER / "all_operators.py")
    assert sorted(said.splitlines()) == [f"rank {r}: {CHECKS} checks, torch" for r in range(3)]


@pytest.mark.thorough
def test_the_shortest_script_under_torchrun() -> None:
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    said = by_torchrun(2, ROOT / "examples" / "two_ranks.py")
    assert said.replace("\n", "") == "[3. 3. 3.]" * 2  # print writes the ends of lines apart


def test_ranks_may_be_in_different_numbers_of_torchs_groups() -> None:
    """PyTorch counts a process' groups to name the next, and ranks would wait for each other."""
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    said = by_torchrun(3, FOLDER / "torch_groups.py")
    named = [f"<ProcessGroup rank {r} of 3, torch>" for r in range(3)]
    pair = [f"<ProcessGroup rank {r} of 2, torch>" for r in range(2)]
    assert sorted(said.splitlines()) == sorted([*named * 2, *pair])


FORKED = """
import os, signal, sys
import torch.distributed as dist
import cupy_training_ops as cto
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
group = cto.ProcessGroup.from_torch()
child = os.fork()
if not child:
    signal.alarm(20)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_of_gloo_ends(tmp_path) -> None:
    """By itself PyTorch waits there for threads that a child has not."""
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    command = [sys.executable, "-c", FORKED, str(tmp_path / "store")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ran.stdout == "7\n", ran.stderr


def test_a_group_of_torchs_that_there_is_not_is_refused() -> None:
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    with pytest.raises(GroupError, match=r"from_torch: torch.distributed has no group yet: call"):
        cto.ProcessGroup.from_torch()


# ---- MPI -----------------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize("n", [2, 3])
def test_every_operator_under_mpi(n) -> None:
    """Two ranks as if on two machines, if MPICH's; over UCX it tells of all that nobody took."""
    is_apart = {"MPIR_CVAR_NOLOCAL": str(int(n == 2))}
    status, said, _ = by_mpiexec(n, FOLDER / "all_operators.py", **is_apart)
    assert status == 0, said
    assert sorted(said.splitlines()) == [f"rank {r}: {CHECKS} checks, MPI" for r in range(n)]


@needs_mpi
@pytest.mark.parametrize("n", [30, pytest.param(2500, marks=pytest.mark.thorough)])
def test_groups_of_the_same_ranks_share_one_of_mpis_communicators(n) -> None:
    """It has some two thousand."""
    status, said, _ = by_mpiexec(3, FOLDER / "mpi_groups.py", str(n))
    assert (status, said) == (0, f"{n} groups\n" * 3)


def meets_a_fault(kind: str, seed: int, n: int, folder: Path) -> str:
    """Return what ranks, one of which meets a fault, write; they end in time, and never wrong."""
    if kind == "descriptors" and "Open MPI" in library():
        pytest.skip("its MPI_Finalize waits for ever for a launcher whose socket is closed")
    arguments = (FOLDER / "mpi_faults.py", kind, str(seed), str(folder))
    status, said, ended = by_mpiexec(n, *arguments, CTO_TIMEOUT=str(TIMEOUT))
    said += "".join(path.read_text() for path in sorted(folder.iterdir()))
    assert "a wrong number" not in said
    struck = re.search(r"struck rank \d at ([\d.]+) s", said)
    assert struck, said
    assert ended - float(struck[1]) < TIMEOUT + 10
    rest = [line for line in said.splitlines() if not line.startswith(("struck", "right"))]
    assert bool(status) == bool(rest), said
    if status == 0:
        assert kind not in ("kill", "stop")
        assert said.count("right") == n
    return "right" if status == 0 else said


@needs_mpi
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_ends_a_job_of_mpi(kind, seed, tmp_path) -> None:
    said = meets_a_fault(kind, seed, 3, tmp_path)
    victim = random.Random(seed).randrange(3)
    if kind == "stop":
        assert f"rank {victim} is late" in said
    if kind == "interrupt" and said != "right":
        assert re.search(rf"rank {victim} stopped in the middle of \w+: InterruptError\(\)", said)


@needs_mpi
@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_faults_at_many_random_moments_of_mpi(kind, seed, tmp_path) -> None:
    for number in range(seed, seed + 10):
        folder = tmp_path / str(number)
        folder.mkdir()
        meets_a_fault(kind, number, random.Random(number).randint(2, 4), folder)


def test_without_mpi4py_a_group_says_which_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ProviderError, match=r"pip install 'cupy-training-ops\[mpi\]'"):
        cto.ProcessGroup.from_mpi()


# ---- Slurm ---------------------------------------------------------------------------------------


def by_srun(kind: str, n: int, *command: str) -> tuple[int, str]:
    """What a job under the srun of tests says."""
    own = [sys.executable, str(FOLDER / "srun.py"), kind, str(n), sys.executable, *command]
    path = os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        own,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    return ran.returncode, ran.stdout


@needs_mpi
def test_every_operator_under_srun() -> None:
    status, said = by_srun("mpiexec", 3, str(FOLDER / "all_operators.py"))
    assert status == 0, said
    assert sorted(said.splitlines()) == [f"rank {r}: {CHECKS} checks, MPI" for r in range(3)]


@needs_mpi
@pytest.mark.parametrize("kind", ["none", "pmi2"])
@pytest.mark.parametrize("call", ["ProcessGroup()", "ProcessGroup.from_mpi()"])
def test_slurm_that_starts_no_mpi_is_said(kind, call) -> None:
    """Else each of its tasks would train alone."""
    if "Open MPI v4" in library():
        pytest.skip("it says so itself")
    status, said = by_srun(kind, 2, "-c", f"import cupy_training_ops as cto\ncto.{call}")
    assert status == 1
    words = "GroupError: ProcessGroup: Slurm started '2' processes, of which MPI sees one: start"
    assert said.count(words) == 2


@needs_mpi
def test_a_task_alone_and_a_communicator_are_taken_under_srun() -> None:
    if "Open MPI v4" in library():
        pytest.skip("it takes no task of Slurm's without PMIx")
    alone = "import cupy_training_ops as cto\nprint(cto.ProcessGroup())"
    assert by_srun("none", 1, "-c", alone) == (0, "<ProcessGroup rank 0 of 1, MPI>\n")
    given = "import mpi4py.MPI as m, cupy_training_ops as cto\n"
    given += "print(cto.ProcessGroup.from_mpi(m.COMM_SELF))"
    assert by_srun("none", 2, "-c", given) == (0, "<ProcessGroup rank 0 of 1, MPI>\n" * 2)


@pytest.mark.thorough
def test_every_operator_under_a_torchrun_on_each_node_of_slurm() -> None:
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    run = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    run += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    status, said = by_srun("none", 2, *run, str(FOLDER / "all_operators.py"))
    assert status == 0, said
    for rank in range(4):
        assert f"rank {rank}: {CHECKS} checks, torch" in said
