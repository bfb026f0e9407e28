# SPDX-License-Identifier: MIT
"""ALLOC, EMPTY and RUN of a checked call, on the CPU provider or by kernels."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from operator import setitem
from typing import Any, Protocol, cast

import numpy as np

from ..backend import Array, ArrayInfo, Info
from ..declare.schema import Changing
from ..device import recording
from ..device import workspace as workspaces
from ..device.arguments import Values, getter
from ..device.launch import ReadyPlan
from ..device.marks import NO_MARKS, Marks, in_turn, make_all, own_marks
from ..device.tensor_guards import raise_versions
from ..device.workspace import Store, Workspaces
from ..dtypes import UINT8, Dtype, HostArray
from ..errors import ProviderError, raise_if_from_handler, refuse, shown
from . import layout
from .arguments import adopt
from .backends import info
from .checks import Freezing
from .interop import (
    as_tensor,
    is_read_only,
    is_tensor,
    may_record,
    refuse_gradients,
    refuse_read_only,
)
from .overlap import Overlap, Written
from .prepared import Arguments, Arrays, Prepared, Result, flatten, group, list_writes, overlap
from .tiling import Pieces

Addresses = Sequence[int] | np.ndarray[Any, np.dtype[np.int64]]
Maker = Callable[[], Array]
NO_VALUES: Values = {}
LARGE_NBYTES = 2**20  # of results that are not copied; smaller ones may be constants

# (addresses of a call's arrays, then of its results; tables: structs of addresses for kernels)
Placed = tuple[Addresses, Sequence[object]]


class Call:
    """A checked call, cached for one combination of dtypes, shapes, alignments and device.

    prepared: all that is known of it. In its methods `inputs` are all arguments, `arrays` those of
    them that are arrays, `out` the caller's outputs, `results` all outputs: these three with lists
    flattened. `workspace` is the caller's scratch array or None. `values` are numbers that change
    from call to call, by index of the input; `placed` (see Placed) is None if not known.
    """

    workspace_nbytes = 0
    direct: frozenset[int] | None = None  # indices of arrays not only in tables; None: all
    repeats = True  # a bound call returns the same arrays each time
    is_placed = False  # kernels need only the addresses of inputs and `out`

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.backend = prepared.placement.backend
        self.device = prepared.placement.device
        self.has_tensors = self.backend.has_tensors
        self.records = self.has_tensors and not prepared.detaches  # autograd may record
        self.checks, self.check_numbers = prepared.checks, prepared.check_numbers
        self.changing = prepared.changing  # indices of inputs that change from call to call
        self.supplied, self.always = prepared.supplied, prepared.always
        self._classify_results(prepared)
        self._classify_inputs(prepared)
        self.overlap = overlap(prepared)
        self.writes = tuple([each.place for each in list_writes(prepared)])  # of arrays, then out
        is_checked = bool(self.checks or self.check_numbers is not None)
        self.has_checks = is_checked or self.supplied is not None

    def _classify_inputs(self, prepared: Prepared) -> None:
        """Note which inputs are arrays, lists, fixed host values, or converted at each call."""
        self.n_inputs = len(prepared.inputs)
        changing = [(place, prepared.inputs[place]) for place in prepared.changing]
        self.numbers = {item.name: place for place, item in changing}
        self.freezing = [(place, Freezing(prepared.op, item)) for place, item in changing]
        pairs = enumerate(zip(prepared.inputs, prepared.fixed, strict=True))
        self.host_values = [(i, value) for i, (item, value) in pairs if item.memory == "host"]
        self.all_device = not any(i.variadic or i.memory != "device" for i in prepared.inputs)
        changing_places = set(prepared.changing)
        self.array_places = tuple(  # (index of the input, True for a list of arrays)
            (place, declared.variadic)
            for place, declared in enumerate(prepared.inputs)
            if declared.memory != "host" and place not in changing_places
        )
        self.has_lists = any(variadic for _, variadic in self.array_places)
        self._pick_arrays = getter([place for place, _ in self.array_places])

    def _classify_results(self, prepared: Prepared) -> None:
        """Note if all or some results are in `out`, are returned, or are lists."""
        self.returns_all = all(r.returned or r.spec is None for r in prepared.results)
        self.single_output = prepared.counts == (None,) and self.returns_all
        self.groups = prepared.groups_outputs
        self.groups_out = any(prepared.out) and self.groups
        self.has_all_outputs = bool(prepared.out) and all(prepared.out)
        self.has_out = any(prepared.out)
        self._locate_results(prepared)

    def _locate_results(self, prepared: Prepared) -> None:
        """Collect functions that make new results. `_pick` picks all results from the row
        (*arrays, None, *new arrays, *host values, *out): their indices there are `places`."""
        makers, hosts = self._makers(), self._host_makers()
        self.makers = [make for make in makers if make]
        self.makes_arrays = bool(self.makers)
        self.host_makers = [make for make in hosts if make]
        self.makes_all = len(self.makers) == len(makers)
        self.refuses_capture = self.makes_arrays and not self.has_tensors
        nothing = len(prepared.arrays)  # where None is, for outputs that are not asked for
        new = itertools.count(nothing + 1)
        on_host = itertools.count(nothing + 1 + len(self.makers))
        out = nothing + 1 + len(self.makers) + len(self.host_makers)
        places: list[int] = []
        for i, result in enumerate(prepared.results):
            if prepared.out[i] is not None:
                places.append(out + i)
            elif makers[i] or hosts[i]:
                places.append(next(new if makers[i] else on_host))
            else:
                alias = None if result.spec is None else result.alias
                places.append(nothing if alias is None else alias)
        self._pick = getter(places)

    def __call__(self, inputs: Arguments, out: Arguments, workspace: object) -> Any:
        """Run the call on arguments with its key; return the results as the caller gets them.

        inputs: up to the last passed. out: a tuple, in which a tuple stands for a list. workspace:
        the caller's scratch array, or None. Overlapping memory and bad values are refused first.
        """
        if self.has_lists or self.groups_out:
            inputs, out, arrays = self.unpack(inputs, out)
        else:
            if len(inputs) < self.n_inputs:
                inputs += (None,) * (self.n_inputs - len(inputs))
            arrays = inputs if self.all_device else self._pick_arrays(inputs)
        placed = None
        if self.overlap is not None:  # `place`, inlined
            addresses = self.backend.pointers(arrays + out if self.has_out else arrays)
            self.overlap.refuse(addresses)
            placed = (addresses, ()) if self.is_placed else self.placed_at(addresses)
        return self.finish(inputs, arrays, out, workspace, placed)

    def unpack(self, inputs: Arguments, out: Arguments) -> tuple[Arguments, Arrays, Arrays]:
        """Return (all declared inputs, `out` flattened, the inputs that are arrays, flattened)."""
        missing = self.n_inputs - len(inputs)
        if missing:
            inputs += (None,) * missing
        if self.groups_out:
            out = flatten(out, self.prepared.counts)
        if self.all_device:
            return inputs, out, inputs
        if not self.has_lists:
            return inputs, out, self._pick_arrays(inputs)
        flat: list[Array | None] = []
        for place, variadic in self.array_places:
            value = inputs[place]
            if variadic and value is not None:
                flat += value
            else:
                flat.append(value)
        return inputs, out, tuple(flat)

    def place(self, arrays: Arrays, out: Arrays) -> Placed | None:
        """Return addresses and tables of the launch, or None if nothing needs them; refuse two
        arrays that share memory if one of them is written."""
        if self.overlap is None and self.makes_arrays:
            return None
        addresses = self.backend.pointers(arrays + out if self.has_out else arrays)
        if self.overlap is not None:
            self.overlap.refuse(addresses)
        return self.placed_at(addresses)

    def placed_at(self, addresses: Addresses) -> Placed | None:
        """Return `Placed` for arrays, then `out`, at these addresses (0: none); None if results are
        new arrays, or no kernel needs addresses."""
        return None

    def finish(
        self,
        inputs: Arguments,
        arrays: Arrays,
        out: Arrays,
        workspace: object,
        placed: Placed | None = None,
    ) -> object:
        """Allocate results, check values and run; return the results as the caller gets them.

        inputs: all declared. arrays, out: flattened, known not to overlap. placed: their addresses.
        """
        values = self.values(inputs) if self.changing else NO_VALUES
        if self.has_all_outputs:
            results = out
        elif self.makes_all and not (self.refuses_capture and self.backend.capturing(self.device)):
            new: list[Array] = []
            for make in self.makers:  # a comprehension would be a call
                new.append(make())
            results = tuple(new)
        else:
            results = self.complete(arrays, out, values)
        if self.records:
            self.refuse_gradients(arrays + results)
        if self.has_checks or workspace is not None:
            workspace, values = self.check(inputs, arrays, results, workspace, values)
        self.run(inputs, arrays, results, workspace, values, placed)
        if self.has_tensors and self.writes:
            self.raise_versions(arrays, out)
        return results[0] if self.single_output else self.group_results(results)

    def raise_versions(self, arrays: Arrays, out: Arrays) -> None:
        """Raise the versions of written tensors, so that autograd notices that they changed."""
        every = arrays + out
        raise_versions([every[place] for place in self.writes])

    def check(
        self, inputs: Arguments, arrays: Arrays, results: Arrays, workspace: object, values: Values
    ) -> tuple[Array | None, Values]:
        """Run the last checks; return (the caller's workspace as an array, values).

        An input that the caller left out and the operator supplies, as a seed, is added to values.
        """
        if workspace is not None:
            workspace = self._check_workspace(workspace, arrays, results)
        self._check(inputs, values)
        if self.supplied is not None and self.supplied not in values:
            supply = self.prepared.supply
            assert supply is not None
            recording.leave()
            value = self.always or supply(*self._with_hosts(inputs, values))
            values = {**values, self.supplied: value}
        return workspace, values

    def compute(self, *arguments: Any) -> Callable[[], object]:
        """Do what precedes all writes; return a function for the rest of run(*arguments)."""
        return partial(self.run, *arguments)

    def _check(self, inputs: Arguments, values: Values) -> None:
        """Check changing numbers, and values of arrays if the operator does so."""
        if self.check_numbers is not None:
            self.check_numbers(values)
        for check in self.checks:
            check(*self._with_hosts(inputs, values))

    def run(
        self,
        inputs: Arguments,
        arrays: Arrays,
        results: Arrays,
        workspace: Array | None,
        values: Values,
        placed: Placed | None,
    ) -> None:
        """Compute `results` from `arrays` and host values, in the caller's workspace or None."""
        raise NotImplementedError

    def values(self, inputs: Arguments) -> Values:
        """Return the converted value of each changing input that was passed, by its index."""
        return {
            place: freeze(inputs[place])
            for place, freeze in self.freezing
            if inputs[place] is not None  # else the operator supplies it
        }

    def group_results(self, results: Arrays) -> tuple[object, ...] | None:
        """Return results as the caller gets them: a tuple for each list, None if not asked for."""
        if not self.returns_all:
            pairs = zip(self.prepared.results, results, strict=True)
            results = tuple(array if result.returned else None for result, array in pairs)
            if self.prepared.counts == (None,):
                return None
        return group(results, self.prepared.counts) if self.groups else results

    def complete(self, arrays: Arrays, out: Arrays, values: Values) -> Arrays:
        """Return all results: arrays of `out`, overwritten inputs, host values, new arrays."""
        is_captured = self.refuses_capture and self.backend.capturing(self.device)
        if is_captured and not self.backend.keeps_memory():
            raise ProviderError(
                f"{self.prepared.op}: out: a call under graph capture needs out=, because memory "
                f"from the pool would be handed out again while the graph still writes to it"
            )
        new = [make() for make in self.makers]
        hosts = [make(values) for make in self.host_makers]
        return self._pick((*arrays, None, *new, *hosts, *out))

    def refuse_gradients(self, arrays: Sequence[Any]) -> None:
        """Refuse tensors whose gradients would silently be lost."""
        if may_record(arrays):
            refuse_gradients(self.prepared.op, self.prepared.names, arrays)

    def _makers(self) -> list[Maker | None]:
        """Return for each result a function that allocates it; None if it is not a new array."""
        prepared = self.prepared
        return [
            layout.maker(self.backend, result.spec, self.device, result.order or prepared.order)
            if out is None and result.spec and result.is_new
            else None
            for result, out in zip(prepared.results, prepared.out, strict=True)
        ]

    def _host_makers(self) -> list[Callable[[Values], object] | None]:
        """Return for each result a function from `values` to its host value; None: on a device."""
        is_host = [r.spec is not None and r.value is not None for r in self.prepared.results]
        pairs = zip(self.prepared.results, is_host, strict=True)
        return [partial(self._host_result, result) if here else None for result, here in pairs]

    def _host_result(self, result: Result, values: Values) -> object:
        """Return a host output, constant or computed from a changing number."""
        value, spec = result.value, result.spec
        assert value is not None
        assert spec is not None
        if isinstance(value, Changing):
            value = self._cast(result, spec.dtype, value.of(values))
            return self.backend.of_host(value)
        return self.backend.of_host(value.copy())

    def _cast(self, result: Result, dtype: Dtype, number: object) -> HostArray:
        """Cast a number of the caller's to a host output's dtype, or refuse it."""
        try:
            return np.asarray(number, dtype)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise_if_from_handler(error)
            refuse(self.prepared.op, result.name, f"a number that {dtype} holds", shown(number))

    def _with_hosts(self, inputs: Arguments, values: Values) -> list[object]:
        """Return all inputs as NumPy functions take them: host ones by their converted values."""
        arguments = list(inputs)
        for place, value in self.host_values:
            arguments[place] = value
        for place, value in values.items():
            arguments[place] = value
        return arguments

    def _on_device(self, results: Arrays) -> Arrays:
        """Return results with None in place of host values."""
        if not self.host_makers:
            return results
        pairs = zip(self.prepared.results, results, strict=True)
        return tuple([array if result.value is None else None for result, array in pairs])

    def _one_by_one(self, returned: Any) -> Sequence[Any]:
        """Flatten what a function returned: a to (a,), and (a, [b, c]) to [a, b, c]."""
        if not isinstance(returned, tuple | list):
            return (returned,)
        if not self.groups:
            return returned
        flat: list[object] = []
        for item in returned:
            flat += item if isinstance(item, tuple | list) else [item]
        return flat

    def _check_workspace(self, workspace: object, arrays: Arrays, results: Arrays) -> Array:
        """Return the caller's workspace as an array; refuse a bad one, and overlap with arrays."""
        prepared = self.prepared
        array, properties = self._adopt_workspace(workspace)
        if is_read_only(workspace):
            refuse_read_only(prepared.op, "workspace")
        workspaces.check(prepared.op, properties, prepared.placement, self.workspace_nbytes)
        names = [a.name for a in prepared.arrays] + [r.name for r in prepared.results]
        every = (*arrays, *self._on_device(results), array)
        sizes = [0 if array is None else array.nbytes for array in every]
        overlap = Overlap(prepared.op, [*names, "workspace"], sizes, [Written(len(every) - 1)])
        overlap.refuse(self.backend.pointers(every))
        return array

    def _adopt_workspace(self, workspace: object) -> tuple[Array, ArrayInfo]:
        """Return (the workspace as an array of the call's backend, its info).

        A tensor beside tensors stays one: with DLPack one library's stream would wait for the
        other's, which ends a capture.
        """
        if self.has_tensors and is_tensor(workspace):
            with contextlib.suppress(KeyError):  # an unusual or CPU tensor
                tensor = cast(Array, workspace)
                return tensor, ArrayInfo.of(info(tensor))
        adopted: Array = adopt(self.prepared.op, "workspace", workspace)
        array = adopted
        if self.has_tensors and adopted.dtype == UINT8:  # other dtypes are refused below
            try:
                array = cast(Array, workspace if is_tensor(workspace) else as_tensor(array))
            except ProviderError as error:
                raise ProviderError(f"{self.prepared.op}: workspace: {error}") from None
        return array, ArrayInfo.of(_info(array, adopted))


def _info(array: Array, adopted: Array) -> Info:
    """Return the array's info; of a tensor without one that of `adopted`, a view of its memory."""
    try:
        return info(array)
    except KeyError as error:
        raise_if_from_handler(error)
        return info(adopted)


class EmptyCall(Call):
    """A call whose outputs are all empty: computes nothing."""

    def __init__(self, prepared: Prepared) -> None:
        super().__init__(prepared)
        self.supplied = None

    def run(self, *_: object) -> None:
        pass


class CpuCall(Call):
    """A call of a NumPy function, on the CPU provider. Its results are copied to the outputs; large
    ones are returned themselves if there is no `out=`."""

    def __init__(
        self, prepared: Prepared, function: Callable[..., Any], pieces: Pieces | None
    ) -> None:
        """function: of all inputs. pieces: splits large arrays; None: it gets whole arrays."""
        super().__init__(prepared)
        self.function = function
        self.pieces = pieces
        plain = not self.has_tensors and prepared.order is None
        all_new = self.makes_all and self.makes_arrays and not self.has_out
        results = prepared.results
        orders = any(result.order is not None or not result.computed for result in results)
        # All results are new C-contiguous NumPy arrays, which the function may have allocated.
        self.may_return_computed = plain and all_new and pieces is None and not orders

    def finish(
        self,
        inputs: Arguments,
        arrays: Arrays,
        out: Arrays,
        workspace: object,
        placed: Placed | None = None,
    ) -> object:
        """Compute; return the function's own arrays if they are large and there is no `out=`.
        arrays, out: the caller's, flattened. workspace, placed: not used."""
        if workspace is not None or not self.may_return_computed:
            return super().finish(inputs, arrays, out, workspace, placed)
        values = self.values(inputs) if self.changing else NO_VALUES
        if self.has_checks:
            _, values = self.check(inputs, arrays, (), None, values)
        self._refuse_all_read_only(arrays, (None,) * len(self.makers))
        returned = self._one_by_one(self.function(*self._with_hosts(inputs, values)))
        pairs = zip(returned, self.makers, strict=True)
        results = tuple([_own(value, make, arrays) for value, make in pairs])
        in_turn([], own_marks())
        return results[0] if self.single_output else self.group_results(results)

    def run(
        self,
        inputs: Arguments,
        arrays: Arrays,
        results: Arrays,
        workspace: Array | None,
        values: Values,
        placed: Placed | None,
    ) -> None:
        """Call the NumPy function of inputs and values, at once or in pieces; write into `results`,
        all outputs. arrays: those among inputs. workspace, placed: not used."""
        self._refuse_all_read_only(arrays, results)
        arguments, out, marks = self._with_hosts(inputs, values), results, own_marks()
        if self.pieces is None:
            _write(*self._pairs(self.function(*arguments), out), marks)
            return
        make_all(marks.first)
        for piece, targets in self.pieces(arguments, out):
            _write(*self._pairs(self.function(*piece), targets))
        make_all(marks.last)

    def compute(self, *arguments: Any) -> Callable[[], object]:
        """Compute by the arguments of `run`; return a function that writes (if in pieces: both)."""
        if self.pieces is not None:
            return super().compute(*arguments)
        inputs, arrays, results, _, values, _ = arguments
        self._refuse_all_read_only(arrays, results)
        returned = self.function(*self._with_hosts(inputs, values))
        return partial(_write_at_once, *self._pairs(returned, results))

    def _refuse_all_read_only(self, arrays: Arrays, results: Sequence[Any]) -> None:
        """Refuse read-only results and updated inputs, before anything is written."""
        for result, array in zip(self.prepared.results, results, strict=True):
            if array is not None:
                self._refuse_read_only(f"out ({result.name})", array)
        for named, array in zip(self.prepared.arrays, arrays, strict=True):
            if named.declared.updated and array is not None:
                self._refuse_read_only(named.name, array)

    def _pairs(self, returned: object, out: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return (arrays of `out` to write, what the function `returned` for each), without None.

        A value that is longer, as its last tile is padded with zeros, is cut.
        """
        values = iter(self._one_by_one(returned))
        arrays: list[Any] = []
        computed: list[Any] = []
        for result, array in zip(self.prepared.results, out, strict=True):
            value = next(values) if result.computed else None
            if value is not None and array is not None and result.value is None:
                if value.shape != array.shape:
                    value = value.reshape(-1)[: array.size].reshape(array.shape)
                assert value.dtype == array.dtype, (result.name, value.dtype, array.dtype)
                arrays.append(array)
                computed.append(value)
        return arrays, computed

    def _refuse_read_only(self, name: str, array: Any) -> None:
        if not array.flags.writeable:
            refuse_read_only(self.prepared.op, name)


def _own(value: HostArray, make: Maker, arrays: Arrays) -> Any:
    """Return a large value itself if it shares memory with no input (`arrays`), else a copy of it.

    make: allocates the array for the copy.
    """
    is_alone = value.base is None or getattr(value.base, "nbytes", -1) == value.nbytes
    if (
        value.nbytes >= LARGE_NBYTES
        and is_alone
        and value.flags.carray
        and not any(np.may_share_memory(value, each) for each in arrays if each is not None)
    ):
        return value
    array: Any = make()
    if value.shape != array.shape:  # the last tile is padded
        value = value.reshape(-1)[: array.size].reshape(array.shape)
    assert value.dtype == array.dtype, (value.dtype, array.dtype)
    array[...] = value
    return array


def _write_at_once(arrays: Sequence[Any], computed: Sequence[Any]) -> None:
    """Write computed[i] into arrays[i], with the marks (see `_write`) of this operator call."""
    _write(arrays, computed, own_marks())


def _write(arrays: Sequence[Any], computed: Sequence[Any], marks: Marks = NO_MARKS) -> None:
    """Write computed[i] into arrays[i], and call `marks`, which set flags, after the first write
    and the last; from C code alone (map), so that no signal handler runs in between."""
    if marks is NO_MARKS:
        list(map(setitem, arrays, itertools.repeat(...), computed))
    else:
        pairs = zip(arrays, computed, strict=True)
        in_turn([partial(setitem, array, ..., value) for array, value in pairs], marks)


class HasAddress(Protocol):
    """A stream with its address."""

    ptr: int


class KernelCall(Call):
    """A call of kernels: a plan, whose steps are queued on the device's current stream.

    objects, addresses: the arrays, then results. tables: structs of addresses for kernels. numbers:
    their arguments that depend on changing values, cast.
    """

    def __init__(self, prepared: Prepared, ready: ReadyPlan, stores: Workspaces) -> None:
        """ready: the compiled plan. stores: the operator's scratch memory, by stream."""
        super().__init__(prepared)
        self.ready = ready
        self.stores = stores
        self.workspace_nbytes = ready.workspace_nbytes
        self.direct = ready.direct if ready.has_tables else None
        self.is_placed = self.has_all_outputs and not ready.has_tables
        places = [len(prepared.arrays) if r.alias is None else r.alias for r in prepared.results]
        # For each result the index of the array that it overwrites, or n_arrays if it is none.
        self.aliases = np.array(places, np.intp)

    def placed_at(self, addresses: Addresses) -> Placed | None:
        """Return (addresses of arrays, then of results: an overwritten input's, out's or 0; structs
        of them); None if results are new arrays."""
        if self.makes_arrays:
            return None
        n_arrays = len(self.prepared.arrays)
        if isinstance(addresses, np.ndarray) and not self.has_out:  # the appended 0 is for none
            addresses = np.concatenate((addresses, np.append(addresses, 0)[self.aliases]))
        elif not self.has_all_outputs:
            arrays, out = addresses[:n_arrays], addresses[n_arrays:]
            nowhere = (0,) * (1 + len(self.host_makers))
            addresses = [*arrays, *self._pick((*arrays, *nowhere, *out))]
        return addresses, self.ready.tables_at(addresses) if self.ready.has_tables else ()

    def run(
        self,
        inputs: Arguments,
        arrays: Arrays,
        results: Arrays,
        workspace: Array | None,
        values: Values,
        placed: Placed | None,
    ) -> None:
        """Queue the launches on the arrays' device, on its current stream.

        arrays, results: flattened. workspace: the caller's, or None. values: changing numbers, by
        index. placed: addresses and tables; None: read from arrays.
        """
        ready = self.ready
        numbers = ready.values(values) if values else ()
        objects = arrays + results if ready.takes_objects else ()
        if placed is None:
            on_device = self._on_device(results) if self.host_makers else results
            addresses: Addresses = self.backend.pointers(arrays + on_device)
            tables: Sequence[object] = ready.tables_at(addresses) if ready.has_tables else ()
        else:
            addresses, tables = placed
        has_own = self.workspace_nbytes and workspace is None
        queue: Callable[..., None] = self._queue_in_own if has_own else self._queue
        if self.backend.is_current(self.device):
            queue(objects, addresses, tables, numbers, workspace)
        else:
            with self.backend.on(self.device):
                queue(objects, addresses, tables, numbers, workspace)

    def compute(self, *arguments: Any) -> Callable[[], object]:
        """Cast numbers and get scratch memory for run(*arguments); return a function that queues
        its steps."""
        _, arrays, results, workspace, values, placed = arguments
        if workspace is not None or placed is None or not self.backend.is_current(self.device):
            return super().compute(*arguments)
        ready = self.ready
        numbers = ready.values(values) if values else ()
        objects = arrays + results if ready.takes_objects else ()
        if not self.workspace_nbytes:
            return partial(ready.run, objects, placed[0], (), placed[1], numbers)
        sizes = ready.scratch_nbytes, ready.zeros_nbytes
        with self.stores.lock:
            store = self.stores.get(self.backend, self.device, *sizes)
            memory = store, ready.scratch(store)
        return partial(self._queue_in_own, objects, placed[0], placed[1], numbers, memory)

    def _queue(
        self,
        objects: Arrays,
        addresses: Addresses,
        tables: Sequence[object],
        numbers: Sequence[object],
        workspace: Array | None,
    ) -> None:
        """Queue all steps on the current device, in the caller's workspace if they need one."""
        scratch: Sequence[object] = ()
        if workspace is not None and self.workspace_nbytes:
            scratch = self.ready.scratch_in(workspace)
        self.ready.run(objects, addresses, scratch, tables, numbers)

    def _queue_in_own(
        self,
        objects: Arrays,
        addresses: Addresses,
        tables: Sequence[object],
        numbers: Sequence[object],
        memory: tuple[Store, Sequence[object]] | None = None,
    ) -> None:
        """Queue all steps, as `_queue` does, in the operator's own scratch memory.

        memory: (store, pointers into it), if they are known. Its zeros count as dirty from the
        first step until the last is queued: after an exception in between they are cleared.
        stores.depth counts running calls: one inside another has memory of its own.
        """
        backend, device, stores, ready = self.backend, self.device, self.stores, self.ready
        with stores.lock:  # another thread's steps do not come between these
            if memory is None or not memory[0].is_zero:
                store = stores.get(backend, device, ready.scratch_nbytes, ready.zeros_nbytes)
                memory = store, ready.scratch(store)
            store, scratch = memory
            store.is_zero = False
            try:
                stores.depth += 1
                ready.run(objects, addresses, scratch, tables, numbers)
                store.is_zero = True
            finally:
                stores.depth -= 1
                if not store.is_zero:  # a graph may be replayed before the next call clears it
                    stores.clear(backend, device, store)

    def at(
        self,
        addresses: Sequence[int],
        stream: HasAddress,
        workspace: int = 0,
        *,
        is_clear: bool = False,
    ) -> None:
        """Queue a call over other arrays of the same dtypes and shapes, unchecked.

        addresses: of arrays, then of results, those that kernels read. workspace: address of
        `workspace_nbytes` of scratch memory; is_clear: its part for zeros is zero. Only for plans
        that `takes_addresses`.
        """
        if self.backend.is_current(self.device):
            self.ready.run_at(addresses, stream.ptr, workspace, is_clear=is_clear)
        else:
            with self.backend.on(self.device):
                self.ready.run_at(addresses, stream.ptr, workspace, is_clear=is_clear)
