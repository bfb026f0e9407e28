# SPDX-License-Identifier: MIT
"""Sums, norms and finiteness checks over arrays and lists of arrays.

Floating-point sums are accumulated in float32 (float64 for float64) and rounded once, in an order
that follows from shapes, alignment and the number of multiprocessors. Nothing is read back to the
host.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from ...call.op import Op
from ...declare.schema import Input, Output, Spec, attribute, boolean, dtype, integers, optional
from ...declare.type_rows import Types
from ...dtypes import BOOL, FLOAT32, FLOATS, INT64, Dtype, to_dtype
from ...errors import refuse
from ...facts import WARP
from ...forks import computed_once
from ...plan import (
    VEC_NBYTES,
    Config,
    Device,
    Launch,
    Plan,
    Scratch,
    ScratchMemory,
    by_value,
    ceil_div,
    slots,
)
from ...planning.multi_tensor import Batch, l2_norm, one_or_more_batches
from ...planning.step import refuse_none
from .facts import CAPACITY, CHUNK_NBYTES, THREADS, UNROLL, Slabs

Block = tuple[int, ...]

INT32 = to_dtype("int32")
BLOCKS = 8  # a multiprocessor: together 2,048 threads
COLUMN_BLOCKS = 4  # the same of column sums, whose partial sums are as wide as a tile
MANY_COLUMNS = 65_536  # packets (16 bytes of columns), from which on a thread takes more rows
COLUMN_LANES = 16  # neighbouring packets of a row that a block takes where rows are many
COLUMNS, SINGLE_COLUMNS = "reduce_sum_training__columns", "reduce_sum_training__single_columns"
SHORT_ROWS = tuple(2**i for i in range(6))  # packets of short rows, a lane for each
SHORT_ROW_NBYTES = 2048  # a warp's rows; longer ones too, where there are enough of them


def _launch(
    symbol: str, grid: int, args: tuple[object, ...], x: Dtype, y: Dtype, block: Block = (THREADS,)
) -> Launch:
    """Make a launch of `grid` blocks, compiled for input type x and output type y."""
    binding = slots(T=x, Y=y, CAPACITY=CAPACITY, CHUNK_NBYTES=CHUNK_NBYTES)
    return Launch(symbol, Config((grid,), block), args, binding)


# ---- ReduceSumTraining ---------------------------------------------------------------------------


class ReduceSumTraining(Op):
    """Sum over axes: reduced[k] = sum of data[k, r] over all positions r of the reduced axes.

    Without axes all are reduced, or with noop_with_empty_axes none: data is copied in its own
    shape, whatever keepdims says. A sum of nothing is 0. Where nothing is added, also over axes of
    length 1, the result is a copy bit for bit.

    Integers are added as integers, modulo 2^32 or 2^64. NaN and infinities propagate as in any sum;
    subnormal float32 sums become zero. On the GPU a sum is infinite where a part of it leaves the
    range of float32 (float64 for float64), even if the whole would not; the CPU provider adds in
    float64.

    Memory: a workspace, for partial sums.

    Source: ONNX ReduceSum-13;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/reduction/reduction_ops.cc.
    """

    inputs = (
        Input("data", "T", shape="any shape"),
        Input(
            "axes",
            "int64",
            memory="host",
            convert=integers,
            doc="all different, from -rank to rank - 1; negative ones count from the end",
        ),
    )
    outputs = (Output("reduced", "T", shape="shape of data without the reduced axes"),)
    keepdims = attribute(boolean, True, doc="reduced axes stay, with length 1")
    noop_with_empty_axes = attribute(boolean, False, doc="no axes: reduce none, not all")
    types: ClassVar[Types] = {"T": (*FLOATS, INT32, INT64)}

    def infer(self, x: Spec, axes: tuple[int, ...]) -> tuple[Spec, ...]:
        """Return the spec of the sum: axes that are reduced have extent 1, or fall off."""
        if not axes and self.noop_with_empty_axes:
            return (Spec(x.shape, x.dtype),)
        reduced = self._reduced_axes(x, axes)
        shape = (1 if axis in reduced else n for axis, n in enumerate(x.shape))
        if not self.keepdims:
            shape = (n for axis, n in enumerate(x.shape) if axis not in reduced)
        return (Spec(tuple(shape), x.dtype),)

    def _reduced_axes(self, x: Spec, axes: tuple[int, ...]) -> set[int]:
        """Return the reduced axes, counted from the front."""
        rank = len(x.shape)
        if not axes:
            return set() if self.noop_with_empty_axes else set(range(rank))
        reduced = {axis % rank for axis in axes if -rank <= axis < rank}
        if len(reduced) < len(axes):
            refuse(self.name, "axes", f"different axes from {-rank} to {rank - 1}", f"{axes}")
        return reduced

    def plan(self, device: Device, x: Spec, axes: tuple[int, ...], y: Spec) -> Plan:
        """Plan a launch for each pass; sums between passes are in scratch memory."""
        reduced = self._reduced_axes(x, axes)
        steps = list(passes(x.shape, reduced)) if x.size else [Pass(y.size, 0, 1)]
        room = _Room(device)
        places = [_Place(x, x.dtype, x.aligned)]
        for step in steps[:-1]:
            sums = room.scratch.take(step.A * step.B, _summed_in(x.dtype))
            places.append(_Place(sums, _summed_in(x.dtype), True))
        places.append(_Place(y, y.dtype, y.aligned))
        pairs = zip(steps, itertools.pairwise(places), strict=True)
        launches = [step.launch(device, *pair, room) for step, pair in pairs]
        return room.scratch.plan(*launches)


def _summed_in(dtype: Dtype) -> Dtype:
    """Return the type of sums between launches: float32 for shorter types, else `dtype`."""
    return dtype if dtype.itemsize >= FLOAT32.itemsize else FLOAT32


def passes(shape: Sequence[int], reduced: Iterable[int]) -> Iterator[Pass]:
    """Yield the passes of a sum, each over an (A, R, B) array; the one with the largest R first.

    Neighbouring axes are merged if both are reduced, or neither. (6, 5, 70, 8) over axes 0 and 2:
    Pass(30, 70, 8), then Pass(1, 6, 40).
    """
    dims = [[shape[axis], axis in reduced] for axis in range(len(shape)) if shape[axis] != 1]
    merged = dims[:1]
    for extent, is_reduced in dims[1:]:
        if is_reduced == merged[-1][1]:
            merged[-1][0] *= extent
        else:
            merged.append([extent, is_reduced])
    if not any(is_reduced for _, is_reduced in merged):
        yield Pass(1, 1, math.prod(shape))
    while any(is_reduced for _, is_reduced in merged):
        # The place of the longest axis to be reduced.
        i = max(range(len(merged)), key=lambda i: merged[i][0] * merged[i][1])
        extents = [extent for extent, _ in merged]
        yield Pass(math.prod(extents[:i]), extents[i], math.prod(extents[i + 1 :]))
        del merged[i]


@dataclass(frozen=True)
class _Place:
    """Array that a pass reads or writes: the launch argument, its dtype, True if it is aligned."""

    argument: Spec | Scratch
    dtype: Dtype
    aligned: bool


class _Room:
    """Scratch memory of a call: partial sums, and counters (tickets) of sums in several blocks."""

    def __init__(self, device: Device) -> None:
        self.multiprocessors = device.multiprocessors
        self.scratch = ScratchMemory()

    @computed_once
    def tickets(self) -> Scratch:
        """Allocate the counters by which a sum's last block is known; launches share them."""
        return self.scratch.zeros(BLOCKS * self.multiprocessors, np.uint32)

    def n_spans(self, groups: int, most: int, blocks: int = BLOCKS) -> int:
        """Return the number of spans, 1 to `most`, that each group of sums is divided into."""
        return max(1, min(blocks * self.multiprocessors // groups, most))

    def partial_sums(self, n_sums: int, n_spans: int, dtype: Dtype) -> tuple[Scratch | None, ...]:
        """Allocate (partial sums, tickets) for n_sums sums in n_spans parts each.

        They are (None, None) for one part. dtype: of the elements.
        """
        if n_spans == 1:
            return None, None
        return self.scratch.take(n_sums * n_spans, _summed_in(dtype)), self.tickets


@dataclass(frozen=True)
class Pass:
    """One sum over the middle axis of an (A, R, B) array, and the launch that makes it."""

    A: int
    R: int
    B: int

    def launch(self, device: Device, x: _Place, y: _Place, room: _Room) -> Launch:
        """Plan a launch of the kernel that suits the shape, from array x to y.

        room: the call's scratch memory, from which sums in several parts take theirs.
        """
        if self.R == 1:
            return self._copy(x, y)
        if self.B > 1:
            return self._columns(x, y, room)
        row_nbytes = self.R * x.dtype.itemsize
        lanes, rest = divmod(row_nbytes, VEC_NBYTES)
        if x.aligned and not rest and lanes in SHORT_ROWS:
            return self._short_rows(x, y, lanes)
        if row_nbytes <= SHORT_ROW_NBYTES or 64 * device.multiprocessors <= self.A:
            return self._rows(x, y, ceil_div(row_nbytes, VEC_NBYTES))
        return self._long_rows(x, y, ceil_div(row_nbytes, VEC_NBYTES), room)

    def _copy(self, x: _Place, y: _Place) -> Launch:
        """Plan a copy, for sums of one term: 0 + -0.0 would lose the sign."""
        n = self.A * self.B
        args = (x.argument, y.argument, n, x.aligned and y.aligned)
        grid = ceil_div(n * x.dtype.itemsize, THREADS * VEC_NBYTES)
        return _launch("reduce_sum_training__copy", grid, args, x.dtype, y.dtype)

    def _short_rows(self, x: _Place, y: _Place, lanes: int) -> Launch:
        """Plan a launch in which each thread sums one packet (16 bytes), `lanes` threads a row."""
        args = (x.argument, y.argument, self.A, lanes)
        grid = ceil_div(self.A * lanes, THREADS * UNROLL)
        return _launch("reduce_sum_training__short_rows", grid, args, x.dtype, y.dtype)

    def _rows(self, x: _Place, y: _Place, packets: int) -> Launch:
        """Plan a launch in which 1 to 32 lanes of a warp sum a row of so many `packets`.

        Lanes are a power of 2 with about two packets (16 bytes) each, more in rows that need more
        than a warp.
        """
        lanes = 1
        while lanes < WARP and 2 * lanes < packets:
            lanes *= 2
        args = (x.argument, y.argument, self.A, self.R, lanes)
        grid = ceil_div(self.A, THREADS // lanes)
        return _launch("reduce_sum_training__rows", grid, args, x.dtype, y.dtype)

    def _long_rows(self, x: _Place, y: _Place, packets: int, room: _Room) -> Launch:
        """Plan a launch in which blocks sum spans of a row; the last block adds their sums.

        packets: of a row, 16 bytes each. room: has scratch memory for the sums of spans.
        """
        span = ceil_div(packets, room.n_spans(self.A, packets // (THREADS * UNROLL)))
        n_spans = ceil_div(packets, span)
        shared = room.partial_sums(self.A, n_spans, x.dtype)
        args = (x.argument, y.argument, *shared, self.R, span, n_spans)
        return _launch("reduce_sum_training__long_rows", self.A * n_spans, args, x.dtype, y.dtype)

    def _columns(self, x: _Place, y: _Place, room: _Room) -> Launch:
        """Plan a launch that sums columns: a thread has a packet of neighbouring columns.

        room: has scratch memory. Threads of a block share `span` of the R rows, n_spans blocks all
        of them. A slab is one of the A matrices (R, B); a tile is as many packets of a row as a
        block is wide.
        """
        width = VEC_NBYTES // x.dtype.itemsize
        whole = self.B % width == 0 and x.aligned and y.aligned
        packets = self.B // width if whole else self.B
        n_tiles, block = column_block(self.A, self.R, packets)
        groups = ceil_div(self.A, block[2]) * n_tiles  # blocks, if each took all rows
        most = self.R // (2 * UNROLL * block[1]) if block[2] == 1 else 1
        span = max(1, ceil_div(self.R, room.n_spans(groups, most, COLUMN_BLOCKS)))
        n_spans = max(1, ceil_div(self.R, span))
        shared = room.partial_sums(self.A * self.B, n_spans, x.dtype)
        extents = {"n_slabs": self.A, "n_rows": self.R, "n_columns": self.B}
        slabs = by_value(Slabs, **extents, span=span, n_spans=n_spans, n_tiles=n_tiles)
        args = (x.argument, y.argument, *shared, slabs)
        kernel = COLUMNS if whole else SINGLE_COLUMNS
        return _launch(kernel, groups * n_spans, args, x.dtype, y.dtype, block=block)


def column_block(n_slabs: int, n_rows: int, packets: int) -> tuple[int, tuple[int, int, int]]:
    """Return how many tiles a row of `packets` has, and threads of a block: (packets, rows, slabs).

    n_slabs: matrices; n_rows: of each.
    """
    # A thread adds UNROLL rows at a time, once, or four times where there are many columns.
    batches_a_thread = 4 if n_slabs * packets >= MANY_COLUMNS else 1
    rows = max(1, ceil_div(n_rows, UNROLL * batches_a_thread))
    n_tiles = ceil_div(packets, THREADS // min(THREADS // COLUMN_LANES, rows))
    x = ceil_div(packets, n_tiles)
    y = min(THREADS // x, rows)
    return n_tiles, (x, y, min(THREADS // (x * y), n_slabs, 64))


# ---- lists of tensors ----------------------------------------------------------------------------


def _batches(xs: tuple[Spec, ...]) -> list[Batch]:
    """Divide a list of tensors among launches."""
    return one_or_more_batches(xs, CHUNK_NBYTES, CAPACITY)


def _blocks(device: Device, n_chunks: int) -> int:
    """Return the blocks of a launch: one a chunk, but no more than keep the GPU busy."""
    return max(1, min(n_chunks, BLOCKS * device.multiprocessors))


class ReduceAllL2(Op):
    """Euclidean norm of a list of tensors: Y = sqrt(sum of x^2 over all elements x of all of X).

    Squares are added in float32, with two other exponents beside their own, so that they leave its
    range only where Y does; in float64 where TIn or TOut is float64. Y is infinite only where it
    does not fit into TOut, or where TIn is float64 and Y above 1.3e154. A NaN gives NaN, an
    infinity infinity, no elements 0. There is one launch for every 192 tensors that have elements.

    Memory: a workspace, for partial sums.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/reduction/reduction_all.cc.
    """

    inputs = (Input("X", "TIn", variadic=True, shape="any shapes", doc="at least one array"),)
    outputs = (Output("Y", "TOut", shape="shape ()"),)
    output_type = attribute(optional(dtype), None, type="TOut", doc="TIn where it is None")
    types: ClassVar[Types] = {"TIn": FLOATS, "TOut": FLOATS}

    def infer(self, xs: tuple[Spec, ...]) -> tuple[Spec, ...]:
        refuse_none(self.name, "X", xs)
        return (Spec((), self.output_type or xs[0].dtype),)

    def plan(self, device: Device, xs: tuple[Spec, ...], y: Spec) -> Plan:
        """Plan launches over batches of the tensors xs; the last one writes their norm to y."""
        most = BLOCKS * device.multiprocessors
        launch = partial(_launch, "reduce_all_l2", x=xs[0].dtype, y=y.dtype)
        scratch = ScratchMemory()
        launches = l2_norm(_batches(xs), xs, most, launch, scratch, y)
        return scratch.plan(*launches)


class IsAllFinite(Op):
    """Finiteness of a list of tensors: output = no element of any of `input` is infinite or NaN.

    Bits are tested, so that subnormal numbers and -0.0 pass on every GPU. No elements give True.
    There is one launch for every 192 tensors that have elements.

    Memory: a workspace of 16 bytes.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/isfinite.cc.
    """

    detaches = True

    inputs = (Input("input", "T", variadic=True, shape="any shapes", doc="at least one array"),)
    outputs = (Output("output", "bool", shape="shape ()"),)
    isinf_only = attribute(boolean, False, doc="NaN passes; not together with isnan_only")
    isnan_only = attribute(boolean, False, doc="infinities pass")
    types: ClassVar[Types] = {"T": FLOATS}
    bitwise_exact = True

    def __init__(self, **attributes: object) -> None:
        super().__init__(**attributes)
        if self.isinf_only and self.isnan_only:
            refuse(self.name, "isnan_only", "False where isinf_only is True", "True")

    def infer(self, xs: tuple[Spec, ...]) -> tuple[Spec, ...]:
        refuse_none(self.name, "input", xs)
        return (Spec((), BOOL),)

    def plan(self, device: Device, xs: tuple[Spec, ...], y: Spec) -> Plan:
        """Plan a launch for each batch of tensors, which share counters; the last writes y."""
        kernel = "is_all_finite"
        if self.isinf_only or self.isnan_only:
            kernel = "is_all_finite__isinf_only" if self.isinf_only else "is_all_finite__isnan_only"
        batches = _batches(xs)
        scratch = ScratchMemory()
        poll = scratch.zeros(1, np.uint32), scratch.zeros(1, np.uint32)
        launches = []
        for i, batch in enumerate(batches):
            last = i == len(batches) - 1
            args = (batch.pointers(xs), batch.sizes, *poll, y, last)
            grid = _blocks(device, batch.n_chunks)
            launches.append(_launch(kernel, grid, args, xs[0].dtype, xs[0].dtype))
        return scratch.plan(*launches)


class All(Op):
    """Conjunction of all elements: Y[0] = X[0] and X[1] and ...; True where there are none.

    Any byte but 0 counts as True.

    Memory: a workspace of 16 bytes.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/reduction/all.cc.
    """

    inputs = (Input("X", "T", shape="any shape"),)
    outputs = (Output("Y", "T", shape="shape (1,)"),)
    types: ClassVar[Types] = {"T": (BOOL,)}
    bitwise_exact = True

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec((1,), BOOL),)

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        """Plan one launch; blocks share two counters, which it leaves zero."""
        blocks = _blocks(device, ceil_div(x.size, UNROLL * THREADS * VEC_NBYTES))
        scratch = ScratchMemory()
        poll = scratch.zeros(1, np.uint32), scratch.zeros(1, np.uint32)
        args = (x, y, *poll, x.size)
        launch = _launch("all", blocks, args, FLOAT32, FLOAT32)
        return scratch.plan(launch)


OPS = {
    "All": All,
    "IsAllFinite": IsAllFinite,
    "ReduceAllL2": ReduceAllL2,
    "ReduceSumTraining": ReduceSumTraining,
}
