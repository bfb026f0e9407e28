# SPDX-License-Identifier: MIT
"""Sums of what was said of tiles, by one block for each range of them."""

from __future__ import annotations

import numpy as np

from cupy_training_ops.declare.schema import Input, Output, Spec
from cupy_training_ops.plan import Config, Launch, ScratchMemory

from .probe import Probe

THREADS = 64  # of probe_sums


class ProbeSums(Probe):
    """The sum of `has` over the tiles from one to before another, for each pair."""

    inputs = (Input("has", "uint32"), Input("first", "uint32"), Input("end", "uint32"))
    outputs = (Output("sums", "uint64"),)

    def infer(self, has, first, end):
        return (Spec(first.shape, np.dtype(np.uint64)),)

    def plan(self, device, has, first, end, sums):
        scratch = ScratchMemory()
        words = scratch.zeros(has.size, np.uint32)
        args = (has, first, end, sums, words, has.size)
        return scratch.plan(
            Launch("probe_sums", Config((first.size,), (THREADS,)), args),
            Launch("probe_forget", Config((1,), (THREADS,)), (words, has.size)),
        )


def probe_sums(has, first, end):
    pairs = zip(first.tolist(), end.tolist(), strict=True)
    return np.array([has[a:b].sum(dtype=np.uint64) for a, b in pairs], np.uint64)
