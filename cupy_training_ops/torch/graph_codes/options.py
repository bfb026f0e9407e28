# SPDX-License-Identifier: MIT
"""`activation_codes`: what torch.compile takes as options."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import ArgumentError
from .partition import NAME, CodesPartitioner
from .policies import POLICIES
from .report import Account

LEAST = 64 << 10  # bytes


class ActivationCodes(dict[str, Any]):
    """Options of torch.compile, which also know what was done."""

    def __init__(self, options: dict[str, Any], account: Account) -> None:
        super().__init__(options)
        self._account = account

    def report(self) -> dict[str, Any]:
        """What the compiled graphs save, in bytes: as it is by reason, and as codes."""
        return self._account.report()


def activation_codes(
    policy: str = "default", *, budget: object = None, mode: str | None = None, least: int = LEAST
) -> ActivationCodes:
    """Options for torch.compile."""
    if policy not in POLICIES:
        raise ArgumentError(f"{NAME}: policy must be one of {sorted(POLICIES)}, not {policy!r}")
    account = Account()
    options = dict(torch._inductor.list_mode_options(mode)) if mode else {}
    options["custom_partitioner_fn"] = CodesPartitioner(POLICIES[policy], least, account)
    return ActivationCodes(options, account)
