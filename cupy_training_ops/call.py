# SPDX-License-Identifier: MIT
"""A call whose checks are done: what is left is ALLOC, EMPTY and RUN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arrays import Described
from .contract import Spec
from .errors import ArgumentError, ProviderError
from .runtime import workspace as workspaces
from .runtime.launch import ReadyPlan


class Call:
    """One remembered combination of dtypes, shapes, alignments, outputs and device.

    `names` are the operator's inputs and outputs in order, `expected` its output specs (None for an
    output that is not asked for), `targets` the caller's outputs (None for one to allocate).
    """

    workspace_nbytes = 0

    def __init__(
        self,
        op: str,
        names: tuple[str, ...],
        home: Described,
        expected: tuple[Spec | None, ...],
        targets: Sequence[Described | None],
    ) -> None:
        self.op = op
        self.names = names
        self.backend = home.backend
        self.device = home.device
        self.expected = expected
        self.n_inputs = len(names) - len(expected)
        pairs = tuple(zip(expected, targets, strict=True))
        self.allocates = any(spec and not target for spec, target in pairs)
        self.has_targets = any(targets)

    def __call__(self, inputs: tuple[Any, ...], given: tuple[Any, ...], workspace: Any) -> Any:
        if len(inputs) < self.n_inputs:
            inputs += (None,) * (self.n_inputs - len(inputs))
        if self.has_targets:
            self._refuse_overlap(inputs, given)
        results = self._allocated(given) if self.allocates else given
        self._run(inputs, results, workspace)
        return results[0] if len(results) == 1 else results

    def _run(self, inputs: tuple[Any, ...], results: tuple[Any, ...], workspace: Any) -> None:
        raise NotImplementedError

    def _allocated(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """New arrays where the caller gave none."""
        if self.backend.capturing(self.device):
            raise ProviderError(
                f"{self.op}: out: a call under graph capture needs out=, because memory from the "
                f"pool would be handed out again while the graph still writes to it"
            )
        if not self.has_targets:
            given = (None,) * len(self.expected)
        return tuple(
            array if array is not None or spec is None else self.backend.empty(spec, self.device)
            for array, spec in zip(given, self.expected, strict=True)
        )

    def _refuse_overlap(self, inputs: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        """No output of the caller's may share memory with an input or another output."""
        pointer = self.backend.pointer
        spans = [
            (pointer(a), a.nbytes, n)
            for a, n in zip(inputs, self.names, strict=False)
            if a is not None
        ]
        for array in given:
            if array is None:
                continue
            start = pointer(array)
            stop = start + array.nbytes
            for other, nbytes, name in spans:
                if other < stop and start < other + nbytes:
                    raise ArgumentError(
                        f"{self.op}: out: expected memory of its own, got memory shared with {name}"
                    )
            spans.append((start, array.nbytes, "another output"))


class EmptyCall(Call):
    """No output has an element: nothing to compute, nothing launched."""

    def _run(self, inputs: tuple[Any, ...], results: tuple[Any, ...], _: Any) -> None:
        pass


class CpuCall(Call):
    """The CPU provider: one NumPy function, its results copied into the outputs."""

    def __init__(self, *call: Any, function: Callable[..., Any]) -> None:
        super().__init__(*call)
        self.function = function

    def _run(self, inputs: tuple[Any, ...], results: tuple[Any, ...], _: Any) -> None:
        computed = self.function(*inputs)
        if len(results) == 1:
            computed = (computed,)
        for result, value in zip(results, computed, strict=True):
            if result is not None:
                np.copyto(result, value, casting="no")


class KernelCall(Call):
    """A plan on one device, launched on that device's current stream."""

    def __init__(self, *call: Any, ready: ReadyPlan, stores: workspaces.Workspaces) -> None:
        super().__init__(*call)
        self.ready = ready
        self.stores = stores
        self.workspace_nbytes = ready.workspace_nbytes

    def _run(self, inputs: tuple[Any, ...], results: tuple[Any, ...], workspace: Any) -> None:
        if self.workspace_nbytes:
            workspace = self._workspace(workspace)
        if self.backend.is_current(self.device):
            self.ready.run((*inputs, *results), workspace)
        else:
            with self.backend.on(self.device):
                self.ready.run((*inputs, *results), workspace)

    def _workspace(self, workspace: Any) -> Any:
        if workspace is None:
            return self.stores.get(self.backend, self.device, self.workspace_nbytes)
        workspaces.check(self.op, workspace, self.workspace_nbytes)
        return workspace
