# SPDX-License-Identifier: MIT
"""Products of single fragments, as algorithm/tensor_core.cuh makes them."""

from __future__ import annotations

import numpy as np

from cupy_training_ops.declare.schema import Input, Output, Spec, attribute, boolean
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32
from cupy_training_ops.plan import Config, Launch, Plan, slots

from .probe import Probe, one_launch

SIDE = 16


class ProbeFragments(Probe):
    """D = C + A B, of a 16 x K and a K x 16 matrix in shared memory."""

    types = {"T": (FLOAT16, BFLOAT16, FLOAT32)}  # noqa: RUF012
    inputs = (Input("A", "T"), Input("B", "T"), Input("C", "float32"))
    outputs = (Output("D", "float32"),)
    by_rows = attribute(boolean, False)
    by_columns = attribute(boolean, False)
    by_shuffles = attribute(boolean, False)  # as GPUs before 8.0 multiply

    def infer(self, a, b, c):
        return (Spec((SIDE, SIDE), FLOAT32),)

    def plan(self, device, a, b, c, d):
        args = (a, b, c, d, self.by_rows, self.by_columns, self.by_shuffles)
        return Plan((Launch("probe_fragments", Config((1,), (32,)), args, slots(T=a.dtype)),))


def probe_fragments(a, b, c, *, by_rows=False, by_columns=False, by_shuffles=False):  # noqa: ARG001
    wide = [x.astype(np.float64) for x in (a, b, c)]
    return (wide[2] + wide[0] @ wide[1]).astype(FLOAT32)


class ProbeTf32(Probe):
    """Floats as TF32 has them."""

    inputs = (Input("X", "float32"),)
    outputs = (Output("Y", "float32"),)

    def infer(self, x):
        return (x,)

    def plan(self, device, x, y):
        return one_launch("probe_tf32", x.size, (x, y, x.size))


def probe_tf32(x):
    """10 bits of the mantissa, ties away from zero."""
    rounded = ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(FLOAT32)
    return np.where(np.isfinite(x), rounded, x)
