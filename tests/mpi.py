# SPDX-License-Identifier: MIT
"""Jobs of MPI for tests: the launcher that belongs to the MPI that mpi4py loads."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

LAUNCHERS = ("mpiexec", "mpiexec.openmpi", "mpiexec.mpich", "mpirun")
# How an MPI calls itself, and its launcher.
NAMES = {"Open MPI": ("Open MPI", "OpenRTE"), "MPICH": ("HYDRA",), "Intel(R) MPI": ("Intel",)}
ASKED = (
    "import mpi4py; mpi4py.rc.initialize = False; "
    "from mpi4py import MPI; print(MPI.Get_library_version())"
)
# Open MPI else refuses root, and more processes than there are cores.
ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def candidates() -> Iterator[str]:
    """Launchers beside this Python, where wheels put them, and elsewhere."""
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    for folder in folders.split(os.pathsep):
        yield from filter(None, (shutil.which(name, path=folder) for name in LAUNCHERS))


needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not any(candidates()),
    reason="mpi4py is in the extras",
)


def said_by(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


@functools.cache
def library() -> str:
    """What the MPI that mpi4py loads says of itself."""
    return said_by([sys.executable, "-c", ASKED])


@functools.cache
def launcher() -> str:
    """A job of another MPI's would be as many jobs of one rank."""
    version = library()
    own = [names for name, names in NAMES.items() if name in version]
    for result in candidates():
        if not own or any(name in said_by([result, "--version"]) for name in own[0]):
            return result
    pytest.skip(f"no mpiexec is of the MPI that mpi4py loads: {version.partition(',')[0]}")


def by_mpiexec(n: int, script: Path, *arguments: str, **variables: str) -> tuple[int, str, float]:
    """Status, output and when it ended."""
    ran = subprocess.run(
        [launcher(), "-n", str(n), sys.executable, str(script), *arguments],
        env={**os.environ, **ALLOWED, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    return ran.returncode, ran.stdout, time.time()
