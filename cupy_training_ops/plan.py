# SPDX-License-Identifier: MIT
"""Plans of operators as plain data: steps in order, and their scratch memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import DTypeLike

from . import facts
from .declare.facts import Layout, Struct
from .declare.schema import Spec
from .dtypes import Dtype, element_type
from .errors import ArgumentError
from .facts import MAX_THREADS

VEC_NBYTES = 16  # of the widest load and store
MAX_PARAMETER_NBYTES = 4000  # 4 KiB in all before CUDA 12.1
MAX_GRID = (2**31 - 1, 65_535, 65_535)
MAX_BLOCK = (1024, 1024, 64)
SHARED_NBYTES = 48 * 1024  # of a block, on every GPU and without being asked for
SCRATCH_ALIGNMENT = 256
ZEROS_ALIGNMENT = 16


class LaunchError(ArgumentError):
    """Something that no GPU launches; the call adds the operator's name."""


@dataclass(frozen=True)
class Device:
    """The properties of a GPU that planning may use."""

    multiprocessors: int
    capability: tuple[int, int]  # (major, minor)
    max_shared_nbytes: int = SHARED_NBYTES  # of a block
    has_warpgroups: bool = False  # kernels with WARPGROUPS (wgmma of sm_90a) can be compiled for it


@dataclass(frozen=True)
class Config:
    """Grid, block and dynamic shared memory of one launch; LaunchError if no GPU has so much."""

    grid: tuple[int, ...]  # blocks along x, y, z: one to three extents
    block: tuple[int, ...]  # threads along x, y, z
    shared_nbytes: int = 0  # of a block

    def __post_init__(self) -> None:
        fits = _within(self.grid, MAX_GRID) and _within(self.block, MAX_BLOCK)
        if not fits or math.prod(self.block) > MAX_THREADS or self.shared_nbytes < 0:
            raise LaunchError(f"grid {self.grid} with block {self.block}")


@dataclass(frozen=True)
class Scratch:
    """An argument of a step: a pointer into scratch memory."""

    offset: int  # in bytes, within the memory of its kind
    zeros: bool = False  # the kind: zero before and after each call, else any bytes


class ScratchMemory:
    """The scratch memory of a plan, reserved piece by piece while the plan is made.

    There are two kinds, which never overlap: memory of any bytes, and memory that is zero before
    the first launch and after the last.
    """

    def __init__(self) -> None:
        self._nbytes = self._zeros_nbytes = 0

    def take(self, n: int, dtype: DTypeLike) -> Scratch:
        """Reserve n elements of any bytes, aligned to 256; return the launch argument."""
        piece = Scratch(self._nbytes)
        self._nbytes += align_up(n * np.dtype(dtype).itemsize, SCRATCH_ALIGNMENT)
        return piece

    def zeros(self, n: int, dtype: DTypeLike) -> Scratch:
        """Reserve n elements that are zero before and after the plan's launches, aligned to 16.

        A kernel that expects it says so: its parameter is a pointer to `Zeroed` (core/zeroed.cuh).
        """
        piece = Scratch(self._zeros_nbytes, zeros=True)
        self._zeros_nbytes += align_up(n * np.dtype(dtype).itemsize, ZEROS_ALIGNMENT)
        return piece

    def plan(self, *steps: Step) -> Plan:
        """Return the plan of these steps, with all memory that was reserved."""
        return Plan(steps, self._nbytes, self._zeros_nbytes)


@dataclass(frozen=True)
class Pointers:
    """An argument of a step: the addresses of these arrays in one struct, passed by value.

    A None, and entries behind the last one, are null. Its CUDA type is `Pointers<capacity>`.
    """

    specs: tuple[Spec | None, ...]
    capacity: int

    @property
    def dtype(self) -> Dtype:
        """The NumPy dtype of the struct."""
        return facts.Pointers.of(self.capacity).dtype


def slots(**values: DTypeLike | int) -> dict[str, str]:
    """Return macros to compile with: slots(T=float16, N=2) is {"T": "__half", "N": "2"}."""
    return {
        name: str(int(value)) if isinstance(value, int) else element_type(value).c_type
        for name, value in values.items()
    }


def by_value(struct: Struct | Layout, /, **fields: object) -> np.void:
    """Return a launch argument: a declared struct, or the layout of one, with these values.

    LaunchError if it is larger than a kernel's parameters may be.
    """
    layout = struct.of() if isinstance(struct, Struct) else struct
    if (nbytes := layout.dtype.itemsize) > MAX_PARAMETER_NBYTES:
        raise LaunchError(f"{nbytes} bytes by value, at most {MAX_PARAMETER_NBYTES}")
    return layout.fill(fields)


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    `args` follow the kernel's parameters: a Spec that `plan` got stands for its array, None for the
    null pointer, a Scratch for scratch memory, Pointers for several arrays, a Changing for a number
    that each call passes; `by_value` makes a struct, anything else is a scalar, cast to the
    declared C type.
    """

    symbol: str  # the kernel's name
    config: Config
    args: tuple[object, ...]
    slots: Mapping[str, str] = field(default_factory=dict)  # macros it is compiled with
    family: str = ""  # whose kernel it is; "": the operator's own


@dataclass(frozen=True)
class Work:
    """A named function of the backend, which queues on the current stream.

    args: a Spec stands for its array, a Changing for a number that each call passes.
    """

    name: str  # "copy" or "call"
    args: tuple[object, ...]


Step = Launch | Work


@dataclass(frozen=True)
class Plan:
    """The steps of one call, in order, and the bytes of scratch memory of each kind."""

    steps: tuple[Step, ...] = ()
    scratch_nbytes: int = 0
    zeros_nbytes: int = 0

    @property
    def scratch_start(self) -> int:
        """Bytes from the start of a caller's workspace, where the zeros are, to the other kind."""
        return align_up(self.zeros_nbytes, SCRATCH_ALIGNMENT)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of a workspace for both kinds of scratch memory."""
        return self.scratch_start + self.scratch_nbytes

    def then(self, other: Plan) -> Plan:
        """Return a plan of both, one after the other; its scratch memory is ours, then theirs."""
        starts = (  # of theirs in bytes, by kind: index False is any bytes, True zeros
            align_up(self.scratch_nbytes, SCRATCH_ALIGNMENT),
            align_up(self.zeros_nbytes, ZEROS_ALIGNMENT),
        )
        steps = tuple(_shift(step, starts) for step in other.steps)
        own, others = ((plan.scratch_nbytes, plan.zeros_nbytes) for plan in (self, other))
        sizes = (
            start + more if more else nbytes
            for start, nbytes, more in zip(starts, own, others, strict=True)
        )
        return Plan((*self.steps, *steps), *sizes)


def _shift(step: Step, starts: tuple[int, int]) -> Step:
    """Return the step with starts[kind] added to the offset of its scratch memory of each kind."""
    args = (
        replace(a, offset=a.offset + starts[a.zeros]) if isinstance(a, Scratch) else a
        for a in step.args
    )
    return replace(step, args=tuple(args))


def _within(extents: tuple[int, ...], most: tuple[int, ...]) -> bool:
    """Return True for one to three extents from 1 to the limit at the same index in `most`."""
    pairs = zip(extents, most, strict=False)
    return 1 <= len(extents) <= len(most) and all(1 <= e <= limit for e, limit in pairs)


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def align_up(n: int, alignment: int) -> int:
    """Return the least multiple of `alignment` that is at least n."""
    return ceil_div(n, alignment) * alignment
