# SPDX-License-Identifier: MIT
"""Launches of layer normalisations and their gradients; see cuda_src/layer_norm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...declare.schema import Spec
from ...dtypes import Dtype
from ...facts import WARP
from ...plan import (
    VEC_NBYTES,
    Config,
    Device,
    Launch,
    Plan,
    Scratch,
    ScratchMemory,
    ceil_div,
    slots,
)
from ...planning.lines import Division, Kernels, Lines, Registers, division, fit_rows
from ...rules.widening import computed_in
from .facts import (
    COLUMN_THREADS,
    COLUMNS,
    DEEP_COLUMNS,
    DEEP_LENGTH,
    FULL_COLUMNS,
    SINGLE_COLUMNS,
    STAGED_THREADS,
    WIDE_COLUMNS,
)
from .plan_staged_rows import Rows, rows_on_chip

# Threads of a full row (see _full) at most, by bytes of an element; of one whose mean is
# subtracted, before each thread holds twice as many elements.
FULL_THREADS = {2: 256, 4: 512, 8: 512}
CENTRED_THREADS = {2: 64, 4: 128, 8: 128}
FULL_ROWS = "layer_norm__full_rows", "layer_norm__deep_full_rows"
CENTRED_FULL_ROWS = "layer_norm__centred_full_rows", "layer_norm__deep_centred_full_rows"
FULL_BLOCK = 128  # threads of a block with several full rows
COLUMN_BLOCKS = 8  # for each multiprocessor
ROWS_A_THREAD = 8  # that a thread has at least before there is another block
TOTAL_THREADS = 256  # of a block in the second stage of sums

# Of scale and of bias, None where it is not wanted: lines of partial sums, and the gradients.
Sums = tuple[Scratch | None, Scratch | None]
Gradients = tuple[Spec | None, Spec | None]


@dataclass(frozen=True)
class Matrix:
    """X as `count` rows of `length` elements to be normalised; t, v: the types of X and of Y."""

    device: Device
    count: int
    length: int
    t: Dtype
    v: Dtype

    @property
    def computed_type(self) -> Dtype:
        """Return the type of statistics and sums."""
        return computed_in(self.t)

    @property
    def both_nbytes(self) -> int:
        """Return the bytes of an element of X and one of Y together."""
        return self.t.itemsize + self.v.itemsize

    @property
    def width(self) -> int:
        """Return the elements of a slot: as many as fit into 16 bytes in both types."""
        return VEC_NBYTES // max(self.t.itemsize, self.v.itemsize)

    def launch(self, kernel: str, config: Config, *args: object) -> Launch:
        """Plan a launch of one of the family's kernels, compiled for the matrix's types."""
        binding = slots(T=self.t, U=self.computed_type, V=self.v)
        return Launch(kernel, config, args, binding)


def forward(
    matrix: Matrix,
    x: Spec,
    parameters: tuple[Spec | None, ...],
    results: tuple[Spec | None, ...],
    is_centred: bool,
    epsilon: float,
) -> Plan:
    """Plan Y, mean and inv_std.

    parameters: scale and bias, of matrix.length elements. results: Y, and mean and inv_std of
    matrix.count rows; None of those not wanted. is_centred: False does without means (RMS norm).
    epsilon: added to variances.
    """
    args = (x, *parameters, *results, is_centred, epsilon)
    aligned = all(spec is None or spec.aligned for spec in (x, *parameters, results[0]))
    full = _full(matrix, is_centred) if aligned and results[0] is not None else None
    if full is not None:
        if not is_centred:
            parameters, results = parameters[:1], results[::2]  # scale; Y and inv_std
        own = (x, *parameters, *results, epsilon, *full.args)
        return Plan((matrix.launch(full.kernel, full.config, *own),))
    divided = _in_registers(matrix, aligned)
    if divided is not None:
        return Plan((matrix.launch(divided.kernel, divided.config, *args, *divided.args),))
    # No registers hold such a row: a block each, with a kernel for any length.
    config = Config((matrix.count,), (STAGED_THREADS,))
    return Plan((matrix.launch("layer_norm__long_rows", config, *args, matrix.length),))


def _full(matrix: Matrix, is_centred: bool) -> Division | None:
    """Divide rows whose length is exactly threads x columns of a thread; None if no kernel fits.

    A thread holds `columns` elements, or twice as many in the deep kernel. The threads of a row are
    whole warps or a power of two, of which a block may have several rows. is_centred: means are
    subtracted.
    """
    columns, deep_limit = FULL_COLUMNS[matrix.both_nbytes], FULL_THREADS[matrix.t.itemsize]
    limit = CENTRED_THREADS[matrix.t.itemsize] if is_centred else deep_limit
    kernel, deep_kernel = CENTRED_FULL_ROWS if is_centred else FULL_ROWS
    choices = ((kernel, columns, limit), (deep_kernel, 2 * columns, deep_limit))
    for name, columns_of_thread, most_threads in choices:
        threads, rest = divmod(matrix.length, columns_of_thread)
        is_power = threads & (threads - 1) == 0
        if rest or not matrix.count or not (threads % WARP == 0 or is_power):
            continue
        if 0 < threads <= most_threads:
            rows = max(1, FULL_BLOCK // threads) if is_power else 1  # of a block
            config = Config((ceil_div(matrix.count, rows),), (threads * rows,))
            return Division(name, config, (matrix.count, threads))
    return None


def _in_registers(matrix: Matrix, aligned: bool) -> Division | None:
    """Divide rows that the registers of their threads hold; None if no division fits.

    aligned: arrays begin at whole slots; else a slot is one element.
    """
    lines, itemsize = Lines(matrix.count, matrix.length, 1), matrix.t.itemsize
    by_slots = _row_in_registers(matrix, matrix.width)
    if aligned and fit_rows(lines, by_slots):
        wide = replace(by_slots, nbytes=WIDE_COLUMNS[matrix.both_nbytes] * itemsize)
        choices = [
            (by_slots, Kernels("layer_norm__rows", short_rows="layer_norm__short_rows")),
            (wide, Kernels("layer_norm__wide_rows")),
        ]
        if matrix.both_nbytes in DEEP_COLUMNS and matrix.length > DEEP_LENGTH:
            nbytes = DEEP_COLUMNS[matrix.both_nbytes] * itemsize
            deep = replace(by_slots, nbytes=nbytes, max_threads=STAGED_THREADS)
            choices.insert(0, (deep, Kernels("layer_norm__deep_rows")))
    else:
        choices = [(_row_in_registers(matrix, 1), Kernels("layer_norm__elements"))]
    for registers, kernels in choices:
        divided = division(lines, registers, True, kernels)
        *_, threads = divided.args  # of a row; each has `depth` slots
        if threads * registers.depth(registers.nbytes) * registers.width >= matrix.length:
            return divided
    return None


def _row_in_registers(matrix: Matrix, width: int) -> Registers:
    """Return what a thread holds of a row in registers, in slots of `width` elements."""
    itemsize = matrix.t.itemsize  # registers have one array, the one that is read
    if width == 1:
        nbytes = SINGLE_COLUMNS[matrix.computed_type.itemsize] * itemsize
        return Registers(nbytes, 1, itemsize, 1, 1, max_threads=STAGED_THREADS)
    return Registers(COLUMNS[matrix.both_nbytes] * itemsize, 1, itemsize, width, 1)


@dataclass(frozen=True)
class GradientKernels:
    """Names of a gradient's kernels.

    The first five have rows in shared memory: slots of a row are dealt out thread by thread, or in
    pieces by warps; shifted: rows do not begin with a slot; elements: slots are single elements.
    Of rows that do not fit, row_sums makes the sums of dX, and columns everything else.
    """

    rows: str
    rows_by_warps: str
    shifted_rows: str
    shifted_rows_by_warps: str
    elements: str
    row_sums: str
    columns: str

    def of(self, rows: Rows) -> str:
        """Return the kernel for these rows in shared memory."""
        if rows.width == 1:
            return self.elements
        if rows.by_warps:
            return self.shifted_rows_by_warps if rows.is_shifted else self.rows_by_warps
        return self.shifted_rows if rows.is_shifted else self.rows


FROM_X = GradientKernels(
    rows="layer_norm__gradient_rows",
    rows_by_warps="layer_norm__gradient_rows_by_warps",
    shifted_rows="layer_norm__gradient_shifted_rows",
    shifted_rows_by_warps="layer_norm__gradient_shifted_rows_by_warps",
    elements="layer_norm__gradient_elements",
    row_sums="layer_norm__gradient_row_sums",
    columns="layer_norm__gradient_columns",
)
FROM_Y = GradientKernels(
    rows="layer_norm__invertible_rows",
    rows_by_warps="layer_norm__invertible_rows_by_warps",
    shifted_rows="layer_norm__invertible_shifted_rows",
    shifted_rows_by_warps="",  # scale and bias take too much shared memory
    elements="layer_norm__invertible_elements",
    row_sums="layer_norm__invertible_row_sums",
    columns="layer_norm__invertible_columns",
)


@dataclass(frozen=True)
class Read:
    """A gradient's kernels and the arrays that they read.

    dy: dY. x: X, or Y of the invertible gradient. parameters: (scale,) or (scale, bias).
    statistics: (mean or None, inv_std) or (inv_std,).
    """

    kernels: GradientKernels
    dy: Spec
    x: Spec | None
    parameters: tuple[Spec, ...]
    statistics: tuple[Spec | None, ...]

    @property
    def args(self) -> tuple[Spec | None, ...]:
        """Return the arrays in the order of the kernels' first parameters."""
        return (self.dy, self.x, *self.parameters, *self.statistics)


def gradient(matrix: Matrix, read: Read, dx: Spec | None, sums: Gradients) -> Plan:
    """Plan dX, and the gradients of scale and bias (`sums`), each if it is not None.

    matrix: the rows. read: the arrays that they are computed from, and the kernels. Rows that fit
    on chip are read once, others twice.
    """
    if matrix.count == 0:
        return Plan((_total(matrix, (None, None), sums, 0),))
    if dx is not None and read.x is not None:
        aligned = all(spec.aligned for spec in (read.dy, read.x, *read.parameters, dx))
        shape, dtypes = (matrix.count, matrix.length), (read.dy.dtype, read.x.dtype)
        n_parameters = len(read.parameters)
        rows = rows_on_chip(matrix.device, shape, dtypes, matrix.width, aligned, n_parameters)
        if rows is not None:
            return _by_rows(matrix, rows, read, dx, sums)
    return _by_columns(matrix, read, dx, sums)


def _by_rows(matrix: Matrix, rows: Rows, read: Read, dx: Spec, sums: Gradients) -> Plan:
    """Plan a launch that reads rows once, for dX and partial sums, and one that adds these."""
    scratch, n_lines = ScratchMemory(), rows.blocks(matrix.device)  # a line of sums a block
    lines = _lines(matrix, scratch, sums, n_lines)
    config = rows.config(matrix.device)
    steps = [matrix.launch(read.kernels.of(rows), config, *read.args, dx, *lines, rows.argument)]
    if any(sums):
        steps.append(_total(matrix, lines, sums, n_lines))
    return scratch.plan(*steps)


def _by_columns(matrix: Matrix, read: Read, dx: Spec | None, sums: Gradients) -> Plan:
    """Plan gradients of rows that do not fit on chip.

    Rows are read once for the two means that dX takes, then again column by column for dX and the
    partial sums of scale and bias, which a last launch adds.
    """
    scratch, steps, means = ScratchMemory(), [], None
    if dx is not None:
        means = scratch.take(2 * matrix.count, matrix.computed_type)
        config = Config((matrix.count,), (STAGED_THREADS,))
        args = (*read.args, matrix.length, means)
        steps.append(matrix.launch(read.kernels.row_sums, config, *args))
    elif sums[0] is None:  # the gradient of the bias alone
        read = replace(read, x=None)
    config, rows_of_part = _config_by_columns(matrix)
    n_lines = config.grid[1]
    lines = _lines(matrix, scratch, sums, n_lines)
    counts = (matrix.count, matrix.length, rows_of_part)
    kernel = read.kernels.columns
    steps.append(matrix.launch(kernel, config, *read.args, means, dx, *lines, *counts))
    if any(sums):
        steps.append(_total(matrix, lines, sums, n_lines))
    return scratch.plan(*steps)


def _config_by_columns(matrix: Matrix) -> tuple[Config, int]:
    """Return (config, rows of a part): grid (tiles of x columns, parts of rows), blocks (x, y)."""
    x = min(WARP, 1 << (matrix.length - 1).bit_length())
    y, tiles = COLUMN_THREADS // x, ceil_div(matrix.length, x)
    # As many parts as make COLUMN_BLOCKS blocks a multiprocessor, if there are rows for them.
    wanted = ceil_div(COLUMN_BLOCKS * matrix.device.multiprocessors, tiles)
    parts = max(1, min(wanted, ceil_div(matrix.count, ROWS_A_THREAD * y)))
    rows = ceil_div(matrix.count, parts)
    return Config((tiles, ceil_div(matrix.count, rows)), (x, y)), rows


def _lines(matrix: Matrix, scratch: ScratchMemory, sums: Gradients, n: int) -> Sums:
    """Allocate n lines of matrix.length partial sums, for each of the gradients in `sums`."""
    size, dtype = n * matrix.length, matrix.computed_type
    of_scale, of_bias = (None if spec is None else scratch.take(size, dtype) for spec in sums)
    return of_scale, of_bias


def _total(matrix: Matrix, lines: Sums, sums: Gradients, n: int) -> Launch:
    """Plan the sums of n lines of partial sums into the gradients `sums`.

    lines: (n, row length) numbers for scale and for bias, each None where sums is. Along y the grid
    has the gradient of scale, then that of bias.
    """
    x = 8  # columns that a warp reads side by side, at least
    while x < WARP and x * TOTAL_THREADS < matrix.length:
        x *= 2
    config = Config((ceil_div(matrix.length, x), 2), (x, TOTAL_THREADS // x))
    return matrix.launch("layer_norm__total", config, *lines, *sums, n, matrix.length)
