# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of attention share: cuda_src/attention/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, double, flag, i32, i64

BAND = 16  # rows that a warp multiplies at once
# Of rows, and of elements in one of all heads: so that they and their sums have 32 bits. Numbers of
# keys beyond it, or below its opposite, are read as it.
MAX_EXTENT = 2**30

HEAD = Slot(64)  # elements of a head in shared memory: a multiple of 32
ALIGNED = Slot(1)  # 1: every row starts at a multiple of 16 bytes, and ends at one
FRAGMENTS = Slot(0)  # 1: tensor cores multiply
PLAIN = Slot(0)  # 1: neither mask nor softcap nor a mask's gradient; a scale above 0
WARPS = Slot(4)  # of a block
STAGES = Slot(1)  # pairs of tiles in shared memory that a block goes over
FORWARD_BANDS = Slot(1)  # of a warp
FORWARD_LENGTH = Slot(32)  # rows of a tile that a block goes over
GRADIENT_BANDS = Slot(1)
GRADIENT_LENGTH = Slot(16)

NO_MASK, BOOLEANS, ADDENDS = 0, 1, 2  # kinds of masks

# Extents of Q (batch, heads, queries, width), K (batch, kv_heads, keys, width) and V (batch,
# kv_heads, keys, v_width); is_flat: heads lie in the last dimension. Steps of the mask are between
# its batches, heads, queries and keys, 0 where it has one for all; it hides keys from mask_keys on.
Problem = Struct(
    "Problem",
    heads=i32,
    kv_heads=i32,
    queries=i32,
    keys=i32,
    width=i32,
    v_width=i32,
    is_flat=flag,
    is_causal=flag,
    mask=i32,
    mask_keys=i32,
    mask_batch=i64,
    mask_head=i64,
    mask_query=i64,
    mask_key=i64,
    scale=double,
    softcap=double,
)
