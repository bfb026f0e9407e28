# SPDX-License-Identifier: MIT
"""A call whose checks are done: what is left is ALLOC, EMPTY and RUN."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from ..backend import Array, ArrayInfo, Info
from ..declare.schema import Changing, Spec
from ..device import workspace as workspaces
from ..device.alike import raise_versions
from ..device.arguments import getter
from ..device.late_arguments import Values
from ..dtypes import UINT8, Dtype, HostArray
from ..errors import ProviderError, pass_on, refuse, shown
from . import layout
from .aliasing import Overlap, Written
from .arrays import adopt
from .backends import info
from .convert import Freezing
from .foreign import (
    as_tensor,
    is_read_only,
    is_tensor,
    may_record,
    refuse_gradients,
    refuse_read_only,
)
from .prepared import Arguments, Arrays, Prepared, Result, grouped, overlap, ungrouped, written

Tables = Sequence[object]  # structs that hold addresses
Maker = Callable[[Sequence[Any]], Array]
NO_VALUES: Values = {}


class Call:
    """One remembered combination of dtypes, shapes, alignments, outputs and device."""

    workspace_nbytes = 0
    taken: frozenset[int] | None = None  # arrays and results that are no part of tables; None: all
    repeats = True  # a bound call gives the same arrays each time

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.backend = prepared.placement.backend
        self.device = prepared.placement.device
        self.has_tensors = self.backend.has_tensors
        self.records = self.has_tensors and not prepared.detaches  # autograd may
        self.checks, self.check_numbers = prepared.checks, prepared.check_numbers
        self.changing = prepared.changing
        self.supplied, self.always = prepared.supplied, prepared.always
        self._know_results(prepared)
        self._know_inputs(prepared)
        self.overlap = overlap(prepared)
        self.writes = tuple([found.place for found in written(prepared)])

    def _know_inputs(self, prepared: Prepared) -> None:
        """Which are arrays, which are lists, which are frozen at each call."""
        self.n_inputs = len(prepared.inputs)
        changing = [(place, prepared.inputs[place]) for place in prepared.changing]
        self.freezing = [(place, Freezing(prepared.op, item)) for place, item in changing]
        pairs = enumerate(zip(prepared.inputs, prepared.fixed, strict=True))
        self.host_values = [(i, value) for i, (item, value) in pairs if item.memory == "host"]
        self.all_device = not any(i.variadic or i.memory != "device" for i in prepared.inputs)
        self.is_plain = self.all_device and not self.groups_out
        given = set(prepared.changing)
        self.array_places = tuple(
            (place, declared.variadic)
            for place, declared in enumerate(prepared.inputs)
            if declared.memory != "host" and place not in given
        )
        self.has_lists = any(variadic for _, variadic in self.array_places)
        self._pick_arrays = getter([place for place, _ in self.array_places])

    def _know_results(self, prepared: Prepared) -> None:
        """Which are given, made or updated, and which come back."""
        self.returns_all = all(r.returned or r.spec is None for r in prepared.results)
        self.single_output = prepared.counts == (None,) and self.returns_all
        self.groups = prepared.groups_outputs
        self.groups_out = any(prepared.out) and self.groups
        self.has_all_outputs = bool(prepared.out) and all(prepared.out)
        self.has_out = any(prepared.out)
        self._know_places(prepared)

    def _know_places(self, prepared: Prepared) -> None:
        """What makes new results, and where each is in the row that `placed` makes."""
        makers, hosts = self._makers(), self._hosts()
        self.makers = [make for make in makers if make]
        self.makes_arrays = bool(self.makers)
        self.hosts = [make for make in hosts if make]
        self.makes_all = len(self.makers) == len(makers)
        nothing = len(prepared.arrays)
        made = itertools.count(nothing + 1)
        on_host = itertools.count(nothing + 1 + len(self.makers))
        out = nothing + 1 + len(self.makers) + len(self.hosts)
        places: list[int] = []
        for i, result in enumerate(prepared.results):
            if prepared.out[i] is not None:
                places.append(out + i)
            elif makers[i] or hosts[i]:
                places.append(next(made if makers[i] else on_host))
            else:
                alias = None if result.spec is None else result.alias
                places.append(nothing if alias is None else alias)
        self._pick = getter(places)

    def __call__(self, inputs: Arguments, out: Arguments, workspace: object) -> Any:
        """Check what only the arrays of this call can show, allocate, and run."""
        if self.is_plain and len(inputs) == self.n_inputs:
            arrays = inputs
        else:
            inputs, out, arrays = self.taken_apart(inputs, out)
        if self.overlap is not None:
            self.overlap.refuse(self.backend.pointers(arrays + out if self.has_out else arrays))
        return self.finish(inputs, arrays, out, workspace)

    def checked_tables(self, arrays: Arrays, out: Arrays) -> Tables | None:
        """The tables of these arrays, none of which is written and another argument's too."""
        addresses = self.addresses(arrays, out)
        if self.overlap is not None:
            self.overlap.refuse(addresses)
        return self.tables(addresses)

    def addresses(self, arrays: Arrays, out: Arrays) -> list[int]:
        """Where the arrays are, the caller's outputs behind the others."""
        return self.backend.pointers(arrays + out if self.has_out else arrays)

    def taken_apart(self, inputs: Arguments, out: Arguments) -> tuple[Arguments, Arrays, Arrays]:
        """All declared inputs, the caller's outputs one by one, and the arrays one by one."""
        missing = self.n_inputs - len(inputs)
        if missing:
            inputs += (None,) * missing
        if self.groups_out:
            out = ungrouped(out, self.prepared.counts)
        return inputs, out, inputs if self.all_device else self._flat(inputs)

    def finish(
        self,
        inputs: Arguments,
        arrays: Arrays,
        out: Arrays,
        workspace: object,
        tables: Tables | None = None,
    ) -> object:
        """The rest of a call whose memory is known to be apart."""
        values = self.values(inputs) if self.changing else NO_VALUES
        results = out if self.has_all_outputs else self.completed(arrays, out, values)
        self.execute(inputs, arrays, results, workspace, values, tables)
        if self.has_tensors and self.writes:
            self.raise_versions(arrays, out)
        return results[0] if self.single_output else self.returned(results)

    def raise_versions(self, arrays: Arrays, out: Arrays) -> None:
        """Let autograd know of the tensors that were written."""
        every = arrays + out
        raise_versions([every[place] for place in self.writes])

    def execute(
        self,
        inputs: Arguments,
        arrays: Arrays,
        results: Arrays,
        workspace: object,
        values: Values,
        tables: Tables | None,
        run: Callable[..., Any] | None = None,
    ) -> Any:
        """The last checks, and the work itself, or what is to run in its place."""
        if self.records:
            self.refuse_gradients(arrays + results)
        if workspace is not None:
            workspace = self._checked(workspace, arrays, results)
        if self.check_numbers is not None or self.checks:
            self._check(inputs, values)
        if self.supplied is not None and self.supplied not in values:
            values = {**values, self.supplied: self.always or self._supply(inputs, values)}
        return (run or self._run)(inputs, arrays, results, workspace, values, tables)

    def computed(self, *arguments: Any) -> Callable[[], object]:
        """What is left to do of a call that has these arguments of `_run`: what writes."""
        return partial(self._run, *arguments)

    def _check(self, inputs: Arguments, values: Values) -> None:
        """What is looked at each time: numbers that change, and arrays where that is asked for."""
        if self.check_numbers is not None:
            self.check_numbers(values)
        for check in self.checks:
            check(*self._with_hosts(inputs, values))

    def _run(
        self,
        inputs: Arguments,
        arrays: Arrays,
        results: Arrays,
        workspace: Array | None,
        values: Values,
        tables: Tables | None,
    ) -> None:
        raise NotImplementedError

    def tables(self, addresses: Sequence[int]) -> Tables | None:
        """What a call with the same `addresses` need not make again; None where it has to."""
        return None

    def tables_at(self, addresses: np.ndarray[Any, np.dtype[np.int64]]) -> Tables | None:
        """The same, with the addresses in an array."""
        return None

    def values(self, inputs: Arguments) -> dict[int, object]:
        """The values that this call gives, by place, in their frozen form."""
        return {
            place: freeze(inputs[place])
            for place, freeze in self.freezing
            if inputs[place] is not None  # else it is supplied
        }

    def _supply(self, inputs: Arguments, values: Values) -> object:
        """What the operator gives for the input that was left to it."""
        assert self.prepared.supply is not None
        return self.prepared.supply(*self._with_hosts(inputs, values))

    def returned(self, results: Arrays) -> tuple[object, ...] | None:
        """Results as the caller gets them, where there is more to it than one array."""
        if not self.returns_all:
            pairs = zip(self.prepared.results, results, strict=True)
            results = tuple(array if result.returned else None for result, array in pairs)
            if self.prepared.counts == (None,):
                return None
        return grouped(results, self.prepared.counts) if self.groups else results

    def completed(self, arrays: Arrays, out: Arrays, values: Values) -> Arrays:
        """The caller's outputs; for the others the aliased input, a host value or new memory."""
        if self.makes_arrays and not self.has_tensors:
            self._refuse_capture()
        made: list[Array] = []
        for make in self.makers:  # a comprehension would be a call
            made.append(make(arrays))
        if self.makes_all:
            return tuple(made)
        return self.placed(arrays, None, made, [make(values) for make in self.hosts], out)

    def placed(
        self,
        arrays: Sequence[Any],
        nothing: object,
        made: Sequence[Any],
        hosts: Sequence[Any],
        out: Sequence[Any],
    ) -> tuple[Any, ...]:
        """Of each result what it is written into."""
        return self._pick((*arrays, nothing, *made, *hosts, *out))

    def _refuse_capture(self) -> None:
        """Refuse new arrays in a graph that would not own their memory."""
        if self.backend.capturing(self.device) and not self.backend.keeps_memory():
            raise ProviderError(
                f"{self.prepared.op}: out: a call under graph capture needs out=, because memory "
                f"from the pool would be handed out again while the graph still writes to it"
            )

    def refuse_gradients(self, arrays: Sequence[Any]) -> None:
        """Refuse tensors whose gradients a result would silently not have."""
        if may_record(arrays):
            refuse_gradients(self.prepared.op, self.prepared.names, arrays)

    def _flat(self, inputs: Arguments) -> Arrays:
        """The arrays in one tuple."""
        if not self.has_lists:
            return self._pick_arrays(inputs)
        flat: list[Array | None] = []
        for place, variadic in self.array_places:
            value = inputs[place]
            if variadic and value is not None:
                flat += value
            else:
                flat.append(value)
        return tuple(flat)

    def makers_over(self, places: Sequence[int | None]) -> list[Maker]:
        """What makes new results, given what has the arrays at these places; None at no place."""
        return [make for make in self._makers(places) if make]

    def _makers(self, places: Sequence[int | None] | None = None) -> list[Maker | None]:
        """What makes each result that is a new array."""
        prepared, specs = self.prepared, dict[tuple[object, object], int | None]()
        for i, array in enumerate(prepared.arrays):
            if array.info is not None and array.info.strides is None:
                place = i if places is None else places[i]
                specs.setdefault((array.info.shape, array.info.dtype), place)

        def maker(spec: Spec, own: layout.Order | None) -> Maker:
            like = specs.get((spec.shape, spec.dtype))
            return layout.maker(self.backend, spec, self.device, own or prepared.order, like)

        pairs = zip(prepared.results, prepared.out, strict=True)
        return [
            maker(r.spec, r.order) if given is None and r.spec and r.is_new else None
            for r, given in pairs
        ]

    def _hosts(self) -> list[Callable[[Values], object] | None]:
        """What makes each result that is a value."""
        is_host = [r.spec is not None and r.value is not None for r in self.prepared.results]
        pairs = zip(self.prepared.results, is_host, strict=True)
        return [partial(self._host, result) if here else None for result, here in pairs]

    def _host(self, result: Result, values: Values) -> object:
        """A host output: its value, or what follows from a number of this call."""
        found, spec = result.value, result.spec
        assert found is not None
        assert spec is not None
        if isinstance(found, Changing):
            found = self._followed(result, spec.dtype, found.of(values))
            return self.backend.of_host(found)
        return self.backend.of_host(found.copy())

    def _followed(self, result: Result, dtype: Dtype, number: object) -> HostArray:
        """A host output that follows from a number of the caller's."""
        try:
            return np.asarray(number, dtype)
        except (ArithmeticError, TypeError, ValueError) as error:
            pass_on(error)
            refuse(self.prepared.op, result.name, f"a number that {dtype} holds", shown(number))

    def _with_hosts(self, inputs: Arguments, values: Values) -> list[object]:
        """The inputs as a provider takes them: host ones in their frozen form."""
        taken = list(inputs)
        for place, value in self.host_values:
            taken[place] = value
        for place, value in values.items():
            taken[place] = value
        return taken

    def _on_device(self, results: Arrays) -> Arrays:
        """The results that have an address there."""
        if not self.hosts:
            return results
        pairs = zip(self.prepared.results, results, strict=True)
        return tuple([array if result.value is None else None for result, array in pairs])

    def _one_by_one(self, returned: Any) -> Sequence[Any]:
        """What a function returned, lists taken apart where there are several outputs."""
        if not isinstance(returned, tuple | list):
            return (returned,)
        if not self.groups:
            return returned
        flat: list[object] = []
        for item in returned:
            flat += item if isinstance(item, tuple | list) else [item]
        return flat

    def _checked(self, workspace: object, arrays: Arrays, results: Arrays) -> Array:
        """The caller's workspace, fit for the call and apart from its arrays on the device."""
        prepared = self.prepared
        array, found = self._taken_workspace(workspace)
        if is_read_only(workspace):
            refuse_read_only(prepared.op, "workspace")
        workspaces.check(prepared.op, found, prepared.placement, self.workspace_nbytes)
        names = [a.name for a in prepared.arrays] + [r.name for r in prepared.results]
        every = (*arrays, *self._on_device(results), array)
        sizes = [0 if array is None else array.nbytes for array in every]
        overlap = Overlap(prepared.op, [*names, "workspace"], sizes, [Written(len(every) - 1)])
        overlap.refuse(self.backend.pointers(every))
        return array

    def _taken_workspace(self, workspace: object) -> tuple[Array, ArrayInfo]:
        """An array that the backend takes, and what is known of it.

        A tensor beside tensors is not exchanged: by DLPack one library's stream waits for the
        other's, which ends a capture.
        """
        if self.has_tensors and is_tensor(workspace):
            with contextlib.suppress(KeyError):  # an unusual one, or one of the host
                tensor = cast(Array, workspace)
                return tensor, ArrayInfo.of(info(tensor))
        adopted: Array = adopt(self.prepared.op, "workspace", workspace)
        array = adopted
        if self.has_tensors and adopted.dtype == UINT8:  # any other is refused
            try:
                array = cast(Array, workspace if is_tensor(workspace) else as_tensor(array))
            except ProviderError as error:
                raise ProviderError(f"{self.prepared.op}: workspace: {error}") from None
        return array, ArrayInfo.of(_info(array, adopted))


def _info(array: Array, adopted: Array) -> Info:
    """The fields of ArrayInfo; of an unusual tensor, as it is lent."""
    try:
        return info(array)
    except KeyError as error:
        pass_on(error)
        return info(adopted)
