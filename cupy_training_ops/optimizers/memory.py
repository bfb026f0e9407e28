# SPDX-License-Identifier: MIT
"""Memory of any kind of array: made, written and read as an optimizer's states are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backend import Array
from ..declare.schema import Shape, Spec
from ..dtypes import Dtype, HostArray
from ..frame.arrays import adopt
from ..frame.backends import info, to_host


def plain(value: Any) -> Any:
    """A number of NumPy's as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def zeros(like: Any, shape: Shape, dtype: Dtype) -> Any:
    """Zeros where an array is."""
    backend, *_, device = info(like)
    if backend.has_tensors:
        tensor: Any = backend.empty(Spec(tuple(shape), dtype), device)
        return tensor.zero_()
    nbytes = math.prod(shape) * dtype.itemsize
    array: Any = backend.zeros(nbytes, device)
    return array.view(dtype).reshape(shape)


def overwrite(array: Any, source: HostArray) -> None:
    backend, dtype, *_ = info(array)
    backend.overwrite(array, source.astype(dtype, copy=False))


def copied(array: Array) -> HostArray:
    """A copy in NumPy's memory."""
    found = to_host(array)
    return found.copy() if found is array else found


def hosted(array: Any) -> HostArray:
    return to_host(adopt("state_dict", "array", array))
