# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of several families share: cuda_src/core/facts.cuh."""

from __future__ import annotations

from .declare.facts import Count, Slot, Struct, TypeSlot, address, double, i32, i64, u32, u64
from .dtypes import ELEMENT_TYPES
from .rules import philox

WARP = 32  # threads of a warp
MAX_THREADS = 1024  # most threads of a block

ELEMENTWISE_THREADS = 128  # threads of a block in elementwise kernels
ELEMENTWISE_NBYTES = 32  # bytes of each array that a thread of an elementwise kernel loads together

COPY_THREADS = 128  # threads of a block in kernels that only copy elements
COPY_CHUNKS = 2  # vectors that a thread of such a kernel copies: 2 was the fastest on an H200
WORDS = Slot(1)  # words (of type T) of a vector that such a kernel copies: 16 bytes, or one word

SHORT_NBYTES = 32  # bytes of a short row, of all arrays, in a thread's registers at a time
SHORT_THREADS = 128  # threads of a block that has several rows or columns
BUNDLE_THREADS = 512  # most threads of a block, if each has a vector of neighbouring columns
HELD_NBYTES = 128  # bytes of a long row or column, of all arrays, in a thread's registers at a time

TRANSPOSED_SIDE = 32  # rows and columns, 32 each, of a tile that a block transposes
TRANSPOSING_THREADS = 256  # threads of a block that transposes such a tile

FP10_IN_WORD = 3  # codes of FP10, of 10 bits, in a word of 32 bits
NOT_FINITE = 255  # exponent of a box (8 elements) of MSFP15 that has an infinity or a NaN

# The types that kernels of several families are compiled for: cuda_src/core/slots.cuh.
T = TypeSlot("float")  # type of the elements of most arrays
ACC = TypeSlot("float")  # type in which elements are computed and summed: Acc<T>
W = TypeSlot("float")  # type of the elements of weights
GRAD = TypeSlot("float")  # type of the elements of their gradients: W, or a narrower one
MOMENT = TypeSlot("float")  # type of the elements of an optimizer's moments

_ONNX = {row.name: row.onnx for row in ELEMENT_TYPES}
# ONNX numbers of element types (TensorProto.DataType), as in the field `type` of Either.
ONNX_BOOL = _ONNX["bool"]
ONNX_INT32, ONNX_UINT32, ONNX_UINT64 = _ONNX["int32"], _ONNX["uint32"], _ONNX["uint64"]
ONNX_FLOAT16, ONNX_BFLOAT16 = _ONNX["float16"], _ONNX["bfloat16"]
ONNX_FLOAT32, ONNX_FLOAT64 = _ONNX["float32"], _ONNX["float64"]

# ---- Philox 4x32-10: random numbers from a counter and a key ----
N_WORDS = philox.N_WORDS  # words of 32 bits of a counter, and random words that it gives
ROUNDS = philox.ROUNDS  # rounds that mix the words of a counter with the key
MULTIPLIER_0 = philox.MULTIPLIER_0  # a round multiplies word 0 of the counter by it
MULTIPLIER_2 = philox.MULTIPLIER_2  # a round multiplies word 2 of the counter by it
KEY_STEP_0 = philox.KEY_STEP_0  # added to word 0 of the key after a round
KEY_STEP_1 = philox.KEY_STEP_1  # added to word 1 of the key after a round

SUMS_NBYTES = 16  # bytes, at most, of a block's partial sums of an L2 norm: a double or 3 floats

_N = Count("N")  # the template parameter of structs below

# Addresses of N arrays in GPU memory.
Pointers = Struct("Pointers", _N, at=address[_N])

# N numbers: elements 0 to N - 1 of `array`, whose element type has the ONNX number `type`; or, if
# `array` is null, launch arguments, each as an integer (`whole`) and as a double (`real`).
Either = Struct("Either", _N, array=address, whole=i64[_N], real=double[_N], type=i32)

# The divisor `value`, and how to divide by it without a division: d / value = d * multiplier /
# 2^(63 + shift), both rounded down, for d from 0 to 2^63 - 1. value <= 2^shift; multiplier is
# 2^(63 + shift) / value, rounded up.
Divisor = Struct("Divisor", value=i64, multiplier=u64, shift=i64)

# A list of up to N tensors, cut into chunks that are numbered through all tensors: tensor t has
# size[t] elements, in the chunks from first_chunk[t] to first_chunk[t + 1] - 1. Entries of
# first_chunk after the last tensor are the number of all chunks.
TensorSizes = Struct("TensorSizes", _N, size=i64[_N], first_chunk=u32[_N + 1])

# A list of up to N tensors in one array, end to end: tensor t begins at element at[t].
TensorStarts = Struct("TensorStarts", _N, at=i64[_N])

# N lists (weights, gradients, ...) of n_tensors tensors each, in one table of addresses: tensor t
# of list k is at entry at[k] * n_tensors + t; if at[k] is negative, list k is absent.
Columns = Struct("Columns", _N, at=i32[_N], n_tensors=i32)

# Partial sums, one for each block, over several launches: block b of this launch writes number
# first + b. n_in_all: blocks of all launches, in the last launch, which adds them up; else 0.
Partials = Struct("Partials", first=u32, n_in_all=u32)
