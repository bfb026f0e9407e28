# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of several families share: cuda_src/core/facts.cuh."""

from __future__ import annotations

from .declare.facts import Count, Slot, Struct, TypeSlot, address, double, i32, i64, u32, u64
from .dtypes import ELEMENT_TYPES
from .rules import philox

WARP = 32
MAX_THREADS = 1024  # of a block

ELEMENTWISE_THREADS = 128
ELEMENTWISE_NBYTES = 32  # of elements that a thread has in flight for each array

COPY_THREADS = 128
COPY_CHUNKS = 2  # of 16 bytes that a thread writes, as measured on an H200
WORDS = Slot(1)  # of a vector, where nothing is computed

SHORT_NBYTES = 32  # that a thread holds of a short row, of all arrays
SHORT_THREADS = 128  # of a block with several lines
BUNDLE_THREADS = 512  # of a block at most, of neighbouring lines in vectors
HELD_NBYTES = 128  # that a thread holds of any other line, where registers are not scarce

TRANSPOSED_SIDE = 32  # of tiles
TRANSPOSING_THREADS = 256  # of a block

FP10_IN_WORD = 3  # codes
NOT_FINITE = 255  # exponent of a box of MSFP15 with an infinity or a NaN

# The types that kernels of several families are compiled for: cuda_src/core/slots.cuh.
T = TypeSlot("float")  # elements
ACC = TypeSlot("float")  # what they are computed in: Acc<T>
W = TypeSlot("float")  # elements of weights
GRAD = TypeSlot("float")  # of their gradients, which are not wider
MOMENT = TypeSlot("float")  # of moments

# What Either says of the elements of its array.
_ONNX = {row.name: row.onnx for row in ELEMENT_TYPES}
ONNX_BOOL = _ONNX["bool"]
ONNX_INT32, ONNX_UINT32, ONNX_UINT64 = _ONNX["int32"], _ONNX["uint32"], _ONNX["uint64"]
ONNX_FLOAT16, ONNX_BFLOAT16 = _ONNX["float16"], _ONNX["bfloat16"]
ONNX_FLOAT32, ONNX_FLOAT64 = _ONNX["float32"], _ONNX["float64"]

# Philox 4x32-10, words at random by a counter and a key.
N_WORDS, ROUNDS = philox.N_WORDS, philox.ROUNDS
MULTIPLIER_0, MULTIPLIER_2 = philox.MULTIPLIER_0, philox.MULTIPLIER_2
KEY_STEP_0, KEY_STEP_1 = philox.KEY_STEP_0, philox.KEY_STEP_1

SUMS_NBYTES = 16  # a block's, of a norm: one of double, three of float

_N = Count("N")

# The addresses of several arrays.
Pointers = Struct("Pointers", _N, at=address[_N])

# A few numbers: in an array, or else here. `type` is the ONNX number of the array's element type.
Either = Struct("Either", _N, array=address, whole=i64[_N], real=double[_N], type=i32)

# What division by `value` takes for dividends from 0 to 2^63 - 1: value <= 2^shift, and the
# multiplier is 2^(63 + shift) / value, rounded up.
Divisor = Struct("Divisor", value=i64, multiplier=u64, shift=i64)

# A list of tensors as one row of chunks: tensor t is the chunks first_chunk[t] up to
# first_chunk[t + 1]. Entries after the last tensor are the number of all chunks.
TensorSizes = Struct("TensorSizes", _N, size=i64[_N], first_chunk=u32[_N + 1])

# Where the tensors of a list begin in an array that joins them.
TensorStarts = Struct("TensorStarts", _N, at=i64[_N])

# Several lists of the same tensors in one table of addresses: list k begins at at[k] * n_tensors;
# where at[k] is negative there is no such list.
Columns = Struct("Columns", _N, at=i32[_N], n_tensors=i32)

# Where a launch's partial sums go; only the last launch knows how many there are in all.
Partials = Struct("Partials", first=u32, n_in_all=u32)
