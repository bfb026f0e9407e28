# SPDX-License-Identifier: MIT
"""Seconds before the first launch of each of the benchmark's convolutions, without a GPU.

    python scripts/first_calls.py [--arch 90] [--only f2] [--symbols]

That is imports, the plan, and NVRTC for each module of which the plan launches kernels, one after
the other with nothing in a cache. What layers share is compiled once for all, each module in a
process of its own. What the driver takes to load a module is missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BEGUN = time.perf_counter()
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import click
from cases.conv import DEPTHWISE, LAYERS, TYPES, UNTUNED, Layer, shapes

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import FLOAT64
from cupy_training_ops.plan import Launch
from cupy_training_ops.runtime import offline
from cupy_training_ops.runtime.compiler import slot_options
from cupy_training_ops.runtime.source import load

ARCHITECTURES = ("90", "80", "120")
OPS = ("Conv", "ConvGrad", "ConvTranspose", "ConvTransposeGrad")
ALL_TYPES = {**TYPES, "f8": (FLOAT64, False)}
Slots = tuple[tuple[str, str], ...]


class First(NamedTuple):
    """A first call."""

    op: str
    layer: Layer
    label: str
    last: bool

    def launches(self, architecture: str) -> list[Launch]:
        """Of its plan."""
        dtype, tf32 = ALL_TYPES[self.label]
        op = get_op(self.op)(**self.layer.attributes, allow_tf32=tf32)
        of = shapes(self.op, self.layer)
        w_last = self.last and self.layer.extent > 1 and of["w"][1] > 1
        lie = {"x": self.last, "y": self.last, "w": w_last}
        names = ("y", "x", "w") if self.op.endswith("Grad") else ("x", "w", "b")
        outs = ("x", "w", "b") if self.op.endswith("Grad") else ("y",)
        specs = [
            Spec(of[name], dtype, place=i, channels_last=lie.get(name, False))
            for i, name in enumerate((*names, *outs))
        ]
        plan = op.plan(offline.device(architecture), *specs)
        return [step for step in plan.steps if isinstance(step, Launch)]


def calls(only: str) -> Iterator[First]:
    for label in ALL_TYPES:
        for last in (False, True):
            for op in OPS:
                for layer in (*LAYERS, DEPTHWISE, *UNTUNED):
                    first = First(op, layer, label, last)
                    if only in str(first):
                        yield first
