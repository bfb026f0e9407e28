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
from .runtime.plan import Plan
from .runtime.source import Source


class Call:
    """One remembered combination of dtypes, shapes, alignments, outputs and device.

    `names` are the operator's inputs and outputs in order, `expected` its output specs (None for an
    output that is not asked for).
    """

    workspace_nbytes = 0

    def __init__(
        self, op: str, names: tuple[str, ...], home: Described, expected: tuple[Spec | None, ...]
    ) -> None:
        self.op = op
        self.names = names
        self.backend = home.backend
        self.device = home.device
        self.expected = expected
        self.n_inputs = len(names) - len(expected)

    def __call__(self, inputs: tuple[Any, ...], given: tuple[Any, ...], workspace: Any) -> Any:
        results = self._results(given)
        inputs += (None,) * (self.n_inputs - len(inputs))
        self._refuse_overlap(inputs, given)
        self._run(inputs, results, workspace)
        return results[0] if len(results) == 1 else results

    def _run(self, inputs: tuple[Any, ...], results: tuple[Any, ...], workspace: Any) -> None:
        raise NotImplementedError

    def _results(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """The caller's arrays where given, new ones elsewhere."""
        if None not in map(type, given) and type(None) not in map(type, given):
            return given
        if self.backend.capturing(self.device):
            raise ProviderError(
                f"{self.op}: out: a call under graph capture needs out=, because memory from the "
                f"pool would be handed out again while the graph still writes to it"
            )
        if given == (None,):
            given *= len(self.expected)
        return tuple(
            array if array is not None or spec is None else self.backend.empty(spec, self.device)
            for array, spec in zip(given, self.expected, strict=True)
        )

    def _refuse_overlap(self, inputs: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        """No output of the caller's may share memory with an input."""
        pointer = self.backend.pointer
        for array in given:
            if array is None:
                continue
            start = pointer(array)
            stop = start + array.nbytes
            for name, other in zip(self.names, inputs, strict=False):
                if other is not None and pointer(other) < stop and (
                    start < pointer(other) + other.nbytes
                ):
                    raise ArgumentError(
                        f"{self.op}: out: expected memory of its own, got memory shared with {name}"
                    )


class EmptyCall(Call):
    """No output has an element: nothing to compute, nothing launched."""

    def _run(self, inputs: tuple[Any, ...], results: tuple[Any, ...], workspace: Any) -> None:
        pass


class CpuCall(Call):
    """The CPU provider: one NumPy function, its results copied into the outputs."""

    def __init__(
        self,
        op: str,
        names: tuple[str, ...],
        home: Described,
        expected: tuple[Spec | None, ...],
        function: Callable[..., Any],
    ) -> None:
        super().__init__(op, names, home, expected)
        self.function = function

    def _run(self, inputs: tuple[Any, ...], results: tuple[Any, ...], workspace: Any) -> None:
        computed = self.function(*inputs)
        if len(results) == 1:
            computed = (computed,)
        for result, value in zip(results, computed, strict=True):
            if result is not None:
                np.copyto(result, value, casting="no")


class KernelCall(Call):
    """A plan on one device, launched on that device's current stream."""

    def __init__(
        self,
        op: str,
        names: tuple[str, ...],
        home: Described,
        expected: tuple[Spec | None, ...],
        source: Source,
        plan: Plan,
        specs: Sequence[Spec | None],
        stores: workspaces.Workspaces,
    ) -> None:
        super().__init__(op, names, home, expected)
        self.workspace_nbytes = plan.workspace_nbytes
        self.stores = stores
        dtypes = {n: s and s.dtype for n, s in zip(names, specs, strict=True)}
        with self.backend.on(self.device):
            self.ready = ReadyPlan(self.backend, source, plan, self.device, dtypes)

    def _run(self, inputs: tuple[Any, ...], results: tuple[Any, ...], workspace: Any) -> None:
        if self.workspace_nbytes:
            workspace = self._workspace(workspace)
        with self.backend.on(self.device):
            self.ready.run((*inputs, *results), workspace, self.backend)

    def _workspace(self, workspace: Any) -> Any:
        if workspace is None:
            return self.stores.get(self.backend, self.device, self.workspace_nbytes)
        workspaces.check(self.op, workspace, self.workspace_nbytes)
        return workspace
