# SPDX-License-Identifier: MIT
"""Lines of arrays for NumPy functions: some at a time, which stay in the cache, and their sums.

Large arrays are computed in float32, if kernels compute their type so; small ones, which cost
little and are what tests compare with, in float64. Sums are pairwise, so that their error grows
with the logarithm of the number of terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..dtypes import FLOAT64, Dtype, HostArray
from .widening import cast, computed_in

PIECE = 2**17  # elements: three float32 arrays of so many take 1.5 MiB
_SMALL = 2**16  # elements
_CHAIN = 8  # terms added one after the other


def pieces(axis: int, *arrays: HostArray) -> Iterator[tuple[HostArray, ...]]:
    """Yield views of some lines along the axis, the same of each array, with lines along axis 1.

    The arrays are C-contiguous and of one shape. Views are (lines, elements), or
    (outer, elements, inner) if the axis is not the last one.
    """
    shape = arrays[0].shape
    axis %= len(shape)
    outer, length, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    form = (outer, length) if inner == 1 else (outer, length, inner)
    views = [array.reshape(form) for array in arrays]
    step = max(1, PIECE // max(1, length * inner))
    for first in range(0, outer, step):
        yield tuple(view[first : first + step] for view in views)


def working_type(x: HostArray) -> Dtype:
    """Return the type that an array's elements are computed in here."""
    return computed_in(x.dtype) if x.size > _SMALL else FLOAT64


def place_for(y: HostArray, kind: Dtype) -> HostArray:
    """Return an array like y in which to compute in `kind`: y itself if it is of that dtype."""
    return y if y.dtype == kind else np.empty(y.shape, kind)


def put(y: HostArray, values: HostArray) -> None:
    """Write values into y, rounded once, unless they are there already."""
    if values is not y:
        y[...] = values if values.dtype == y.dtype else cast(values, y.dtype)


def line_sums(x: HostArray) -> HostArray:
    """Return sums along axis 1, which stays with extent 1.

    Pairwise: halves are added to each other until at most _CHAIN terms are left. Along the last
    axis NumPy does so itself.
    """
    if x.ndim == 2 or x.dtype == FLOAT64:
        return np.asarray(x.sum(1, keepdims=True))
    while x.shape[1] > _CHAIN:
        half = x.shape[1] // 2
        rest = x[:, 2 * half :]
        x = x[:, :half] + x[:, half : 2 * half]
        x[:, :1] += rest if rest.shape[1] else 0
    return np.asarray(x.sum(1, keepdims=True))


def column_sums(x: HostArray) -> HostArray:
    """Return sums over axis 0 in float64; of float32 pairwise, by adding halves to each other."""
    while len(x) > _CHAIN and x.dtype != FLOAT64:
        half = len(x) // 2
        rest = x[2 * half :]
        x = x[:half] + x[half : 2 * half]
        x[:1] += rest if len(rest) else 0
    return np.asarray(x.sum(0, dtype=FLOAT64))


def log_of_lines(x: HostArray, y: HostArray, kind: Dtype) -> HostArray:
    """Return the logarithm of the softmax along axis 1, in `kind`, in y's memory if y is of it."""
    logs = below_zero(x, y, kind)
    logs -= np.log(line_sums(np.exp(logs)))
    return logs


def below_zero(x: HostArray, y: HostArray, kind: Dtype) -> HostArray:
    """Return x minus its maximum along axis 1, in `kind`; y's memory is used if it is of `kind`."""
    numbers = x.astype(kind, copy=False)
    largest = numbers.max(1, keepdims=True, initial=-np.inf)
    return np.asarray(np.subtract(numbers, largest, out=place_for(y, numbers.dtype)))
