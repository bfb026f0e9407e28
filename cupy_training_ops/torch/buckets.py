# SPDX-License-Identifier: MIT
"""Gradients of PyTorch's parameters that become means over ranks within the backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from ..optimizers import AdamW
from ..optimizers import GradientBuckets as Buckets
from ..process_group import ProcessGroup


class GradientBuckets:
    """`cupy_training_ops.GradientBuckets` whose gradients come from autograd.

    After `loss.backward()` and `wait()` the `grad` of each parameter is the mean over the group's
    ranks, with an optimizer (`cto.AdamW(parameters, group=group)`) of this rank's parts alone:
    `optimizer.step(buckets.wait())`. parameters: those that require gradients, the same on all
    ranks, with contiguous gradients. Within `paused()` gradients are left to add up.

    As everywhere, CuPy's current device is that of the tensors. Other arguments: as there.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        group: ProcessGroup,
        *,
        megabytes: float = 100.0,
        optimizer: AdamW | None = None,
    ) -> None:
        found = list(parameters)
        self._buckets = Buckets(found, group, megabytes=megabytes, optimizer=optimizer)
        self._is_paused = False
        self._hooks = [
            p.register_post_accumulate_grad_hook(partial(self._came, i))
            for i, p in enumerate(found)
        ]

    def wait(self) -> list[Any]:
        """The parameters' gradients, None where the backward pass found none."""
        return self._buckets.wait()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within, gradients are not sent: of all passes but the last one of a step."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def close(self) -> None:
        """Leave autograd alone again."""
        for hook in self._hooks:
            hook.remove()

    def __repr__(self) -> str:
        return repr(self._buckets)

    def _came(self, place: int, parameter: Any) -> None:
        if not self._is_paused:
            self._buckets.ready(place, parameter.grad)
