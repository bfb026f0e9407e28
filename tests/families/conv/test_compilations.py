# SPDX-License-Identifier: MIT
"""Kernels that are compiled together: few compilations, few kernels in each, so that a first call
waits for neither."""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cupy_training_ops import ProviderError
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device import compiler
from cupy_training_ops.device.compiler import slot_options
from cupy_training_ops.device.source import load
from cupy_training_ops.dtypes import FLOATS
from cupy_training_ops.families.conv import plan as conv
from cupy_training_ops.families.conv.extents import Convolution
from cupy_training_ops.families.conv.facts import WIDE_TAPS
from cupy_training_ops.families.conv.plan_launches import Wanted
from cupy_training_ops.plan import Device, Launch, Plan

Slots = tuple[tuple[str, str], ...]
MODES = (0, 1, 3)  # products of TF32 for each of float32
EMPTY = 6  # registers, at most, of a kernel that is compiled without a body
WITHOUT_TILES = {"transpose", "channel_sums", "line_sums", "total"}
WITHOUT_TILES |= {"depthwise", "depthwise_weight"}
WITHOUT_TILES |= {"depthwise_planes", "depthwise_planes_weight"}
PRODUCTS = {"image", "image_lines", "weight", "weight_lines", "weight_y_lines", "staged"}
PRODUCTS |= {"image_few", "weight_few"}

DEPTHWISE = {"depthwise_lines", "depthwise_walks"}
DEPTHWISE_SUMS = {"depthwise_lines_weight", "depthwise_walks_weight"}
# Of many taps at once, which doubles have not.
WIDE = {"total", "depthwise_weight", "depthwise_planes", "depthwise_planes_weight"}
WIDE |= {"depthwise_walks", "depthwise_walks_weight"}


def layer(
    channels: int, filters: int, extent: int, kernel: int, group: int = 1, n: int = 64
) -> Convolution:
    """Padded by half of the kernel."""
    both = (extent,) * 2, (extent,) * 2, (kernel,) * 2, (1, 1), (1, 1), (kernel // 2,) * 2
    return Convolution(n, channels, filters, group, *both)


def convolutions() -> list[Convolution]:
    """In all tiles; the last have offsets of 64 bits, then groups of one channel."""
    shapes = itertools.product((3, 64, 130), (30, 64, 128, 300), (7, 56), (1, 3))
    actual = [layer(*shape) for shape in shapes]
    actual += [layer(2, 2, 40_000, kernel, n=1) for kernel in (1, 3)]
    return [*actual, *(layer(64, 64, 28, kernel, group=64) for kernel in (3, WIDE_TAPS))]


@functools.cache
def launched(architecture: str, modes: tuple[int, ...] = MODES) -> dict[Slots, frozenset[str]]:
    """The kernels of each compilation that plans launch, in these modes of float32."""
    device, actual = compiler.device_of(architecture), dict[Slots, frozenset[str]]()
    for c, dtype, tf32 in itertools.product(convolutions(), FLOATS, modes):
        x, y, w = (Spec(shape, dtype) for shape in (c.x_shape, c.y_shape, c.w_shape))
        plans = (
            conv.plan_wanted(device, c, Wanted(x, x, w, y), tf32=tf32),
            conv.plan_wanted(device, c, Wanted(y, y, w, x, is_gradient=True), tf32=tf32),
            conv.plan_wanted(device, c, Wanted(x, y, dw=w), tf32=tf32),
            conv.bias_gradient(device, y, Spec((c.filters,), dtype)),
            *of_lines(device, c, x, y, w),
        )
        for slots, name in itertools.chain.from_iterable(map(kernels, plans)):
            actual[slots] = actual.get(slots, frozenset()) | {name}
    return actual


def of_lines(device: Device, c: Convolution, x: Spec, y: Spec, w: Spec) -> Iterator[Plan]:
    """Groups of one channel, or few channels in all, these side by side."""
    if c.group_channels == 1 or c.channels == 3:
        x, y = (replace(spec, channels_last=True) for spec in (x, y))
        wanted = Wanted(x, y, w, x, is_gradient=True, dw=w, db=Spec((c.filters,), x.dtype))
        yield conv.plan_wanted(device, c, wanted)


def kernels(plan: Plan) -> list[tuple[Slots, str]]:
    """With their slots."""
    steps = (step for step in plan.steps if isinstance(step, Launch))
    return [
        (tuple(sorted(step.slots.items())), step.symbol.removeprefix("conv__")) for step in steps
    ]


def compiled(slots: Slots, architecture: str) -> set[str]:
    """The kernels that have a body."""
    of = dict(slots)
    if of["TAPS_AT_ONCE"] == str(WIDE_TAPS):
        return WIDE
    is_half, is_float = of["T"] not in ("float", "double"), of["T"] == "float"
    rows, is_wide = int(of["ROWS"]), of["OFFSET"] == "i64"
    copies = int(architecture) >= 80
    direct = {"direct_image", "direct_weight", "direct_total"} if copies else set()
    if of["STAGED"] == "1":
        if rows == 32:
            return {"total", *DEPTHWISE, *DEPTHWISE_SUMS} | direct
        sums = set() if is_half else {"channel_sums", "line_sums"}
        staged = {"stage", "staged", "staged_total"} if copies else set()
        return {"total", *staged} | sums
    actual = set[str]()
    is_measured, is_old = 80 <= int(architecture) < 120, int(architecture) < 80
    has_rows = is_measured or (rows == 64 if is_half else is_old or rows < 128)
    is_small = rows == 128 if is_half else is_wide
    if has_rows:
        actual |= {"pack", "weight_total"}
        has_lines = is_half or of["TF32"] == "1"
        if not (has_lines and rows == 128):
            actual |= {"image", "weight"} | ({"weight_y_lines"} if is_half else set())
        if has_lines:
            actual |= {"image_lines", "weight_lines"}
    few = {"pack_few", "image_few", "weight_few", "weight_total_few", *DEPTHWISE}
    if is_float and rows == 64 and not is_wide:
        actual |= {"total", *direct} if of["TF32"] == "1" else few
    if is_float and is_wide:
        actual |= DEPTHWISE_SUMS
    return actual | (WITHOUT_TILES if is_small else set())


def architectures() -> list[Any]:
    """One that the session draws; the others are thorough."""
    drawn = random.Random(f"{os.environ['CTO_SEED']} compilations").choice(
        [*compiler.ARCHITECTURES]
    )
    return [
        pytest.param(a, marks=() if a == drawn else pytest.mark.thorough)
        for a in compiler.ARCHITECTURES
    ]


every_architecture = pytest.mark.parametrize("architecture", architectures())


@every_architecture
def test_at_most_21_compilations(architecture) -> None:
    """For one architecture, whatever the convolution; and one of three products, and one of each
    type but doubles for groups of one channel and 5 x 5 taps."""
    actual = launched(architecture, (0, 1))
    wide = [slots for slots in actual if compiled(slots, architecture) == WIDE]
    assert 7 < len(actual) - len(wide) <= 21
    assert sorted(dict(slots)["T"] for slots in wide) == ["__half", "__nv_bfloat16", "float"]
    assert len(launched(architecture)) <= len(actual) + 1
    actual = launched(architecture)
    for slots, names in actual.items():
        assert names <= compiled(slots, architecture)


@every_architecture
def test_no_compilation_has_many_kernels(architecture) -> None:
    """Five products take about as long to compile as two beside all that has no tiles."""
    for slots in launched(architecture):
        actual = compiled(slots, architecture)
        assert len(actual & PRODUCTS) <= (2 if actual >= WITHOUT_TILES else 5)


def test_a_compilation_has_the_kernels_that_it_is_said_to_have(seed) -> None:
    draw = random.Random(seed)
    try:
        architecture = draw.choice(compiler.supported_architectures())
    except ProviderError as error:
        pytest.skip(str(error))
    slots = draw.choice(sorted(launched(architecture)))
    actual = compiler.compile_for(load("conv"), slot_options(dict(slots)), architecture)
    with_body = {name for name, used in actual.items() if used.registers > EMPTY}
    assert with_body == {f"conv__{name}" for name in compiled(slots, architecture)}
