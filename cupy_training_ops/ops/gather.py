# SPDX-License-Identifier: MIT
"""Gradients of the gather operators: sums of slices that met in one place.

All three say for every slice of dY which row of dX it is added to, and share the rest: B batches of
K slices and of G rows, W elements each.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from .. import schema
from ..dtypes import FLOATS, INT64
from ..errors import refuse
from ..frame.checks import from_front
from ..frame.op import Op
from ..plan import Config, Device, Plan, by_value, ceil_div
from ..planning.segmented_sum import THREADS, Scatter, Sizes, are_few, one_each
from ..schema import Attribute, Input, Output, Spec, Types, boolean, integer

INDEX_TYPES = (INT64, np.dtype(np.int32))
SHAPE = Input("shape", "int64", memory="host", convert=schema.shape)
INDICES = Input("indices", "Tind")
AXIS = Attribute("axis", integer, 0)
DETERMINISTIC = Attribute("deterministic", boolean, True)
CHECK = Attribute("check", boolean, False)


class _GatherGradient(Op):
    """What the three share: attributes, the check of indices, the choice of a plan."""

    outputs = (Output("dX", "T"),)
    types: ClassVar[Types] = {"T": FLOATS, "Tind": INDEX_TYPES}
    deterministic: bool
    check: bool

    @classmethod
    def max_dims(cls) -> int:
        """How many dimensions the kernels' structs have room for."""
        return cls.source().constant("MAX_DIMS")

    def in_range(self, name: str, indices: Any, extent: int) -> None:
        """Refuse indices outside -extent .. extent - 1."""
        outside = (indices < -extent) | (indices >= extent)
        if bool(outside.any()):
            first = int(indices[outside].ravel()[0])
            refuse(self.name, name, f"indices from {-extent} to {extent - 1}", str(first))

    def planned(self, scatter: Scatter) -> Plan:
        """Zeros where there are no slices, one launch for few; else sorted or with atomics."""
        if scatter.sizes.K == 0:
            scatter.zero(scatter.dx, scatter.dx.dtype)
            return scatter.plan()
        if are_few(scatter.sizes):
            return scatter.add_few()
        if not self.deterministic and scatter.prefers_atomics():
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
    row and 1/31 of dY in float32; with atomics none, for float16 and bfloat16 dX in float32.
    Raises ArgumentError and DtypeError. Source: contract 2.1.
    """

    inputs = (SHAPE, INDICES, Input("dY", "T"))
    attributes = (AXIS, DETERMINISTIC, CHECK)
    axis: int

    def infer(self, shape: tuple[int, ...], indices: Spec, dy: Spec) -> tuple[Spec, ...]:
        axis = from_front(self.name, self.axis, len(shape))
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
        return self.planned(Scatter(self, device, sizes, indices, dy, dx, (indices,)))

    def check_values(self, *inputs: Any) -> None:
        shape, indices, _ = inputs
        self.in_range("indices", indices, shape[self.axis])


class GatherNDGrad(_GatherGradient):
    """Gradient of GatherND: output[i1 .. ik, w] = sum of the slices of `update` with that index.

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
        if not 0 <= b < max(len(shape), 1):
            refuse(self.name, "batch_dims", f"from 0 to below the rank of shape {shape}", str(b))
        if rank <= b:
            refuse(self.name, "indices", f"a rank above batch_dims = {b}", f"rank {rank}")
        k, most = indices.shape[-1], self.max_dims()
        if not 1 <= k <= min(len(shape) - b, most):
            expected = f"1 to {len(shape) - b} numbers an index, at most {most}"
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
        extents = padded(shape[b : b + k], self.max_dims())
        tuples = by_value(count=k, per_batch=math.prod(indices.shape[b:-1]), extents=extents)
        target = (indices, tuples)
        return self.planned(Scatter(self, device, sizes, indices, update, output, target))

    def check_values(self, *inputs: Any) -> None:
        shape, indices, _ = inputs
        for j in range(indices.shape[-1]):
            extent = shape[self.batch_dims + j]
            self.in_range(f"indices[..., {j}]", indices[..., j], extent)


class GatherElementsGrad(_GatherGradient):
    """Gradient of GatherElements: dX[q] = sum of dY[p], where q is p with indices[p] on the axis.

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
        axis = from_front(self.name, self.axis, len(shape))
        most = self.max_dims()
        if len(shape) > most:
            refuse(self.name, "shape", f"at most {most} dimensions", str(len(shape)))
        if indices.shape != dy.shape:
            refuse(self.name, "indices", f"dY's shape {dy.shape}", f"shape {indices.shape}")
        pairs = enumerate(zip(indices.shape, shape, strict=False))
        fits = all(i <= x or d == axis for d, (i, x) in pairs)
        if len(indices.shape) != len(shape) or not fits:
            expected = f"a shape within {shape} off axis {axis}"
            refuse(self.name, "indices", expected, f"shape {indices.shape}")
        return (Spec(shape, dy.dtype),)

    def plan(
        self, device: Device, dy: Spec, shape: tuple[int, ...], indices: Spec, dx: Spec
    ) -> Plan:
        axis = self.axis % len(shape)
        dims = coalesced(indices.shape, shape, axis)
        sizes = Sizes(1, indices.size, dx.size, 1)
        target = (indices, lines(shape, axis, dims, self.max_dims()))
        scatter = Scatter(self, device, sizes, indices, dy, dx, target)
        if self.deterministic or indices.size == 0 or are_few(sizes):
            return self.planned(scatter)
        return self.add_elements(scatter, *dims[-1])

    def add_elements(self, scatter: Scatter, columns: int, stride: int) -> Plan:
        """Atomic additions in the order of dY; strip by strip where columns go to columns."""
        n, tile = scatter.sizes.K, scatter.constant("STRIP_COLUMNS")
        items = scatter.constant("ATOMIC_ITEMS")
        if stride == 0 or columns < tile:
            return scatter.atomic("__atomic", one_each(n, THREADS * items), n)
        rows, rows_a_block = n // columns, THREADS // tile
        blocks = ceil_div(rows, rows_a_block * items)
        config = Config((blocks * ceil_div(columns, tile),), (tile, rows_a_block))
        return scatter.atomic("__atomic_strips", config, rows, blocks)

    def check_values(self, *inputs: Any) -> None:
        _, shape, indices = inputs
        self.in_range("indices", indices, shape[self.axis])


def coalesced(indices: tuple[int, ...], shape: tuple[int, ...], axis: int) -> list[tuple[int, int]]:
    """The indices' dimensions as (extent, stride in X; 0 on the axis), merged where they can be."""
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


def lines(shape: tuple[int, ...], axis: int, dims: list[tuple[int, int]], most: int) -> Any:
    """The kernels' struct Lines of coalesced dimensions."""
    *outer, (columns, column_stride) = dims
    return by_value(
        extent=shape[axis],
        stride=math.prod(shape[axis + 1 :]),
        columns=columns,
        column_stride=column_stride,
        n_outer=len(outer),
        extents=padded([extent for extent, _ in outer], most),
        strides=padded([stride for _, stride in outer], most),
    )


def padded(values: Any, length: int) -> Any:
    """Integers in a table of this length."""
    table = np.zeros(length, np.int64)
    table[: len(values)] = values
    return table


OPS = {
    "GatherElementsGrad": GatherElementsGrad,
    "GatherGrad": GatherGrad,
    "GatherNDGrad": GatherNDGrad,
}
