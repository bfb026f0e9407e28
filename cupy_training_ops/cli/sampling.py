# SPDX-License-Identifier: MIT
"""The samples a command works through: all operators', or those of the ones asked for."""

from __future__ import annotations

from typing import Any

import click

from ..op import Op
from ..registry import get_op
from ..testing.samples import Sample, all_samples, placed

op_option = click.option(
    "--op", "names", multiple=True, help="Only this operator; may be given more than once."
)


def chosen_samples(names: tuple[str, ...]) -> dict[str, tuple[Sample, ...]]:
    """Operator name to samples; refuses unknown names with the list of known ones."""
    everything = all_samples()
    return {get_op(name).name: everything[name] for name in names} if names else everything


def inputs_in(op: Op, inputs: Any, offset: int, xp: Any) -> list[Any]:
    """Copies of a sample's inputs, each in the memory it is declared in."""
    pairs = zip(op.inputs, inputs, strict=False)
    return [
        value if declared.memory == "host" else _placed(value, offset, xp)
        for declared, value in pairs
    ]


def _placed(value: Any, offset: int, xp: Any) -> Any:
    if isinstance(value, list):
        return [placed(item, offset, xp) for item in value]
    return placed(value, offset, xp)
