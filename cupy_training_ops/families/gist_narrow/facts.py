# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gist_narrow share: cuda_src/gist_narrow/facts.cuh."""

# Threads of a block: a multiple of 3, as three threads together decode words of FP10, and of the
# threads that encode a tile.
THREADS = 384
NBYTES = 64  # bytes of decoded elements that a thread loads or stores together
FP10_NBYTES = 96  # bytes of elements that a thread of the encoder of FP10 loads together
IN_BYTE = 2  # indices in a byte, 4 bits each
BLOCK = 128  # elements of scaled FP8 that share a scale
TILE = 1024  # elements of a tile, which is encoded as its scales, then its codes of a byte each
SCALES_NBYTES = 2 * TILE // BLOCK  # bytes of a tile's scales in scaled FP8, 2 each
INT8_BLOCK = 32  # elements of scaled INT8 that share a scale
INT8_SCALES_NBYTES = 2 * TILE // INT8_BLOCK  # bytes of a tile's scales in scaled INT8, 2 each
INT8_LEAST_SCALE = 1e-30  # smallest scale of scaled INT8: its inverse is finite in float32
