# SPDX-License-Identifier: MIT
"""Which launcher started this process, and the engine that serves its ranks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, MutableMapping

from ..errors import GroupError, refuse, shown
from . import embedded
from .engine import Engine

DEFAULT_TIMEOUT = 300.0

MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_NTASKS")  # and srun
TORCH = ("RANK", "WORLD_SIZE")

INSTEAD = (
    "one machine: cupy-training-ops launch, or ProcessGroup.in_threads(n); "
    "several: torchrun and ProcessGroup.from_torch(), or mpirun, srun and ProcessGroup.from_mpi()"
)


def engine_of(variables: MutableMapping[str, str], timeout: float) -> Engine:
    """The engine of the launcher that gave its variables."""
    for name in ("CTO_ADDRESS", "CTO_SECRET"):
        if name in variables:
            raise GroupError(f"ProcessGroup: {name} is not used any more: {INSTEAD}")
    if embedded.LAUNCHER in variables:
        return embedded.inherited(variables, timeout)
    if all(name in variables for name in TORCH):
        if number(variables, "WORLD_SIZE") == 1:
            return Engine(0, 1, timeout)
        from . import of_torch

        rank, size = (number(variables, name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        return of_torch.initialised(rank, size, timeout)
    if any(name in variables for name in MPI):
        from . import of_mpi

        return of_mpi.engine(None, timeout)
    raise GroupError(f"ProcessGroup: no launcher started this process. {INSTEAD}")


def timeout_of(variables: Mapping[str, str], given: object) -> float:
    """Seconds that a rank waits: as given, by CTO_TIMEOUT, or five minutes."""
    if given is None:
        text = variables.get("CTO_TIMEOUT") or DEFAULT_TIMEOUT
        try:
            given = float(text)
        except ValueError:
            expected = f"expected a number of seconds, got {shown(text)}"
            raise GroupError(f"ProcessGroup: CTO_TIMEOUT: {expected}") from None
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < math.inf:
        with contextlib.suppress(OverflowError):
            return float(given)
    refuse("ProcessGroup", "timeout", "seconds above 0", shown(given))


def number(variables: Mapping[str, str], name: str) -> int | None:
    """What a launcher says as a number, if it does."""
    text = variables.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        raise GroupError(f"ProcessGroup: {name}: expected a number, got {shown(text)}") from None
