# SPDX-License-Identifier: MIT
"""Which arrays are taken: NumPy's, CuPy's, and what lends its memory as one of theirs."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np

from ..dtypes import HostArray, dtype_name
from ..errors import ArgumentError, ProviderError, cut
from .backends import BACKENDS, cuda_backend

_DLPACK_CPU = 1
_DLPACK_CUDA = (2, 13)  # device and managed memory


def adopt(op: str, argument: str, value: Any) -> Any:
    """A NumPy or CuPy array over the same memory; a foreign array is never copied."""
    if value is None or type(value) in BACKENDS:
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{op}: {argument}: expected an array without a mask, got a masked one")
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        cuda_backend()
        return value
    if isinstance(value, np.ndarray | np.generic):  # a subclass, or a scalar of NumPy's
        return np.asarray(value)
    try:
        array = None if isinstance(value, type) else _exchanged(value)
    except ProviderError as error:
        raise ProviderError(f"{op}: {argument}: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # of the array's own library, which may raise anything
        raise ArgumentError(
            f"{op}: {argument}: cannot share its memory: {_cause(error)}"
        ) from error
    if array is None:
        raise ArgumentError(f"{op}: {argument}: expected a NumPy or CuPy array, got {_kind(value)}")
    return array


def _exchanged(value: Any) -> Any:
    """The array behind DLPack or the CUDA array interface, or None where there is neither."""
    if hasattr(value, "__dlpack__"):
        kind, _ = value.__dlpack_device__()
        if kind == _DLPACK_CPU:
            return _host_exchanged(value)
        if kind in _DLPACK_CUDA:
            return _device_exchanged("from_dlpack", value)
    if hasattr(value, "__cuda_array_interface__"):
        return _device_exchanged("asarray", value)
    return None


def _device_exchanged(function: str, value: Any) -> Any:
    """By CuPy's function of this name."""
    cuda_backend()
    try:
        return getattr(sys.modules["cupy"], function)(value)
    except RuntimeError as error:  # CUDA's own: no GPU, no driver
        raise ProviderError(f"cannot use a device array here: {error}") from error


def _host_exchanged(value: Any) -> HostArray:
    """NumPy's DLPack knows no bfloat16; JAX and others then lend a buffer through asarray."""
    try:
        return np.from_dlpack(value)
    except (RuntimeError, BufferError):
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            array = np.asarray(value, copy=False)
            if dtype_name(array.dtype) == "bfloat16":
                return array
        raise


def _cause(error: Exception) -> str:
    """What an error of another library says; the name of its type where that may be all."""
    plain = isinstance(error, BufferError) and str(error)
    return cut(plain or f"{type(error).__name__}: {error}")


def _kind(value: object) -> str:
    """What a value is that is no array."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
