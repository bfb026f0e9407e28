# SPDX-License-Identifier: MIT
"""Gradients of the gather operators in NumPy. Formulas: the classes in `operators.py`.

Sums are accumulated in float64 and rounded once, so that their order does not show: the attribute
deterministic does not matter. shape: that of X.
"""

from __future__ import annotations

import math

import numpy as np

from ...dtypes import HostArray
from ...rules.widening import cast, quiet

Shape = tuple[int, ...]


@quiet
def gather_grad(
    shape: Shape,
    indices: HostArray,
    dy: HostArray,
    *,
    axis: int,
    deterministic: bool,  # noqa: ARG001
    check: bool,  # noqa: ARG001 - the operator checks
) -> HostArray:
    """Return dX of `shape`: dX[:, indices[k]] += dY[:, k] along the axis, in float64."""
    axis %= len(shape)
    rows, inside = _wrap(indices.ravel(), shape[axis])
    batches, width = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    slices = dy.reshape(batches, rows.size, width)
    sums = np.zeros((shape[axis], batches, width))
    np.add.at(sums, rows[inside], slices.swapaxes(0, 1)[inside].astype(np.float64))
    return cast(sums.swapaxes(0, 1).reshape(shape), dy.dtype)


@quiet
def gather_nd_grad(
    shape: Shape,
    indices: HostArray,
    update: HostArray,
    *,
    batch_dims: int,
    deterministic: bool,  # noqa: ARG001
    check: bool,  # noqa: ARG001 - the operator checks
) -> HostArray:
    """Return dX of `shape`: dX[b, *indices[b, i]] += update[b, i], in float64.

    b: batch_dims numbers; indices[b, i]: a tuple of numbers, along the last axis of indices.
    """
    k = indices.shape[-1]
    batch_shape, index_shape = shape[:batch_dims], shape[batch_dims : batch_dims + k]
    tuples, exists = _wrap(indices.reshape(-1, k), np.array(index_shape))
    inside = np.all(exists, axis=-1)
    per_batch = math.prod(indices.shape[batch_dims:-1])
    rows = np.arange(len(tuples)) // max(per_batch, 1)  # the batch, then the flat slice number
    for j, extent in enumerate(index_shape):
        rows = rows * extent + tuples[:, j]
    width = math.prod(shape[batch_dims + k :])
    sums = np.zeros((math.prod(batch_shape) * math.prod(index_shape), width))
    slices = update.reshape(len(tuples), width)
    np.add.at(sums, rows[inside], slices[inside].astype(np.float64))
    return cast(sums.reshape(shape), update.dtype)


@quiet
def gather_elements_grad(
    dy: HostArray,
    shape: Shape,
    indices: HostArray,
    *,
    axis: int,
    deterministic: bool,  # noqa: ARG001
    check: bool,  # noqa: ARG001 - the operator checks
) -> HostArray:
    """Return dX of `shape`: dX[..., indices[k], ...] += dY[k], with k's other coordinates."""
    axis %= len(shape)
    places, inside = _wrap(indices, shape[axis])
    coordinates: list[HostArray] = list(np.indices(indices.shape, sparse=True))
    coordinates[axis] = places
    target = sum(c * math.prod(shape[d + 1 :]) for d, c in enumerate(coordinates))
    sums = np.zeros(math.prod(shape))
    np.add.at(sums, np.asarray(target)[inside], dy[inside].astype(np.float64))
    return cast(sums.reshape(shape), dy.dtype)


def _wrap(indices: HostArray, extent: int | HostArray) -> tuple[HostArray, HostArray]:
    """Return indices as int64 counted from the front, and a mask of those in range."""
    wide = indices.astype(np.int64)
    front = np.where(wide < 0, wide + extent, wide)
    return front, (front >= 0) & (front < extent)
