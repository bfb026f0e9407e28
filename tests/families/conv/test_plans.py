# SPDX-License-Identifier: MIT
"""Which kernels run for which convolution, in which tiles; what they are compiled for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS
from cupy_training_ops.families.conv import plan as conv
from cupy_training_ops.families.conv.extents import Convolution
from cupy_training_ops.families.conv.facts import WeightLayout
from cupy_training_ops.families.conv.plan_launches import Wanted
from cupy_training_ops.families.conv.plan_model import Blocks, time_of
from cupy_training_ops.families.conv.plan_variants import parts_of_sum
from cupy_training_ops.plan import Device, Launch, Plan

H200 = Device(132, (9, 0), 227 * 1024)
BATCH = 64
# channels, filters, extent of the image, kernel, stride
LAYERS = {
    "conv1": (3, 64, 224, 7, 2),
    "l1 1x1": (64, 64, 56, 1, 1),
    "l1 3x3": (64, 64, 56, 3, 1),
    "l1 1x1b": (64, 256, 56, 1, 1),
    "l2 3x3s2": (128, 128, 56, 3, 2),
    "l2 3x3": (128, 128, 28, 3, 1),
    "l3 3x3": (256, 256, 14, 3, 1),
    "l3 1x1": (256, 1024, 14, 1, 1),
    "l4 3x3": (512, 512, 7, 3, 1),
    "l4 1x1": (512, 2048, 7, 1, 1),
}


def layer(
    channels: int,
    filters: int,
    extent: int,
    kernel: int,
    stride: int,
    group: int = 1,
    n: int = BATCH,
) -> Convolution:
    """Padded by half of the kernel."""
    pad = kernel // 2
    output = (extent + 2 * pad - kernel) // stride + 1
    return Convolution(
        n,
        channels,
        filters,
        group,
        (extent,) * 2,
        (output,) * 2,
        (kernel,) * 2,
        (stride,) * 2,
        (1, 1),
        (pad,) * 2,
    )


def plans(c: Convolution, dtype: Any, device: Device = H200, tf32: int = 0) -> dict[str, Plan]:
    x, y, w = (Spec(shape, dtype) for shape in (c.x_shape, c.y_shape, c.w_shape))
    return {
        "Y": conv.plan_wanted(device, c, Wanted(x, x, w, y), tf32=tf32),
        "X": conv.plan_wanted(device, c, Wanted(y, y, w, x, is_gradient=True), tf32=tf32),
        "W": conv.plan_wanted(device, c, Wanted(x, y, dw=w), tf32=tf32),
        "b": conv.bias_gradient(device, y, Spec((c.filters,), dtype)),
    }


def launches(plan: Plan) -> list[Launch]:
    return [step for step in plan.steps if isinstance(step, Launch)]


def main(plan: Plan, *kernels: str) -> tuple[str, int]:
    """The kernel that sums, and the rows of its tiles."""
    (actual,) = {
        (name.removesuffix("_few"), 32 if name.endswith("_few") else int(step.slots["ROWS"]))
        for step in launches(plan)
        for name in [step.symbol.removeprefix("conv__")]
        if name.startswith(kernels) and not name.removesuffix("_few").endswith("total")
    }
    return actual


# Kernels and rows of tiles of X's gradient and of W's, alone, in types of 2 bytes.
TABLE = {
    "conv1": (("direct_image", 32), ("direct_weight", 32)),
    "l1 1x1": (("image_lines", 64), ("weight_lines", 64)),
    "l1 3x3": (("staged", 64), ("staged", 64)),
    "l1 1x1b": (("image_lines", 64), ("weight_lines", 128)),
    "l2 3x3s2": (("staged", 128), ("staged", 128)),
    "l2 3x3": (("staged", 64), ("staged", 128)),
    "l3 3x3": (("staged", 64), ("staged", 128)),
    "l3 1x1": (("staged", 64), ("staged", 128)),
    "l4 3x3": (("staged", 64), ("staged", 128)),
    "l4 1x1": (("staged", 64), ("staged", 128)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_variants_of_known_layers(name) -> None:
    for dtype in (FLOAT16, BFLOAT16):
        actual = plans(layer(*LAYERS[name]), dtype)
        names = ("image", "weight", "staged", "direct")
        kernels = (main(actual["X"], *names), main(actual["W"], *names))
        assert kernels == TABLE[name]
    for tf32 in (0, 1):
        actual = plans(layer(*LAYERS[name]), FLOAT32, tf32=tf32)
        is_staged = name not in ("conv1", "l1 1x1", "l1 1x1b")
        for of, gathered in (("X", "image"), ("W", "weight")):
            lines = f"{gathered}_lines" if tf32 else gathered
            expected = "staged" if is_staged else lines
            if tf32 and name == "conv1":
                expected = f"direct_{gathered}"
            kernel, rows = main(actual[of], gathered, "staged", "direct")
            assert kernel == expected
            if kernel.endswith("_lines"):
                assert (kernel, rows) == TABLE[name]["XW".index(of)]
        assert launches(actual["X"])[-1].slots["TF32"] == str(tf32)


def test_warpgroups_multiply_halves_where_a_device_has_them() -> None:
    """In modules of their own; all else is as it is without them."""
    c = layer(*LAYERS["l3 3x3"])
    device = replace(H200, has_warpgroups=True)
    for dtype in FLOATS:
        is_half = dtype.itemsize == 2
        actual, without = plans(c, dtype, device), plans(c, dtype)
        for key in "YXW":
            for step in launches(actual[key]):
                assert step.slots["WARPGROUPS"] == str(int(is_half))
            assert (str(actual[key]) == str(without[key])) is not is_half
        assert str(actual["b"]) == str(without["b"])


@pytest.mark.parametrize("channels_last", [False, True])
def test_warpgroups_multiply_floats_in_tf32(channels_last) -> None:
    """Staging rounds what they read from shared memory: W, what an image is computed from, and for
    W's gradient dY as (filter, position)."""
    device = replace(H200, has_warpgroups=True)
    c = layer(*LAYERS["l3 3x3"])
    x, y = (Spec(s, FLOAT32, channels_last=channels_last) for s in (c.x_shape, c.y_shape))
    w, db = Spec(c.w_shape, FLOAT32), Spec((c.filters,), FLOAT32)
    of_x = "" if channels_last else "x"
    for wanted, staged in (
        (Wanted(x, x, w, y), "xw"),
        (Wanted(y, y, w, x, is_gradient=True), "yw"),
        (Wanted(x, y, dw=w, db=db), f"{of_x}y"),
        (Wanted(x, y, w, x, is_gradient=True, dw=w, db=db), f"{of_x}yw"),
    ):
        stage, product, *total = launches(conv.plan_wanted(device, c, wanted, tf32=1))
        fields = stage.args[-1]
        assert "".join(name for name in "xyw" if fields[name]["blocks"]) == staged
        assert (product.symbol, product.slots["WARPGROUPS"]) == ("conv__staged", "1")
        *_, rounded_y, lines, sums, _, _, _, _ = stage.args
        assert (lines is None, sums is None) == (wanted.dw is None, wanted.db is None)
        assert (rounded_y is None) == (not wanted.is_gradient)
        if total:
            assert [step.symbol for step in total] == ["conv__staged_total"]
            assert product.args[1] is lines
            assert total[0].args[2] is sums


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("channels", "kernel", "tf32", "expected"),
    [(256, 3, 3, 0), (256, 3, 0, 0), (256, 1, 1, "where staged"), (512, 1, 1, 1)],
)
def test_warps_multiply_floats_where_copies_do_not_pay(
    channels_last, channels, kernel, tf32, expected
) -> None:
    """Arrays of a small 1 x 1 layer with channels last are read as they lie."""
    c = layer(channels, channels, 14, kernel, 1)
    x, y = (Spec(s, FLOAT32, channels_last=channels_last) for s in (c.x_shape, c.y_shape))
    wanted = Wanted(y, y, Spec(c.w_shape, FLOAT32), x, is_gradient=True)
    plan = conv.plan_wanted(replace(H200, has_warpgroups=True), c, wanted, tf32=tf32)
    if expected == "where staged":
        expected = int(not channels_last)
    assert launches(plan)[-1].slots["WARPGROUPS"] == str(expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"device": Device(80, (7, 5), 64 * 1024)}, False),  # without asynchronous copies
        ({"device": Device(80, (8, 6), 99 * 1024)}, True),
        ({"device": Device(80, (8, 6), 64 * 1024)}, False),  # without room for stages
        ({"channels": 15}, False),  # mostly padding
        ({"channels": 36, "filters": 60, "group": 2}, False),  # vectors of two groups
        ({"channels": 24, "filters": 40, "group": 2}, True),  # joined
        ({"channels": 128, "filters": 128, "group": 32}, True),
        ({"channels": 64, "filters": 64, "group": 32}, False),  # no four channels
        ({"channels": 32, "filters": 48, "group": 2}, True),
        ({"kernel": 5}, True),
        ({"kernel": 6}, False),  # more taps than bits
        ({"n": 0}, False),
        ({"n": 2, "extent": 2**15}, False),  # vectors beyond 32 bits
        ({"n": 1, "extent": 12_000}, False),  # just so
    ],
)
def test_what_is_staged(change, expected) -> None:
    given = {"channels": 64, "filters": 64, "extent": 28, "kernel": 3, "stride": 1, **change}
    device = given.pop("device", H200)
    actual = plans(layer(**given), FLOAT16, device)
    for key in "YXW":
        symbols = [step.symbol for step in launches(actual[key])]
        assert ("conv__staged" in symbols) is expected


def test_a_model_of_waves() -> None:
    """Blocks that take longest are the first in the 264 slots."""
    one = Blocks(264, 10.0)
    assert time_of(264, [one]) == 10
    assert time_of(264, [Blocks(265, 10.0)]) == 20
    assert time_of(264, [one, Blocks(1, 3.0)]) == 13
    assert time_of(264, [Blocks(132, 10.0), Blocks(132 + 264, 5.0)]) == 15
    assert time_of(264, [Blocks(132, 5.0), Blocks(132, 10.0)]) == 10


def test_groups_of_one_channel_have_kernels_of_their_own() -> None:
    actual = plans(layer(512, 512, 28, 3, 1, group=512), FLOAT16)
    symbols = {key: [step.symbol for step in launches(plan)] for key, plan in actual.items()}
    assert symbols == {
        "Y": ["conv__depthwise_planes"],
        "X": ["conv__depthwise_planes"],
        "W": ["conv__depthwise_planes_weight", "conv__total"],
        "b": ["conv__channel_sums", "conv__total"],
    }
    for filters, symbol in ((4, "conv__depthwise"), (5, "conv__image")):
        actual = plans(layer(8, 8 * filters, 28, 3, 1, group=8), FLOAT16)
        assert launches(actual["X"])[-1].symbol == symbol


@pytest.mark.parametrize(
    ("change", "dtype", "kernel", "taps"),
    [
        ({}, FLOAT16, "depthwise_planes", 3),
        ({}, FLOAT64, "depthwise_planes", 3),
        ({"kernel": (5, 5)}, FLOAT32, "depthwise_planes", 5),
        ({"kernel": (5, 5)}, FLOAT64, "depthwise", 3),
        ({"kernel": (3, 5)}, FLOAT16, "depthwise", 5),
        ({"kernel": (7, 7)}, FLOAT16, "depthwise", 5),
        ({"strides": (1, 2)}, FLOAT16, "depthwise", 3),
        ({"dilations": (2, 1)}, FLOAT16, "depthwise", 3),
        ({"filters": 16}, FLOAT16, "depthwise_planes", 3),
    ],
    ids=str,
)
def test_threads_walk_down_rows_of_3x3_and_5x5_taps(change, dtype, kernel, taps) -> None:
    """Not where the gradient for X sums several filters of a group. A block sums `taps` taps of W's
    gradient along each axis."""
    c = replace(layer(8, 8, 28, 3, 1, group=8), **change)
    steps = {key: launches(plan)[0] for key, plan in plans(c, dtype).items()}
    of_x = "depthwise" if c.filters > c.channels else kernel
    symbols = [steps[key].symbol.removeprefix("conv__") for key in "YXW"]
    assert symbols == [kernel, of_x, f"{kernel}_weight"]
    at_once = [int(steps[key].slots["TAPS_AT_ONCE"]) for key in "YXW"]
    assert at_once == [taps if kernel.endswith("planes") else 3] * 2 + [taps]


@pytest.mark.parametrize(
    ("batch", "rows", "rows_of_sums"), [(128, 28, 28), (64, 10, 28), (32, 4, 14), (1, 4, 4)]
)
def test_few_images_are_divided_into_bands(batch, rows, rows_of_sums) -> None:
    """So that all multiprocessors have threads; into more where bands of a plane share lines."""
    c = replace(layer(512, 512, 28, 3, 1, group=512), batch=batch)
    steps = {key: launches(plan)[0] for key, plan in plans(c, FLOAT16).items()}
    for key, expected in {"Y": rows, "X": rows, "W": rows_of_sums}.items():
        assert steps[key].args[-2 if key == "W" else -3] == expected
        assert int(steps[key].args[-1]["lines"]["value"]) == -(-28 // expected)


def test_offsets_have_64_bits_where_an_image_is_large() -> None:
    for extent, offset in ((32_767, "u32"), (32_769, "i64")):
        actual = plans(layer(2, 1, extent, 1, 1, n=1), FLOAT16)
        assert launches(actual["Y"])[-1].slots["OFFSET"] == offset
        assert launches(actual["W"])[0].slots["OFFSET"] == offset


def test_old_gpus_have_no_tensor_cores_for_tf32() -> None:
    for capability, is_there in (((7, 5), "0"), ((8, 0), "1")):
        actual = plans(layer(*LAYERS["l2 3x3"]), FLOAT32, Device(80, capability), tf32=1)
        assert launches(actual["X"])[0].slots["TF32"] == is_there


@pytest.mark.parametrize(("dtype", "tf32"), [(FLOAT16, 0), (FLOAT32, 0), (FLOAT32, 1)], ids=str)
@pytest.mark.parametrize("name", ["l1 3x3", "l3 3x3", "l3 1x1", "l4 3x3"])
def test_longer_sums_come_first(name, dtype, tf32) -> None:
    """dX sums over taps and channels, dW over positions."""
    c = layer(*LAYERS[name])
    x, w, y = (Spec(shape, dtype) for shape in (c.x_shape, c.w_shape, c.y_shape))
    plan = conv.plan_wanted(H200, c, Wanted(x, y, w, x, is_gradient=True, dw=w), tf32=tf32)
    (args,) = (step.args for step in launches(plan) if step.symbol == "conv__staged")
    of_weights = next(a for a in args if getattr(a, "dtype", None) == WeightLayout.of().dtype)
    terms = math.prod(c.kernel) * c.filters
    assert (args[5] > 0) is (terms > int(of_weights["positions_of_part"]))


@pytest.mark.parametrize("name", LAYERS)
def test_three_products_are_of_staged_arrays(name) -> None:
    """In tiles of their own; the first layer, which is not staged, is multiplied exactly."""
    c = layer(*LAYERS[name])
    actual, exact = plans(c, FLOAT32, tf32=3), plans(c, FLOAT32)
    for key in "YXW":
        if name == "conv1":
            assert str(actual[key]) == str(exact[key])
            continue
        (step,) = (s for s in launches(actual[key]) if s.symbol == "conv__staged")
        assert (step.slots["TF32"], step.slots["ROWS"]) == ("3", "64")
    for device in (H200, Device(80, (7, 5))):
        for dtype in FLOATS:
            if dtype != FLOAT32 or device is not H200:
                same = (str(plans(c, dtype, device, tf32=tf32)) for tf32 in (0, 3))
                assert len(set(same)) == 1


@pytest.mark.parametrize("name", LAYERS)
def test_scratch_memory_is_bounded(name) -> None:
    for dtype in FLOATS:
        actual = plans(layer(*LAYERS[name]), dtype)
        joined = actual["X"].then(actual["W"]).then(actual["b"])
        staged = "conv__stage" in [step.symbol for step in launches(actual["W"])]
        c = layer(*LAYERS[name])
        given = (math.prod(c.x_shape) + math.prod(c.y_shape)) * dtype.itemsize
        assert joined.workspace_nbytes <= max(64 * 2**20, 2.5 * given if staged else 0)


def test_large_weights_are_packed_and_summed_a_piece_at_a_time() -> None:
    actual = plans(layer(4096, 4096, 7, 3, 1), FLOAT32)
    assert len(launches(actual["X"])) > 2
    assert sum(step.symbol == "conv__weight_total" for step in launches(actual["W"])) > 1
    assert all(plan.workspace_nbytes <= 64 * 2**20 for plan in actual.values())


def test_parts_of_a_sum_fill_the_device() -> None:
    assert parts_of_sum(H200, 1, 200_704, 1000) > 200
    assert parts_of_sum(H200, 264, 200_704, 1000) == 1
    assert parts_of_sum(H200, 1, 64, 0) == 1


def test_nothing_is_summed_where_there_is_nothing() -> None:
    actual = plans(layer(8, 8, 7, 3, 1, n=0), FLOAT32)
    assert launches(actual["Y"]) == launches(actual["X"]) == []
    assert [step.symbol for step in launches(actual["W"])] == ["conv__weight_total_few"]
    assert [step.symbol for step in launches(actual["b"])] == ["conv__total"]


def test_residues_of_a_stride_have_tiles_of_their_own() -> None:
    """Strides beyond the image have no more residues than positions."""
    c = layer(8, 8, 12, 1, 5)
    layout = launches(plans(c, FLOAT32)["X"])[-1].args[-1]
    assert layout["residues"].tolist() == [1, 5, 5]
    assert layout["tap_steps"].tolist() == [1, 5, 5]
    blocks = launches(plans(c, FLOAT32)["X"])[-1].config.grid
    assert math.prod(blocks) == 25 * -(-BATCH * 9 // 128)


def test_residues_of_few_channels_are_rows_of_one_tile() -> None:
    """Each channel of the first layer has four, which read a window of 4 x 4."""
    (step,) = launches(plans(layer(3, 60, 224, 7, 2), FLOAT16)["X"])[1:]
    layout = step.args[-1]
    assert layout["rows"] == 3 * 4
    assert layout["kernel"].tolist() == [1, 4, 4]
    assert layout["skipped"].tolist() == [0, 1, 1]
    assert step.config.grid == (BATCH * 112 * 112 // 128,)
    for channels, extent in ((9, 224), (3, 223)):  # more rows than a tile has; a half position
        (step,) = launches(plans(layer(channels, 64, extent, 7, 2), FLOAT16)["X"])[1:]
        assert step.args[-1]["of_channel"] == 1


def test_small_groups_are_joined() -> None:
    """16 of 4 channels to one."""
    c = layer(128, 128, 56, 3, 1, group=32)
    for dtype, tf32 in ((FLOAT16, 0), (FLOAT32, 1), (FLOAT32, 0), (FLOAT32, 3)):
        assert main(plans(c, dtype, tf32=tf32)["X"], "image", "staged")[0] == "staged"
    _, staged, total = launches(plans(c, FLOAT16)["W"])
    assert (staged.args[12]["groups"], staged.args[12]["padded_channels"]) == (2, 64)
    assert (total.args[-1]["channels"], total.args[7]) == (4, 4)
    layout = launches(plans(c, FLOAT16)["X"])[0].args[-1]
    assert layout["groups"]["joined"] == 16
    assert int(layout["w"]["blocks"]) == -(-128 * 9 * 8 // 256)
