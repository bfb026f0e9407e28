# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gist_guard share: cuda_src/gist_guard/facts.cuh."""

from __future__ import annotations

from ...facts import WARP

ROW_LANES = 4  # rows of columns that a warp is at together
TILE_LANES = WARP // ROW_LANES  # and tiles of each
