# SPDX-License-Identifier: MIT
"""What launchers tell a process about itself: torchrun, Open MPI, MPICH and Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ..errors import GroupError

DEFAULT_PORT = 29_500
LOOPBACK = "127.0.0.1"


class Launcher(NamedTuple):
    """The variables of a launcher."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    job: str  # its value gives a port of the job's own, where no port is given


LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ""),
    Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_NAMESPACE",
    ),
    Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""),
    Launcher(
        "Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE",
        "SLURM_JOB_ID",
    ),
)  # fmt: skip


class Place(NamedTuple):
    """Where a process stands among the others."""

    rank: int
    size: int
    local_rank: int
    local_size: int | None
    address: str | None


def placed(variables: Mapping[str, str]) -> Place:
    """What the variables of the first launcher that gave any say."""
    for launcher in LAUNCHERS:
        if launcher.rank in variables and launcher.size in variables:
            return _place(launcher, variables)
    names = ", ".join(f"{found.name}'s ({found.rank}, {found.size})" for found in LAUNCHERS)
    raise GroupError(
        f"ProcessGroup.from_environment: expected variables of a launcher among {names}, got none; "
        f"start the script with: cupy-training-ops launch --ranks 2 SCRIPT"
    )


def _place(launcher: Launcher, variables: Mapping[str, str]) -> Place:
    rank, size = _number(variables, launcher.rank), _number(variables, launcher.size)
    local_size = None
    if variables.get(launcher.local_size):
        local_size = _number(variables, launcher.local_size)
    elif launcher.name == "Slurm" and variables.get("SLURM_NNODES") == "1":
        local_size = size
    local_rank = rank
    if variables.get(launcher.local_rank):
        local_rank = _number(variables, launcher.local_rank)
    address = None if size == 1 else _address(launcher, variables, local_size == size)
    return Place(rank, size, local_rank, local_size, address)


def _address(launcher: Launcher, variables: Mapping[str, str], on_one_node: bool) -> str:
    """CTO_ADDRESS, or MASTER_ADDR and a port; this machine where all ranks are on it."""
    if variables.get("CTO_ADDRESS"):
        return variables["CTO_ADDRESS"]
    host = variables.get("MASTER_ADDR") or (LOOPBACK if on_one_node else None)
    if host is None:
        raise GroupError(
            f"ProcessGroup.from_environment: {launcher.name} does not say where rank 0 is: set "
            f"MASTER_ADDR to a name or address of its machine, and CTO_SECRET to a text of the job"
        )
    return f"[{host}]:{_port(launcher, variables)}" if ":" in host else (
        f"{host}:{_port(launcher, variables)}"
    )  # fmt: skip


def _port(launcher: Launcher, variables: Mapping[str, str]) -> int:
    """torchrun itself may listen on MASTER_PORT: then it is the next one."""
    if variables.get("MASTER_PORT"):
        is_taken = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return _number(variables, "MASTER_PORT") + is_taken
    digits = re.sub(r"\D", "", variables.get(launcher.job, ""))
    return 20_000 + int(digits[-9:]) % 10_000 if digits else DEFAULT_PORT


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables[name]
    if not text.isdecimal():
        raise GroupError(f"ProcessGroup.from_environment: {name}: expected a number, got {text!r}")
    return int(text)
