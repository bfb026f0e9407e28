# SPDX-License-Identifier: MIT
"""1 x 1 convolutions of floats whose lines tensor cores multiply as they lie."""

from __future__ import annotations

import numpy as np
import pytest

from cupy_training_ops import get_op
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT32, FLOAT64
from cupy_training_ops.families.conv.reference import conv_grad
from cupy_training_ops.testing.compare import assert_matches

# X and filters: tiles that end within an image, rows and a sum that fill no tile, more
# columns than one, parts of a sum over several images; and groups.
SHAPES = (
    ((3, 20, 10, 10), 24, 1),
    ((2, 70, 4, 9), 130, 1),
    ((40, 136, 2, 2), 17, 1),
    ((2, 48, 6, 6), 96, 2),
    ((1, 16, 4), 16, 1),
)
REST = {"auto_pad": "NOTSET", "dilations": None, "kernel_shape": None, "pads": None}
REST |= {"strides": None, "allow_tf32": True}
CUT = 2e-3  # of a product's sum of magnitudes: both factors have 10 bits


def lines_of(op, *arrays):
    """Results, and the kernels that ran."""
    with launch_log() as steps:
        found = op(*arrays)
    return found, [step.symbol for step in steps]


@pytest.mark.parametrize(("shape", "filters", "group"), SHAPES, ids=str)
def test_lines_of_floats_are_multiplied_as_they_lie(run, rng, shape, filters, group) -> None:
    """dX, dW and dB, together and alone; dB is a sum of floats that are not cut."""
    x = rng.standard_normal(shape).astype(FLOAT32)
    w = rng.standard_normal((filters, shape[1] // group, *(1 for _ in shape[2:]))).astype(FLOAT32)
    dy = rng.standard_normal((shape[0], filters, *shape[2:])).astype(FLOAT32)
    op = get_op("ConvGrad")(allow_tf32=True, group=group)
    given = [run.place(a) for a in (dy, x, w)]
    found, symbols = lines_of(op, *given)
    assert {"conv__image_lines", "conv__weight_lines"} <= set(symbols)
    assert not {"conv__stage", "conv__channel_sums"} & set(symbols)
    doubles = [a.astype(FLOAT64) for a in (dy, x, w)]
    expected = conv_grad(*doubles, group=group, **REST)
    magnitudes = conv_grad(*map(abs, doubles), group=group, **REST)
    for ours, exact, most in zip(found[:2], expected, magnitudes, strict=False):
        assert np.all(abs(run.host(ours) - exact) <= CUT * most)
    assert_matches(run.host(found[2]), expected[2].astype(FLOAT32), 1e-5)
    for place, output in enumerate(op.outputs):
        alone = op(*given, outputs=(output.name,))[place]
        assert run.host(alone).tobytes() == run.host(found[place]).tobytes()


def test_forward_lines_have_a_bias(run, rng) -> None:
    x = rng.standard_normal((3, 40, 6, 10)).astype(FLOAT32)
    w = rng.standard_normal((70, 40, 1, 1)).astype(FLOAT32)
    b = rng.standard_normal(70).astype(FLOAT32)
    op = get_op("Conv")(allow_tf32=True)
    found, symbols = lines_of(op, *map(run.place, (x, w, b)))
    assert symbols == ["conv__pack", "conv__image_lines"]
    exact = np.einsum("nchw,mc->nmhw", x.astype(FLOAT64), w[:, :, 0, 0].astype(FLOAT64))
    most = np.einsum("nchw,mc->nmhw", abs(x), abs(w[:, :, 0, 0]))
    assert np.all(abs(run.host(found) - (exact + b[:, None, None])) <= CUT * most)
