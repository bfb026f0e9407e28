# SPDX-License-Identifier: MIT
"""Zeros around data and away again.

Elements are copied bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...call.op import Op
from ...declare.schema import Inferred, Input, Output, Shape, Spec, integers, shape
from ...declare.type_rows import Types
from ...dtypes import FIXED_SIZE, INT64, to_dtype
from ...errors import refuse
from ...plan import Config, Device, Launch, Plan, ScratchMemory, by_value, ceil_div, slots
from ...planning.copy_runs import words_of
from ...planning.fast_division import divisor
from .facts import MAX_DIMENSIONS, THREADS, Dimension, Dimensions


class SliceGrad(Op):
    """Gradient of Slice: dX[start_0 + j_0 step_0, ...] = dY[j_0, ...], and 0 elsewhere.

    starts, ends, axes and steps mean what they mean in Slice: negative starts and ends count from
    the end of the axis, both are clamped to the array, a negative step walks backwards, and an axis
    that is not named is whole.

    Source: ONNX Slice-13, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/tensor/slice_grad.cc.
    """

    inputs = (
        Input("dY", "T", shape="any shape of as many elements as the slice has"),
        Input("shape", "int64", memory="host", convert=shape, doc="at least one dimension"),
        Input("starts", "int64", memory="host", convert=integers, doc="one for each axis"),
        Input("ends", "int64", memory="host", convert=integers, doc="one for each axis"),
        Input(
            "axes",
            "int64",
            memory="host",
            optional=True,
            convert=integers,
            doc="the first ones where they are left out",
        ),
        Input(
            "steps",
            "int64",
            memory="host",
            optional=True,
            convert=integers,
            doc="other than 0; 1 where they are left out",
        ),
    )
    outputs = (Output("dX", "T", shape="shape given by `shape`"),)
    types: ClassVar[Types] = {"T": FIXED_SIZE}
    bitwise_exact = True

    def infer(self, dy: Spec, shape: Shape, *bounds: Shape) -> tuple[Spec, ...]:
        """Return the spec of dX; refuse a dY with another number of elements than the slice.

        bounds: starts, ends, axes and steps, the last two None where they are left out.
        """
        axes = self._sliced_axes(shape, *bounds)
        size = math.prod(axis.count for axis in axes)
        if dy.size != size:
            expected = f"{size} elements, a slice of shape {tuple(axis.count for axis in axes)}"
            refuse(self.name, "dY", expected, f"{dy.size} of shape {dy.shape}")
        return (Spec(shape, dy.dtype),)

    def _sliced_axes(
        self,
        shape: Shape,
        starts: Shape,
        ends: Shape,
        axes: Shape | None = None,
        steps: Shape | None = None,
    ) -> list[SlicedAxis]:
        """Return the slice of every axis; refuse lists that fit neither each other nor `shape`."""
        rank = len(shape)
        if rank == 0:
            refuse(self.name, "shape", "at least one dimension", "()")
        axes = tuple(range(len(starts))) if axes is None else axes
        steps = (1,) * len(starts) if steps is None else steps
        for name, values in (("ends", ends), ("axes", axes), ("steps", steps)):
            if len(values) != len(starts):
                refuse(self.name, name, f"{len(starts)} entries like starts", f"{values}")
        if any(not -rank <= a < rank for a in axes) or len({a % rank for a in axes}) < len(axes):
            expected = f"different axes from {-rank} to {rank - 1}"
            refuse(self.name, "axes", expected, f"{axes}")
        if 0 in steps:
            refuse(self.name, "steps", "steps other than 0", f"{steps}")
        return sliced_axes(shape, starts, ends, axes, steps)

    def plan(self, device: Device, dy: Spec, shape: tuple[int, ...], *rest: Any) -> Plan:
        """Plan one launch that writes dX: rows of whole chunks, or any words.

        rest: starts, ends, axes and steps, then dX. The innermost axis is counted in words, others
        in positions; the outermost one is left out if it is whole.
        """
        *bounds, dx = rest
        *outer, inner = _merge_axes(self._sliced_axes(shape, *bounds))
        outer = outer[1:] if outer and outer[0].whole else outer
        itemsize = dx.dtype.itemsize
        lengths = (inner.extent, inner.start, inner.count) if inner.step == 1 else (1,)
        words = words_of((dy, dx), lengths, itemsize * lengths[-1])
        inner = inner.times(itemsize, words.nbytes)
        n_dy, n_dx = words.count(dy.nbytes), words.count(dx.nbytes)
        table = np.zeros(MAX_DIMENSIONS, Dimension.of().dtype)
        table[: len(outer)] = [axis.dimension for axis in outer]
        axes = (len(outer), by_value(Dimensions, at=table), inner.dimension)
        if dx.aligned and words.chunk > 1 and inner.extent % words.chunk == 0:
            n_rows = n_dx // inner.extent
            config, column_blocks = words.rows(n_rows, inner.extent)
            arguments = (dy, dx, n_dy, n_rows, *axes, column_blocks)
            return Plan((Launch("slice_grad__rows", config, arguments, words.slots),))
        config = Config((words.tiles(dx.nbytes),), (THREADS,))
        return Plan((Launch("slice_grad", config, (dy, dx, n_dy, n_dx, *axes), words.slots),))


@dataclass(frozen=True)
class SlicedAxis:
    """The positions start, start + step, ... of an axis of `extent`, `count` of them."""

    extent: int
    start: int
    step: int
    count: int

    @property
    def dimension(self) -> np.void:
        """Return the kernel's Dimension."""
        return by_value(
            Dimension,
            extent=divisor(self.extent),
            distance=divisor(abs(self.step)),
            start=self.start,
            backwards=int(self.step < 0),
            count=self.count,
        )

    @property
    def whole(self) -> bool:
        """Return True if the slice is the whole axis, in order."""
        return self.count == self.extent and self.step == 1

    def times(self, n: int, divisor: int = 1) -> SlicedAxis:
        """Return the slice in units of which a position has n / divisor, 1 unless the step is 1.

        Positions of 4 bytes in words of 16: times(4, 16).
        """
        extent, start, count = (v * n // divisor for v in (self.extent, self.start, self.count))
        return SlicedAxis(extent, start, self.step, count)


def sliced_axes(
    shape: tuple[int, ...],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> list[SlicedAxis]:
    """Return the slice of every axis of `shape`, by the rules of ONNX Slice 13.

    The i-th of starts, ends and steps is for axis axes[i]; axes that are not named are whole.
    """
    sliced = [SlicedAxis(extent, 0, 1, extent) for extent in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        extent = shape[axis]
        low, high = (0, extent) if step > 0 else (-1, extent - 1)
        # Bounds are clamped to [low, high]: -1 is the place before the front, for negative steps.
        first = max(0, min(start + extent if start < 0 else start, high))
        last = max(low, min(end + extent if end < 0 else end, high))
        count = max(0, ceil_div(last - first, step)) if extent else 0
        sliced[axis] = SlicedAxis(extent, first, step if count > 1 else 1, count)
    return sliced


def _merge_axes(axes: Sequence[SlicedAxis]) -> list[SlicedAxis]:
    """Return fewer axes with the same positions: a whole axis is joined to the one before it.

    That one has step 1. Slices of no element give one axis without positions.
    """
    if not all(axis.count for axis in axes):
        return [SlicedAxis(math.prod(axis.extent for axis in axes), 0, 1, 0)]
    several = [axis for axis in axes if axis.extent > 1]
    merged = several[:1] or list(axes[:1])
    for axis in several[1:]:
        before = merged[-1]
        if axis.whole and before.step == 1:
            merged[-1] = before.times(axis.extent)
        else:
            merged.append(axis)
    return merged


class _Rows(Op):
    """Base of operators that copy rows to and from numbered places."""

    types: ClassVar[Types] = {"T": FIXED_SIZE, "T_INDEX": (INT64, to_dtype("int32"))}
    bitwise_exact = True

    def check_indices(self, indices: Spec) -> None:
        """Refuse indices whose rank is not 1."""
        if len(indices.shape) != 1:
            refuse(self.name, "indices", "rank 1", f"shape {indices.shape}")

    def rows(
        self, x: Spec, indices: Spec, y: Spec, width: int
    ) -> tuple[Config, np.void, dict[str, str]]:
        """Return (config, divisor by the words of a row, macros) of a launch that writes y.

        x, y: arrays of rows of `width` elements, which are copied in words of 1 to 16 bytes.
        indices: row numbers, by whose dtype the kernel is compiled.
        """
        nbytes = width * y.dtype.itemsize
        words = words_of((y, x), (width,), nbytes)
        config = Config((words.tiles(y.nbytes),), (THREADS,))
        return config, divisor(words.count(nbytes)), words.slots | slots(INDEX=indices.dtype)


class FlattenAndUnpad(_Rows):
    """Selected rows: output[r] = input.reshape(M1 M2, ...)[indices[r]]; the padding falls off.

    The first two dimensions M1 and M2 of input become one; PadAndUnflatten undoes it. An index
    outside 0 .. M1 M2 - 1 gives a row of zeros: negative ones do not count from the end. An index
    may occur several times.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/tensor/flatten_and_unpad.cc.
    """

    inputs = (
        Input("input", "T", shape="shape (M1, M2, ...)"),
        Input("indices", "T_INDEX", shape="shape (d1,)"),
    )
    outputs = (
        Output("output", "T", shape="shape (d1, ...)"),
        Output("unflatten_dims", "int64", memory="host", shape="shape (2,)", doc="(M1, M2)"),
    )

    def infer(self, x: Spec, indices: Spec) -> tuple[Inferred, ...]:
        """Return the spec of output, and (M1, M2) as an array."""
        if len(x.shape) < 2:
            refuse(self.name, "input", "rank 2 or more", f"shape {x.shape}")
        self.check_indices(indices)
        return Spec((*indices.shape, *x.shape[2:]), x.dtype), np.array(x.shape[:2], INT64)

    def plan(self, device: Device, x: Spec, indices: Spec, y: Spec, dims: Spec) -> Plan:
        """Plan one launch that copies rows by indices; dims, (M1, M2), is written on the host."""
        config, words, binding = self.rows(x, indices, y, math.prod(y.shape[1:]))
        arguments = (x, indices, y, math.prod(x.shape[:2]), indices.size, words)
        return Plan((Launch("flatten_and_unpad", config, arguments, binding),))


class PadAndUnflatten(_Rows):
    """Rows back in their places: output.reshape(M1 M2, ...)[indices[r]] = input[r], 0 elsewhere.

    It undoes FlattenAndUnpad. A row whose index is outside 0 .. M1 M2 - 1 is skipped: negative ones
    do not count from the end. Of several rows with one index the last counts.

    Memory: a workspace of 8 M1 M2 bytes.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/tensor/pad_and_unflatten.cc.
    """

    inputs = (
        Input("input", "T", shape="shape (d1, ...)"),
        Input("indices", "T_INDEX", shape="shape (d1,)"),
        Input("unflatten_dims", "int64", memory="host", convert=shape, doc="(M1, M2)"),
    )
    outputs = (Output("output", "T", shape="shape (M1, M2, ...)"),)

    def infer(self, x: Spec, indices: Spec, dims: tuple[int, ...]) -> tuple[Spec, ...]:
        """Return the spec of output, by dims = (M1, M2); refuse rows that are not one an index."""
        self.check_indices(indices)
        if len(dims) != 2:
            refuse(self.name, "unflatten_dims", "two extents (M1, M2)", f"{dims}")
        if x.shape[:1] != indices.shape:
            expected = f"{indices.size} rows, one an index"
            refuse(self.name, "input", expected, f"shape {x.shape}")
        return (Spec((*dims, *x.shape[1:]), x.dtype),)

    def plan(self, device: Device, x: Spec, indices: Spec, dims: tuple[int, ...], y: Spec) -> Plan:
        """Plan a launch that finds the last row with each index, and one that copies rows.

        dims: (M1, M2), the first extents of y.
        """
        n_rows, scratch = math.prod(dims), ScratchMemory()
        last_rows = scratch.take(n_rows, INT64)
        config, words, binding = self.rows(x, indices, y, math.prod(x.shape[1:]))
        arguments = (x, indices, last_rows, y, indices.size, n_rows, words)
        launches = [Launch("pad_and_unflatten", config, arguments, binding)]
        if indices.size:  # last_rows[indices[r]] = the largest such r
            config = Config((ceil_div(indices.size, THREADS),), (THREADS,))
            kernel, sizes = "pad_and_unflatten__last_rows", (indices.size, n_rows)
            launches.insert(0, Launch(kernel, config, (indices, last_rows, *sizes), binding))
        return scratch.plan(*launches)


OPS = {
    "FlattenAndUnpad": FlattenAndUnpad,
    "PadAndUnflatten": PadAndUnflatten,
    "SliceGrad": SliceGrad,
}
