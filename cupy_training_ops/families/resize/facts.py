# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of resize share: cuda_src/resize/facts.cuh."""

from __future__ import annotations

from ...declare.facts import CType, Slot, Struct, i32
from ...facts import WARP

THREADS = 128
WARPS = THREADS // WARP  # of a block; each makes a tile of dX
EACH = 4  # columns of dY that a lane sums
COLUMNS = EACH * WARP  # and a warp
MINE = 2  # columns of dX that a lane has
ALIGNED = Slot(0)  # 1: every row of dY starts at a multiple of EACH elements

_A = CType("A")

# One spatial axis: n_in pixels of X make n_out of Y. Output o lies at ratio * o or, with pixels
# counted from their middles, at ratio * (o + 1/2) - 1/2, rounded as the CPU provider rounds it;
# `inverse` is the ratio's but for rounding.
Axis = Struct("Axis", _A, n_in=i32, n_out=i32, align_corners=i32, ratio=_A, inverse=_A)
