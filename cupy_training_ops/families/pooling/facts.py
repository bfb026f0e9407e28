# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of pooling share: cuda_src/pooling/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Struct, i32, i64
from ...facts import Divisor

AXES = 3  # that kernels have
THREADS = 256
RUN = 4  # neighbours along the last axis that a thread of a gradient makes
# Neighbours along the axis before the last that a thread of Y makes, by the bytes of an element.
ROWS = {2: 4, 4: 4, 8: 4}
LONG = 2048  # elements of a plane from which on a block sums it, not a warp

_PLACES = i32[AXES]

# Extents of X and of Y; `padded` is where the pads behind X end. `written` are the extents of what
# is written. Along an axis an element's number in Indices grows by `number`.
Geometry = Struct(
    "Geometry",
    **dict.fromkeys(("image", "output", "kernel", "stride", "dilation", "pad", "padded"), _PLACES),
    number=i64[AXES],
    written=Divisor[AXES],
)
