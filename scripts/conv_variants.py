# SPDX-License-Identifier: MIT
"""Times of ConvGrad in every variant of 60 shapes, which tests hold the model of its plans against.

    python scripts/conv_variants.py --out tests/data/conv_variants.json --warps [--seconds 60]
    python scripts/conv_variants.py --out tests/data/conv_variants_warpgroups.json

A variant is "gathered", without staged arrays, or rows of a tile and parts of W's sum: those that
the model takes for each number of rows, and fewer and more of them.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import click
import cupy
import timing
from calls import call, input_sets
from cases import Case
from cases.conv import TYPES, Layer, _inputs, shapes

from cupy_training_ops import get_op
from cupy_training_ops.backend import ArrayInfo
from cupy_training_ops.call.backends import info
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.compiler import compile_ahead
from cupy_training_ops.device.cuda import BACKEND
from cupy_training_ops.device.source import load
from cupy_training_ops.families.conv import plan, plan_model, plan_staged, plan_variants
from cupy_training_ops.families.conv.facts import AXES
from cupy_training_ops.families.conv.plan_launches import Wanted
from cupy_training_ops.plan import Device, Launch

# Channels, extent, filters, kernel, stride, group, dilation, batch.
SHAPES = (
    *((c, side, m, 3, 1, 1, 1, n) for c, side, m, n in (
        (32, 112, 32, 16), (32, 56, 64, 64), (64, 56, 64, 16), (64, 56, 64, 128), (64, 112, 128, 8),
        (96, 28, 96, 64), (128, 28, 128, 16), (128, 28, 128, 64), (128, 56, 128, 32),
        (160, 32, 320, 8), (192, 14, 192, 32), (256, 14, 256, 16), (256, 14, 256, 64),
        (256, 28, 512, 16), (256, 64, 256, 1), (320, 32, 320, 8), (320, 64, 320, 2),
        (384, 13, 384, 64), (512, 7, 512, 32), (512, 7, 512, 64), (512, 14, 512, 32),
        (512, 32, 512, 4), (640, 16, 640, 8), (1280, 8, 1280, 8), (48, 40, 80, 32),
        (100, 27, 200, 64), (64, 32, 64, 256), (16, 32, 16, 256))),
    *((c, side, m, 1, 1, 1, 1, n) for c, side, m, n in (
        (512, 28, 128, 64), (256, 14, 1024, 64), (1024, 14, 256, 64), (512, 7, 2048, 64),
        (2048, 7, 512, 64), (768, 14, 768, 32), (320, 32, 640, 8), (1280, 8, 1280, 8))),
    *((c, side, m, 3, 2, 1, 1, n) for c, side, m, n in (
        (64, 112, 64, 16), (128, 56, 128, 64), (256, 28, 256, 64), (512, 14, 512, 64),
        (32, 224, 64, 8), (320, 32, 640, 8))),
    *((c, side, m, 1, 2, 1, 1, n) for c, side, m, n in (
        (256, 56, 512, 32), (512, 28, 1024, 64), (1024, 14, 2048, 64))),
    (64, 56, 128, 5, 2, 1, 1, 64), (64, 28, 96, 5, 1, 1, 1, 64), (192, 17, 192, 5, 1, 1, 1, 32),
    (256, 28, 256, 3, 1, 1, 2, 16), (512, 28, 512, 3, 1, 1, 4, 8), (128, 28, 128, 3, 1, 2, 1, 64),
    (256, 28, 256, 3, 1, 4, 1, 32), (512, 14, 512, 3, 1, 8, 1, 64), (256, 56, 256, 3, 1, 8, 1, 16),
)  # fmt: skip
TF32 = (7, 9, 12, 19, 29, 37)  # of these, also so
SHARES = (0.5, 0.67, 1.0, 1.5, 2.0)  # of the parts that the model takes


def layers() -> Iterator[tuple[Layer, str]]:
    """60, with the types."""
    for i, (c, side, m, k, stride, group, dilation, n) in enumerate(SHAPES):
        layer = Layer("shape", c, side, m, k, stride, group, dilation, n)
        yield layer, "f2"
        if i in TF32:
            yield layer, "f4,tf32"


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--warps", is_flag=True, help="Warps multiply halves, also where warpgroups can.")
@click.option("--seconds", default=600.0, help="Begin no shape after so many.")
def main(out: Path, warps: bool, seconds: float) -> None:
    """Measure, and write a line for each shape."""
    timing.REPLAYS, timing.CALLS = 5, 10
    by_warps = {"multiply_by_warpgroups": never}
    with ExitStack() as stack:
        for module in (plan_model, plan_variants) if warps else ():
            stack.enter_context(mock.patch.multiple(module, **by_warps))
        write(out, warps, seconds)


def write(out: Path, warps: bool, seconds: float) -> None:
    """What `main` says."""
    begun, lines = time.monotonic(), []
    device = device_here()
    compile_all(device)
    click.echo(f"compiled in {time.monotonic() - begun:.1f} s")
    for layer, label in layers():
        if time.monotonic() - begun > seconds:
            click.echo("out of time")
            break
        times = measured(layer, label)
        lines.append({"type": label, "layer": layer[1:], "us": times})
        best, chosen = min(times.values()), times[next(iter(times))]
        click.echo(
            f"{label} {layer[1:]}: {chosen / best:.3f} of {min(times, key=times.get)} {times}"
        )
    click.echo(f"{time.monotonic() - begun:.1f} s")
    head = {
        "device": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "date": f"{datetime.date.today()}",
        "plans_for": astuple(replace(device, has_warpgroups=device.has_warpgroups and not warps)),
    }
    rows = ",\n".join(json.dumps(line) for line in lines)
    out.write_text(json.dumps(head)[:-1] + f', "shapes": [\n{rows}\n]}}\n')


def device_here() -> Device:
    """What planning knows of it."""
    return BACKEND.device(cupy.cuda.runtime.getDevice())


def compile_all(device: Device) -> None:
    """What any variant launches, by a thread for each module."""
    source, wanted = load("conv"), {}
    for layer, label in layers():
        for launch in launches(device, layer, label):
            wanted[tuple(sorted(launch.slots.items()))] = launch.slots
    number = cupy.cuda.runtime.getDevice()
    compile_ahead(BACKEND, [(source, slots) for slots in wanted.values()], number)


def launches(device: Device, layer: Layer, label: str) -> Iterator[Launch]:
    """Of all variants."""
    dtype, tf32 = TYPES[label]
    of = shapes("ConvGrad", layer)
    specs = [Spec(of[name], dtype, place=i) for i, name in enumerate("yxwxwb")]
    op = get_op("ConvGrad")(**layer.attributes, allow_tf32=tf32)
    conv = op.convolution(specs[1], specs[2]).padded_to(AXES)
    ways = [nullcontext(), gathered(), *(forced(t, dtype) for t in variants(device, conv, dtype))]
    for way in ways:
        with way:
            yield from (s for s in op.plan(device, *specs).steps if isinstance(s, Launch))


def measured(layer: Layer, label: str) -> dict[str, float]:
    """Microseconds of each variant; what the plan takes comes first."""
    dtype, tf32 = TYPES[label]
    make = partial(_inputs, op="ConvGrad", layer=layer, dtype=dtype, last=False)
    case = Case("ConvGrad", "", make, {**layer.attributes, "allow_tf32": tf32})
    sets, _ = input_sets(case, get_op("ConvGrad")(**case.attributes))

    def timed() -> float:
        op = get_op("ConvGrad")(**case.attributes)
        return round(timing.time_cupy([call(case, op, s) for s in sets[:8]]).median * 1000, 1)

    x, y = ((a, ArrayInfo.of(info(a)).spec) for a in (sets[0][1], sets[0][0]))
    device = device_here()
    op = get_op("ConvGrad")(**case.attributes)
    conv = op.convolution(x[1], Spec(sets[0][2].shape, dtype)).padded_to(AXES)
    chosen = "gathered"
    if plan_model.staged_weight(device, conv, Wanted(x[1], y[1]), tf32):
        chosen = name_of(plan_model.weight_tiles(device, conv, dtype))
    times = {chosen: timed()}
    for tiles in variants(device, conv, dtype):
        if name_of(tiles) not in times:
            with forced(tiles, dtype):
                times[name_of(tiles)] = timed()
    if "gathered" not in times:
        with gathered():
            times["gathered"] = timed()
    return times


def variants(device: Device, conv: Any, dtype: Any) -> Iterator[Any]:
    """Tiles of W's gradient."""
    if not plan_model.can_stage(device, conv, dtype):
        return
    for rows in plan_model.tile_choices(device, dtype):
        model, _ = plan_model.tiles_and_cost(device, conv, dtype, rows)
        for share in SHARES:
            yield replace(model, parts=max(1, round(model.parts * share)))


def name_of(tiles: Any) -> str:
    """Of a variant."""
    return f"{tiles.rows} x {tiles.parts}"


def never(*_: Any) -> bool:
    """Nothing is staged, or multiplied by warpgroups."""
    return False


def gathered() -> Any:
    """Nothing is staged."""
    return mock.patch.multiple(plan, staged_image=never, staged_weight=never)


@contextmanager
def forced(tiles: Any, dtype: Any) -> Iterator[None]:
    """All is staged, in these tiles."""

    def can(device: Device, conv: Any, *_: Any) -> bool:
        return plan_model.can_stage(device, conv, dtype)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(plan, staged_image=can, staged_weight=can))
        for module in (plan_model, plan_staged):
            stack.enter_context(mock.patch.object(module, "weight_tiles", return_value=tiles))
        yield


if __name__ == "__main__":
    main()
