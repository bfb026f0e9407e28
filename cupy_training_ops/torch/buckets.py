# SPDX-License-Identifier: MIT
"""Gradients of PyTorch's parameters, averaged over ranks during the backward pass."""

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
    ranks; with an optimizer (`cto.AdamW(parameters, group=group)`) only of this rank's parts:
    `optimizer.step(buckets.wait())`. parameters: those that require gradients, the same on all
    ranks, with contiguous gradients. group: the ranks. megabytes: of a bucket of gradients, which
    are sent together. Within `paused()` gradients accumulate locally.

    CuPy's current device has to be that of the tensors.
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
        self._came: list[Any] = []  # parameters whose gradients are ready but not handed on
        self._is_paused = False
        self._hooks: list[Any] = []
        self._lasts = self._buckets.lasts()  # indices of the parameters that come last in buckets
        self._register(self._lasts)

    def wait(self) -> list[Any]:
        """Send the last gradients; return all parameters' averaged ones, None for those without."""
        self._hand_on()
        gradients, lasts = self._buckets.wait(), self._buckets.lasts()
        # Buckets or the order of gradients changed: hook the new lasts, or all parameters, eagerly.
        if self._hooks and (lasts != self._lasts or not self._is_steady):
            self._register(lasts if lasts != self._lasts else range(len(self._parameters)))
            self._lasts = lasts
        return gradients

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
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __repr__(self) -> str:
        return repr(self._buckets)

    def _register(self, eager: Collection[int]) -> None:
        """Hook the parameters.

        eager: indices of parameters, usually the last of each bucket, whose hook, `_hook`, passes
        all gradients that have come to the buckets. Hooks of others only append to a list, in C, as
        Python would hold up the backward pass.
        """
        self.close()
        self._is_steady = True  # gradients came in the order for which `eager` was chosen
        self._hooks = [
            p.register_post_accumulate_grad_hook(
                partial(self._hook, i) if i in eager else self._came.append
            )
            for i, p in enumerate(self._parameters)
        ]
        self._is_watched = len(eager) < len(self._parameters)  # False: any order will do

    def _hook(self, place: int, parameter: Any) -> None:
        """Pass all gradients that have come, with that of this parameter, to the buckets.

        Only the last parameter of each bucket has this hook; after the order of gradients changed,
        all have it. place: the parameter's index. If its bucket still lacks gradients, the order
        has changed: `wait` then hooks all parameters.
        """
        if not self._is_paused:
            self._came.append(parameter)
            self._hand_on()
            if self._is_watched and self._buckets.lacks(place):  # it was not the last of its bucket
                self._is_steady = False

    def _hand_on(self) -> None:
        """Pass the gradients that are ready to the buckets."""
        came = self._came[:]
        del self._came[: len(came)]
        for parameter in came:
            self._buckets.ready(self._places[id(parameter)], parameter.grad)
