# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of attention share: cuda_src/attention/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, double, flag, i32, i64

BAND = 16  # rows (queries or keys) of a band, which a warp multiplies at once
# Most rows, and most elements of a row of all heads, so that these numbers and sums of two fit
# into 32 bits. Numbers of keys in nonpad_kv_seqlen are clipped to [-MAX_EXTENT, MAX_EXTENT].
MAX_EXTENT = 2**30

HEAD = Slot(64)  # elements of a head's row in shared memory, filled up with zeros: 32, 64, ...
ALIGNED = Slot(1)  # 1: every row of every array begins and ends at a multiple of 16 bytes
FRAGMENTS = Slot(0)  # 1: tensor cores multiply, by fragments of matrices
PLAIN = Slot(0)  # 1: there is no mask, no mask's gradient and no softcap, and scale > 0
WARPS = Slot(4)  # warps of a block
STAGES = Slot(1)  # buffers in shared memory for the tiles that a block loops over: 1 or 2
FORWARD_BANDS = Slot(1)  # bands of queries of a warp, in the forward kernel
FORWARD_LENGTH = Slot(32)  # keys of a tile that a block of the forward kernel loops over
GRADIENT_BANDS = Slot(1)  # bands of a warp, in the gradient kernels
GRADIENT_LENGTH = Slot(16)  # rows of a tile that a block of a gradient kernel loops over

NO_MASK = 0  # values of the field `mask` of Problem: there is no mask
BOOLEANS = 1  # a boolean mask: True where a query sees a key
ADDENDS = 2  # a mask of numbers that are added to scores

# Extents of Q (batch, heads, queries, width), K (batch, kv_heads, keys, width) and V (batch,
# kv_heads, keys, v_width); is_flat: arrays are (batch, row, head, width) instead. is_causal: a
# query sees no later keys. scores = scale Q K^T, with softcap (0: none) softcap tanh(scores /
# softcap). mask: NO_MASK, BOOLEANS or ADDENDS. mask_batch, mask_head, mask_query, mask_key:
# elements from a batch, head, query or key of the mask to the next, 0 where the mask has one for
# all. No query sees the keys from mask_keys on.
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
