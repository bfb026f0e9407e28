# SPDX-License-Identifier: MIT
"""Which arrays are taken, and what runs on them: NumPy on the CPU provider, CuPy on kernels."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .contract import Spec
from .dtypes import dtype_name
from .errors import ArgumentError, DtypeError, ProviderError

_DLPACK_CPU = 1
_DLPACK_CUDA = (2, 13)  # device and managed memory


class Described(NamedTuple):
    """What a call's plan depends on, for one array."""

    backend: Any
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    aligned: bool
    contiguous: bool
    device: int

    @property
    def spec(self) -> Spec:
        """The part that planning sees."""
        return Spec(self.shape, self.dtype, self.aligned)

    @property
    def place(self) -> str:
        """The device, for messages."""
        return "the host" if self.device < 0 else f"{self.backend.name} device {self.device}"


class NumpyBackend:
    """NumPy arrays, computed by the functions in `cpu/`."""

    name = "cpu"

    def describe(self, array: Any) -> tuple[Any, ...]:
        """The fields of Described; alignment does not matter to NumPy."""
        return (self, array.dtype, array.shape, True, array.flags.c_contiguous, -1)

    def pointer(self, array: Any) -> int:
        """The address of the first element."""
        return array.ctypes.data  # type: ignore[no-any-return]

    def view(self, array: Any, start: int, shape: tuple[int, ...]) -> Any:
        """The elements of a contiguous array from `start` on, under a new shape."""
        return array.reshape(-1)[start : start + math.prod(shape)].reshape(shape)

    def empty(self, spec: Spec, device: int) -> Any:
        """An uninitialised array."""
        return np.empty(spec.shape, spec.dtype)

    def capturing(self, device: int) -> bool:
        """The host has no graphs."""
        return False


CPU = NumpyBackend()
BACKENDS: dict[type, Any] = {np.ndarray: CPU}


def describe(array: Any) -> tuple[Any, ...]:
    """The fields of Described; KeyError for an array that `adopt` has to take first."""
    return BACKENDS[type(array)].describe(array)  # type: ignore[no-any-return]


def host_key(value: Any) -> Any:
    """A host input as part of a key; KeyError for what has to be frozen first."""
    if type(value) in (tuple, int, float, bool, str):
        return value
    if type(value) is np.ndarray and value.ndim == 1:
        return tuple(value.tolist())
    raise KeyError(type(value))


@contextlib.contextmanager
def numpy_runs_on(backend: Any) -> Iterator[None]:
    """Run NumPy arrays on another backend inside the context: emulated kernels, in tests."""
    before = BACKENDS[np.ndarray]
    BACKENDS[np.ndarray] = backend
    try:
        yield
    finally:
        BACKENDS[np.ndarray] = before


def cuda_backend() -> Any:
    """The CUDA backend; imports CuPy, and registers its arrays."""
    try:
        import cupy

        from .runtime.cuda import BACKEND
    except ImportError as error:
        raise ProviderError(
            f"CuPy cannot be imported ({error}); install it with: "
            f"pip install 'cupy-training-ops[cuda12x]'"
        ) from None
    BACKENDS[cupy.ndarray] = BACKEND
    return BACKEND


def adopt(op: str, argument: str, value: Any) -> Any:
    """A NumPy or CuPy array over the same memory; a foreign array is never copied."""
    if value is None or type(value) in BACKENDS:
        return value
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        cuda_backend()
        return value
    if isinstance(value, np.ndarray | np.generic):  # a subclass, or a scalar of NumPy's
        return np.asarray(value)
    try:
        array = _exchanged(value)
    except (BufferError, DtypeError) as error:
        raise ArgumentError(f"{op}: {argument}: cannot share its memory: {error}") from None
    except ProviderError:
        raise
    except RuntimeError as error:  # CUDA's own: no GPU, no driver
        raise ProviderError(f"{op}: {argument}: cannot use a device array here: {error}") from None
    if array is None:
        raise ArgumentError(
            f"{op}: {argument}: expected a NumPy or CuPy array, got {type(value).__name__}"
        )
    return array


def _exchanged(value: Any) -> Any:
    """The array behind DLPack or the CUDA array interface, or None where there is neither."""
    if hasattr(value, "__dlpack__"):
        kind, _ = value.__dlpack_device__()
        if kind == _DLPACK_CPU:
            return _host_exchanged(value)
        if kind in _DLPACK_CUDA:
            cuda_backend()
            return sys.modules["cupy"].from_dlpack(value)
    if hasattr(value, "__cuda_array_interface__"):
        cuda_backend()
        return sys.modules["cupy"].asarray(value)
    return None


def _host_exchanged(value: Any) -> Any:
    """NumPy's DLPack knows no bfloat16; JAX and others then lend a buffer through asarray."""
    try:
        return np.from_dlpack(value)
    except (RuntimeError, BufferError) as error:
        with contextlib.suppress(TypeError, ValueError):
            array = np.asarray(value, copy=False)
            if dtype_name(array.dtype) == "bfloat16":
                return array
        raise BufferError(str(error)) from None
