# SPDX-License-Identifier: MIT
"""A call whose checks are done: what is left is ALLOC, EMPTY and RUN."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend import Array, ArrayInfo
from ..dtypes import Dtype
from ..errors import ArgumentError, ProviderError, refuse
from ..runtime import workspace as workspaces
from ..runtime.launch import ReadyPlan
from ..schema import Changing, Input, Spec
from .aliasing import Overlap, Written
from .arrays import adopt
from .backends import info
from .convert import converted

Arrays = tuple[Any, ...]
HostValue = NDArray[Any] | Changing
NO_VALUES: Mapping[int, Any] = {}


@dataclass(frozen=True)
class Result:
    """One output of a call, a variadic one taken apart.

    `spec` is None for an output that is not asked for; `value` is the content of a host output;
    `alias` is the place of the array it is written into, `shareable` those that `out=` may be;
    `computed` says that the CPU provider's function returns it.
    """

    name: str
    spec: Spec | None
    value: HostValue | None = None
    alias: int | None = None
    shareable: tuple[int, ...] = ()
    computed: bool = True


@dataclass(frozen=True)
class Named:
    """An array of a call: its name in messages, what is known of it, and its declared input."""

    name: str
    info: ArrayInfo | None
    declared: Input

    @property
    def nbytes(self) -> int:
        """Bytes that a call looks at."""
        if self.info is None or self.declared.not_accessed:
            return 0
        return self.info.spec.nbytes


@dataclass(frozen=True)
class Prepared:
    """What all calls of one kind share."""

    op: str
    inputs: tuple[Input, ...]
    fixed: tuple[Any, ...]  # frozen values of static host inputs, None elsewhere
    changing: tuple[int, ...]  # inputs, by place, whose values each call gives
    arrays: tuple[Named, ...]  # variadic inputs taken apart
    results: tuple[Result, ...]
    out: tuple[ArrayInfo | None, ...]  # the caller's outputs
    counts: tuple[int | None, ...]  # arrays of each declared output, None for one that is no list
    placement: ArrayInfo
    checks: tuple[Callable[..., None], ...] = ()

    @property
    def groups_outputs(self) -> bool:
        """Whether lists come back in tuples of their own, beside other outputs."""
        return len(self.counts) > 1 and any(count is not None for count in self.counts)


class Call:
    """One remembered combination of dtypes, shapes, alignments, outputs and device."""

    workspace_nbytes = 0

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.backend = prepared.placement.backend
        self.device = prepared.placement.device
        self.single_output = prepared.counts == (None,)
        self.n_inputs = len(prepared.inputs)
        self.checks = prepared.checks
        self.changing = prepared.changing
        self.groups_out = any(prepared.out) and prepared.groups_outputs
        self.all_device = not any(i.variadic or i.memory != "device" for i in prepared.inputs)
        self.is_plain = self.all_device and not self.groups_out
        given = set(prepared.changing)
        self.array_places = tuple(
            (place, declared.variadic)
            for place, declared in enumerate(prepared.inputs)
            if declared.memory != "host" and place not in given
        )
        self.has_all_outputs = bool(prepared.out) and all(prepared.out)
        self.has_out = any(prepared.out)
        self.makes_arrays = any(
            given is None and r.alias is None and r.value is None and r.spec is not None
            for r, given in zip(prepared.results, prepared.out, strict=True)
        )
        written = tuple(_written(prepared))
        self.overlap = _overlap(prepared, written) if written else None

    def __call__(self, inputs: Arrays, out: Arrays, workspace: Any) -> Any:
        """Check what only the arrays of this call can show, allocate, and run."""
        if self.is_plain and len(inputs) == self.n_inputs:
            arrays = inputs
        else:
            inputs, out, arrays = self.taken_apart(inputs, out)
        if self.overlap is not None:
            self.overlap.refuse(self.backend.pointers(arrays + out if self.has_out else arrays))
        return self.finish(inputs, arrays, out, workspace)

    def checked_tables(self, arrays: Arrays, out: Arrays) -> Sequence[Any] | None:
        """The tables of these arrays, none of which is written and another argument's too."""
        addresses = self.addresses(arrays, out)
        if self.overlap is not None:
            self.overlap.refuse(addresses)
        return self.tables(addresses)

    def addresses(self, arrays: Arrays, out: Arrays) -> list[int]:
        """Where the arrays are, the caller's outputs behind the others."""
        return self.backend.pointers(arrays + out if self.has_out else arrays)

    def taken_apart(self, inputs: Arrays, out: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        """All declared inputs, the caller's outputs one by one, and the arrays one by one."""
        if len(inputs) < self.n_inputs:
            inputs += (None,) * (self.n_inputs - len(inputs))
        if self.groups_out:
            out = ungrouped(out, self.prepared.counts)
        return inputs, out, inputs if self.all_device else self._flat(inputs)

    def finish(
        self,
        inputs: Arrays,
        arrays: Arrays,
        out: Arrays,
        workspace: Any,
        tables: Sequence[Any] | None = None,
    ) -> Any:
        """The rest of a call whose memory is known to be apart."""
        values = self.values(inputs) if self.changing else NO_VALUES
        results = out if self.has_all_outputs else self.completed(arrays, out, values)
        if workspace is not None:
            workspace = self._checked(workspace, arrays, results)
        for check in self.checks:
            check(*self._with_hosts(inputs, values))
        self._run(inputs, arrays, results, workspace, values, tables)
        return results[0] if self.single_output else self.returned(results)

    def _run(
        self,
        inputs: Arrays,
        arrays: Arrays,
        results: Arrays,
        workspace: Any,
        values: Mapping[int, Any],
        tables: Sequence[Any] | None,
    ) -> None:
        raise NotImplementedError

    def tables(self, addresses: Sequence[int]) -> Sequence[Any] | None:
        """What a call with the same `addresses` need not make again; None where it has to."""
        return None

    def values(self, inputs: Arrays) -> dict[int, Any]:
        """The values that this call gives, by place, in their frozen form."""
        op, declared = self.prepared.op, self.prepared.inputs
        return {p: converted(op, declared[p], inputs[p]) for p in self.prepared.changing}

    def returned(self, results: Arrays) -> Any:
        """Several results as the caller gets them."""
        prepared = self.prepared
        return grouped(results, prepared.counts) if prepared.groups_outputs else results

    def completed(self, arrays: Arrays, out: Arrays, values: Mapping[int, Any]) -> Arrays:
        """The caller's outputs; for the others the aliased input, a host value or new memory."""
        if not self.has_out:
            out = (None,) * len(self.prepared.results)
        pairs = zip(self.prepared.results, out, strict=True)
        return tuple(
            array if array is not None else self._made(result, arrays, values)
            for result, array in pairs
        )

    def _flat(self, inputs: Arrays) -> Arrays:
        """The arrays in one tuple."""
        flat: list[Any] = []
        for place, variadic in self.array_places:
            value = inputs[place]
            if variadic and value is not None:
                flat += value
            else:
                flat.append(value)
        return tuple(flat)

    def _made(self, result: Result, arrays: Arrays, values: Mapping[int, Any]) -> Any:
        if result.spec is None:
            return None
        if isinstance(result.value, Changing):
            return self._followed(result, result.spec.dtype, result.value.of(values))
        if result.value is not None:
            return result.value.copy()
        if result.alias is not None:
            return arrays[result.alias]
        if self.backend.capturing(self.device):
            raise ProviderError(
                f"{self.prepared.op}: out: a call under graph capture needs out=, because memory "
                f"from the pool would be handed out again while the graph still writes to it"
            )
        return self.backend.empty(result.spec, self.device)

    def _followed(self, result: Result, dtype: Dtype, number: Any) -> NDArray[Any]:
        """A host output that follows from a number of the caller's."""
        try:
            return np.asarray(number, dtype)
        except (ArithmeticError, TypeError, ValueError):
            refuse(self.prepared.op, result.name, f"a number that {dtype} holds", repr(number))

    def _with_hosts(self, inputs: Arrays, values: Mapping[int, Any]) -> list[Any]:
        """The inputs as a provider takes them: host ones in their frozen form."""
        taken = [
            fixed if declared.memory == "host" else value
            for declared, fixed, value in zip(
                self.prepared.inputs, self.prepared.fixed, inputs, strict=True
            )
        ]
        for place, value in values.items():
            taken[place] = value
        return taken

    def _on_device(self, results: Arrays) -> Arrays:
        """The results that have an address there."""
        pairs = zip(self.prepared.results, results, strict=True)
        return tuple(array if result.value is None else None for result, array in pairs)

    def _one_by_one(self, returned: Any) -> Sequence[Any]:
        """What the function returned, lists taken apart where there are several outputs."""
        if not isinstance(returned, tuple | list):
            return (returned,)
        if not self.prepared.groups_outputs:
            return returned
        flat: list[Any] = []
        for item in returned:
            flat += item if isinstance(item, tuple | list) else [item]
        return flat

    def _checked(self, workspace: Any, arrays: Arrays, results: Arrays) -> Any:
        """The caller's workspace, fit for the call and apart from its arrays on the device."""
        prepared = self.prepared
        workspace = adopt(prepared.op, "workspace", workspace)
        found = ArrayInfo(*info(workspace))
        workspaces.check(prepared.op, found, prepared.placement, self.workspace_nbytes)
        names = [a.name for a in prepared.arrays] + [r.name for r in prepared.results]
        every = (*arrays, *self._on_device(results), workspace)
        sizes = [0 if array is None else array.nbytes for array in every]
        overlap = Overlap(prepared.op, [*names, "workspace"], sizes, [Written(len(every) - 1)])
        overlap.refuse(self.backend.pointers(every))
        return workspace


def grouped(flat: Sequence[Any], counts: Sequence[int | None]) -> Arrays:
    """Outputs as declared: a tuple for each that is a list."""
    items = iter(flat)
    return tuple(next(items) if n is None else tuple(itertools.islice(items, n)) for n in counts)


def ungrouped(out: Sequence[Any], counts: Sequence[int | None]) -> Arrays:
    """The caller's outputs one by one; None for a list stands for one that is not given."""
    flat: list[Any] = []
    for item, count in zip(out, counts, strict=True):
        flat += [item] if count is None else [None] * count if item is None else item
    return tuple(flat)


def _written(prepared: Prepared) -> Iterator[Written]:
    """What a call writes, by place: arrays first, then the caller's outputs."""
    n_arrays = len(prepared.arrays)
    pairs = zip(prepared.results, prepared.out, strict=True)
    for place, (result, given) in enumerate(pairs, n_arrays):
        if given is not None:
            yield Written(place, result.shareable)
        elif result.spec is not None and result.alias is not None:
            partners = tuple(p for p in result.shareable if p != result.alias)
            yield Written(result.alias, partners)
    aliased = {r.alias for r in prepared.results if r.spec is not None}
    for place, array in enumerate(prepared.arrays):
        if array.declared.updated and array.info is not None and place not in aliased:
            yield Written(place)


def _overlap(prepared: Prepared, written: Sequence[Written]) -> Overlap:
    names = [a.name for a in prepared.arrays] + [f"out ({r.name})" for r in prepared.results]
    sizes = [array.nbytes for array in prepared.arrays]
    if any(prepared.out):
        sizes += [0 if given is None else given.spec.nbytes for given in prepared.out]
    return Overlap(prepared.op, names, sizes, written)


class EmptyCall(Call):
    """No output has an element: nothing to compute, nothing launched."""

    def _run(self, *_: Any) -> None:
        pass


class ViewCall(Call):
    """Nothing is computed: the one list is consecutive pieces of the first input."""

    def __init__(self, prepared: Prepared) -> None:
        super().__init__(prepared)
        if self.has_out:
            raise ArgumentError(f"{prepared.op}: out: results are views of the input")
        specs = [result.spec for result in prepared.results if result.spec is not None]
        self.unwanted = len(specs) < len(prepared.results)
        starts = itertools.accumulate((spec.nbytes for spec in specs), initial=0)
        self.pieces = tuple(zip(starts, (spec.shape for spec in specs), strict=False))
        self.makes_arrays = False

    def __call__(self, inputs: Arrays, out: Arrays, workspace: Any) -> Any:
        """Views of the first input."""
        if self.unwanted:
            return (None,) * len(self.prepared.results)
        return self.backend.views(inputs[0], self.pieces)

    def finish(
        self,
        inputs: Arrays,
        arrays: Arrays,
        out: Arrays,
        workspace: Any,
        tables: Sequence[Any] | None = None,
    ) -> Any:
        """The same of a bound call."""
        return self(inputs, out, workspace)


class DelegatedCall(Call):
    """A Python callable computes; what it returns is taken as arrays are, never copied."""

    def __init__(self, prepared: Prepared, function: Callable[..., Any]) -> None:
        super().__init__(prepared)
        if self.has_out:
            raise ArgumentError(f"{prepared.op}: out: results are the callable's own arrays")
        self.function = function
        self.makes_arrays = False

    def finish(
        self,
        inputs: Arrays,
        arrays: Arrays,
        out: Arrays,
        workspace: Any,
        tables: Sequence[Any] | None = None,
    ) -> Any:
        """What the callable returns, checked against what was inferred."""
        taken_inputs = self._with_hosts(inputs, self.values(inputs))
        for check in self.checks:
            check(*taken_inputs)
        results = self._one_by_one(self.function(*taken_inputs))
        expected = self.prepared.results
        if len(results) != len(expected):
            refuse(self.prepared.op, "results", f"{len(expected)} arrays", str(len(results)))
        taken = [self._taken(*pair) for pair in zip(expected, results, strict=True)]
        return taken[0] if self.single_output else self.returned(tuple(taken))

    def _taken(self, result: Result, value: Any) -> Any:
        array = adopt(self.prepared.op, result.name, value)
        if result.spec is None:
            return None
        expected = f"{result.spec.dtype} of shape {result.spec.shape}"
        if array is None:
            refuse(self.prepared.op, result.name, expected, "None")
        found = ArrayInfo(*info(array))
        if (found.shape, found.dtype) != (result.spec.shape, result.spec.dtype):
            got = f"{found.dtype} of shape {found.shape}"
            refuse(self.prepared.op, result.name, expected, got)
        return array


class CpuCall(Call):
    """The CPU provider: one NumPy function, its results copied into the outputs."""

    def __init__(self, prepared: Prepared, function: Callable[..., Any]) -> None:
        super().__init__(prepared)
        self.function = function

    def _run(
        self,
        inputs: Arrays,
        arrays: Arrays,
        results: Arrays,
        workspace: Any,
        values: Mapping[int, Any],
        tables: Sequence[Any] | None,
    ) -> None:
        expected = self.prepared.results
        for result, array in zip(expected, results, strict=True):
            if array is not None:
                self._refuse_read_only(f"out ({result.name})", array)
        for named, array in zip(self.prepared.arrays, arrays, strict=True):
            if named.declared.updated and array is not None:
                self._refuse_read_only(named.name, array)
        returned = iter(self._one_by_one(self.function(*self._with_hosts(inputs, values))))
        for result, array in zip(expected, results, strict=True):
            value = next(returned) if result.computed else None
            if value is not None and array is not None and result.value is None:
                np.copyto(array, value, casting="no")

    def _refuse_read_only(self, name: str, array: NDArray[Any]) -> None:
        if not array.flags.writeable:
            refuse(self.prepared.op, name, "an array to write to", "a read-only one")


class KernelCall(Call):
    """A plan on one device, its steps queued on that device's current stream."""

    def __init__(self, prepared: Prepared, ready: ReadyPlan, stores: workspaces.Workspaces) -> None:
        super().__init__(prepared)
        self.ready = ready
        self.stores = stores
        self.workspace_nbytes = ready.workspace_nbytes

    def tables(self, addresses: Sequence[int]) -> Sequence[Any] | None:
        """The tables of addresses, unless some are those of new arrays."""
        if not self.ready.has_tables or self.makes_arrays:
            return None
        n_arrays, found = len(self.prepared.arrays), list(addresses)
        for place, result in enumerate(self.prepared.results, n_arrays):
            if place >= len(addresses):
                found.append(0)
            if not found[place] and result.alias is not None:
                found[place] = addresses[result.alias]
        return self.ready.tables_at(found)

    def _run(
        self,
        inputs: Arrays,
        arrays: Arrays,
        results: Arrays,
        workspace: Any,
        values: Mapping[int, Any],
        tables: Sequence[Any] | None,
    ) -> None:
        ready, every = self.ready, arrays + results
        late = ready.values(values) if values else ()
        if tables is None:
            tables = ready.tables(arrays + self._on_device(results)) if ready.has_tables else ()
        if self.workspace_nbytes and workspace is None:
            with self.stores.lock:  # another thread's steps do not come between these
                store = self.stores.get(self.backend, self.device, self.workspace_nbytes)
                self._queue(every, store, tables, late)
        else:
            self._queue(every, workspace, tables, late)

    def _queue(
        self, arrays: Arrays, workspace: Array | None, tables: Sequence[Any], late: Sequence[Any]
    ) -> None:
        if self.backend.is_current(self.device):
            self.ready.run(arrays, workspace, tables, late)
        else:
            with self.backend.on(self.device):
                self.ready.run(arrays, workspace, tables, late)
