# SPDX-License-Identifier: MIT
"""How a call runs: views, a Python callable, NumPy functions or kernels."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import setitem
from typing import Any, Protocol

import numpy as np

from ..backend import Array, ArrayInfo
from ..declare.schema import Open, Spec
from ..device.late_arguments import Values
from ..device.launch import ReadyPlan
from ..device.marks import NO_MARKS, Marks, in_turn, make_all, own_marks
from ..device.workspace import Workspaces
from ..dtypes import dtype_name
from ..errors import refuse
from .arrays import adopt
from .backends import info
from .call import NO_VALUES, Call, Tables
from .foreign import refuse_read_only, same_stream
from .pieces import Pieces
from .prepared import Arguments, Arrays, Prepared, Result


class EmptyCall(Call):
    """No output has an element: nothing to compute, nothing launched, nothing supplied."""

    def __init__(self, prepared: Prepared) -> None:
        super().__init__(prepared)
        self.supplied = None

    def _run(self, *_: object) -> None:
        pass


class ViewCall(Call):
    """Nothing is computed: the one list is consecutive pieces of the first input."""

    repeats = False

    def __init__(self, prepared: Prepared) -> None:
        super().__init__(prepared)
        specs = [result.spec for result in prepared.results if result.spec is not None]
        self.unwanted = len(specs) < len(prepared.results)
        starts = itertools.accumulate((spec.nbytes for spec in specs), initial=0)
        self.pieces = tuple(zip(starts, (spec.shape for spec in specs), strict=False))
        self.makes_arrays = False

    def __call__(self, inputs: Arguments, out: Arguments, workspace: object) -> Any:
        """Views of the first input."""
        if self.records:
            self.refuse_gradients(inputs[:1])
        if self.unwanted:
            return (None,) * len(self.prepared.results)
        return self.backend.views(inputs[0], self.pieces)

    def finish(
        self,
        inputs: Arguments,
        arrays: Arrays,
        out: Arrays,
        workspace: object,
        tables: Tables | None = None,
    ) -> object:
        """The same of a bound call."""
        return self(inputs, out, workspace)


class DelegatedCall(Call):
    """A Python callable computes; what it returns is taken as arrays are, never copied."""

    repeats = False

    def __init__(
        self,
        prepared: Prepared,
        delegation: Callable[..., AbstractContextManager[Any]],
        callee: str,
        shares_stream: bool,
    ) -> None:
        super().__init__(prepared)
        self.delegation = delegation
        self.shares_stream = shares_stream  # with PyTorch, and so with Triton
        self.of_callee = f" of {callee}" if callee else ""
        self.anywhere = not any(array.info for array in prepared.arrays)
        self.makes_arrays = False

    def finish(
        self,
        inputs: Arguments,
        arrays: Arrays,
        out: Arrays,
        workspace: object,
        tables: Tables | None = None,
    ) -> object:
        """What the callable returns, checked against what was inferred."""
        values = self.values(inputs)
        self._check(inputs, values)
        taken_inputs = self._with_hosts(inputs, values)
        with self._current(), self.delegation(*taken_inputs) as returned:
            taken = self._all_taken(self._one_by_one(returned))
        return taken[0] if self.single_output else self.returned(taken)

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """The arrays' device, and its stream, are current, also where results are taken."""
        device = self.device
        with contextlib.ExitStack() as stack:
            if not self.backend.is_current(device):
                stack.enter_context(self.backend.on(device))
            if self.shares_stream:
                stack.enter_context(same_stream(device))
            yield

    def _all_taken(self, results: Sequence[object]) -> Arrays:
        op, expected = self.prepared.op, self.prepared.results
        if len(results) != len(expected):
            refuse(op, f"results{self.of_callee}", f"{len(expected)} arrays", str(len(results)))
        return tuple([self._taken(*pair) for pair in zip(expected, results, strict=True)])

    def _taken(self, result: Result, value: object) -> Array | None:
        op, name, spec = self.prepared.op, result.name + self.of_callee, result.spec
        array: Array | None = adopt(op, name, value)
        if spec is None or (array is None and result.open and result.open.optional):
            return None
        expected = _words(result.open, spec)
        if array is None:
            refuse(op, name, expected, "None")
        found = ArrayInfo.of(info(array))
        has_form = (found.shape, found.dtype) == (spec.shape, spec.dtype)
        if not (result.open.has(found.spec) if result.open else has_form):
            refuse(op, name, expected, f"{dtype_name(found.dtype)} of shape {found.shape}")
        place = self.prepared.placement.place
        if result.computed and not self.anywhere and found.place != place:
            refuse(op, name, f"an array on {place}", f"one on {found.place}")
        return array


def _words(known: Open | None, spec: Spec) -> str:
    """An array that a callable is to give, in words."""
    if known is None:
        return f"{dtype_name(spec.dtype)} of shape {spec.shape}"
    dtype = "an array" if known.dtype is None else dtype_name(known.dtype)
    return dtype if known.rank is None else f"{dtype} of rank {known.rank}"


class CpuCall(Call):
    """The CPU provider: one NumPy function, its results copied into the outputs, in pieces where
    the operator says how the arrays come apart."""

    def __init__(
        self, prepared: Prepared, function: Callable[..., Any], pieces: Pieces | None
    ) -> None:
        super().__init__(prepared)
        self.function = function
        self.pieces = pieces

    def _run(
        self,
        inputs: Arguments,
        arrays: Arrays,
        results: Arrays,
        workspace: Array | None,
        values: Values,
        tables: Tables | None,
    ) -> None:
        self._refuse_all_read_only(arrays, results)
        taken, out, marks = self._with_hosts(inputs, values), results, own_marks()
        if self.pieces is None:
            _put(*self._pairs(self.function(*taken), out), marks)
            return
        make_all(marks.first)
        for piece, written in self.pieces(taken, out):
            _put(*self._pairs(self.function(*piece), written))
        make_all(marks.last)

    def computed(self, *arguments: Any) -> Callable[[], object]:
        """What writes what was computed; in pieces the one comes with the other."""
        if self.pieces is not None:
            return super().computed(*arguments)
        inputs, arrays, results, _, values, _ = arguments
        self._refuse_all_read_only(arrays, results)
        returned = self.function(*self._with_hosts(inputs, values))
        return partial(_put_at_once, *self._pairs(returned, results))

    def _refuse_all_read_only(self, arrays: Arrays, results: Sequence[Any]) -> None:
        """Refuse to write what cannot be written, before anything is."""
        for result, array in zip(self.prepared.results, results, strict=True):
            if array is not None:
                self._refuse_read_only(f"out ({result.name})", array)
        for named, array in zip(self.prepared.arrays, arrays, strict=True):
            if named.declared.updated and array is not None:
                self._refuse_read_only(named.name, array)

    def _pairs(self, returned: object, out: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The outputs that are written, and what; the last tile's padding falls off."""
        values = iter(self._one_by_one(returned))
        arrays: list[Any] = []
        found: list[Any] = []
        for result, array in zip(self.prepared.results, out, strict=True):
            value = next(values) if result.computed else None
            if value is not None and array is not None and result.value is None:
                if value.shape != array.shape:
                    value = value.reshape(-1)[: array.size].reshape(array.shape)
                assert value.dtype == array.dtype, (result.name, value.dtype, array.dtype)
                arrays.append(array)
                found.append(value)
        return arrays, found

    def _refuse_read_only(self, name: str, array: Any) -> None:
        if not array.flags.writeable:
            refuse_read_only(self.prepared.op, name)


def _put_at_once(arrays: Sequence[Any], found: Sequence[Any]) -> None:
    """Write what was computed, with the notes of the call that this is."""
    _put(arrays, found, own_marks())


def _put(arrays: Sequence[Any], found: Sequence[Any], marks: Marks = NO_MARKS) -> None:
    """Write all or none: no handler of a signal comes between two."""
    if marks is NO_MARKS:
        list(map(setitem, arrays, itertools.repeat(...), found))
    else:
        pairs = zip(arrays, found, strict=True)
        in_turn([partial(setitem, array, ..., value) for array, value in pairs], marks)


class HasAddress(Protocol):
    """A stream, which the driver knows by its address."""

    ptr: int


class KernelCall(Call):
    """A plan on one device, its steps queued on that device's current stream."""

    def __init__(self, prepared: Prepared, ready: ReadyPlan, stores: Workspaces) -> None:
        super().__init__(prepared)
        self.ready = ready
        self.stores = stores
        self.workspace_nbytes = ready.workspace_nbytes
        self.taken = ready.taken if ready.has_tables else None
        places = [len(prepared.arrays) if r.alias is None else r.alias for r in prepared.results]
        self.aliases = np.array(places, np.intp)  # the place behind the last for those without

    def tables(self, addresses: Sequence[int]) -> Tables | None:
        """The tables of addresses, unless some are those of new arrays."""
        if not self.ready.has_tables or self.makes_arrays:
            return None
        n_arrays = len(self.prepared.arrays)
        arrays, out = addresses[:n_arrays], addresses[n_arrays:]
        on_host = (0,) * len(self.hosts)
        return self.ready.tables_at([*arrays, *self.placed(arrays, 0, (), on_host, out)])

    def tables_at(self, addresses: np.ndarray[Any, np.dtype[np.int64]]) -> Tables | None:
        """The same, with the addresses in an array."""
        if not self.ready.has_tables or self.makes_arrays:
            return None
        if self.has_out:
            return self.tables(addresses.tolist())
        results = np.append(addresses, 0)[self.aliases]
        return self.ready.tables_at(np.concatenate((addresses, results)))

    def _run(
        self,
        inputs: Arguments,
        arrays: Arrays,
        results: Arrays,
        workspace: Array | None,
        values: Values,
        tables: Tables | None,
    ) -> None:
        ready, every = self.ready, arrays + results
        late = ready.values(values) if values else ()
        if tables is None:
            tables = ready.tables(arrays + self._on_device(results)) if ready.has_tables else ()
        if self.backend.is_current(self.device):
            self._queue(every, workspace, tables, late)
        else:
            with self.backend.on(self.device):
                self._queue(every, workspace, tables, late)

    def at(
        self,
        addresses: Sequence[int],
        stream: HasAddress,
        workspace: int = 0,
        *,
        is_clear: bool = False,
    ) -> None:
        """Queue a call over other arrays of the same kind, known by their addresses alone.

        Nothing is checked: whoever calls has made those arrays apart, and `workspace_nbytes` of
        scratch memory, whose zeros are there where it `is_clear`. Only for plans that take
        addresses.
        """
        if self.backend.is_current(self.device):
            self.ready.run_at(addresses, stream.ptr, workspace, is_clear=is_clear)
        else:
            with self.backend.on(self.device):
                self.ready.run_at(addresses, stream.ptr, workspace, is_clear=is_clear)

    def _queue(
        self,
        arrays: Arrays,
        workspace: Array | None,
        tables: Tables,
        late: Sequence[object],
    ) -> None:
        """All steps, on the device, which is current, with the caller's workspace or our own."""
        ready = self.ready
        if not self.workspace_nbytes:
            ready.run(arrays, (), tables, late)
        elif workspace is not None:
            ready.run(arrays, ready.scratch_in(workspace), tables, late)
        else:
            self._queue_in_own(partial(ready.run, arrays, tables=tables, values=late))

    def _queue_in_own(self, run: Callable[[Sequence[object]], None]) -> None:
        """All steps; what is zero counts as unknown until the last one is queued."""
        ready, backend, device, stores = self.ready, self.backend, self.device, self.stores
        with stores.lock:  # another thread's steps do not come between these
            store = stores.get(backend, device, ready.scratch_nbytes, ready.zeros_nbytes)
            scratch = ready.scratch(store)
            store.is_zero = False
            try:
                stores.depth += 1
                run(scratch)
                store.is_zero = True
            finally:
                stores.depth -= 1
                if not store.is_zero:  # a graph may be replayed before the next call clears it
                    stores.clear(backend, device, store)


class AddressCall(KernelCall):
    """A plan whose kernels need nothing of the arrays but their addresses."""

    def __call__(self, inputs: Arguments, out: Arguments, workspace: object) -> Any:
        """The same as any call does; from here on by addresses."""
        if workspace is not None:
            return super().__call__(inputs, out, workspace)
        if len(inputs) < self.n_inputs:
            inputs += (None,) * (self.n_inputs - len(inputs))
        arrays = self._pick_arrays(inputs)
        results = out if self.has_all_outputs else self.completed(arrays, out, NO_VALUES)
        every = arrays + results
        addresses = self.backend.pointers(every)
        if self.overlap is not None:
            self.overlap.refuse(addresses)
        if self.records:
            self.refuse_gradients(every)
        if self.backend.is_current(self.device):
            self._queue_at(addresses)
        else:
            with self.backend.on(self.device):
                self._queue_at(addresses)
        if self.has_tensors and self.writes:
            self.raise_versions(arrays, out)
        return results[0] if self.single_output else self.returned(results)

    def _queue_at(self, addresses: Sequence[int]) -> None:
        """All steps over arrays at these addresses, with our own workspace."""
        if self.workspace_nbytes:
            self._queue_in_own(partial(self.ready.run_over, addresses))
        else:
            self.ready.run_over(addresses, ())


def kernel_call(prepared: Prepared, ready: ReadyPlan, stores: Workspaces) -> KernelCall:
    """The call of a plan; one by addresses where they are all that it needs."""
    call = KernelCall(prepared, ready, stores)
    changes = call.changing or call.checks or call.check_numbers or call.supplied is not None
    is_apart = call.has_all_outputs or (call.makes_all and call.overlap is None)
    if not ready.takes_addresses or changes or call.has_lists or call.groups_out or not is_apart:
        return call
    return AddressCall(prepared, ready, stores)
