# SPDX-License-Identifier: MIT
"""Gradients of PyTorch's parameters that become means over ranks within the backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
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
        self._parameters = list(parameters)
        self._buckets = Buckets(self._parameters, group, megabytes=megabytes, optimizer=optimizer)
        self._places = {id(p): i for i, p in enumerate(self._parameters)}
        self._came: list[Any] = []  # parameters whose gradients nobody has looked at yet
        self._is_paused = False
        self._hooks: list[Any] = []
        self._lasts = self._buckets.lasts()
        self._register(self._lasts)

    def wait(self) -> list[Any]:
        """The parameters' gradients, None where the backward pass found none."""
        self._take()
        found, lasts = self._buckets.wait(), self._buckets.lasts()
        if self._hooks and (lasts != self._lasts or not self._is_steady):
            self._register(lasts if lasts != self._lasts else range(len(self._parameters)))
            self._lasts = lasts
        return found

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Send no gradients inside the `with` block: for all passes of a step but the last."""
        before, self._is_paused, n = self._is_paused, True, len(self._came)
        try:
            yield
        finally:
            self._is_paused = before
            del self._came[n:]

    def close(self) -> None:
        """Leave autograd alone again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __repr__(self) -> str:
        return repr(self._buckets)

    def _register(self, eager: Collection[int]) -> None:
        """Hook parameters: at `eager` ones, which end buckets, gradients that came are handed on.

        Others are noted by C code alone: the host may be what a backward pass waits for.
        """
        self.close()
        self._is_steady = True
        self._hooks = [
            p.register_post_accumulate_grad_hook(
                partial(self._look, i) if i in eager else self._came.append
            )
            for i, p in enumerate(self._parameters)
        ]
        self._is_watched = len(eager) < len(self._parameters)

    def _look(self, place: int, parameter: Any) -> None:
        """A hook: the parameter at a place has its gradient."""
        if not self._is_paused:
            self._came.append(parameter)
            self._take()
            if self._is_watched and self._buckets.lacks(place):  # came before others of its bucket
                self._is_steady = False

    def _take(self) -> None:
        """Hand the gradients that came to the buckets."""
        came = self._came[:]
        del self._came[: len(came)]
        for parameter in came:
            self._buckets.ready(self._places[id(parameter)], parameter.grad)
