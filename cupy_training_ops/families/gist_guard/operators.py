# SPDX-License-Identifier: MIT
"""An encoder of activations that says, in the same pass, how far its codes are off."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ...call.op import Op
from ...declare.schema import Input, Output, Spec, attribute, boolean, shape
from ...declare.type_rows import Types
from ...dtypes import FLOAT32, FLOATS, UINT8
from ...errors import ArgumentError, refuse
from ...plan import Config, Device, Launch, Plan, ScratchMemory, ceil_div, slots
from ...rules.widening import computed_in
from ..gist.operators import KEEP_NONFINITE, MSFP15_CODES, msfp15_shape
from .facts import NBYTES, RESIDENT, THREADS, TOTALS
from .sample import Grouping, Sample, sample_of

NOTHING = Sample(0, 1, 1, 1, 0, 1, 1)  # has no groups


def grouping(value: object) -> Grouping | None:
    """Three lengths (outer, groups, inner), or None or () for none.

    Return `value` as such, or refuse it; documents show the first line.
    """
    lengths = () if value is None else shape(value)
    if not lengths:
        return None
    if len(lengths) != 3:
        raise ArgumentError(f"expected three lengths, got {len(lengths)}")
    outer, groups, inner = lengths
    return outer, groups, inner


class GistGuardedMsfp15Encoder(Op):
    """MSFP15 with a guard: Y = that of GistPackMsfp15Encoder with keep_sign, guard = its error.

    Q is what Y decodes to. guard has four numbers, of the elements that are measured; the first
    three are in units of 4^(E - 127), E the largest of all tiles, so that no square overflows or
    vanishes:

        guard[0]   error: the sum of (X - Q)^2
        guard[1]   tile deviation: the sum of (X - mean of its tile)^2, tiles of 8
        guard[2]   group deviation: the sum of (X - mean of its group's measured elements)^2
        guard[3]   worst group: the largest error over deviation of a group

    Groups are those that a consumer centres. grouping is (A, C, B), A C B = n: group c is all
    elements [a, c, b] of X as an array of that shape. Layer, RMS, group and instance norm over
    runs of B elements: (1, n / B, B); features of a linear layer: (n / C, C, 1); channels of a
    convolution or batch norm: (N, C, H W). Without grouping guard[2] and guard[3] are 0.

    A group without error counts 0; one with error that does not deviate, or with 2^32 times its
    deviation and more, counts infinity. If a tile is not finite (GistPackMsfp15Encoder says which),
    guard is (infinity, 0, 0, infinity), whatever keep_nonfinite is. So
    `guard[0] <= limit guard[1]` is decided rightly for every X.

    Measured are, of a group, about 65,536 / C elements, but at least 64 and at most 512, or all of
    fewer: pieces of up to 16 neighbours, one of every so many, drawn by a hash of its number.
    Without grouping runs count as groups, of 512 elements or more, so that they are at most 1,024.
    So all of 65,536 elements are measured, and of 64 Mi one in 1,024; every tile is looked at for
    what is not finite. With whole all are measured, by a warp a group: long groups take long.

    Means are of differences from a number of the tile or group, so that large ones lose no digits;
    sums are added in an order that follows from shapes, alignment and the GPU.

    Memory: a workspace of 40 bytes a block.

    Source: Darvish Rouhani et al., "Pushing the Limits of Narrow Precision Inferencing at Cloud
    Scale with Microsoft Floating Point", NeurIPS 2020; Chan, Golub and LeVeque, "Algorithms for
    Computing the Sample Variance", 1983.
    """

    detaches = True

    domain = "cupy_training_ops"
    inputs = (Input("X", "T", shape="any shape"),)
    outputs = (
        MSFP15_CODES,
        Output("guard", "float32", shape="shape (4,)"),
    )
    keep_nonfinite = KEEP_NONFINITE
    grouping = attribute(grouping, None, doc="(A, C, B) as above")
    whole = attribute(boolean, False, doc="measure every element")
    types: ClassVar[Types] = {"T": FLOATS}
    runs_empty = True

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        """Return the specs of Y and guard; refuse a grouping of other than X's size."""
        if self.grouping is not None and math.prod(self.grouping) != x.size:
            expected = f"lengths whose product is the {x.size} elements of X"
            refuse(self.name, "grouping", expected, f"{self.grouping}")
        return Spec(msfp15_shape(x), UINT8), Spec((4,), FLOAT32)

    def plan(self, device: Device, x: Spec, y: Spec | None, guard: Spec | None) -> Plan:
        """Plan one launch that encodes x and measures the error of a sample of its elements."""
        scratch, measures = ScratchMemory(), guard is not None and x.size
        sample = sample_of(x.size, self.grouping, self.whole) if measures else NOTHING
        most = device.multiprocessors * (RESIDENT[computed_in(x.dtype).itemsize] // THREADS)
        blocks = min(max(ceil_div(x.nbytes, THREADS * NBYTES), 1), most)
        aligned = x.aligned and (y is None or y.aligned)
        first = (x, y, x.size, aligned, self.keep_nonfinite)
        totals = scratch.take(TOTALS * blocks, np.float64)
        end = (self.grouping is not None, totals, scratch.zeros(1, np.uint32), guard)
        args, config = (*first, *sample, *end), Config((blocks,), (THREADS,))
        return scratch.plan(Launch("gist_guarded_msfp15_encoder", config, args, slots(T=x.dtype)))


OPS = {"GistGuardedMsfp15Encoder": GistGuardedMsfp15Encoder}
