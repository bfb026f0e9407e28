# SPDX-License-Identifier: MIT
"""Which launcher started this process, and the engine that serves its ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import GroupError, refuse, shown
from . import embedded
from .engine import Engine

DEFAULT_TIMEOUT = 300.0
MAX_DIGITS = 9

MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_NTASKS")  # and srun
TORCH = ("RANK", "WORLD_SIZE")

INSTEAD = (
    "one machine: cupy-training-ops launch, or ProcessGroup.in_threads(n); "
    "several: torchrun and ProcessGroup.from_torch(), or mpirun, srun and ProcessGroup.from_mpi()"
)


def engine_of(variables: dict[str, str] | os._Environ[str], timeout: float) -> Engine | None:
    """The engine of the launcher that gave its variables; None for a rank alone."""
    for name in ("CTO_ADDRESS", "CTO_SECRET"):
        if name in variables:
            raise GroupError(f"ProcessGroup: {name} is not used any more: {INSTEAD}")
    if embedded.LAUNCHER in variables:
        return embedded.inherited(variables, timeout)
    if all(name in variables for name in TORCH):
        if number(variables, "WORLD_SIZE") == 1:
            return None
        from . import of_torch

        rank, size = (
            number(variables, name) if name in variables else None
            for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
        )
        return of_torch.initialised(rank, size, timeout)
    if any(name in variables for name in MPI):
        from . import of_mpi

        return of_mpi.engine(None, timeout)
    raise GroupError(f"ProcessGroup: no launcher started this process. {INSTEAD}")


def timeout_of(variables: Mapping[str, str], given: object) -> float:
    """Seconds that a rank waits: as given, by CTO_TIMEOUT, or five minutes."""
    text = variables.get("CTO_TIMEOUT", "")
    value: object = given
    if given is None:
        try:
            value = float(text or DEFAULT_TIMEOUT)
        except ValueError:
            raise GroupError(
                f"ProcessGroup: CTO_TIMEOUT: expected a number of seconds, got {shown(text)}"
            ) from None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):  # type: ignore[operator]
        refuse("ProcessGroup", "timeout", "seconds above 0", shown(value))
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        refuse("ProcessGroup", "timeout", "seconds above 0", shown(value))


def number(variables: Mapping[str, str], name: str) -> int:
    """What a launcher says as a number."""
    text = variables[name]
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise GroupError(f"ProcessGroup: {name}: expected a number, got {shown(text)}")
    return int(text)
