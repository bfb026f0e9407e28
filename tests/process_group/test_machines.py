# SPDX-License-Identifier: MIT
"""Ranks on two machines, as far as one can be two: networks and names of their own, and a cable."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi import launcher, library, needs_mpi

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parent / "far_ranks.py"
TIMEOUT, GRACE, BUSY = 3.0, 2.0, 2.0
OF_JOBS = 10.0  # seconds beyond the timeout in which one of MPI's ends
N = 4
CLOUD = "10.177.77"


class Machines:
    """Two network namespaces and the two ends of a cable."""

    def __init__(self, folder: Path) -> None:
        self._names = [f"cto{os.getpid()}{letter}" for letter in "ab"]
        self._started: list[subprocess.Popen] = []
        self.folder = folder

    def ip(self, *words: str) -> str:
        return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout

    def connect(self) -> None:
        a, b = self._names
        for name in self._names:
            self.ip("netns", "add", name)
        self.ip("link", "add", "cable", "netns", a, "type", "veth", "peer", "cable", "netns", b)
        for number, name in enumerate(self._names, 1):
            self.ip("-n", name, "addr", "add", f"{CLOUD}.{number}/24", "dev", "cable")
            for link in ("lo", "cable"):
                self.ip("-n", name, "link", "set", link, "up")
        until = time.monotonic() + 10  # Linux takes up to a second to call them so, and UCX asks
        while not all("state UP" in self.ip("-n", x, "link", "show", "cable") for x in self._names):
            assert time.monotonic() < until
            time.sleep(0.02)

    def cut(self, machine: int) -> float:
        """Pull the cable out of one of them; when that was."""
        self.ip("-n", self._names[machine], "link", "set", "cable", "down")
        return time.time()

    def on(self, machine: int) -> list[str]:
        """What comes ahead of a command that runs there."""
        named = f'hostname machine{machine}; exec "$@"'
        inside = ["ip", "netns", "exec", self._names[machine]]
        return [*inside, "unshare", "--uts", "sh", "-c", named, "sh"]

    def start(self, machine: int, *command: str) -> subprocess.Popen:
        own = {"GLOO_SOCKET_IFNAME": "cable", "CTO_TIMEOUT": str(TIMEOUT), "OMP_NUM_THREADS": "1"}
        own["UCX_TLS"] = "tcp,self"  # the two have one memory
        with open(self.folder / f"said-{machine}", "w") as file:
            made = subprocess.Popen(
                [*self.on(machine), *command], env=os.environ | own, stdout=file, stderr=file
            )
        self._started.append(made)
        return made

    def said(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("said-*"))

    def wait(self, what: str, seconds: float) -> list[str]:
        """What all ranks say in their files of this name."""
        paths = [self.folder / f"{what}-{rank}" for rank in range(N)]
        until = time.monotonic() + seconds
        while not all(path.exists() for path in paths):
            assert time.monotonic() < until, (what, self.said())
            time.sleep(0.02)
        time.sleep(0.1)  # until it is written, too
        return [path.read_text() for path in paths]

    def close(self) -> None:
        for name in self._names:
            with contextlib.suppress(subprocess.CalledProcessError):
                for pid in self.ip("netns", "pids", name).split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                self.ip("netns", "del", name)
        for process in self._started:
            process.wait(10)


@pytest.fixture
def machines(tmp_path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    try:
        try:
            made.connect()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        yield made
    finally:
        made.close()


def by_torchrun(machines: Machines, seconds: float) -> None:
    run = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(N // 2)]
    run += ["--master-addr", f"{CLOUD}.1", "--master-port", "29400"]
    for machine in range(2):
        own = [*run, "--node-rank", str(machine), str(SCRIPT), str(machines.folder), str(seconds)]
        machines.start(machine, sys.executable, *own)
    machines.wait("begun", 60)


def by_mpiexec(machines: Machines, seconds: float) -> subprocess.Popen:
    """Hydra's, with a command in place of ssh."""
    if "MPICH" not in library():
        pytest.skip("options of MPICH's launcher")
    shell = machines.folder / "shell"
    reach = " ".join(f"'{word}'" for word in machines.on(1))
    shell.write_text(f'#!/bin/sh\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\nshift\n'
                     f'exec {reach} sh -c "$*"\n')  # fmt: skip
    shell.chmod(0o755)
    run = [launcher(), "-launcher", "ssh", "-launcher-exec", str(shell)]
    run += ["-localhost", f"{CLOUD}.1", "-hosts", f"{CLOUD}.1:{N // 2},{CLOUD}.2:{N // 2}"]
    own = [sys.executable, str(SCRIPT), str(machines.folder), str(seconds)]
    made = machines.start(0, *run, "-n", str(N), *own)
    machines.wait("begun", 60)
    return made


def check_ends(machines: Machines, since: float, most: float) -> None:
    for text in machines.wait("ended", most + 20):
        ended, _, how = text.partition(" ")
        assert how.startswith("GroupError: "), how
        assert float(ended) - since < most + BUSY, text
    assert "a wrong number" not in machines.said()


@pytest.mark.parametrize("machine", [0, 1])
def test_a_cable_that_is_pulled_ends_all_ranks_over_gloo(machines, machine, seed) -> None:
    """Also those that cannot reach the store."""
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    by_torchrun(machines, 60.0)
    time.sleep(random.Random(seed).uniform(0, 1))
    check_ends(machines, machines.cut(machine), TIMEOUT + GRACE)


def test_ranks_of_two_machines_over_gloo(machines) -> None:
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    by_torchrun(machines, 1.0)
    ends = [text.partition(" ")[2] for text in machines.wait("ended", 30)]
    assert ends == ["right, 0 of 2", "right, 1 of 2"] * 2


@needs_mpi
def test_ranks_of_two_machines_under_mpi(machines) -> None:
    job = by_mpiexec(machines, 1.0)
    ends = [text.partition(" ")[2] for text in machines.wait("ended", 30)]
    assert ends == ["right, 0 of 2", "right, 1 of 2"] * 2
    assert job.wait(30) == 0


@needs_mpi
def test_a_cable_that_is_pulled_ends_a_job_of_mpi(machines, seed) -> None:
    job = by_mpiexec(machines, 60.0)
    time.sleep(random.Random(seed).uniform(0, 1))
    since = machines.cut(0)
    assert job.wait(TIMEOUT + OF_JOBS) != 0
    check_ends(machines, since, TIMEOUT + OF_JOBS)
    assert "is late" in machines.said()
