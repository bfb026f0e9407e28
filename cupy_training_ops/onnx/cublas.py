# SPDX-License-Identifier: MIT
"""Matrix products by cuBLAS over CuPy's arrays: transposed ones without a copy, also in a capture.

CuPy's own binding refuses a stream capture, and copies transposed batches.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import math
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import cupy

from ..device import graphs, recording
from ..dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ..errors import ProviderError
from .vectors import dense

WORKSPACE = 32 << 20  # bytes; what NVIDIA recommends for 9.0
_NO, _TRANSPOSED, _DEFAULT = 0, 1, -1  # cublasOperation_t, cublasGemmAlgo_t
_TF32 = 77  # CUBLAS_COMPUTE_32F_FAST_TF32
_SONAMES = ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11")


class _Kind(NamedTuple):
    """cuBLAS's numbers for an element type."""

    data: int  # cudaDataType_t
    compute: int  # cublasComputeType_t, of sums
    factor: type[ctypes.c_float] | type[ctypes.c_double] = ctypes.c_float  # of alpha and beta


KINDS: Mapping[Any, _Kind] = {
    FLOAT32: _Kind(0, 68),
    FLOAT64: _Kind(1, 70, ctypes.c_double),
    FLOAT16: _Kind(2, 68),
    BFLOAT16: _Kind(14, 68),
}


class Factor(NamedTuple):
    """A factor of a product as cuBLAS takes it; strides are in elements."""

    array: Any  # keeps the memory alive
    is_transposed: bool  # its columns are contiguous, not its rows
    leading: int  # stride of rows, or of columns if transposed
    batch_stride: int  # of matrices; 0: one matrix for the whole batch


def product(
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    tf32: bool = False,
) -> Any:
    """Return alpha a @ b + beta out, with NumPy's broadcasting of dimensions before the last two.

    a (..., m, k), b (..., k, n): arrays of one type of KINDS. out: C-contiguous, of the result's
    shape, and written; a new array if None. tf32: factors of float32 are rounded to TF32.
    """
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    if batch is None or b.shape[-2] != k:
        raise ValueError(f"expected shapes that can be multiplied, got {a.shape} and {b.shape}")
    if out is None:
        out = cupy.empty((*batch, m, n), a.dtype)
    if not out.size:
        return out
    if not k:
        recording.leave()
        if beta:
            out *= a.dtype.type(beta)
        else:  # what is there may be NaN
            out.fill(0)
        return out
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous:  # one large product
        a, m, batch = a.reshape(-1, k), m * math.prod(batch), ()
    count = math.prod(batch)
    _call(_factor(a, batch), _factor(b, batch), out, (m, n, k, count), (alpha, beta), tf32)
    return out


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape that two shapes broadcast to; None if they do not."""
    if a == b or not b:
        return a
    if not a:
        return b
    extents = []
    rank = max(len(a), len(b))
    padded = ((1,) * (rank - len(shape)) + shape for shape in (a, b))
    for x, y in zip(*padded, strict=True):
        if x != y and 1 not in (x, y):
            return None
        extents.append(y if x == 1 else x)
    return tuple(extents)


def _factor(array: Any, batch: tuple[int, ...]) -> Factor:
    """Return a Factor of the array where cuBLAS can read its strides, else of a copy.

    batch: the shape of the product without its last two dimensions.
    """
    stride = _batch_stride(array, batch)
    layout = None if stride is None else _layout(array)
    if layout is None:
        if array.shape[:-2] != batch:
            array = cupy.broadcast_to(array, (*batch, *array.shape[-2:]))
        array = dense(cupy, array)
        stride, layout = array.shape[-2] * array.shape[-1], (False, array.shape[-1])
    assert stride is not None
    return Factor(array, *layout, stride)


def _layout(array: Any) -> tuple[bool, int] | None:
    """Return (is_transposed, leading) of a Factor; None where neither rows nor columns fit.

    False: elements of a row are contiguous, rows are `leading` elements apart. True: the same of
    columns. A single row or column may have any stride.
    """
    (rows, columns), (down, right), size = array.shape[-2:], array.strides[-2:], array.itemsize
    if (columns == 1 or right == size) and (rows == 1 or down >= columns * size):
        return False, max(down // size if rows > 1 else 0, columns)
    if (rows == 1 or down == size) and (columns == 1 or right >= rows * size):
        return True, max(right // size if columns > 1 else 0, rows)
    return None


def _batch_stride(array: Any, batch: tuple[int, ...]) -> int | None:
    """Return how many elements a batch's matrices are apart; None where that is not one number.

    0 of one matrix for all. batch: the shape of the product without its last two dimensions.
    """
    own = array.shape[:-2]
    if not batch or all(extent == 1 for extent in own):
        return 0
    if own != batch:
        return None
    steps = [(n, s) for n, s in zip(own, array.strides, strict=False) if n > 1]
    for (_, outer), (n, inner) in itertools.pairwise(steps):
        if outer != n * inner:
            return None
    return int(steps[-1][1]) // int(array.itemsize)


def _call(
    a: Factor,
    b: Factor,
    out: Any,
    extents: tuple[int, int, int, int],
    factors: tuple[float, float],
    tf32: bool,
) -> None:
    """Compute out = alpha a b + beta out by cublasGemmStridedBatchedEx.

    extents: m, n, k and the number of matrices. factors: alpha, beta. tf32: round float32 to TF32.
    cuBLAS is column-major, in
    which a row-major matrix is its transpose: it computes out^T = b^T a^T, n x m.
    """
    m, n, k, count = extents
    kind = KINDS[out.dtype]
    compute = _TF32 if tf32 and out.dtype == FLOAT32 else kind.compute
    alpha, beta = _number(kind.factor, factors[0]), _number(kind.factor, factors[1])
    handle, scratch = _opened()
    call = partial(
        _gemm(), handle, int(b.is_transposed), int(a.is_transposed), n, m, k, alpha,
        b.array.data.ptr, kind.data, b.leading, b.batch_stride,
        a.array.data.ptr, kind.data, a.leading, a.batch_stride, beta,
        out.data.ptr, kind.data, n, m * n, count, compute, _DEFAULT,
    )  # fmt: skip
    noted = recording.current()
    if noted is not None:
        noted.calls.append(call)
        noted.memory.append(scratch)
    status = call()
    if status:
        raise ProviderError(f"cuBLAS: a product of {m} x {k} and {k} x {n}: status {status}")


@functools.lru_cache(maxsize=64)
def _number(kind: Any, value: float) -> Any:
    """Return a pointer to `value` as the C type `kind`, cached: calls that are repeated need it."""
    return ctypes.byref(kind(value))


@functools.cache
def _library() -> ctypes.CDLL:
    """Return cuBLAS as a ctypes library: the one that CuPy has loaded."""
    importlib.import_module("cupy_backends.cuda.libs.cublas")
    for name in _SONAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise ProviderError(f"cuBLAS: none of {', '.join(_SONAMES)} can be loaded")


@functools.cache
def _gemm() -> Any:
    """Return cublasGemmStridedBatchedEx with the types of its arguments."""
    function = _library().cublasGemmStridedBatchedEx
    i, p, n = ctypes.c_int, ctypes.c_void_p, ctypes.c_longlong
    factor = (p, i, i, n)
    function.argtypes = (p, i, i, i, i, i, p, *factor, *factor, p, *factor, i, i, i)
    return function


class _Handles(threading.local):
    """A thread's cuBLAS handles: by_stream[device, stream's address] = (handle, scratch memory)."""

    def __init__(self) -> None:
        self.by_stream: dict[tuple[int, int], tuple[ctypes.c_void_p, Any]] = {}


_HANDLES = _Handles()
# Scratch memory by address: graphs outlive the threads that made them.
_of_graphs: dict[int, Any] = {}


def _opened() -> tuple[ctypes.c_void_p, Any]:
    """Return the cuBLAS handle of the current device and stream, and its scratch memory."""
    device = cupy.cuda.runtime.getDevice()
    stream = cupy.cuda.get_current_stream(device).ptr
    opened = _HANDLES.by_stream.get((device, stream))
    if opened is None:
        opened = _HANDLES.by_stream[device, stream] = _open_handle(stream)
    if graphs.owns_memory():  # a capture: its graph will read the scratch memory
        _of_graphs[opened[1].ptr] = opened[1]
    return opened


def _open_handle(stream: int) -> tuple[ctypes.c_void_p, Any]:
    """Return a new cuBLAS handle (never closed) for a stream's address, and its scratch memory."""
    library, handle = _library(), ctypes.c_void_p()
    memory = cupy.cuda.Memory(WORKSPACE)
    _check("cublasCreate", library.cublasCreate_v2(ctypes.byref(handle)))
    _check("cublasSetStream", library.cublasSetStream_v2(handle, ctypes.c_void_p(stream)))
    size = ctypes.c_size_t(WORKSPACE)
    status = library.cublasSetWorkspace_v2(handle, ctypes.c_void_p(memory.ptr), size)
    _check("cublasSetWorkspace", status)
    return handle, memory


def _check(call: str, status: int) -> None:
    if status:
        raise ProviderError(f"cuBLAS: {call}: status {status}")


def fits(arrays: Sequence[Any]) -> bool:
    """Return True if `product` takes these arrays."""
    return all(x.ndim > 1 and x.dtype == arrays[0].dtype and x.dtype in KINDS for x in arrays)
