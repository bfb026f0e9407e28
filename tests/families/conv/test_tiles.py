# SPDX-License-Identifier: MIT
"""The model of tiles beside times of sixty shapes, which commits 1391890d and 5ce63cc3 measured,
those of TF32 by warpgroups e91e302b."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import FLOAT16, FLOAT32
from cupy_training_ops.families.conv import plan_model
from cupy_training_ops.families.conv.facts import AXES
from cupy_training_ops.families.conv.plan_launches import Wanted
from cupy_training_ops.plan import Device

DATA = Path(__file__).resolve().parents[2] / "data"
MEASURED = {  # multiplied by warps, or by warpgroups
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(DATA.glob("conv_variants*.json"))
}
each = pytest.mark.parametrize("measured", MEASURED.values(), ids=MEASURED)
TYPES = {"f2": (FLOAT16, 0), "f4,tf32": (FLOAT32, 1)}


def chosen(device: Device, shape: dict[str, Any]) -> str:
    """The variant that a plan takes, by its name."""
    channels, side, filters, kernel, stride, group, dilation, batch = shape["layer"]
    dtype, tf32 = TYPES[shape["type"]]
    pad = kernel // 2 * dilation
    how = {"strides": (stride,) * 2, "dilations": (dilation,) * 2, "pads": (pad,) * 4}
    x = Spec((batch, channels, side, side), dtype)
    w = Spec((filters, channels // group, kernel, kernel), dtype)
    c = get_op("ConvGrad")(group=group, **how).convolution(x, w).padded_to(AXES)
    if not plan_model.staged_weight(device, c, Wanted(x, Spec(c.y_shape, dtype)), tf32):
        return "gathered"
    tiles = plan_model.weight_tiles(device, c, dtype, tf32)
    return f"{tiles.rows} x {tiles.parts}"


@each
def test_what_plans_take_is_nearly_the_fastest(measured) -> None:
    """Within 10 % of the fastest variant for nine of ten shapes. Who changes the model so that it
    takes what was not measured measures again."""
    multiprocessors, capability, *more = measured["plans_for"]
    device = Device(multiprocessors, tuple(capability), *more)
    shapes = measured["shapes"]
    assert len(shapes) == 60
    over = [s["us"][chosen(device, s)] / min(s["us"].values()) for s in shapes]
    assert sum(ratio <= 1.1 for ratio in over) >= 54, sorted(over)[-10:]


@each
def test_variants_differ(measured) -> None:
    """Else any choice would do: a shape's slowest takes twice as long as its fastest, and neither
    all shapes are staged nor in tiles of one size."""
    spread = [max(s["us"].values()) / min(s["us"].values()) for s in measured["shapes"]]
    assert sorted(spread)[30] > 1.5
    fastest = {min(s["us"], key=s["us"].get).partition(" ")[0] for s in measured["shapes"]}
    assert fastest == {"gathered", "64", "128"}
