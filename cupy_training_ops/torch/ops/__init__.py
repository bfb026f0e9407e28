# SPDX-License-Identifier: MIT
"""Operators of the namespace `cto`, known to autograd, torch.compile and torch.export.

`ops.<name>` is an operator's `Door`, its fastest entry point; `torch.ops.cto.<name>` goes through
the dispatcher.
"""

from __future__ import annotations

from ..save_rules import OURS, TABLE
from . import elementwise, linear_losses, losses, rows
from .dispatch import Door

DOORS: dict[str, Door] = {**elementwise.DOORS, **losses.DOORS, **linear_losses.DOORS, **rows.DOORS}
__all__ = ["DOORS", *DOORS]

TABLE.update({node: rule for name, rule in OURS.items() for node in DOORS[name].nodes})


def __getattr__(name: str) -> Door:
    try:
        return DOORS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted(__all__)
