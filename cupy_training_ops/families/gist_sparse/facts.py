# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gist_sparse share: cuda_src/gist_sparse/facts.cuh."""

TILE_NBYTES = 16_384  # of elements whose values are packed together
THREADS = 256
NARROW_THREADS = 128  # of a block that encodes elements of two bytes
HEAD_NBYTES = 16
GROUP_NBYTES = 16  # of values: what is read and written at a time
FP10_GROUP = 12  # values in so many bytes
MSFP15_GROUP = 16
