# SPDX-License-Identifier: MIT
"""How the lines of an array are divided among threads; see algorithm/lines.cuh."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..declare.schema import Shape
from ..dtypes import BFLOAT16, FLOAT64, Dtype
from ..facts import BUNDLE_THREADS, HELD_NBYTES, MAX_THREADS, SHORT_NBYTES, SHORT_THREADS, WARP
from ..plan import VEC_NBYTES, Config, Device, align_up, ceil_div

MAX_Z = 64
# Of many rows of up to this size two blocks share a multiprocessor: one computes while the other
# waits for memory. Each holds a whole row. Of rows twice as long it would read one half again:
# Softmax of 2,048 x 32,768 in float32 takes 0.156 ms then, instead of 0.136.
SHARED_ROW_NBYTES = 2**16
SHARED_ROW_THREADS = MAX_THREADS // 2
MANY_ROWS = 512
MAX_SLOTS = 2**31 - 2**18  # of a row: batches are counted in 32 bits


def register_nbytes(device: Device, t: Dtype) -> int:
    """Bytes of registers that a thread has for a line that is not short.

    Exponentials of float64, and bfloat16 on GPUs that have no instructions for it, take registers.
    """
    scarce = t == FLOAT64 or (t == BFLOAT16 and device.capability < (8, 0))
    return 32 if scarce else HELD_NBYTES


@dataclass(frozen=True)
class Lines:
    """The lines of an array (n_outer, length, stride), elements of a line `stride` apart."""

    n_outer: int
    length: int
    stride: int

    @classmethod
    def along(cls, shape: Shape, axis: int) -> Lines:
        """The lines along one axis."""
        return cls(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))

    @property
    def count(self) -> int:
        """Number of lines."""
        return self.n_outer * self.stride


@dataclass(frozen=True)
class Kernels:
    """A family's kernels for lines, by how they are divided; empty where there is none.

    `rows` take any length, `short_rows` need a warp at most, `full_rows` fill the registers of
    their threads; `bundles` take vectors of neighbouring columns.
    """

    rows: str
    columns: str = ""
    short_rows: str = ""
    full_rows: str = ""
    bundles: str = ""


@dataclass(frozen=True)
class Division:
    """A kernel, its launch configuration, and its arguments for the lines."""

    kernel: str
    config: Config
    args: tuple[int, ...]


@dataclass(frozen=True)
class Registers:
    """A line in registers: threads have `nbytes` of so many arrays of elements of `itemsize`.

    `width` elements are a slot of a row; `n_read` of the arrays are there to be read. A block has
    at most `max_threads`.
    """

    nbytes: int
    n_arrays: int
    itemsize: int
    width: int
    n_read: int
    max_threads: int = MAX_THREADS
    column_threads: int = MAX_THREADS

    def depth(self, nbytes: int) -> int:
        """Slots of each array in so many bytes, at least one."""
        return max(1, nbytes // (self.width * self.itemsize * self.n_arrays))


def division(lines: Lines, registers: Registers, aligned: bool, kernels: Kernels) -> Division:
    """Rows with vectors where arrays are aligned and rows long enough for some; else columns."""
    if not (aligned and fit_rows(lines, registers)):
        bundles = _bundles(lines, registers, kernels.bundles) if aligned else None
        return bundles or _columns(lines, registers, kernels.columns)
    n_slots = lines.length // registers.width
    least = 1 if lines.length % registers.width == 0 else 2 * registers.width - 2
    divided = _rows(lines, registers, n_slots, least, kernels)
    return _full_rows(divided, registers, kernels) if least == 1 else divided


def fit_rows(lines: Lines, registers: Registers) -> bool:
    """Return True if lines can be walked as rows of slots, in aligned arrays."""
    n_slots = lines.length // registers.width
    is_whole = lines.length % registers.width == 0
    return lines.stride == 1 and n_slots <= MAX_SLOTS and (is_whole or n_slots >= 4)


def _rows(
    lines: Lines, registers: Registers, n_slots: int, least: int, kernels: Kernels
) -> Division:
    """Rows by slots; `least` threads have one element at most before or after the slots."""
    threads = max(ceil_div(n_slots, registers.depth(SHORT_NBYTES)), least)
    kernel = kernels.short_rows
    if threads > WARP or not kernel:
        threads = max(ceil_div(n_slots, registers.depth(registers.nbytes)), least)
        kernel = kernels.rows
    if threads > WARP:
        threads = block = min(align_up(threads, WARP), _most_threads(lines, registers))
    else:
        threads, block = _power(threads), SHORT_THREADS
    config = Config((max(1, ceil_div(lines.n_outer, block // threads)),), (block,))
    return Division(kernel, config, (lines.n_outer, lines.length, threads))


def _full_rows(divided: Division, registers: Registers, kernels: Kernels) -> Division:
    """The division with the kernel for full rows, where rows are full and there is one."""
    n_rows, length, threads = divided.args
    is_full = length == threads * registers.width * registers.depth(registers.nbytes)
    if divided.kernel != kernels.rows or not (is_full and kernels.full_rows):
        return divided
    return Division(kernels.full_rows, divided.config, (n_rows, threads))


def _most_threads(lines: Lines, registers: Registers) -> int:
    """Threads of a row at most."""
    row_nbytes = lines.length * registers.itemsize * registers.n_read
    shared = lines.n_outer >= MANY_ROWS and row_nbytes <= SHARED_ROW_NBYTES
    return min(registers.max_threads, SHARED_ROW_THREADS if shared else MAX_THREADS)


def _columns(lines: Lines, registers: Registers, kernel: str) -> Division:
    """Neighbouring lines to threads along x, elements of a line along y, other lines along z."""
    depth = registers.nbytes // VEC_NBYTES // registers.n_arrays
    x = min(_power(lines.stride), WARP)
    most = registers.column_threads // x
    y = min(_power(ceil_div(lines.length, depth)), most)
    y = max(y, min(_power(lines.length), WARP // x))  # elements side by side, where lines are not
    x = max(x, min(_power(lines.stride), SHORT_THREADS // y))
    z = min(max(1, SHORT_THREADS // (x * y)), _power(lines.n_outer), MAX_Z)
    grid = ceil_div(lines.stride, x) * max(1, ceil_div(lines.n_outer, z))
    config = Config((max(1, grid),), (x, y, z))
    return Division(kernel, config, (lines.n_outer, lines.length, lines.stride))


def _bundles(lines: Lines, registers: Registers, kernel: str) -> Division | None:
    """Neighbouring lines to a vector, vectors to threads along x, slots along y; where they fit.

    Each line of a vector has a thread along y that leads it.
    """
    y = max(ceil_div(lines.length, registers.depth(registers.nbytes)), registers.width)
    is_whole = lines.stride % registers.width == 0 and lines.stride >= registers.width * WARP
    if not (kernel and lines.n_outer and is_whole and y * WARP <= BUNDLE_THREADS):
        return None
    grid = ceil_div(lines.stride // registers.width, WARP) * lines.n_outer
    return Division(kernel, Config((grid,), (WARP, y)), (lines.length, lines.stride))


def _power(n: int) -> int:
    """The power of two that is at least n and 1."""
    return 1 << max(0, n - 1).bit_length()
