# SPDX-License-Identifier: MIT
"""Run every sample on the GPU for a memory checker: no pool, every array an allocation of its own.

    compute-sanitizer --padding 64 --error-exitcode 9 python3 scripts/memory_check.py
    compute-sanitizer --padding 64 --error-exitcode 9 python3 scripts/memory_check.py --plant

The second must report an overrun of one element, or the first proves nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import click
import cupy
import numpy as np
from families import family_option, operators

from cupy_training_ops import get_op
from cupy_training_ops.testing.samples import all_samples, placed_inputs


@click.command()
@click.option("--plant", is_flag=True, help="Only run a kernel that reads one element too far.")
@family_option
def main(plant: bool, families: tuple[str, ...]) -> None:
    """Launch the samples' kernels and print how many calls were made."""
    cupy.cuda.set_allocator(None)
    if plant:
        overrun()
    else:
        samples = all_samples()
        calls = [run(sample) for name in operators(families) for sample in samples.get(name, ())]
        click.echo(f"{len(calls)} calls")
    cupy.cuda.Device().synchronize()


def overrun() -> None:
    """Launch a kernel that reads one element beyond an array, which ends with its allocation."""
    from probe.probe import ProbeOverrun

    ProbeOverrun()(cupy.ones(128, np.float32))


def run(sample) -> None:
    """Make a sample's call, with outputs allocated by the operator; once more with channels last in
    memory, for inputs that may be."""
    values = sample.make(np.random.default_rng(7))
    op = get_op(sample.op)(**sample.attributes)
    inputs = placed_inputs(op, values, sample.offset, cupy)
    op(*inputs)
    declared = op.declaration
    if may_lie := declared.lies_as.inputs:
        pairs = zip(op.inputs, inputs, strict=False)
        op(*[channels_last(a) if item.name in may_lie else a for item, a in pairs])


def channels_last(array):
    """Return a copy of an array whose axis 1 is the last in memory; one of 1 or 2 axes as it is."""
    if array.ndim < 3:
        return array
    return cupy.moveaxis(cupy.ascontiguousarray(cupy.moveaxis(array, 1, -1)), -1, 1)


if __name__ == "__main__":
    main()
