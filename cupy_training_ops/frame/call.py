# SPDX-License-Identifier: MIT
"""A call whose checks are done: what is left is ALLOC, EMPTY and RUN."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend import ArrayInfo
from ..errors import ArgumentError, ProviderError, refuse
from ..runtime import workspace as workspaces
from ..runtime.launch import ReadyPlan
from ..schema import Input, Spec
from .aliasing import Overlap, Written
from .arrays import adopt
from .backends import info

Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class Result:
    """One output of a call, a variadic one taken apart.

    `spec` is None for an output that is not asked for; `value` is the content of a host output;
    `alias` the input it is written into; `shareable` the inputs whose array `out=` may be.
    """

    name: str
    spec: Spec | None
    value: Any = None
    alias: str | None = None
    shareable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signature:
    """What all calls of one kind share: declared inputs, names of the arrays, results, place."""

    op: str
    inputs: tuple[Input, ...]
    hosts: tuple[Any, ...]  # frozen values of the host inputs, None elsewhere
    names: tuple[str, ...]  # of the device arrays, variadic inputs taken apart
    results: tuple[Result, ...]
    targets: tuple[ArrayInfo | None, ...]  # the caller's outputs
    home: ArrayInfo
    bare: bool  # one output that comes back without a tuple around it


class Call:
    """One remembered combination of dtypes, shapes, alignments, outputs and device."""

    workspace_nbytes = 0

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.backend = signature.home.backend
        self.device = signature.home.device
        self.bare = signature.bare
        self.plain = not any(i.variadic or i.memory == "host" for i in signature.inputs)
        self.n_inputs = len(signature.inputs)
        pairs = tuple(zip(signature.results, signature.targets, strict=True))
        self.complete = all(target for _, target in pairs)
        self.has_targets = any(target for _, target in pairs)
        self.places = {name: place for place, name in enumerate(signature.names)}
        names = (*signature.names, *(f"out ({result.name})" for result in signature.results))
        written = tuple(_written(signature, self.places))
        unread = [self.places[i.name] for i in signature.inputs if i.strided]
        self.overlap = Overlap(signature.op, names, written, unread) if written else None

    def __call__(self, inputs: Arrays, given: Arrays, workspace: Any) -> Any:
        if len(inputs) < self.n_inputs:
            inputs += (None,) * (self.n_inputs - len(inputs))
        arrays = inputs if self.plain else self._flat(inputs)
        if self.overlap is not None:
            every = arrays + given if self.has_targets else arrays
            self.overlap.refuse(every, self.backend.pointer)
        results = given if self.complete else self._completed(arrays, given)
        if workspace is not None:
            workspace = self._checked(workspace, arrays, results)
        self._run(inputs, arrays, results, workspace)
        return results[0] if self.bare else results

    def _run(self, inputs: Arrays, arrays: Arrays, results: Arrays, workspace: Any) -> None:
        raise NotImplementedError

    def _flat(self, inputs: Arrays) -> Arrays:
        """The device arrays in one tuple."""
        flat: list[Any] = []
        for declared, value in zip(self.signature.inputs, inputs, strict=True):
            if declared.memory == "device":
                flat.extend(value if declared.variadic and value is not None else (value,))
        return tuple(flat)

    def _completed(self, arrays: Arrays, given: Arrays) -> Arrays:
        """The caller's outputs; for the others the aliased input, a host value or new memory."""
        if not self.has_targets:
            given = (None,) * len(self.signature.results)
        pairs = zip(self.signature.results, given, strict=True)
        return tuple(
            array if array is not None else self._made(result, arrays) for result, array in pairs
        )

    def _made(self, result: Result, arrays: Arrays) -> Any:
        if result.spec is None:
            return None
        if result.value is not None:
            return result.value.copy()
        if result.alias is not None:
            return arrays[self.places[result.alias]]
        if self.backend.capturing(self.device):
            raise ProviderError(
                f"{self.signature.op}: out: a call under graph capture needs out=, because memory "
                f"from the pool would be handed out again while the graph still writes to it"
            )
        return self.backend.empty(result.spec, self.device)

    def _checked(self, workspace: Any, arrays: Arrays, results: Arrays) -> Any:
        """The caller's workspace, fit for the call and apart from its arrays on the device."""
        op, pointer = self.signature.op, self.backend.pointer
        pairs = zip(self.signature.results, results, strict=True)
        arrays += tuple(array if result.value is None else None for result, array in pairs)
        workspace = adopt(op, "workspace", workspace)
        described = ArrayInfo(*info(workspace))
        workspaces.check(op, described, self.signature.home, self.workspace_nbytes)
        names = (*self.signature.names, *(r.name for r in self.signature.results), "workspace")
        Overlap(op, names, [Written(len(arrays))]).refuse((*arrays, workspace), pointer)
        return workspace


def _written(signature: Signature, places: Mapping[str, int]) -> Iterator[Written]:
    """What a call writes, by place: inputs first, then the caller's outputs."""
    pairs = zip(signature.results, signature.targets, strict=True)
    for place, (result, target) in enumerate(pairs, len(places)):
        partners = tuple(places[name] for name in result.shareable)
        if target is not None:
            yield Written(place, partners)
        elif result.spec is not None and result.alias is not None:
            own = places[result.alias]
            yield Written(own, tuple(place for place in partners if place != own))


class EmptyCall(Call):
    """No output has an element: nothing to compute, nothing launched."""

    def _run(self, inputs: Arrays, arrays: Arrays, results: Arrays, workspace: Any) -> None:
        pass


class ViewCall(Call):
    """An operator that computes nothing: its one list is consecutive pieces of its first input."""

    def __init__(self, signature: Signature) -> None:
        super().__init__(signature)
        if self.has_targets:
            raise ArgumentError(f"{signature.op}: out: results are views of the input")
        specs = [result.spec for result in signature.results if result.spec is not None]
        self.unwanted = len(specs) < len(signature.results)
        starts = itertools.accumulate((spec.nbytes for spec in specs), initial=0)
        self.pieces = tuple(zip(starts, (spec.shape for spec in specs), strict=False))

    def __call__(self, inputs: Arrays, given: Arrays, workspace: Any) -> Any:
        if self.unwanted:
            return (None,) * len(self.signature.results)
        return self.backend.views(inputs[0], self.pieces)


class CpuCall(Call):
    """The CPU provider: one NumPy function, its results copied into the outputs."""

    def __init__(self, signature: Signature, function: Callable[..., Any]) -> None:
        super().__init__(signature)
        self.function = function

    def _run(self, inputs: Arrays, arrays: Arrays, results: Arrays, workspace: Any) -> None:
        for result, array in zip(self.signature.results, results, strict=True):
            if array is not None and not array.flags.writeable:
                name = f"out ({result.name})"
                refuse(self.signature.op, name, "an array to write to", "a read-only one")
        computed = self.function(*_with_hosts(self.signature, inputs))
        values = iter((computed,) if isinstance(computed, np.ndarray | np.generic) else computed)
        for result, array in zip(self.signature.results, results, strict=True):
            if result.value is None:
                value = next(values)
                if array is not None:
                    np.copyto(array, value, casting="no")


class KernelCall(Call):
    """A plan on one device, launched on that device's current stream."""

    def __init__(
        self, signature: Signature, ready: ReadyPlan, stores: workspaces.Workspaces
    ) -> None:
        super().__init__(signature)
        self.ready = ready
        self.stores = stores
        self.workspace_nbytes = ready.workspace_nbytes

    def _run(self, inputs: Arrays, arrays: Arrays, results: Arrays, workspace: Any) -> None:
        if self.workspace_nbytes and workspace is None:
            with self.stores.lock:  # another thread's launches do not come between these
                store = self.stores.get(self.backend, self.device, self.workspace_nbytes)
                self._launch(arrays + results, store)
        else:
            self._launch(arrays + results, workspace)

    def _launch(self, arrays: Arrays, workspace: Any) -> None:
        if self.backend.is_current(self.device):
            self.ready.run(arrays, workspace)
        else:
            with self.backend.on(self.device):
                self.ready.run(arrays, workspace)


def _with_hosts(signature: Signature, inputs: Arrays) -> list[Any]:
    """The inputs as a provider takes them: host ones in their frozen form."""
    inputs += (None,) * (len(signature.inputs) - len(inputs))
    return [
        host if declared.memory == "host" else value
        for declared, host, value in zip(signature.inputs, signature.hosts, inputs, strict=True)
    ]
