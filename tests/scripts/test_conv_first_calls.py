# SPDX-License-Identifier: MIT
"""How many modules first calls of the benchmark's convolutions compile."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("cupy", reason="the cases make CuPy arrays")
from cases.conv import DEPTHWISE, LAYERS, TYPES, UNTUNED, Layer, shapes

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.compiler import device_of
from cupy_training_ops.dtypes import FLOAT64
from cupy_training_ops.plan import Launch

OPS = ("Conv", "ConvGrad", "ConvTranspose", "ConvTransposeGrad")
ALL_TYPES = {**TYPES, "f8": (FLOAT64, False)}
CALLS = list(
    itertools.product(OPS, (*LAYERS, DEPTHWISE, *UNTUNED), ALL_TYPES.values(), (False, True))
)


def modules(architecture, op, layer: Layer, numbers, last: bool) -> int:
    """How many are compiled for a first call; `last`: with the channels last in memory."""
    dtype, tf32 = numbers
    of = shapes(op, layer)
    names = ("y", "x", "w", "x", "w", "b") if op.endswith("Grad") else ("x", "w", "b", "y")
    specs = [
        Spec(of[name], dtype, place=i, channels_last=last and may_lie(of[name]))
        for i, name in enumerate(names)
    ]
    operator = get_op(op)(**layer.attributes, allow_tf32=tf32)
    plan = operator.plan(device_of(architecture), *specs)
    launches = (step for step in plan.steps if isinstance(step, Launch))
    return len({tuple(sorted(step.slots.items())) for step in launches})


def may_lie(shape) -> bool:
    """Return True if channels that come last lie otherwise than in a C-contiguous array."""
    return len(shape) > 1 and shape[1] > 1 and any(n > 1 for n in shape[2:])


@pytest.mark.parametrize("architecture", ["80", "90", "120"])
def test_a_first_call_compiles_few_modules(architecture) -> None:
    """One for what multiplies, and another where a bias is summed for itself, or where X's gradient
    has other tiles than W's; with the channels last a third where they are copied for these, or
    where groups have one channel."""
    assert len(CALLS) == len(OPS) * len(ALL_TYPES) * 21 * 2
    actual = [(modules(architecture, *call), call) for call in CALLS]
    many = [call for n, call in actual if n > 2]
    assert {layer for _, layer, *_ in many if layer.group < layer.channels} <= {LAYERS[0]}
    assert all(last for *_, last in many)
    assert max(n for n, _ in actual) <= 3
