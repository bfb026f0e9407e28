# SPDX-License-Identifier: MIT
"""Memory of any kind of array: made, written and read as an optimizer's states are."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

from ..backend import Array, Info
from ..call.arguments import adopt
from ..call.backends import info, tensor_backend, to_host
from ..call.interop import is_tensor
from ..declare.schema import Shape, Spec
from ..dtypes import Dtype, HostArray


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


def known(op: str, argument: str, value: Any) -> tuple[Any, Info]:
    """An array and what is known of it: PyTorch's on a GPU as it is, others as adopted."""
    if is_tensor(value) and value.is_cuda:
        with contextlib.suppress(KeyError):  # which has a form of its own, or is of a subclass
            tensor_backend()
            metadata = info(value)
            if metadata[4] is None:  # strides
                return value, metadata
    array = adopt(op, argument, value)
    return array, info(array)


def over(op: str, argument: str, value: Any) -> Any:
    """An array over the memory of another library's, as adopted.

    Of PyTorch's tensors on a GPU by their addresses alone: no stream waits for another.
    """
    if value is None:
        return None
    array, found = known(op, argument, value)
    if not found[0].has_tensors:
        return array
    from ..device.tensors import array_over

    return array_over(array, found)


def overwrite(array: Any, source: HostArray) -> None:
    backend, dtype, *_ = info(array)
    backend.overwrite(array, source.astype(dtype, copy=False))


def twin(array: Any) -> Any:
    """Another array with the same elements; nothing waits."""
    backend, dtype, shape, *_, device = info(array)
    made = zeros(array, shape, dtype)
    if not backend.runs_kernels:
        np.copyto(made, array)
    else:
        with backend.on(device):
            backend.work("copy")(array, made)
    return made


def copied(array: Array) -> HostArray:
    """A copy in NumPy's memory."""
    on_host = to_host(array)
    return on_host.copy() if on_host is array else on_host


def hosted(array: Any) -> HostArray:
    return to_host(adopt("state_dict", "array", array))
