# SPDX-License-Identifier: MIT
"""`activation_codes`: what torch.compile takes as options."""

from __future__ import annotations

from typing import Any

import torch
import torch._inductor

from ...errors import refuse
from .budget import NAME, budget_of
from .partition import CodesPartitioner
from .policies import POLICIES

OPTION = "custom_partitioner_fn"
LEAST = 64 << 10  # bytes


class ActivationCodes(dict[str, Any]):
    """Options of torch.compile, which also know what was done."""

    def report(self) -> dict[str, Any]:
        """Return what compiled graphs save, in bytes: as it is and why, as codes, computed again.

        `before` and `after` are sums over all graphs, without parameters and inputs, and `graphs`
        has a line for each tensor of each graph. Graphs that PyTorch took from its cache of
        compiled code are not among them.
        """
        report: dict[str, Any] = self[OPTION].account.report()
        return report


def activation_codes(
    policy: str = "default",
    *,
    budget: float | str | None = None,
    mode: str | None = None,
    least: int = LEAST,
) -> ActivationCodes:
    """Options for torch.compile, with which activations wait for the backward pass as codes.

        codes = cto.torch.activation_codes()
        step = torch.compile(step, options=codes)

    policy: `default`, `wide`, which also encodes what attention computes its weights from,
    `products`, which encodes what products read, or `small`, with 4 bits for that.
    budget: without one, all that the policy names waits as codes. A share of what PyTorch's own
    choice saves, as 0.4, or bytes of each graph, as "4GB": then it is chosen for each tensor
    whether it waits as it is, as codes, or is computed again, so that the step is short.
    mode: as torch.compile's, whose options are among these; others can be merged with them.
    least: smaller tensors, in bytes, stay as they are.

    Raises ArgumentError for what is none of these.
    """
    if policy not in POLICIES:
        refuse(NAME, "policy", f"one of {', '.join(POLICIES)}", repr(policy))
    modes = torch._inductor.list_mode_options()
    if mode is not None and mode not in modes:
        refuse(NAME, "mode", f"None or one of {', '.join(modes)}", repr(mode))
    options = ActivationCodes(modes[mode] if mode else {})
    options[OPTION] = CodesPartitioner(POLICIES[policy], budget_of(budget), least)
    return options
