# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of pooling share: cuda_src/pooling/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, i32, i64
from ...facts import Divisor

AXES = 3  # that kernels have
THREADS = 256
RUN = 4  # neighbours along the last axis that a thread of a gradient makes
# Neighbours along the axis before the last that a thread of Y makes, by the bytes of an element.
ROWS = {2: 4, 4: 4, 8: 4}
LONG = 2048  # elements of a plane from which on a block sums it, not a warp

# Constants of a compilation for tiles of windows: the last two axes, rows and columns; one for
# other kernels has none. A thread makes TILE_ROWS x TILE_COLUMNS windows, or the part of dX in
# their place.
TILED = Slot(0)
KERNEL_ROWS, KERNEL_COLUMNS = Slot(1), Slot(1)
STRIDE_ROWS, STRIDE_COLUMNS = Slot(1), Slot(1)
PAD_ROWS, PAD_COLUMNS = Slot(0), Slot(0)
TILE_ROWS, TILE_COLUMNS = Slot(1), Slot(1)
# 1: the thread's columns of X or dX, and of Y, dY and Indices, are vectors.
X_VECTORS, Y_VECTORS = Slot(0), Slot(0)
# 1: tiles reach nothing beside the array.
INSIDE_ROWS, INSIDE_COLUMNS = Slot(0), Slot(0)
FULL = Slot(0)  # 1: all elements of each window count
SMALL = 9  # elements of windows of which a block needs not all registers of a multiprocessor

_PLACES = i32[AXES]

# Extents of X and of Y; `padded` is where the pads behind X end. `written` are the extents of what
# is written. Along an axis an element's number in Indices grows by `number`.
Geometry = Struct(
    "Geometry",
    **dict.fromkeys(("image", "output", "kernel", "stride", "dilation", "pad", "padded"), _PLACES),
    number=i64[AXES],
    written=Divisor[AXES],
)

# The same for tiles, of rows and columns; `tiles` are how many there are.
Planes = Struct("Planes", image=i32[2], output=i32[2], padded=i32[2], tiles=Divisor[2])
