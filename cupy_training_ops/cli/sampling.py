# SPDX-License-Identifier: MIT
"""The samples a command works through: all operators', or those of the ones asked for."""

from __future__ import annotations

import click

from ..registry import get_op
from ..testing.samples import Sample, all_samples

op_option = click.option(
    "--op", "names", multiple=True, help="Only this operator; may be given more than once."
)


def chosen_samples(names: tuple[str, ...]) -> dict[str, tuple[Sample, ...]]:
    """Operator name to samples; refuses unknown names with the list of known ones."""
    everything = all_samples()
    return {get_op(name).name: everything[name] for name in names} if names else everything
