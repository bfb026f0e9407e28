# SPDX-License-Identifier: MIT
"""The samples a command works through: all operators', or those of the ones asked for."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ..samples import Sample
from ..testing.samples import all_samples
from .choice import OperatorName, operator

op_option = click.option(
    "--op",
    "names",
    multiple=True,
    type=OperatorName(),
    help="Only this operator; may be given more than once.",
)


def chosen_samples(names: tuple[str, ...]) -> Mapping[str, tuple[Sample, ...]]:
    """Operator name to samples; refuses unknown names with the list of known ones."""
    everything = all_samples()
    chosen = [operator(name).name for name in names]
    return {name: everything.get(name, ()) for name in chosen} if chosen else everything
