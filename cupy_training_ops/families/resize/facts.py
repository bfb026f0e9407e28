# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of resize share: cuda_src/resize/facts.cuh."""

from __future__ import annotations

from ...declare.facts import CType, Slot, Struct, i32
from ...facts import WARP

THREADS = 128  # threads of a block
WARPS = THREADS // WARP  # warps of a block, each of which computes a tile of dX
EACH = 4  # columns of dY that a lane sums at a time, over rows
COLUMNS = EACH * WARP  # columns of dY that a warp sums at a time
MINE = 2  # columns of dX that a lane computes
ALIGNED = Slot(0)  # 1: every row of dY starts at a multiple of EACH elements

_A = CType("A")  # the template parameter of Axis

# One spatial axis, with n_in pixels of X and n_out of Y. Pixel o of Y lies in X at ratio * o if
# align_corners is 1, else at ratio * (o + 1/2) - 1/2, rounded as in the CPU provider. inverse: 1 /
# ratio, rounded. A: the floating-point type of both.
Axis = Struct("Axis", _A, n_in=i32, n_out=i32, align_corners=i32, ratio=_A, inverse=_A)
