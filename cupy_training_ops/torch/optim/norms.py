# SPDX-License-Identifier: MIT
"""The norm of all gradients of a step: of several groups, types, devices and ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from ...call.bound import OpenCall, opened
from ...families.optimizer.operators import GradientNorm
from .local import Ranks, without_gaps
from .part import Part

Ready = Sequence[tuple[Part, list[Tensor]]]


class Norms:
    """Norms of lists of tensors, each kind bound to its results once."""

    def __init__(self) -> None:
        self._bound: dict[object, tuple[OpenCall, Tensor, Tensor]] = {}

    def told(self, ready: Ready) -> dict[str, Tensor | None]:
        """The norm of all gradients, and whether it is finite; nothing waits."""
        found: dict[Ranks, list[Tensor]] = {}
        for part, gradients in ready:
            for ranks, some in part.by_ranks(gradients).items():  # the same on each of them
                found.setdefault(ranks, []).extend(some)
        norms = {ranks: self._each(ranks, some) for ranks, some in found.items()}
        whole = norms.get((), [])
        if len(norms) == len(whole) == 1:
            return dict(zip(("gradient_norm", "update_signal"), whole[0], strict=True))
        device = ready[0][0].parameters[0].device
        return _joined({ranks: [n for n, _ in some] for ranks, some in norms.items()}, device)

    def _each(self, ranks: Ranks, gradients: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Norms of each type on each device, on this rank."""
        kinds: dict[object, list[Tensor]] = {}
        for gradient in gradients:
            kind = kinds.setdefault((gradient.dtype, gradient.device), [])
            kind.append(without_gaps(gradient))
        return [self._of(ranks, some) for some in kinds.values()]

    def _of(self, ranks: Ranks, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The norm of such gradients, and whether it is finite."""
        first = gradients[0]
        key = ranks, first.dtype, first.device
        if key not in self._bound:
            wide = torch.float64 if first.dtype == torch.float64 else torch.float32
            norm = torch.zeros((), dtype=wide, device=first.device)
            is_finite = torch.zeros((), dtype=torch.bool, device=first.device)
            call = opened(GradientNorm().bound(gradients=..., out=(norm, is_finite))).trusting()
            self._bound[key] = call, norm, is_finite
        call, norm, is_finite = self._bound[key]
        call(gradients=gradients)
        return norm, is_finite


def _joined(groups: dict[Ranks, list[Tensor]], device: torch.device) -> dict[str, Tensor | None]:
    """The norm of several, in float64, which holds the squares of float32."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for ranks, norms in groups.items():
        square = torch.zeros((), dtype=torch.float64, device=device)
        for norm in norms:
            square += norm.to(device, non_blocking=True).double().square()
        for group in ranks:
            sys.modules["torch.distributed"].all_reduce(square, group=group)
        total += square
    norm = total.sqrt_()
    return {"gradient_norm": norm, "update_signal": norm.isfinite()}
