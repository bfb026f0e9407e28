# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of pooling share: cuda_src/pooling/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, i32, i64
from ...facts import Divisor

AXES = 3  # spatial axes that kernels have; missing ones have an extent of 1, in front
THREADS = 256  # threads of a block
RUN = 4  # neighbouring elements of dX along the last axis that a thread computes
# Neighbouring elements of Y along the axis before the last that a thread computes, by the bytes of
# an element.
ROWS = {2: 4, 4: 4, 8: 4}
LONG = 2048  # elements from which on a plane is averaged by a block, not by a warp

# 1: a compilation for 2-D windows with the kernel, stride and pads below, rows being the axis
# before the last and columns the last; a thread computes a tile of windows. 0: for any windows.
TILED = Slot(0)
KERNEL_ROWS = Slot(1)  # elements of a window along the rows' axis
KERNEL_COLUMNS = Slot(1)  # elements of a window along the columns' axis
STRIDE_ROWS = Slot(1)  # elements from a window to the next along the rows' axis
STRIDE_COLUMNS = Slot(1)  # elements from a window to the next along the columns' axis
PAD_ROWS = Slot(0)  # elements of padding before the first row
PAD_COLUMNS = Slot(0)  # elements of padding before the first column
TILE_ROWS = Slot(1)  # rows of windows of a thread's tile
TILE_COLUMNS = Slot(1)  # columns of windows of a thread's tile
X_VECTORS = Slot(0)  # 1: a thread's columns of X or dX are loaded or stored as vectors
Y_VECTORS = Slot(0)  # 1: those of Y, dY and Indices are, too
INSIDE_ROWS = Slot(0)  # 1: along the rows' axis, what a tile reads and writes is in the array
INSIDE_COLUMNS = Slot(0)  # 1: the same along the columns' axis
FULL = Slot(0)  # 1: every average is over all elements of its window, with or without pads
SMALL = 9  # most elements of a window with which two blocks run on a multiprocessor, not one

_PLACES = i32[AXES]  # type of a field with a number for each axis

# Of each axis: extents of X (image) and of Y (output); elements of a window (kernel), from a
# window to the next (stride) and between a window's elements (dilation); elements of padding
# before X (pad); the position at which the padding after X ends (padded). number: what Indices
# grow by from one element of X to the next. written: divisors by how many threads the array that
# is written takes, one for each RUN elements along the last axis of dX, or ROWS along the axis
# before in Y.
Geometry = Struct(
    "Geometry",
    **dict.fromkeys(("image", "output", "kernel", "stride", "dilation", "pad", "padded"), _PLACES),
    number=i64[AXES],
    written=Divisor[AXES],
)

# The same of rows and columns, for TILED kernels. tiles: divisors by the number of tiles.
Planes = Struct("Planes", image=i32[2], output=i32[2], padded=i32[2], tiles=Divisor[2])
