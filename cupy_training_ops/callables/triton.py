# SPDX-License-Identifier: MIT
"""CuPy's arrays as arguments of Triton kernels, which know no array but PyTorch's by its type."""

from __future__ import annotations

from typing import Any

from ..call.arrays import adopt
from ..call.backends import info
from ..call.foreign import has_same_stream
from ..dtypes import Dtype, dtype_name
from ..errors import ProviderError


class TritonArray:
    """An array as a Triton kernel takes it: an address, and the name of a type."""

    def __init__(self, array: Any, dtype: Dtype) -> None:
        self._array = array  # the address is good as long as it lives
        self.dtype = dtype_name(dtype)
        self.shape: tuple[int, ...] = array.shape
        self._strides: tuple[int, ...] = tuple(n // dtype.itemsize for n in array.strides)

    def data_ptr(self) -> int:
        """The address of the first element."""
        address: int = self._array.data.ptr
        return address

    def stride(self, axis: int) -> int:
        """Elements from one place along an axis to the next."""
        return self._strides[axis]


def triton_args(*arrays: Any) -> tuple[TritonArray, ...]:
    """CuPy's arrays for a Triton kernel, over the same memory.

    Triton launches on PyTorch's current stream. In a function that TritonOp runs that is CuPy's
    too, if Triton was imported before the call; elsewhere a stream that differs is an error.
    """
    wrapped = []
    for i, value in enumerate(arrays):
        array = adopt("triton_args", f"arrays[{i}]", value)
        _, dtype, _, _, _, device = info(array)
        if device < 0:
            raise ProviderError(
                f"triton_args: arrays[{i}]: expected an array on a GPU, got NumPy's"
            )
        if not has_same_stream(device):
            raise ProviderError(
                "triton_args: expected PyTorch's current stream to be CuPy's, got another one "
                "(import triton before the operator is called)"
            )
        wrapped.append(TritonArray(array, dtype))
    return tuple(wrapped)
