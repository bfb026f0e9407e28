# SPDX-License-Identifier: MIT
"""How the lines of an array are divided among threads; see algorithm/lines.cuh."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..declare.schema import Shape
from ..dtypes import BFLOAT16, FLOAT64, Dtype
from ..facts import BUNDLE_THREADS, HELD_NBYTES, MAX_THREADS, SHORT_NBYTES, SHORT_THREADS, WARP
from ..plan import VEC_NBYTES, Config, Device, align_up, ceil_div

MAX_Z = 64  # threads of a block along z
# Of many rows of up to this size two blocks share a multiprocessor: one computes while the other
# waits for memory. Each holds a whole row. Of rows twice as long it would read one half again:
# Softmax of 2,048 x 32,768 in float32 takes 0.156 ms then, instead of 0.136.
SHARED_ROW_NBYTES = 2**16
SHARED_ROW_THREADS = MAX_THREADS // 2  # of a block
MANY_ROWS = 512  # from here on
MAX_SLOTS = 2**31 - 2**18  # of a row: batches are counted in 32 bits


def register_nbytes(device: Device, t: Dtype) -> int:
    """Return the bytes of registers in which a thread has its part of a line that is not short.

    t: dtype of the elements. Exponentials of float64, and bfloat16 on GPUs without instructions for
    it, take registers themselves.
    """
    scarce = t == FLOAT64 or (t == BFLOAT16 and device.capability < (8, 0))
    return 32 if scarce else HELD_NBYTES


@dataclass(frozen=True)
class Lines:
    """The n_outer * stride lines of an array of shape (n_outer, length, stride).

    A line is `length` elements, which are `stride` elements apart in memory.
    """

    n_outer: int
    length: int
    stride: int

    @classmethod
    def along(cls, shape: Shape, axis: int) -> Lines:
        """Return the lines of a C-contiguous array along one axis, counted from the front."""
        return cls(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))

    @property
    def count(self) -> int:
        """Number of lines."""
        return self.n_outer * self.stride


@dataclass(frozen=True)
class Kernels:
    """Names of a family's kernels for lines, by how lines are divided; "" if there is none.

    Rows are lines that are contiguous, columns all others.
    """

    rows: str  # of any length
    columns: str = ""
    short_rows: str = ""  # that a warp or less holds, SHORT_NBYTES a thread
    full_rows: str = ""  # that fill the registers of their threads exactly
    bundles: str = ""  # of as many neighbouring columns as a vector has elements


@dataclass(frozen=True)
class Division:
    """A kernel by name, its launch configuration, and its arguments for the lines."""

    kernel: str
    config: Config
    # (n_outer, length, threads of a row) of rows, (n_outer, threads) of full ones,
    # (n_outer, length, stride) of columns, (length, stride) of bundles.
    args: tuple[int, ...]


@dataclass(frozen=True)
class Registers:
    """How much of a line a thread has in registers, in slots: vectors of neighbouring elements."""

    nbytes: int  # of all arrays, a thread
    n_arrays: int  # whose lines are in registers
    itemsize: int  # bytes of an element
    width: int  # elements of a slot
    n_read: int  # arrays that the kernel reads
    max_threads: int = MAX_THREADS  # of a block, for rows
    column_threads: int = MAX_THREADS  # of a block, for columns

    def depth(self, nbytes: int) -> int:
        """Return the slots of each array that fit so many bytes of registers, at least one."""
        return max(1, nbytes // (self.width * self.itemsize * self.n_arrays))


def division(lines: Lines, registers: Registers, aligned: bool, kernels: Kernels) -> Division:
    """Return how a launch divides lines among threads: as rows, bundles or columns.

    As rows of vectors if arrays are aligned and lines contiguous and long enough for some. aligned:
    all arrays begin at multiples of 16 bytes.
    """
    if not (aligned and fit_rows(lines, registers)):
        bundles = _bundles(lines, registers, kernels.bundles) if aligned else None
        return bundles or _columns(lines, registers, kernels.columns)
    n_slots = lines.length // registers.width
    # Elements before the first aligned slot and after the last: at most width - 1 each.
    least = 1 if lines.length % registers.width == 0 else 2 * registers.width - 2
    divided = _rows(lines, registers, n_slots, least, kernels)
    return _full_rows(divided, registers, kernels) if least == 1 else divided


def fit_rows(lines: Lines, registers: Registers) -> bool:
    """Return True if lines are contiguous, and whole slots (vectors of registers.width elements),
    or at least four of them and a rest."""
    n_slots = lines.length // registers.width
    is_whole = lines.length % registers.width == 0
    return lines.stride == 1 and n_slots <= MAX_SLOTS and (is_whole or n_slots >= 4)


def _rows(
    lines: Lines, registers: Registers, n_slots: int, least: int, kernels: Kernels
) -> Division:
    """Divide rows of n_slots slots: as few threads a row as hold it in registers, if any can.

    least: threads of a row at least: one for each element that may be before the first aligned slot
    or after the last. Of short rows a block has several. kernels: of which `rows` or `short_rows`
    is launched.
    """
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
    """Return the division with the kernel for full rows if rows are full, else as it is."""
    n_rows, length, threads = divided.args
    is_full = length == threads * registers.width * registers.depth(registers.nbytes)
    if divided.kernel != kernels.rows or not (is_full and kernels.full_rows):
        return divided
    return Division(kernels.full_rows, divided.config, (n_rows, threads))


def _most_threads(lines: Lines, registers: Registers) -> int:
    """Return how many threads a row has at most: a half block of them if two blocks shall share a
    multiprocessor."""
    row_nbytes = lines.length * registers.itemsize * registers.n_read
    shared = lines.n_outer >= MANY_ROWS and row_nbytes <= SHARED_ROW_NBYTES
    return min(registers.max_threads, SHARED_ROW_THREADS if shared else MAX_THREADS)


def _columns(lines: Lines, registers: Registers, kernel: str) -> Division:
    """Divide columns: neighbouring lines among threads along x, elements of a line along y, lines
    of other n_outer along z."""
    depth = registers.nbytes // VEC_NBYTES // registers.n_arrays  # elements of a line a thread
    x = min(_power(lines.stride), WARP)  # first a warp side by side, more if y leaves room
    most = registers.column_threads // x
    y = min(_power(ceil_div(lines.length, depth)), most)
    y = max(y, min(_power(lines.length), WARP // x))  # elements side by side, where lines are not
    x = max(x, min(_power(lines.stride), SHORT_THREADS // y))
    z = min(max(1, SHORT_THREADS // (x * y)), _power(lines.n_outer), MAX_Z)
    grid = ceil_div(lines.stride, x) * max(1, ceil_div(lines.n_outer, z))
    config = Config((max(1, grid),), (x, y, z))
    return Division(kernel, config, (lines.n_outer, lines.length, lines.stride))


def _bundles(lines: Lines, registers: Registers, kernel: str) -> Division | None:
    """Divide bundles of registers.width neighbouring columns, a vector: a warp of bundles along x,
    elements of the columns along y. None if they do not fit a block or there is no such kernel.

    At least `width` threads along y: one leads each column of the bundle.
    """
    y = max(ceil_div(lines.length, registers.depth(registers.nbytes)), registers.width)
    is_whole = lines.stride % registers.width == 0 and lines.stride >= registers.width * WARP
    if not (kernel and lines.n_outer and is_whole and y * WARP <= BUNDLE_THREADS):
        return None
    grid = ceil_div(lines.stride // registers.width, WARP) * lines.n_outer
    return Division(kernel, Config((grid,), (WARP, y)), (lines.length, lines.stride))


def _power(n: int) -> int:
    """Return the least power of two that is at least n, and at least 1."""
    return 1 << max(0, n - 1).bit_length()
