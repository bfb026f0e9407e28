# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gist_narrow share: cuda_src/gist_narrow/facts.cuh."""

THREADS = 384  # a multiple of 3, for FP10, and of those that encode a tile of 1,024 elements
NBYTES = 64  # of decoded elements a thread has in flight
FP10_NBYTES = 96  # the same in the encoder of FP10
IN_BYTE = 2  # indices
BLOCK = 128  # elements that share a scale
TILE = 1024  # elements of eight blocks, whose scales stand together
SCALES_NBYTES = 2 * TILE // BLOCK
INT8_BLOCK = 32  # integers that share a scale
INT8_SCALES_NBYTES = 2 * TILE // INT8_BLOCK
INT8_LEAST_SCALE = 1e-30  # float32 has its inverse
