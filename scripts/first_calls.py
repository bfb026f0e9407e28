# SPDX-License-Identifier: MIT
"""Processor seconds before the first launch of the benchmark's convolutions; needs no GPU.

    python scripts/first_calls.py [--arch 90] [--only f2] [--calls]

Imports, the plan, and NVRTC for each module of which the plan launches kernels, with nothing in a
cache. Modules that calls share are compiled for all, each in processes of its own, of which the
quickest counts. What the driver takes for its context and to load modules is missing. Of several
modules each has a thread: `threads` is what the longest of them takes, `one core` all of them.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import click
from cases.conv import DEPTHWISE, LAYERS, TYPES, UNTUNED, Layer, shapes

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device import compiler
from cupy_training_ops.device.compiler import slot_options
from cupy_training_ops.device.source import load
from cupy_training_ops.dtypes import FLOAT64
from cupy_training_ops.plan import Launch

ARCHITECTURES = ("80", "90", "120")
OPS = ("Conv", "ConvGrad", "ConvTranspose", "ConvTransposeGrad")
ALL_TYPES = {**TYPES, "f8": (FLOAT64, False)}

REPEATS = 3  # processes that compile a module: others on the machine make some slow

Slots = tuple[tuple[str, str], ...]


class First(NamedTuple):
    """The first call of a process."""

    op: str
    layer: Layer
    label: str
    last: bool

    @property
    def name(self) -> str:
        """As the benchmark's cases have it."""
        words = ["channels last"] if self.last else []
        return f"{self.op}[{','.join((self.label, *words, self.layer.name))}]"

    def launches(self, architecture: str) -> list[Launch]:
        """Of its plan."""
        dtype, tf32 = ALL_TYPES[self.label]
        of = shapes(self.op, self.layer)
        is_gradient = self.op.endswith("Grad")
        names = ("y", "x", "w", "x", "w", "b") if is_gradient else ("x", "w", "b", "y")
        specs = [
            Spec(of[name], dtype, place=i, channels_last=self.last and _may_lie(of[name]))
            for i, name in enumerate(names)
        ]
        op = get_op(self.op)(**self.layer.attributes, allow_tf32=tf32)
        steps = op.plan(compiler.device_of(architecture), *specs).steps
        return [step for step in steps if isinstance(step, Launch)]

    def modules(self, architecture: str) -> set[Slots]:
        """What is compiled for it."""
        return {tuple(sorted(step.slots.items())) for step in self.launches(architecture)}


def _may_lie(shape: tuple[int, ...]) -> bool:
    """Whether channels that come last lie otherwise than in a C-contiguous array."""
    return len(shape) > 1 and shape[1] > 1 and any(n > 1 for n in shape[2:])


def calls() -> Iterator[First]:
    """Of every operator, layer, type and layout."""
    for label in ALL_TYPES:
        for layer in (*LAYERS, DEPTHWISE, *UNTUNED):
            for op in OPS:
                yield from (First(op, layer, label, last) for last in (False, True))


@click.command()
@click.option("--arch", "architectures", multiple=True, default=ARCHITECTURES, show_default=True)
@click.option("--only", default="", help="Only calls whose name contains this.")
@click.option("--calls", "each", is_flag=True, help="A row for each call, not for each type.")
@click.option("--compile", "module", hidden=True, default="")
def main(architectures: tuple[str, ...], only: str, each: bool, module: str) -> None:
    """Print a row for each type, or each call, and one for each module."""
    if module:
        click.echo(json.dumps(compiled(architectures[0], json.loads(module))))
        return
    click.echo("| 10 x capability | calls | modules, at most | threads | one core |")
    click.echo("|---|---|---|---|---|")
    for architecture in architectures:
        groups: dict[str, list[tuple[int, float, float]]] = {}
        for call in calls():
            if only in call.name:
                group = call.name if each else call.label
                groups.setdefault(group, []).append(times(call, architecture))
        for group, found in groups.items():
            most = [max(column) for column in zip(*found, strict=True)]
            click.echo(f"| {architecture} | {group} | {most[0]} | {most[1]:.2f} | {most[2]:.2f} |")


def times(call: First, architecture: str) -> tuple[int, float, float]:
    """How many modules, and seconds with a thread for each and one after the other."""
    begun = time.process_time()
    modules = call.modules(architecture)
    plan = time.process_time() - begun
    found = [seconds(architecture, module) for module in modules]
    start = plan + min((start for start, _ in found), default=0)
    of_modules = [compiling for _, compiling in found]
    return len(modules), start + max(of_modules, default=0), start + sum(of_modules)


@functools.cache
def seconds(architecture: str, module: Slots) -> tuple[float, float]:
    """What `compiled` gives in processes of its own, at least."""
    command = [sys.executable, __file__, "--arch", architecture, "--compile", json.dumps(module)]
    found = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(REPEATS)
    ]
    start, compiling = (min(column) for column in zip(*found, strict=True))
    click.echo(f"sm_{architecture} {dict(module)}: {compiling:.2f}", err=True)
    return start, compiling


def compiled(architecture: str, module: list[list[str]]) -> tuple[float, float]:
    """Seconds of this process so far, and of compiling."""
    start = time.process_time()
    options = slot_options({name: value for name, value in module})
    compiler.compile_for(load("conv"), options, architecture)
    return start, time.process_time() - start


if __name__ == "__main__":
    main()
