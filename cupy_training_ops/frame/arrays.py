# SPDX-License-Identifier: MIT
"""Which arrays are taken, and what runs on them: NumPy on the CPU provider, CuPy on kernels."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import dtype_name
from ..errors import ArgumentError, DtypeError, ProviderError
from ..schema import Spec

_DLPACK_CPU = 1
_DLPACK_CUDA = (2, 13)  # device and managed memory


class ArrayInfo(NamedTuple):
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

    def info(self, array: Any) -> tuple[Any, ...]:
        """The fields of ArrayInfo; alignment does not matter to NumPy."""
        return (self, array.dtype, array.shape, True, array.flags.c_contiguous, -1)

    def pointer(self, array: Any) -> int:
        """The address of the first element."""
        return array.ctypes.data  # type: ignore[no-any-return]

    def views(self, array: Any, pieces: Sequence[tuple[int, tuple[int, ...]]]) -> tuple[Any, ...]:
        """Views of a contiguous array under new shapes, each so many bytes from its start."""
        flat, size = array.reshape(-1), array.itemsize
        return tuple([flat[n // size :][: math.prod(s)].reshape(s) for n, s in pieces])

    def empty(self, spec: Spec, device: int) -> Any:
        """An uninitialised array."""
        return np.empty(spec.shape, spec.dtype)

    def capturing(self, device: int) -> bool:
        """The host has no graphs."""
        return False


CPU = NumpyBackend()
_INTEGERS = frozenset((int,))
_TUPLES = frozenset((tuple,))
_PLAIN = frozenset((tuple, float, bool, str))
BACKENDS: dict[type, Any] = {np.ndarray: CPU}


def describe(array: Any) -> tuple[Any, ...]:
    """The fields of ArrayInfo; KeyError for an array that `adopt` has to take first."""
    return BACKENDS[type(array)].info(array)  # type: ignore[no-any-return]


class Marked(NamedTuple):
    """A host value as part of a key, with what tells it from its equals, as 0.0 from -0.0."""

    value: Any
    mark: Any


def host_key(value: Any) -> Any:
    """A host input as part of a key: integers as they are; KeyError for what has to be frozen."""
    kind = type(value)
    if kind is int or (kind is tuple and _INTEGERS.issuperset(map(type, value))):
        return value
    if kind in _PLAIN:
        return Marked(value, repr(value))
    if kind is np.ndarray and value.ndim == 1:
        return Marked(tuple(value.tolist()), (value.dtype, value.tobytes()))
    raise KeyError(kind)


def host_keys(values: Any) -> tuple[Any, ...]:
    """The same of a list; that of integer tuples, such as View's shapes, in one go."""
    tuples = isinstance(values, list | tuple) and _TUPLES.issuperset(map(type, values))
    if tuples and _INTEGERS.issuperset(map(type, itertools.chain.from_iterable(values))):
        return tuple(values)
    return read_list(host_key, values)


def read_list(read: Callable[[Any], Any], values: Any) -> tuple[Any, ...]:
    """What `read` says of each entry; TypeError where there is no list."""
    if not isinstance(values, list | tuple):
        raise TypeError  # an array would take itself apart
    return tuple([None if v is None else read(v) for v in values])


def unmarked(key: Any) -> Any:
    """The host value of which `host_key` made a key."""
    return key.value if type(key) is Marked else key


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

        from ..runtime.cuda import BACKEND
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
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{op}: {argument}: expected an array without a mask, got a masked one")
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
