# SPDX-License-Identifier: MIT
"""Convolutions of arrays with their channels last: which are read as they lie, which are copied."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.conv import plan
from cupy_training_ops.families.conv.extents import Convolution
from cupy_training_ops.families.conv.plan_launches import Wanted
from cupy_training_ops.families.conv.reference import conv_grad
from cupy_training_ops.families.conv.samples import CALLS, NAMES, inputs, terms
from cupy_training_ops.plan import Device, Launch, Plan
from cupy_training_ops.testing.compare import assert_matches, tolerance_of
from cupy_training_ops.testing.samples import as_tuple

H200 = Device(132, (9, 0), 227 * 1024)
LAYER = Convolution(64, 128, 256, 1, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1))
FEW = replace(LAYER, channels=3)  # no tiles read so few channels
COPIED = ("odd", "line", "volume", "depthwise", "pointwise-strided", "spread")


def last(array: Any, place: Any = np.asarray) -> Any:
    """The same array, lying so."""
    if array.ndim < 3:
        return place(array)
    return np.moveaxis(place(np.ascontiguousarray(np.moveaxis(array, 1, -1))), -1, 1)


def is_last(array: Any) -> bool:
    return bool(np.moveaxis(array, 1, -1).flags.c_contiguous)


def specs(c: Convolution, dtype: Any, *, channels_last: bool = True) -> tuple[Spec, ...]:
    shapes = (c.x_shape, c.y_shape, c.w_shape)
    return tuple(
        Spec(shape, dtype, place=i, channels_last=channels_last) for i, shape in enumerate(shapes)
    )


def gradients(
    c: Convolution, dtype: Any, device: Device = H200, **how: Any
) -> tuple[Plan, tuple[Spec, ...]]:
    x, y, w = specs(c, dtype, **how)
    dx, dw = replace(x, place=3), replace(w, place=4)
    db = Spec(y.shape[1:2], dtype, place=5)
    wanted = Wanted(x, y, w, dx, is_gradient=True, dw=dw, db=db)
    made = plan.plan_wanted(device, c, wanted)
    return made, (x, y, w, dx, dw)


def launches(actual: Plan) -> list[Launch]:
    return [step for step in actual.steps if isinstance(step, Launch)]


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=dtype_name)
def test_tiles_read_and_write_arrays_as_they_lie(dtype) -> None:
    """W alone is staged for X's gradient, since its filters are summed; for Y it is not."""
    actual, (x, y, w, dx, dw) = gradients(LAYER, dtype)
    stage, staged, total, *_ = launches(actual)
    fields = stage.args[-1]
    assert [int(fields[name]["blocks"]) > 0 for name in "xyw"] == [False, False, True]
    assert stage.args[:7] == (*[None] * 6, w)
    assert [staged.args[i] for i in (0, 1, 7, 10)] == [x, y, y, dx]
    assert total.args[1] == dw
    image = staged.args[11]
    assert (image["width"], image["channels_last"]) == (16 // dtype.itemsize, True)
    first, _ = gradients(LAYER, dtype, channels_last=False)
    assert actual.workspace_nbytes < first.workspace_nbytes - (x.nbytes + y.nbytes) // 2
    forward = plan.plan_wanted(H200, LAYER, Wanted(x, x, w, y))
    assert [step.symbol for step in launches(forward)] == ["conv__staged"]


SINGLE = replace(LAYER, channels=512, filters=512, kernel=(1, 1), pads=(0, 0))


def test_warpgroups_stage_nothing_of_1_x_1_layers() -> None:
    """Unless a stage would have filters that are no whole vectors; what positions read of X is
    clear."""
    device = replace(H200, has_warpgroups=True)
    actual, (_, _, w, *_) = gradients(SINGLE, FLOAT16, device)
    staged, total = launches(actual)
    assert [staged.symbol, total.symbol] == ["conv__staged", "conv__staged_total"]
    assert (staged.args[2], staged.args[8]) == (None, w)
    assert [staged.args[11][n] for n in ("as_it_lies", "w_row")] == [True, 64]
    for c, of, last, blocks in (
        (SINGLE, device, False, "xy"),
        (LAYER, device, True, "w"),
        (replace(SINGLE, filters=520), device, True, "w"),
        (SINGLE, H200, True, "w"),
    ):
        actual, _ = gradients(c, FLOAT16, of, channels_last=last)
        stage, staged, _ = launches(actual)
        fields = stage.args[-1]
        assert "".join(name for name in "xyw" if fields[name]["blocks"]) == blocks
        assert bool(fields["n_rows"]) is (c == LAYER)
        assert staged.args[11]["as_it_lies"] == (blocks == "xy")


def test_what_no_tiles_read_is_copied() -> None:
    for c, dtype in ((FEW, FLOAT16), (LAYER, FLOAT64)):
        actual, (x, y, w, dx, dw) = gradients(c, dtype)
        steps = launches(actual)
        assert [s.symbol for s in steps[:3]] == ["conv__transpose"] * 3
        assert [s.symbol for s in steps[-2:]] == ["conv__transpose"] * 2
        assert [s.args[0] for s in steps[:3]] == [x, y, w]
        assert [s.args[1] for s in steps[-2:]] == [dx, dw]
        between = [a for s in steps[3:-2] for a in s.args if isinstance(a, Spec)]
        assert all(len(a.shape) == 1 for a in between)  # dB
        assert actual.workspace_nbytes <= 2 * (x.nbytes + y.nbytes + w.nbytes) + 64 * 2**20


DEPTHWISE = replace(LAYER, channels=144, filters=144, group=144)


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=dtype_name)
def test_groups_of_one_channel_are_read_and_written_as_they_lie(dtype) -> None:
    actual, (x, y, w, dx, dw) = gradients(DEPTHWISE, dtype)
    image, weight, of_w, of_b = launches(actual)
    assert [image.symbol, weight.symbol] == [
        "conv__depthwise_walks",
        "conv__depthwise_walks_weight",
    ]
    assert image.args[:4] == (y, w, None, dx)
    assert weight.args[:2] == (x, y)
    assert [of_w.symbol, of_b.symbol, of_w.args[1]] == ["conv__total", "conv__total", dw]
    assert weight.slots == of_w.slots == of_b.slots
    forward = plan.plan_wanted(H200, DEPTHWISE, Wanted(x, x, w, y))
    assert [step.symbol for step in launches(forward)] == ["conv__depthwise_walks"]


@pytest.mark.parametrize(("batch", "rows"), [(256, 14), (128, 14), (8, 4)])
def test_short_images_are_walked_as_wholes(batch, rows) -> None:
    """But not where few walks would be left."""
    c = replace(DEPTHWISE, batch=batch, image=(14, 14), output=(14, 14))
    image, weight, *_ = launches(gradients(c, FLOAT16)[0])
    assert image.args[-3] == weight.args[-2] == rows


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        ({"channels": 147, "filters": 147, "group": 147}, FLOAT16),  # not whole vectors
        ({"filters": 288}, FLOAT16),  # two filters of a group
        ({"kernel": (6, 6)}, FLOAT16),  # more taps than a block has weights of
        ({}, FLOAT64),
    ],
)
def test_other_groups_of_one_channel_are_copied(change, dtype) -> None:
    c = replace(DEPTHWISE, **change)
    actual, _ = gradients(c, dtype)
    assert [step.symbol for step in launches(actual)][:2] == ["conv__transpose"] * 2
    x, y, w = specs(DEPTHWISE, FLOAT16)
    for given in ((replace(x, aligned=False), y), (x, replace(y, channels_last=False))):
        wanted = Wanted(given[0], given[0], w, given[1])
        steps = launches(plan.plan_wanted(H200, DEPTHWISE, wanted))
        assert "conv__transpose" in [step.symbol for step in steps]


# X, the kernel's extent, stride, pad and dilation: of several tiles of channels and of taps, with
# threads that are left over; in one to three dimensions. Of the first, threads have several strips,
# of the last five several walks down rows, outputs that read pads alone, and 5 x 5 taps.
LINES = (
    ((2, 296, 10, 28), 3, 1, 1, 1),
    ((2, 16, 9, 11), 3, 1, 1, 1),
    ((1, 16, 9, 11), 5, 2, 2, 1),
    ((1, 296, 6, 7), 3, 2, 1, 1),
    ((3, 8, 5, 5), 3, 1, 2, 2),
    ((2, 24, 70), 3, 1, 1, 1),
    ((1, 8, 3, 5, 6), 3, 1, 1, 1),
    ((2, 40, 8, 8), 1, 1, 0, 1),
    ((1, 8, 31, 5), 3, 1, 2, 1),
    ((2, 72, 9, 14), 5, 1, 2, 1),
    ((1, 8, 7, 11), 5, 1, 5, 1),
    ((1, 8, 16, 17), 3, 1, 7, 1),
    ((2, 8, 15, 13), 5, 1, 8, 1),
)


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=dtype_name)
@pytest.mark.parametrize(("shape", "extent", "stride", "pad", "dilation"), LINES, ids=str)
def test_lines_of_channels_are_those_of_numpy(
    anywhere, rng, shape, extent, stride, pad, dilation, dtype
) -> None:
    """All operators of groups of one channel; dB, and dW, alone too."""
    rank, channels = len(shape) - 2, shape[1]
    how: dict[str, Any] = {"group": channels, "pads": (pad,) * 2 * rank}
    how |= {"strides": (stride,) * rank, "dilations": (dilation,) * rank}
    x = rng.standard_normal(shape).astype(dtype)
    w = rng.standard_normal((channels, 1, *[extent] * rank)).astype(dtype)
    b = rng.standard_normal(channels).astype(dtype)
    for name in NAMES:
        y = get_op(name.removesuffix("Grad"))(**how)(x, w, b)
        dy = rng.standard_normal(y.shape).astype(dtype)
        values = (dy, x, w) if name.endswith("Grad") else (x, w, b)
        op, placed = get_op(name)(**how), [last(v, anywhere.place) for v in values]
        expected, actual = as_tuple(op(*values)), as_tuple(op(*placed))
        bound = tolerance_of(dtype, max(dy.size, x.size) // channels)
        for ours, other in zip(actual, expected, strict=True):
            assert_matches(anywhere.host(ours), other, bound)
        for place, output in enumerate(op.outputs[1:], 1):
            alone = op(*placed, outputs=(output.name,))[place]
            assert np.array_equal(anywhere.host(alone), anywhere.host(actual[place]))


@pytest.mark.parametrize("corner", [(0, 0), (-1, -1)])
def test_what_is_infinite_reaches_only_weights_of_taps_that_read_it(anywhere, corner) -> None:
    """Beside its corner taps have no dY: not 0, which would make NaN of it."""
    x, w = np.zeros((1, 8, 5, 5), FLOAT16), np.zeros((8, 1, 3, 3), FLOAT16)
    x[..., *corner] = np.inf
    given = [last(a, anywhere.place) for a in (np.ones_like(x), x, w)]
    _, dw, _ = get_op("ConvGrad")(group=8, pads=(1,) * 4)(*given, outputs=("dW",))
    taps = slice(0, 2) if corner == (0, 0) else slice(1, 3)
    expected = np.zeros_like(w)
    expected[..., taps, taps] = np.inf
    assert_matches(anywhere.host(dw), expected)


def test_few_and_misaligned_channels_are_padded_in_lines() -> None:
    """Vectors of 16 bytes begin at none of their positions."""
    for c, aligned in ((replace(LAYER, channels=100), True), (LAYER, False)):
        x, y, w = (replace(s, aligned=aligned) for s in specs(c, FLOAT16))
        stage, *_ = launches(plan.plan_wanted(H200, c, Wanted(x, x, w, y)))
        assert [int(stage.args[-1][name]["width"]) for name in "xw"] == [-1, -1]
        assert stage.args[0] == x


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
@pytest.mark.parametrize("label", COPIED)
def test_results_are_those_of_contiguous_arrays(anywhere, rng, label, dtype) -> None:
    """dX lies as X does, dW as W, Y as X."""
    call = next(call for call in CALLS if call.label == label)
    for name in NAMES:
        convolution = call.convolution(name)
        values = inputs(rng, name, convolution, dtype)
        op = get_op(name)(**call.attributes)
        expected = as_tuple(op(*map(anywhere.place, values)))
        actual = as_tuple(op(*[last(v, anywhere.place) for v in values]))
        bound = tolerance_of(dtype, terms(convolution))
        for ours, other in zip(actual, expected, strict=True):
            assert ours.ndim < 3 or is_last(ours)
            assert_matches(anywhere.host(ours), anywhere.host(other), bound)


def test_each_array_lies_on_its_own(rng) -> None:
    call = next(call for call in CALLS if call.label == "ordinary")
    dy, x, w = inputs(rng, "ConvGrad", call.convolution("ConvGrad"), FLOAT32)
    op = get_op("ConvGrad")(**call.attributes)
    expected = op(dy, x, w)
    for of_x in (x, last(x)):
        for of_w in (w, last(w)):
            dx, dw, _ = op(last(dy), of_x, of_w)
            assert (is_last(dx), is_last(dw)) == (is_last(of_x), is_last(of_w))
            assert_matches(dx, expected[0], 0)
    out = (last(np.zeros_like(x)), np.zeros_like(w), np.zeros(w.shape[:1], FLOAT32))
    assert op(dy, x, last(w), out=out)[0] is out[0]
    assert_matches(out[0], expected[0], 0)
    assert is_last(get_op("Conv")(**call.attributes)(last(x), w))


def test_other_orders_are_refused(rng) -> None:
    call = next(call for call in CALLS if call.label == "ordinary")
    dy, x, w = inputs(rng, "ConvGrad", call.convolution("ConvGrad"), FLOAT32)
    op = get_op("ConvGrad")(**call.attributes)
    words = "expected a C-contiguous array, or one with its channels last, got a strided one"
    turned = np.ascontiguousarray(x.T).T
    line = np.zeros(8, FLOAT32)[::2]  # of a rank that no images have
    for given in ((dy, turned, w), (dy[:, :, ::2], x, w), (dy, line, w), (dy, x, line)):
        with pytest.raises(ArgumentError, match=words):
            op(*given)
    with pytest.raises(ArgumentError, match=rf"out \(dX\): {words}"):
        op(dy, x, w, out=(turned, None, None))
    with pytest.raises(ArgumentError, match="B: expected a C-contiguous array"):
        get_op("Conv")(**call.attributes)(x, w, np.zeros(32, FLOAT32)[::2])


@pytest.mark.parametrize("tf32", [False, True])
def test_sums_of_lines_are_those_of_planes(anywhere, rng, tf32) -> None:
    """dB alone, and beside float64; as many lines as several blocks sum. It is not rounded to TF32,
    also where tiles sum it."""
    op = get_op("ConvGrad")(allow_tf32=tf32)
    for shape in ((3, 40, 9, 31), (1, 33, 700), (2, 200, 40)):
        dy = rng.standard_normal(shape, FLOAT32)
        x = np.zeros((shape[0], 16, *shape[2:]), FLOAT32)
        w = np.zeros((shape[1], 16, *[1] * (len(shape) - 2)), FLOAT32)
        given = [last(a, anywhere.place) for a in (dy, x, w)]
        *_, actual = op(*given, outputs=("dB",))
        wanted = dy.astype(FLOAT64).sum((0, *range(2, dy.ndim)))
        bound = tolerance_of(FLOAT32, math.prod(shape) // shape[1])
        assert_matches(anywhere.host(actual).astype(FLOAT64), wanted, bound)
        assert np.array_equal(anywhere.host(op(*given)[2]), anywhere.host(actual))


# X, filters, the kernel's extents, strides and pads: of several tiles of positions, of which some
# end beside the image, a window of one tap, taps that read only pads, and one channel; of the last,
# emulated blocks have several tiles, whose X is not alike.
DIRECT = (
    ((1, 3, 34, 20), 64, (7, 7), (2, 2), (3, 3)),
    ((1, 3, 10, 18), 32, (3, 3), (1, 1), (1, 1)),
    ((2, 4, 10, 36), 16, (3, 5), (2, 2), (0, 4)),
    ((1, 1, 9, 11), 16, (5, 9), (1, 1), (4, 5)),
    ((2, 2, 8, 12), 16, (2, 2), (2, 4), (0, 0)),
    ((19, 2, 4, 4), 16, (2, 1), (1, 2), (0, 0)),
)


def direct() -> list[Any]:
    """The session draws two, of which it draws a type where they are emulated; the rest, and the
    first, which is long, is thorough."""
    draw = random.Random(f"{os.environ['CTO_SEED']} few channels")
    drawn = draw.sample(DIRECT[1:], 2)
    thorough = pytest.mark.thorough
    return [
        pytest.param(*case, id=str(case), marks=() if case in drawn else thorough)
        for case in DIRECT
    ]


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=dtype_name)
@pytest.mark.parametrize(("shape", "filters", "kernel", "strides", "pads"), direct())
def test_gradients_of_few_channels_are_those_of_numpy(
    anywhere, rng, shape, filters, kernel, strides, pads, dtype
) -> None:
    """All lie so, none, or some; each gradient alone too. TF32 rounds all but dB."""
    how: dict[str, Any] = {"strides": strides, "pads": pads * 2, "allow_tf32": True}
    x = rng.standard_normal(shape).astype(dtype)
    w = rng.standard_normal((filters, shape[1], *kernel)).astype(dtype)
    op = get_op("ConvGrad")(**how)
    dy_shape = op.convolution(Spec(shape, dtype), Spec(w.shape, dtype)).y_shape
    dy = rng.standard_normal(dy_shape).astype(dtype)
    rest = dict.fromkeys(("dilations", "kernel_shape")) | {"auto_pad": "NOTSET", "group": 1}
    expected = conv_grad(dy, x, w, **how, **rest)
    terms_of = max(dy.size // filters, math.prod(kernel) * filters)
    bounds = [tolerance_of(dtype, terms_of, tf32=name != "dB") for name in ("dX", "dW", "dB")]
    for lies in ((True,) * 3, (False,) * 3, rng.integers(2, size=3)):
        each = zip((dy, x, w), lies, strict=True)
        given = [last(a, anywhere.place) if is_last else anywhere.place(a) for a, is_last in each]
        actual = op(*given)
        for ours, other, bound in zip(actual, expected, bounds, strict=True):
            assert_matches(anywhere.host(ours), other, bound)
        for place, output in enumerate(op.outputs):
            alone = op(*given, outputs=(output.name,))[place]
            assert np.array_equal(anywhere.host(alone), anywhere.host(actual[place]))
