# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gist_sparse share: cuda_src/gist_sparse/facts.cuh."""

TILE_NBYTES = 16_384  # bytes of a tile of elements, whose nonzero values are stored side by side
THREADS = 256  # threads of a block
NARROW_THREADS = 128  # threads of a block that encodes elements of 2 bytes
HEAD_NBYTES = 16  # bytes of a code's head, two u64: the code's bytes, and 1 if it is raw elements
GROUP_NBYTES = 16  # bytes of a group of values, which is read and written as one vector
FP10_GROUP = 12  # values of a group in FP10
MSFP15_GROUP = 16  # values of a group in MSFP15
