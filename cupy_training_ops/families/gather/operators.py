# SPDX-License-Identifier: MIT
"""Gradients of the gather operators: slices of dY are added to the rows of dX that they came from.

Sums are accumulated in float32 (float64 for float64) and rounded once. They are added in an order
that follows from the indices alone; with deterministic=False atomic additions may take any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ...call.checks import from_front
from ...call.op import Op
from ...declare import schema
from ...declare.schema import Input, Output, Spec, attribute, boolean, integer
from ...declare.type_rows import Types
from ...dtypes import FLOATS, INT64, HostArray
from ...errors import refuse
from ...plan import Config, Device, Plan, by_value, ceil_div
from .facts import ATOMIC_ITEMS, MAX_DIMS, STRIP_COLUMNS, THREADS, Lines, Tuples
from .plan import (
    Columns,
    Scatter,
    Sizes,
    add_columns,
    are_few,
    columns_are_faster,
    one_each,
)

INDEX_TYPES = (INT64, np.dtype(np.int32))
SHAPE = Input("shape", "int64", memory="host", convert=schema.shape, doc="the shape of X")
AXIS = attribute(integer, 0, doc="from -rank to rank - 1 of X")
DETERMINISTIC = attribute(boolean, True, doc="False allows atomic additions where they are faster")
CHECK = attribute(
    boolean,
    False,
    doc="True refuses indices out of range before any launch, for which the call reads the "
    "indices, waits for the device and cannot be captured in a graph",
)


class _GatherGradient(Op):
    """Base of gradients that add slices of dY to the rows of dX that the indices name.

    A batch has K slices and G rows, W elements each. A Scatter has the arrays and sizes of a call,
    and collects its launches.
    """

    outputs = (Output("dX", "T", shape="shape given by `shape`"),)
    types: ClassVar[Types] = {"T": FLOATS, "Tind": INDEX_TYPES}
    deterministic = DETERMINISTIC
    check = CHECK

    def in_range(self, name: str, indices: HostArray, extent: int) -> None:
        """Refuse indices outside -extent .. extent - 1."""
        outside = (indices < -extent) | (indices >= extent)
        if bool(outside.any()):
            first = int(indices[outside].ravel()[0])
            refuse(self.name, name, f"indices from {-extent} to {extent - 1}", str(first))

    def choose_plan(self, scatter: Scatter) -> Plan:
        """Plan zeros if there are no slices, one launch for few; else a sort, or atomics.

        scatter: the call's arrays and sizes, which collects the launches.
        """
        if scatter.sizes.K == 0:
            scatter.zero(scatter.dx, scatter.dx.dtype)
            return scatter.plan()
        if are_few(scatter.sizes):
            return scatter.add_few()
        if not self.deterministic and scatter.prefers_atomics():
            return scatter.add_slices_atomically()
        return scatter.add_slices()


class GatherGrad(_GatherGradient):
    """Gradient of Gather: dX[b, g, w] = sum of dY[b, k, w] over all k with indices[k] = g.

    b counts the elements of the dimensions before `axis`, w of those after it, and k those of
    `indices`. A row that no index names is 0. Negative indices count from the end. An index out of
    range for shape[axis] adds nothing; with check=True it is refused.

    Memory: the workspace holds about 16 bytes an index, 4 bytes a row of dX and 2/31 of dY in
    float32. With atomic additions it holds nothing, or for float16 and bfloat16 dX in float32.

    Source: ONNX Gather-13, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/tensor/gather_grad.cc.
    """

    inputs = (
        SHAPE,
        Input("indices", "Tind", shape="any shape"),
        Input("dY", "T", shape="shape X.shape[:axis] + indices.shape + X.shape[axis + 1:]"),
    )
    axis = AXIS
    deterministic = DETERMINISTIC
    check = CHECK

    def infer(self, shape: tuple[int, ...], indices: Spec, dy: Spec) -> tuple[Spec, ...]:
        """Return the spec of dX, of `shape`; refuse another dY than Gather gives."""
        axis = from_front(self.name, self.axis, len(shape))
        expected = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
        if dy.shape != expected:
            refuse(self.name, "dY", f"shape {expected}", f"shape {dy.shape}")
        return (Spec(shape, dy.dtype),)

    def plan(
        self, device: Device, shape: tuple[int, ...], indices: Spec, dy: Spec, dx: Spec
    ) -> Plan:
        """Plan with dimensions before the axis as batches, and those after it as one width."""
        axis = self.axis % len(shape)
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        sizes = Sizes(before, indices.size, shape[axis], after)
        return self.choose_plan(Scatter(self, device, sizes, indices, dy, dx, (indices,)))

    def check_values(self, *inputs: Any) -> None:
        shape, indices, _ = inputs
        self.in_range("indices", indices, shape[self.axis])


class GatherNDGrad(_GatherGradient):
    """Gradient of GatherND: output[i_1, ..., i_k, w] = sum of the slices with that index.

    With b = batch_dims, an index (i_1, ..., i_k) is the k numbers along the last axis of `indices`.
    It names the slice at that position of its own batch, and w counts the prod(shape[b + k:])
    elements there. A slice that no index names is 0. Negative numbers count from the end. An index
    with a number out of range adds nothing; with check=True it is refused.

    Memory: a workspace like that of GatherGrad.

    Source: ONNX GatherND-13, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/tensor/gather_nd_grad.cc.
    """

    inputs = (
        SHAPE,
        Input("indices", "Tind", shape="shape (*shape[:batch_dims], ..., k)"),
        Input("update", "T", shape="shape indices.shape[:-1] + shape[batch_dims + k:]"),
    )
    outputs = (Output("output", "T", shape="shape given by `shape`"),)
    batch_dims = attribute(integer, 0, doc="how many leading dimensions are batches")
    deterministic = DETERMINISTIC
    check = CHECK

    def infer(self, shape: tuple[int, ...], indices: Spec, update: Spec) -> tuple[Spec, ...]:
        """Check batch_dims and the shapes of indices and update (dY); return the spec of output."""
        b, rank = self.batch_dims, len(indices.shape)
        if not 0 <= b < max(len(shape), 1):
            refuse(self.name, "batch_dims", f"from 0 to below the rank of shape {shape}", str(b))
        if rank <= b:
            refuse(self.name, "indices", f"a rank above batch_dims = {b}", f"rank {rank}")
        k = indices.shape[-1]
        if not 1 <= k <= min(len(shape) - b, MAX_DIMS):
            expected = f"1 to {len(shape) - b} numbers an index, at most {MAX_DIMS}"
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
        """Plan with all batches as one, whose rows are named by batch and k indices.

        update: the gradient of GatherND's output, dY.
        """
        b, k = self.batch_dims, indices.shape[-1]
        slices, rows = math.prod(indices.shape[:-1]), math.prod(shape[: b + k])
        sizes = Sizes(1, slices, rows, math.prod(shape[b + k :]))
        extents = table(shape[b : b + k])
        per_batch = math.prod(indices.shape[b:-1])
        tuples = by_value(Tuples, count=k, per_batch=per_batch, extents=extents)
        target = (indices, tuples)
        return self.choose_plan(Scatter(self, device, sizes, indices, update, output, target))

    def check_values(self, *inputs: Any) -> None:
        """Refuse numbers of index tuples that are out of range for their dimension.

        inputs: the shape of X, the array of indices, and the update.
        """
        shape, indices, _ = inputs
        for j in range(indices.shape[-1]):
            extent = shape[self.batch_dims + j]
            self.in_range(f"indices[..., {j}]", indices[..., j], extent)


class GatherElementsGrad(_GatherGradient):
    """Gradient of GatherElements: dX[q] = sum of dY[p] over all positions p with q(p) = q.

    q(p) is the position p with indices[p] in the place of its coordinate along `axis`. An element
    that no position leads to is 0. Negative indices count from the end. An index out of range for
    shape[axis] adds nothing; with check=True it is refused.

    Memory: a workspace like that of GatherGrad. Where X has at most 65,536 rows of the columns that
    follow `axis`, and dY 2^20 elements or more, of 4 bytes at most, each column is sorted by
    itself: three times dY, or less.

    Source: ONNX GatherElements-13, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/tensor/gather_elements_grad.cc.
    """

    inputs = (
        Input("dY", "T", shape="rank of X"),
        SHAPE,
        Input("indices", "Tind", shape="shape of dY", doc="off `axis` at most as long as X"),
    )
    axis = AXIS
    deterministic = DETERMINISTIC
    check = CHECK

    def infer(self, dy: Spec, shape: tuple[int, ...], indices: Spec) -> tuple[Spec, ...]:
        """Check axis and indices, at most as long as X off the axis; return the spec of dX."""
        axis = from_front(self.name, self.axis, len(shape))
        if len(shape) > MAX_DIMS:
            refuse(self.name, "shape", f"at most {MAX_DIMS} dimensions", str(len(shape)))
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
        """Choose by sizes: few elements, atomic additions, a sort by columns, or a sort of all."""
        axis = self.axis % len(shape)
        dims = coalesce(indices.shape, shape, axis)
        sizes = Sizes(1, indices.size, dx.size, 1)
        target = (indices, lines(shape, axis, dims))
        scatter = Scatter(self, device, sizes, indices, dy, dx, target)
        if indices.size == 0 or are_few(sizes):
            return self.choose_plan(scatter)
        if not self.deterministic:
            return self.add_elements(scatter, *dims[-1])
        columns = columns_of(scatter, shape, axis, dims)
        if columns is None or not columns_are_faster(scatter, columns):
            return self.choose_plan(scatter)
        scatter.target = (indices, lines(shape, axis, dims, columns.W))
        return add_columns(scatter, columns)

    def add_elements(self, scatter: Scatter, columns: int, stride: int) -> Plan:
        """Plan atomic additions of dY's elements, in the order of dY.

        scatter: the call, to which launches are added. columns: extent of the indices' last
        coalesced dimension, whose elements lie `stride` apart in dX (0 on the axis). Unless they
        are few or on the axis, a block takes STRIP_COLUMNS of them in several rows.
        """
        n, tile, items = scatter.sizes.K, STRIP_COLUMNS, ATOMIC_ITEMS
        if stride == 0 or columns < tile:
            return scatter.atomic(scatter.kernels.atomic, one_each(n, THREADS * items), n)
        rows, rows_a_block = n // columns, THREADS // tile
        blocks = ceil_div(rows, rows_a_block * items)
        config = Config((blocks * ceil_div(columns, tile),), (tile, rows_a_block))
        return scatter.atomic("gather_elements_grad__atomic_strips", config, rows, blocks)

    def check_values(self, *inputs: Any) -> None:
        _, shape, indices = inputs
        self.in_range("indices", indices, shape[self.axis])


def coalesce(indices: tuple[int, ...], shape: tuple[int, ...], axis: int) -> list[tuple[int, int]]:
    """Return the indices' dimensions as (extent, stride in X in elements, 0 on the axis).

    Neighbours that can be walked as one are merged, extents of 1 left out: indices (2, 3, 4) of X
    (5, 3, 4) on axis 0 give [(2, 0), (12, 1)].
    """
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


def columns_of(
    scatter: Scatter, shape: tuple[int, ...], axis: int, dims: list[tuple[int, int]]
) -> Columns | None:
    """Return how to see dY and dX as rows and columns, where elements stay in their column.

    scatter: the call's sizes. shape: of X. axis: that indices are along. dims: coalesced indices.
    dX has rows of the fewest elements that an index or an outer dimension steps over. None if
    neighbours in the indices' last dimension are none in dX.
    """
    (n, stride), outer = dims[-1], dims[:-1]
    if stride != 1:
        return None
    of_row = [math.prod(shape[axis + 1 :]), *(stride for _, stride in outer if stride)]
    width = min(of_row)
    return Columns(scatter.sizes.K // n, n, scatter.sizes.G // width, width)


def lines(shape: tuple[int, ...], axis: int, dims: list[tuple[int, int]], unit: int = 1) -> np.void:
    """Return the struct Lines of a dX of `shape` that indices along `axis` are to be found in.

    dims: the indices' dimensions by `coalesce`. unit: elements of dX that strides count in.
    """
    *outer, (n, column_stride) = dims
    return by_value(
        Lines,
        extent=shape[axis],
        stride=math.prod(shape[axis + 1 :]) // unit,
        columns=n,
        column_stride=column_stride // unit,
        n_outer=len(outer),
        extents=table([extent for extent, _ in outer]),
        strides=table([stride // unit for _, stride in outer]),
    )


def table(values: Sequence[int]) -> HostArray:
    """Return `values` padded with zeros to MAX_DIMS int64, as the kernels' structs take them."""
    padded = np.zeros(MAX_DIMS, np.int64)
    padded[: len(values)] = values
    return padded


OPS = {
    "GatherElementsGrad": GatherElementsGrad,
    "GatherGrad": GatherGrad,
    "GatherNDGrad": GatherNDGrad,
}
