# SPDX-License-Identifier: MIT
"""Gradients of the gather operators: sums of slices that met in one place.

All three say for every slice of dY which row of dX it is added to, and share the rest: B batches of
K slices and of G rows, W elements each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from .. import contract
from ..checks import Types, refuse
from ..contract import Attribute, Input, Output, Spec, boolean, integer
from ..dtypes import FLOATS, INT64, element_type
from ..op import Op, slots
from ..runtime.plan import Config, Device, Launch, Plan, Scratch, by_value, ceil_div

# The constants of the same names in cuda_src.
THREADS = 256
SORT_THREADS = 512
SORT_TILE = 2048
FANOUT = 32
ATOMIC_ITEMS = 4
TILE_COLUMNS = 32
ZERO_PACKETS = 4
MOST_DIMS = 32

DIGIT_BITS = 9  # of a sort key at most: one thread of a block for each digit
SORT_BLOCKS = 2  # of a multiprocessor
MOST_ATOMIC = 2**22  # elements of dY up to which atomics cost less than the launches of a sort
PACKET_NBYTES = 16
MOST_32_BIT = 2**32 - 1

INDEX_TYPES = (INT64, np.dtype(np.int32))
SHAPE = Input("shape", "int64", memory="host", convert=contract.shape)
INDICES = Input("indices", "Tind")
AXIS = Attribute("axis", integer, 0)
DETERMINISTIC = Attribute("deterministic", boolean, True)
CHECK = Attribute("check", boolean, False)


@dataclass(frozen=True)
class Sizes:
    """B batches of K slices of dY and of G rows of dX, W elements each."""

    B: int
    K: int
    G: int
    W: int

    @property
    def key(self) -> np.dtype[Any]:
        """The type of row numbers and slice numbers."""
        return np.dtype(np.uint32 if max(self.K, self.G) <= MOST_32_BIT else np.uint64)


@dataclass(frozen=True)
class Digit:
    """One digit of the sort keys 0 .. G."""

    shift: int
    bits: int


def digits(rows: int) -> tuple[Digit, ...]:
    """As few digits as hold every key, all of about the same width."""
    bits = rows.bit_length()
    width = ceil_div(bits, ceil_div(bits, DIGIT_BITS))
    return tuple(Digit(shift, min(width, bits - shift)) for shift in range(0, bits, width))


def levels(slices: int) -> tuple[int, ...]:
    """How many nodes each level of partial sums has, until few enough are left for one thread."""
    counts = [slices]
    while counts[-1] > 2 * FANOUT:
        counts.append(counts[-1] // FANOUT)
    return tuple(counts[1:])


def uses_atomics(deterministic: bool, sizes: Sizes) -> bool:
    """Whether slices are added with atomics: where that is allowed and the quicker way."""
    return not deterministic and sizes.B * sizes.K * sizes.W <= MOST_ATOMIC


def packet_size(width: int, dy: Spec, dx: Spec) -> int:
    """Elements of a packet: 16 bytes where every row consists of whole aligned ones, else 1."""
    n = PACKET_NBYTES // dy.dtype.itemsize
    return n if width % n == 0 and dy.aligned and dx.aligned else 1


def spread(batches: int, n: int, runs: int, packets: int) -> tuple[Config, Any]:
    """Grid and `Items` for n items in each batch, a thread taking `packets` of an item's `runs`."""
    lanes = min(THREADS, 1 << (ceil_div(runs, packets) - 1).bit_length())
    items_a_block = THREADS // lanes
    column_blocks = ceil_div(runs, lanes * packets)
    fold = min(batches, max(1, MOST_32_BIT // n))
    grid = (ceil_div(fold * n, items_a_block) * column_blocks, 1, ceil_div(batches, fold))
    items = by_value(B=batches, n=n, fold=fold, column_blocks=column_blocks)
    return Config(grid, (lanes, items_a_block)), items


def one_each(n: int, a_block: int, threads: int = THREADS) -> Config:
    """A flat grid whose blocks take `a_block` of n things."""
    return Config((ceil_div(n, a_block),), (threads,))


@dataclass
class Workspace:
    """Scratch memory handed out piece by piece while a plan is made."""

    nbytes: int = 0

    def take(self, n: int, dtype: Any) -> Scratch:
        """Room for n elements, 256-byte aligned."""
        start = self.nbytes
        self.nbytes += ceil_div(n * np.dtype(dtype).itemsize, 256) * 256
        return Scratch(start)


@dataclass
class Scatter:
    """The plan of one call: which slices go where, and the launches that add them."""

    op: Op
    device: Device
    sizes: Sizes
    index: Spec
    dy: Spec
    dx: Spec
    target: tuple[Any, ...]  # the arguments that say where a slice goes
    workspace: Workspace = field(default_factory=Workspace)
    launches: list[Launch] = field(default_factory=list)

    def __post_init__(self) -> None:
        row = element_type(self.dy.dtype)
        self.names = tuple(i.name for i in self.op.inputs if i.type == "T")
        self.dy_name, self.dx_name = self.names[0], self.op.outputs[0].name
        self.acc = np.dtype(np.float64 if row.accumulator == "double" else np.float32)
        keys = slots(T=self.dy.dtype, INDEX=self.index.dtype, KEY=self.sizes.key)
        self.slots = keys | {"ACC": row.accumulator}

    def launch(self, symbol: str, config: Config, *args: Any) -> None:
        """Add one launch."""
        self.launches.append(Launch(symbol, config, args, self.slots))

    def plan(self) -> Plan:
        """What was added up to now."""
        return Plan(tuple(self.launches), self.workspace.nbytes)

    def zero(self, target: Any, dtype: Any) -> None:
        """Zeros for dX, or for its sums in another type."""
        n = self.dx.size * np.dtype(dtype).itemsize // self.dx.dtype.itemsize
        packet = PACKET_NBYTES // self.dx.dtype.itemsize
        self.launch("gather__zero", one_each(n, THREADS * ZERO_PACKETS * packet), target, n)

    def add_slices(self) -> Plan:
        """Sorted by row and summed in order: the same bits, run after run."""
        entries = self.sort()
        starts = self.workspace.take(self.sizes.G + 1, self.sizes.key)
        config = one_each(self.sizes.G + 1, THREADS)
        self.launch("gather__starts", config, entries, starts, self.sizes.K, self.sizes.G)
        self.sum(entries, starts)
        return self.plan()

    def sort(self) -> Scratch:
        """The (row, slice) entries in stable order, one pass a digit."""
        n, key = self.sizes.K, self.sizes.key
        tiles = ceil_div(n, SORT_TILE)
        span = ceil_div(tiles, SORT_BLOCKS * self.device.multiprocessors) * SORT_TILE
        config = one_each(n, span, SORT_THREADS)
        entries, other = self.workspace.take(2 * n, key), self.workspace.take(2 * n, key)
        counts = self.workspace.take(config.grid[0] << DIGIT_BITS, key)
        for digit in digits(self.sizes.G):
            step = by_value(n=n, span=span, shift=np.int32(digit.shift), bits=np.int32(digit.bits))
            if digit.shift == 0:
                where = (*self.target, entries, counts, step, self.sizes.G)
                self.launch(f"{self.op.function_name}__keys", config, *where)
            else:
                self.launch("gather__count", config, entries, counts, step)
            self.launch("gather__scatter", config, entries, other, counts, step)
            entries, other = other, entries
        return entries

    def sum(self, entries: Scratch, starts: Scratch) -> None:
        """Partial sums level by level, then every row of dX."""
        s, counts = self.sizes, levels(self.sizes.K)
        sizes = by_value(K=s.K, G=s.G, W=s.W)
        n = packet_size(s.W, self.dy, self.dx)
        variant, shape = ("__scalar", (s.W, 1)) if n == 1 else ("", (s.W // n, 2))
        sums = self.workspace.take(s.B * sum(counts) * s.W, self.acc)
        for i, count in enumerate(counts):
            config, items = spread(s.B, count, *shape)
            below = sum(counts[: max(i - 1, 0)])
            level = by_value(
                unit=FANOUT ** (i + 1), begin=sum(counts[:i]), begin_below=below, total=sum(counts)
            )
            args = (self.dy_name, entries, sums, items, sizes, level)
            self.launch(f"gather__sum_nodes{variant}", config, *args)
        config, items = spread(s.B, s.G, *shape)
        arrays = (self.dy_name, entries, starts, sums, self.dx_name)
        self.launch(
            f"gather__sum_rows{variant}", config, *arrays, items, sizes, sum(counts), len(counts)
        )

    def add_slices_atomically(self) -> Plan:
        """Zeros, atomic additions, and one rounding where T is narrower than its sums."""
        s = self.sizes
        config, items = spread(s.B, s.K, s.W, ATOMIC_ITEMS)
        sizes = by_value(K=s.K, G=s.G, W=s.W)
        return self.atomic("__atomic", config, items, sizes)

    def atomic(self, variant: str, config: Config, *args: Any) -> Plan:
        """The additions of a kernel of the operator's own between zeros and rounding."""
        narrow = self.acc != self.dx.dtype
        sums = self.workspace.take(self.dx.size, self.acc) if narrow else self.dx_name
        self.zero(sums, self.acc)
        symbol = self.op.function_name + variant
        self.launch(symbol, config, *self.target, self.dy_name, sums, *args)
        if narrow:
            symbol = "gather__round" if self.dx.aligned else "gather__round__unaligned"
            config = one_each(self.dx.size, THREADS * ROUND_NBYTES // self.acc.itemsize)
            self.launch(symbol, config, sums, self.dx_name, self.dx.size)
        return self.plan()


ROUND_NBYTES = 64  # of sums that one thread rounds


class _GatherGradient(Op):
    """What the three share: attributes, the check of indices, the choice of a plan."""

    outputs = (Output("dX", "T"),)
    types: ClassVar[Types] = {"T": FLOATS, "Tind": INDEX_TYPES}
    deterministic: bool
    check: bool

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if self.check:
            self.workspace_nbytes(*inputs, outputs=options.get("outputs"))  # all other checks first
            self.refuse_out_of_range(*self._adopt_inputs(inputs))
        return super().__call__(*inputs, **options)

    def refuse_out_of_range(self, *inputs: Any) -> None:
        """Read the indices and refuse those that are in no row of dX."""
        raise NotImplementedError

    def in_range(self, name: str, indices: Any, extent: int) -> None:
        """Refuse indices outside -extent .. extent - 1."""
        outside = (indices < -extent) | (indices >= extent)
        if bool(outside.any()):
            worst = int(indices[outside].ravel()[0])
            refuse(self.name, name, f"indices from {-extent} to {extent - 1}", str(worst))

    def planned(self, scatter: Scatter) -> Plan:
        """Zeros where there are no slices; else the deterministic or the atomic launches."""
        if scatter.sizes.K == 0:
            scatter.zero(scatter.dx_name, scatter.dx.dtype)
            return scatter.plan()
        if uses_atomics(self.deterministic, scatter.sizes):
            return scatter.add_slices_atomically()
        return scatter.add_slices()


class GatherGrad(_GatherGradient):
    """Gradient of Gather: dX[b, g, w] = sum of dY[b, k, w] over all k with indices[k] = g, else 0.

    b counts the B elements of the dimensions before `axis`, w the W after it; G = shape[axis].
    Negative indices count from the end. An index outside -G .. G - 1 is skipped: it adds nothing.
    With check=True it raises ArgumentError before any launch instead; reading the indices
    synchronises the device, so that such a call cannot be captured in a graph.

    shape: int64, shape of X, host. indices: int64 or int32, any shape, device. dY: T, shape
    X[:axis] + indices + X[axis + 1:], device. dX: T, `shape`, device. T: float32, float16, float64,
    bfloat16. Sums are kept in float32 (float64 for float64), in an order that follows from the
    indices alone, and rounded once. Deterministic; deterministic=False adds with atomics, also in
    float32, where dY is so small that this is faster. Scratch memory: about 16 bytes an index, 4 a
    row and 1/31 of dY in float32.
    Raises ArgumentError and DtypeError. Source: contract 2.1.
    """

    inputs = (SHAPE, INDICES, Input("dY", "T"))
    attributes = (AXIS, DETERMINISTIC, CHECK)
    axis: int

    def infer(self, shape: tuple[int, ...], indices: Spec, dy: Spec) -> tuple[Spec, ...]:
        axis = axis_of(self, self.axis, shape)
        expected = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
        if dy.shape != expected:
            refuse(self.name, "dY", f"shape {expected}", f"shape {dy.shape}")
        return (Spec(shape, dy.dtype),)

    def plan(
        self, device: Device, shape: tuple[int, ...], indices: Spec, dy: Spec, dx: Spec
    ) -> Plan:
        axis = self.axis % len(shape)
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        sizes = Sizes(before, indices.size, shape[axis], after)
        return self.planned(Scatter(self, device, sizes, indices, dy, dx, ("indices",)))

    def refuse_out_of_range(self, *inputs: Any) -> None:
        shape, indices, _ = inputs
        self.in_range("indices", indices, shape[self.axis])


class GatherNDGrad(_GatherGradient):
    """Gradient of GatherND: output[i0 .. i(k-1), w] = sum of the slices of `update` that went there.

    With b = batch_dims, an index is the k numbers on the last axis of `indices`; it stands for the
    W = prod(shape[b + k:]) elements of its own batch at shape[b:b + k]. Negative numbers count from
    the end. A slice with a number out of range is skipped: it adds nothing. With check=True it
    raises ArgumentError before any launch instead; reading the indices synchronises the device.

    shape: int64, host. indices: int64 or int32, shape shape[:b] + ... + (k,), device. update: T,
    shape indices.shape[:-1] + shape[b + k:], device. output: T, `shape`, device. T: float32,
    float16, float64, bfloat16. Sums are kept in float32 (float64 for float64), in an order that
    follows from the indices alone, and rounded once. Deterministic; deterministic=False adds with
    atomics, also in float32, where update is so small that this is faster.
    Raises ArgumentError and DtypeError. Source: contract 2.2.
    """

    inputs = (SHAPE, INDICES, Input("update", "T"))
    outputs = (Output("output", "T"),)
    attributes = (Attribute("batch_dims", integer, 0), DETERMINISTIC, CHECK)
    batch_dims: int

    def infer(self, shape: tuple[int, ...], indices: Spec, update: Spec) -> tuple[Spec, ...]:
        b, rank = self.batch_dims, len(indices.shape)
        if rank == 0 or not 0 <= b < rank:
            refuse(self.name, "indices", f"a rank above batch_dims = {b}", f"rank {rank}")
        k = indices.shape[-1]
        if not 1 <= k <= min(len(shape) - b, MOST_DIMS):
            expected = f"1 to {len(shape) - b} numbers an index, at most {MOST_DIMS}"
            refuse(self.name, "indices", expected, f"{k} in shape {indices.shape}")
        if indices.shape[:b] != shape[:b]:
            refuse(self.name, "indices", f"batches {shape[:b]}", f"shape {indices.shape}")
        expected_shape = indices.shape[:-1] + shape[b + k :]
        if update.shape != expected_shape:
            refuse(self.name, "update", f"shape {expected_shape}", f"shape {update.shape}")
        return (Spec(shape, update.dtype),)

    def plan(
        self, device: Device, shape: tuple[int, ...], indices: Spec, update: Spec, output: Spec
    ) -> Plan:
        b, k = self.batch_dims, indices.shape[-1]
        slices, rows = math.prod(indices.shape[:-1]), math.prod(shape[: b + k])
        sizes = Sizes(1, slices, rows, math.prod(shape[b + k :]))
        extents = padded(shape[b : b + k])
        tuples = by_value(count=k, per_batch=math.prod(indices.shape[b:-1]), extents=extents)
        target = ("indices", tuples)
        return self.planned(Scatter(self, device, sizes, indices, update, output, target))

    def refuse_out_of_range(self, *inputs: Any) -> None:
        shape, indices, _ = inputs
        for j in range(indices.shape[-1]):
            extent = shape[self.batch_dims + j]
            self.in_range(f"indices[..., {j}]", indices[..., j], extent)


class GatherElementsGrad(_GatherGradient):
    """Gradient of GatherElements: dX[q] = sum of dY[p] over all p with q = p but q[axis] = indices[p].

    Negative indices count from the end of shape[axis]. An index out of range is skipped: it adds
    nothing. With check=True it raises ArgumentError before any launch instead; reading the indices
    synchronises the device.

    dY: T, device. shape: int64, shape of X, of dY's rank, host. indices: int64 or int32, dY's
    shape, device; off the axis at most as long as X. dX: T, `shape`, device. T: float32, float16,
    float64, bfloat16. Sums are kept in float32 (float64 for float64) and rounded once.
    Deterministic: sorted by place and summed in order. deterministic=False adds with atomics, for
    float16 and bfloat16 into float32 scratch memory of dX's shape.
    Raises ArgumentError and DtypeError. Source: contract 2.3.
    """

    inputs = (Input("dY", "T"), SHAPE, INDICES)
    attributes = (AXIS, DETERMINISTIC, CHECK)
    axis: int

    def infer(self, dy: Spec, shape: tuple[int, ...], indices: Spec) -> tuple[Spec, ...]:
        axis = axis_of(self, self.axis, shape)
        if indices.shape != dy.shape:
            refuse(self.name, "indices", f"dY's shape {dy.shape}", f"shape {indices.shape}")
        pairs = list(zip(indices.shape, shape, strict=False))
        if len(indices.shape) != len(shape) or any(
            i > x for d, (i, x) in enumerate(pairs) if d != axis
        ):
            expected = f"a shape within {shape} off axis {axis}"
            refuse(self.name, "indices", expected, f"shape {indices.shape}")
        return (Spec(shape, dy.dtype),)

    def plan(
        self, device: Device, dy: Spec, shape: tuple[int, ...], indices: Spec, dx: Spec
    ) -> Plan:
        *outer, (columns, stride) = coalesced(indices.shape, shape, self.axis % len(shape))
        target = ("indices", self.lines(shape, outer, columns, stride))
        sizes = Sizes(1, indices.size, dx.size, 1)
        scatter = Scatter(self, device, sizes, indices, dy, dx, target)
        if self.deterministic or indices.size == 0:
            return self.planned(scatter)
        if stride == 0 or columns < TILE_COLUMNS:
            config = one_each(indices.size, THREADS * ATOMIC_ITEMS)
            return scatter.atomic("__atomic", config, indices.size)
        rows = indices.size // columns
        rows_a_block = THREADS // TILE_COLUMNS
        blocks = ceil_div(rows, rows_a_block * ATOMIC_ITEMS)
        grid = (blocks * ceil_div(columns, TILE_COLUMNS),)
        config = Config(grid, (TILE_COLUMNS, rows_a_block))
        return scatter.atomic("__atomic_strips", config, rows, blocks)

    def lines(
        self, shape: tuple[int, ...], outer: list[tuple[int, int]], columns: int, stride: int
    ) -> Any:
        """The kernels' struct Lines."""
        axis = self.axis % len(shape)
        return by_value(
            extent=shape[axis],
            stride=math.prod(shape[axis + 1 :]),
            columns=columns,
            column_stride=stride,
            n_outer=len(outer),
            extents=padded([extent for extent, _ in outer]),
            strides=padded([stride for _, stride in outer]),
        )

    def refuse_out_of_range(self, *inputs: Any) -> None:
        _, shape, indices = inputs
        self.in_range("indices", indices, shape[self.axis])


def axis_of(op: Op, axis: int, shape: tuple[int, ...]) -> int:
    """The axis counted from the front."""
    if not -len(shape) <= axis < len(shape):
        refuse(op.name, "axis", f"an axis of shape {shape}", str(axis))
    return axis % len(shape)


def coalesced(
    indices: tuple[int, ...], shape: tuple[int, ...], axis: int
) -> list[tuple[int, int]]:
    """Dimensions of the indices as (extent, stride in X; 0 on the axis), merged where they can be."""
    merged: list[tuple[int, int]] = []
    for d, extent in enumerate(indices):
        stride = 0 if d == axis else math.prod(shape[d + 1 :])
        if extent == 1:
            continue
        if merged and merged[-1][1] == extent * stride != 0:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return merged or [(1, 0)]


def padded(values: Any) -> Any:
    """Integers in a table of the kernels' length."""
    table = np.zeros(MOST_DIMS, np.int64)
    table[: len(values)] = values
    return table


OPS = {
    "GatherElementsGrad": GatherElementsGrad,
    "GatherGrad": GatherGrad,
    "GatherNDGrad": GatherNDGrad,
}
