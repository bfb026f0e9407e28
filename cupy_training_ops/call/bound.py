# SPDX-License-Identifier: MIT
"""Bound calls: checked once, then only launched.

    bound = op.bound(rate, step, weights, ...)      # `...`: gradients are an open input
    bound(gradients=g)                              # which each call passes by name
    bound(gradients=g, rate=0.1)                    # and other values of host inputs

Tensors on a GPU are compared with those of an earlier call all at once, by PyTorch's guards and by
addresses, so that a call over hundreds of new ones costs little beside its launches.

In all functions `inputs` are arguments in declared order, `places` indices of some of them, `out`
arrays by output or None, `outputs` names to return (None: all), `workspace` the caller's scratch
array or None, `foreign` which arrays are views of another library's, `changing` {name: new number}.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np

from ..backend import Array
from ..declare.schema import Input
from ..device.tensor_guards import Watched, like, state
from ..dtypes import dtype_name
from ..errors import raise_if_from_handler, refuse
from . import checks
from .arguments import adopt_input, adopt_out, by_declared_names
from .checks import is_number
from .interop import NO_FOREIGN, ForeignArrays, is_tensor, refuse_gradients
from .keys import CHANGES, CHANGING, Reader, reader
from .operator import Operator
from .overlap import RepeatedOverlap
from .prepared import Arguments, Arrays, group
from .run import NO_VALUES, Call, Placed

__all__ = ["BoundCall", "LendingCall", "OpenCall", "bind", "opened"]

Outputs = Sequence[str] | None
Addresses = list[int]


def bind(
    op: Operator, inputs: Arguments, out: Arguments, outputs: Outputs, workspace: object
) -> BoundCall | OpenCall:
    """Return a call with these arguments fixed; an OpenCall if an input is `...`."""
    names = [item.name for item, value in zip(op.inputs, inputs, strict=False) if value is ...]
    if names:
        return OpenCall(op, inputs, out, outputs, workspace)
    foreign = op.foreign_arrays(inputs, out)
    with foreign.stream():
        return _bind(op, inputs, out, outputs, workspace, foreign)


def _bind(
    op: Operator,
    inputs: Arguments,
    out: Arguments,
    outputs: Outputs,
    workspace: object,
    foreign: ForeignArrays,
) -> BoundCall:
    """Return a bound call without open inputs; its new results are allocated here, once."""
    call, adopted, own_out = op.prepared_call(inputs, out, outputs, foreign)
    if call.makes_arrays:  # then it is prepared again, with these as out=
        every, flat, arrays = call.unpack(adopted, own_out)
        results = call.complete(arrays, flat, call.values(every))
        new = tuple(  # None for a value on the host, and a result that overwrites an input
            None if r.value is not None or (r.alias is not None and a is arrays[r.alias]) else a
            for r, a in zip(call.prepared.results, results, strict=True)
        )
        if foreign:
            foreign.keep(new)
        out = group(new, call.prepared.counts) if call.prepared.groups_outputs else new
        call, adopted, own_out = op.prepared_call(adopted, out, outputs, foreign)
    if foreign:
        return LendingCall(op, call, adopted, own_out, workspace, foreign)
    return BoundCall(op, call, adopted, own_out, workspace, foreign)


class AtAddresses:
    """Base of objects that store addresses of arrays, and so cannot be copied."""

    _op: Operator

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self._op.name}: a bound call holds its arrays where they are and cannot be pickled "
            f"or copied; bind again"
        )


class BoundCall(AtAddresses):
    """A checked call over fixed arrays, as `op.bound(...)` returns; new numbers are passed by name.

    placed: addresses of all launches. answer: what each call returns, if it is the same, else None.
    """

    def __init__(
        self,
        op: Operator,
        call: Call,
        inputs: Arguments,
        out: Arguments,
        workspace: object,
        foreign: ForeignArrays,
    ) -> None:
        """inputs, out: as arrays of the call's backend, and numbers."""
        self._op, self._foreign = op, foreign
        self.call = call
        self._workspace = workspace
        self._inputs, self._out, self._arrays = call.unpack(inputs, out)
        if call.records:
            call.refuse_gradients(self._arrays + self._out)
        self.placed = call.place(self._arrays, self._out)
        self._unchanged = Unchanged(call, self._arrays + self._out, foreign)
        self._results: Arrays | None = None  # if each call has the same
        self.answer: Any = None
        fixed = call.repeats and all(r.value is None for r in call.prepared.results)
        if fixed and call.prepared.results:
            self._results = call.complete(self._arrays, self._out, NO_VALUES)
            self.answer = (
                self._results[0] if call.single_output else call.group_results(self._results)
            )

    def __call__(self, **values: object) -> Any:
        """Launch with these host values instead of the bound ones; return the results."""
        inputs, call = self._inputs, self.call
        self._unchanged.refuse_others()
        if values:
            inputs = with_values(self._op, inputs, call.numbers, values)
        if self._results is not None:
            own = call.values(inputs) if call.changing else NO_VALUES
            arrays, results, workspace = self._arrays, self._results, self._workspace
            if call.records:
                call.refuse_gradients(arrays + results)
            if call.has_checks or workspace is not None:
                workspace, own = call.check(inputs, arrays, results, workspace, own)
            call.run(inputs, arrays, results, workspace, own, self.placed)
            if call.has_tensors and call.writes:
                call.raise_versions(arrays, self._out)
            return self.answer
        return call.finish(inputs, self._arrays, self._out, self._workspace, self.placed)


class LendingCall(BoundCall):
    """A bound call over arrays of other libraries, such as PyTorch's."""

    def __call__(self, **values: object) -> Any:
        """Launch as a bound call does, with new numbers by name; return the caller's objects."""
        if not self._foreign.detaches:
            self._unchanged.refuse_gradients()
        with self._foreign.stream():
            result = super().__call__(**values)
            if not self.call.has_tensors:
                self._foreign.raise_versions(self.call.writes, self._arrays + self._out)
            return self._foreign.give_back(result)


def opened(bound: BoundCall | OpenCall) -> OpenCall:
    """Narrow the type of a bound call with open inputs, for type checkers."""
    assert isinstance(bound, OpenCall)
    return bound


_MAX_CALLS = 64
_MAX_PLACED = 8  # lists of addresses: allocators reuse memory


class _BoundArguments(NamedTuple):
    """Arguments that a call was bound to, one for each declared input; open inputs are None."""

    op: Operator
    inputs: Arguments
    out: Arguments
    outputs: Outputs
    workspace: object
    places: tuple[int, ...]  # indices of open inputs


class OpenCall(AtAddresses):
    """`op.bound(...)` with open inputs, passed as `...`; each call passes them by name.

    The others are closed: checked once. Of open tensors a call compares, where it can, only
    metadata and addresses.
    """

    def __init__(
        self, op: Operator, inputs: Arguments, out: Arguments, outputs: Outputs, workspace: object
    ) -> None:
        checks.count(op.name, op.inputs, len(inputs))
        every = (*inputs, *(None,) * (len(op.inputs) - len(inputs)))
        self._op = op
        # Index of each open input, by name.
        self._open = {op.inputs[place].name: place for place, v in enumerate(every) if v is ...}
        closed, places = tuple(None if v is ... else v for v in every), tuple(self._open.values())
        self._bound_arguments = _BoundArguments(op, closed, out, outputs, workspace, places)
        self._forms: dict[bool, _ClosedInputs] = {}  # True: tensors as they are; False: converted
        self._watches = True  # compares closed tensors at each call
        self._form(op.foreign_arrays(closed, out).is_native)

    def __call__(self, **arguments: object) -> Any:
        """Launch with these open inputs and new host values, by name; return the results."""
        values, changing = self._open_values(arguments)
        match = self._match(values)
        if match is not None:
            call, addresses = match
            return call.launch(values, changing, addresses)
        form, every, foreign = self._fitting_form(values)
        with foreign.stream():
            call, adopted = form.call_with(every, foreign)
            return foreign.give_back(call.launch(adopted, changing, foreign=foreign))

    def checked(self, **arguments: object) -> CheckedCall:
        """Check the call with these arguments; return an object that launches it, repeatedly.

        Refused for operators that return other arrays at each call, as views.
        """
        values, changing = self._open_values(arguments)
        match = self._match(values)
        if match is not None:
            call, addresses = match
            return call.prepare(values, changing, addresses)
        form, every, foreign = self._fitting_form(values)
        call, adopted = form.call_with(every, foreign)
        return call.prepare(adopted, changing)

    def trusting(self) -> Self:
        """Stop checking bound tensors for changes, which the caller does; return self."""
        self._watches = False
        return self

    def _match(self, values: Sequence[Any]) -> tuple[_PartialCall, Addresses] | None:
        """Return (the last call over tensors, addresses of the open inputs) if it fits them."""
        form = self._forms.get(True)
        if form is None or form.last is None:
            return None
        _, last = form.last
        addresses = None if last.guard is None else last.guard.match(values)
        if addresses is None:
            return None
        if self._watches:
            last.refuse_others()
        return last, addresses

    def _open_values(self, arguments: dict[str, object]) -> tuple[list[object], dict[str, object]]:
        """Split {name: value}, by declared names or ONNX Runtime's or earlier releases', into
        (values of the open inputs in declared order, {declared name: value} of the others)."""
        aliases = self._op.declaration.other_inputs
        if aliases:
            arguments = by_declared_names(self._op.name, aliases, arguments)
        missing = self._open.keys() - arguments.keys()
        if missing:
            refuse(self._op.name, min(missing), "an argument, because it was left open", "none")
        return list(map(arguments.pop, self._open)), arguments

    def _fitting_form(
        self, values: Sequence[object]
    ) -> tuple[_ClosedInputs, Arguments, ForeignArrays]:
        """Return (closed inputs, all inputs, notes of foreign arrays) for these open inputs.

        The closed inputs are native tensors if all arrays are tensors on a GPU, else converted.
        """
        bound = self._bound_arguments
        every = _fill(bound.inputs, bound.places, values)
        foreign = bound.op.foreign_arrays(every, bound.out)
        form = self._form(foreign.is_native)
        foreign.include(form.foreign)
        return form, every, foreign

    def _form(self, is_native: bool) -> _ClosedInputs:
        """Return the closed inputs as tensors, or converted to arrays; made on first use."""
        form = self._forms.get(is_native)
        if form is None:
            form = self._forms[is_native] = _ClosedInputs(self._bound_arguments, is_native)
        return form


class _ClosedInputs:
    """The closed inputs of an OpenCall (bound), and checked calls, cached by keys of the open ones.

    is_native: tensors stay tensors; else they are converted to arrays over the same memory.
    """

    def __init__(self, bound: _BoundArguments, is_native: bool) -> None:
        op, pairs = bound.op, zip(bound.op.inputs, bound.inputs, strict=True)
        arguments, detaches = (op.inputs, bound.inputs, bound.out), op.detaches
        self.foreign = foreign = ForeignArrays(*arguments, natively=is_native, detaches=detaches)
        inputs = tuple([adopt_input(op.name, item, v, foreign) for item, v in pairs])
        out = tuple([adopt_out(op.name, value, foreign) for value in bound.out])
        self._bound_arguments = bound._replace(inputs=inputs, out=out)
        self._readers = [reader(op.inputs[place]) for place in bound.places]
        self._calls: dict[object, _PartialCall] = {}
        self.last: tuple[object, _PartialCall] | None = None  # of `call_with`, with its key

    def call_with(
        self, every: Sequence[object], foreign: ForeignArrays
    ) -> tuple[_PartialCall, Sequence[Any]]:
        """Return (a checked call, cached or new; its open inputs as arrays of the call's backend).

        every: all inputs. foreign: notes, to which arrays of other libraries are added.
        """
        op, places = self._bound_arguments.op, self._bound_arguments.places
        adopted = [adopt_input(op.name, op.inputs[p], every[p], foreign) for p in places]
        pairs = zip(self._readers, adopted, strict=True)
        key = tuple([None if value is None else read(value) for read, value in pairs])
        last = self.last
        if last is None or last[0] != key:  # faster than its hash
            call = self._calls.get(key) or self._prepare(key, adopted, foreign)
            self.last = last = key, call
        last[1].refuse_unwritable(adopted, foreign)
        last[1].refuse_others()
        return last[1], adopted

    def _prepare(self, key: object, adopted: Sequence[Any], foreign: ForeignArrays) -> _PartialCall:
        """Return a new checked call with these open inputs (adopted), and cache it by their key."""
        bound = self._bound_arguments
        every = _fill(bound.inputs, bound.places, adopted)
        call, inputs, out = bound.op.prepared_call(every, bound.out, bound.outputs, foreign)
        partial_call = _PartialCall(call, bound._replace(inputs=inputs, out=out), self.foreign)
        if len(self._calls) >= _MAX_CALLS:
            self._calls.clear()
        self._calls[key] = partial_call
        return partial_call


class _PartialCall:
    """A checked call without its open inputs, `values` of its methods (`addresses`: of theirs)."""

    def __init__(self, call: Call, bound: _BoundArguments, foreign: ForeignArrays) -> None:
        # `places` are indices of declared inputs, `at` of arrays, lists flattened: inputs
        # (x, [a, b], y) with the list open have places (1,), and `at` is [1, 2].
        op, inputs, out, _, workspace, places = bound  # here with the open inputs of the check
        self.call = call
        self._op, self._workspace = op, workspace
        self._places, self._out = places, out
        self._inputs = tuple([None if p in places else v for p, v in enumerate(inputs)])  # closed
        _, flat, arrays = call.unpack(inputs, out)
        self._arrays, at = _open_arrays(call, inputs, places)  # both of open inputs
        closed = list(arrays)
        for i in at:
            closed[i] = None
        self._unchanged = Unchanged(call, (*closed, *flat), foreign)
        known = (*closed, *flat) if call.has_out else closed
        # Addresses of all arrays and, after them, of `out`; a call fills those at `_at`, here 0.
        self._known = np.array(call.backend.pointers(known), np.int64)
        self._at = np.array(at, np.intp)
        self._overlap = None if call.overlap is None else RepeatedOverlap(call.overlap, at)
        self._saved = None if workspace is not None else _save_closed(call, inputs, out, places)
        self.guard = TensorGuard(op.inputs, call, inputs, places) if call.has_tensors else None
        self._placed: dict[tuple[int, ...], Placed | None] = {}  # by addresses of open arrays

    def refuse_others(self) -> None:
        """Refuse closed inputs that changed, or that require gradients."""
        self._unchanged.refuse_others()
        if not self._op.declaration.detaches:
            self._unchanged.refuse_gradients()

    def refuse_unwritable(self, values: Sequence[Any], foreign: ForeignArrays) -> None:
        """Refuse an open input that the call writes but is read-only."""
        if foreign.has_unwritable:
            inputs = _fill(self._inputs, self._places, values)
            _, out, arrays = self.call.unpack(inputs, self._out)
            foreign.refuse_unwritable(self.call.prepared, (*arrays, *out))

    def launch(
        self,
        values: Sequence[Any],
        changing: Mapping[str, object],
        addresses: Addresses | None = None,
        foreign: ForeignArrays = NO_FOREIGN,
    ) -> Any:
        """Run the call and return the results.

        values: of open inputs, in declared order. addresses: of their arrays, flattened, or None.
        foreign: PyTorch's arrays that the call wrote get a new version, which autograd checks.
        """
        call = self.call
        inputs, placed = self._place(values, changing, addresses)
        inputs, out, arrays = call.unpack(inputs, self._out)
        result = call.finish(inputs, arrays, out, self._workspace, placed)
        if foreign and not call.has_tensors:
            foreign.raise_versions(call.writes, arrays + out)
        return result

    def prepare(
        self,
        values: Sequence[Any],
        changing: Mapping[str, object],
        addresses: Addresses | None = None,
    ) -> CheckedCall:
        """Check a call with these open inputs and new numbers; return an object that launches it.

        It does not reference open arrays of which kernels read addresses from structs alone.
        """
        call = self.call
        if not call.repeats:
            refuse(self._op.name, "checked", "a call that writes arrays", "one that returns others")
        inputs, placed = self._place(values, changing, addresses)
        if self._saved is None or placed is None:
            saved = _save(call, inputs, self._out)
        else:
            every = list(self._saved[0])
            for place in call.changing:
                every[place] = inputs[place]
            saved = (tuple(every), *self._saved[1:])
        return CheckedCall(self._op, call, saved, self._workspace, placed)

    def _place(
        self, values: Sequence[Any], changing: Mapping[str, object], addresses: Addresses | None
    ) -> tuple[Arguments, Placed | None]:
        """Return (all inputs, addresses and tables of the launch); refuse overlapping memory."""
        call, inputs = self.call, _fill(self._inputs, self._places, values)
        if changing:
            inputs = with_values(self._op, inputs, call.numbers, changing)
        if addresses is None:
            lists = (as_list(inputs[place]) for place in self._arrays)
            addresses = [at for arrays in lists for at in call.backend.pointers(arrays)]
        key = tuple(addresses)
        try:  # one look-up: another thread may empty the table
            return inputs, self._placed[key]
        except KeyError as error:
            raise_if_from_handler(error)
        every = self._known.copy()
        every[self._at] = addresses
        if self._overlap is not None:
            self._overlap.refuse(every)
        if len(self._placed) >= _MAX_PLACED:
            self._placed.clear()
        placed = self._placed[key] = call.placed_at(every)
        return inputs, placed


def _fill(inputs: Arguments, places: Iterable[int], values: Sequence[Any]) -> Arguments:
    """Return inputs with values[i] at index places[i]."""
    every = list(inputs)
    for place, value in zip(places, values, strict=True):
        every[place] = value
    return tuple(every)


def _open_arrays(
    call: Call, inputs: Arguments, places: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return (indices of open inputs that are arrays, indices of these arrays among all).

    places: indices of open inputs. Inputs (x, [a, b], y) with the list open: ([1], [1, 2]).
    """
    opened, at, n = list[int](), list[int](), 0
    for place, _ in call.array_places:
        end = n + len(as_list(inputs[place]))
        if place in places and inputs[place] is not None:
            opened.append(place)
            at += range(n, end)
        n = end
    return opened, at


Saved = tuple[Arguments, Arrays, Arrays]  # inputs, their arrays flattened, results


class CheckedCall(AtAddresses):
    """A call over arrays that were checked, which only launches; numbers may have new values.

    If kernels read addresses from structs, it launches at the addresses of the check, and may not
    reference the open arrays, which the caller has to keep alive.

    over_tensors: arrays are tensors, and the call runs on PyTorch's current stream.
    """

    def __init__(
        self, op: Operator, call: Call, saved: Saved, workspace: object, placed: Placed | None
    ) -> None:
        """saved: inputs, arrays, results. placed: addresses, and structs of them."""
        self._op, self._call, self.over_tensors = op, call, call.has_tensors
        self._inputs, self._arrays, self._results = saved
        # Structs have fixed addresses; without them addresses are read from arrays at each call.
        self._workspace, self._placed = workspace, placed if placed and placed[1] else None

    @property
    def changing(self) -> Collection[str]:
        """Names of the host inputs for which a call may pass new values."""
        return self._call.numbers

    def __call__(self, **values: object) -> None:
        """Launch, with these values in place of those of the check."""
        self.computed(**values)()

    def computed(self, **values: object) -> Callable[[], object]:
        """Do all of a call but its writes; return a function that does them.

        values: new ones, by name. On a GPU the function launches. On the host results are computed
        here, and it is one call of C code that writes them, which no signal handler interrupts.
        """
        call, inputs = self._call, self._inputs
        if values:
            inputs = with_values(self._op, inputs, call.numbers, values)
        numbers, arrays, results = call.values(inputs), self._arrays, self._results
        workspace: Any = self._workspace
        if call.records:
            call.refuse_gradients(arrays + results)
        if call.has_checks or workspace is not None:
            workspace, numbers = call.check(inputs, arrays, results, workspace, numbers)
        return call.compute(inputs, arrays, results, workspace, numbers, self._placed)


def _save(call: Call, inputs: Arguments, out: Arguments) -> Saved:
    """Return (all inputs, their arrays, results); a result is out's, an updated input or new."""
    inputs, out, arrays = call.unpack(inputs, out)
    return inputs, arrays, call.complete(arrays, out, call.values(inputs))


def _save_closed(
    call: Call, inputs: Arguments, out: Arguments, places: Sequence[int]
) -> Saved | None:
    """Return `_save` with None for open arrays; None if the call needs more than addresses of them.

    places: indices of open inputs. Addresses in structs suffice for a launch, unless a kernel has a
    parameter for an open array itself (an index in call.direct) or a check reads it.
    """
    if call.direct is None or call.makes_arrays or call.checks or call.check_numbers:
        return None
    values = call.prepared.changing
    blank = tuple(
        v if p not in places or p in values else [None] * len(v) if isinstance(v, tuple) else None
        for p, v in enumerate(inputs)
    )
    full, saved = _save(call, inputs, out), _save(call, blank, out)
    every, others = full[1] + full[2], saved[1] + saved[2]  # arrays, then results
    return saved if all(every[place] is others[place] for place in call.direct) else None


# By `detaches`: numbers are adopted without notes of foreign arrays.
_NOTHING = {True: NO_FOREIGN, False: ForeignArrays((), (), (), detaches=False)}


def with_values(
    op: Operator, inputs: Arguments, places: Mapping[str, int], values: Mapping[str, object]
) -> Arguments:
    """Return inputs with values[name], converted, at index places[name]; refuse other names."""
    every: list[Any] = list(inputs)
    if op.declaration.other_inputs:
        values = by_declared_names(op.name, op.declaration.other_inputs, values)
    for name, value in values.items():
        if name not in places:
            refuse(op.name, name, f"a name among {sorted(places)}, which may change", "another")
        item = op.inputs[places[name]]
        if value is None or (item.memory == "either" and not is_number(value)):
            refuse(op.name, name, "a number, as was bound", type(value).__name__)
        every[places[name]] = adopt_input(op.name, item, value, _NOTHING[op.declaration.detaches])
    return tuple(every)


# ---- guards of unchanged arrays ------------------------------------------------------


class Unchanged:
    """A guard of bound arrays: dtype and shape of NumPy's, which can be set, metadata of tensors.

    CuPy arrays need none: their memory is fixed, and no kernel reads shapes. For an array over a
    tensor's memory the tensor is compared.
    """

    def __init__(self, call: Call, arrays: Arrays, foreign: ForeignArrays) -> None:
        """Note dtype and shape of `arrays`: the call's, then `out`; None is ignored."""
        named = zip(call.prepared.names, arrays, strict=False)
        present = {name: array for name, array in named if array is not None}
        owners = {name: foreign.owner(array) for name, array in present.items()}
        tensors = {name: owner for name, owner in owners.items() if is_tensor(owner)}
        own = () if call.backend.runs_kernels else present
        others = {name: present[name] for name in own if present[name] is owners[name]}
        self._op, self._names = call.prepared.op, (*others, *tensors)
        self._arrays, self._tensors = tuple(others.values()), Watched(tuple(tensors.values()))
        self._before = _forms(self._arrays)

    def are_same(self) -> bool:
        """Return True if no array or tensor changed."""
        if self._arrays and _forms(self._arrays) != self._before:
            return False
        return self._tensors.are_same()

    def refuse_others(self) -> None:
        """Refuse arrays that changed."""
        if not self.are_same():
            self._refuse()

    def refuse_gradients(self) -> None:
        """Refuse tensors whose gradients would silently be lost."""
        tensors = self._tensors.tensors
        refuse_gradients(self._op, self._names[len(self._arrays) :], tensors)

    def _refuse(self) -> NoReturn:
        """Refuse a call whose bound arrays have changed; the error names the first of them."""
        now = [*_forms(self._arrays), *map(state, self._tensors.tensors)]
        every = zip(self._names, now, [*self._before, *self._tensors.before], strict=True)
        place, (name, current, bound) = next(
            (i, each) for i, each in enumerate(every) if each[1] != each[2]
        )
        if place >= len(self._arrays):
            refuse(self._op, name, "the tensor as it was bound", "one of other memory or form")
        refuse(self._op, name, f"{_describe(bound)}, as it was bound", _describe(current))


_form = attrgetter("dtype", "shape")


def _forms(arrays: Arrays) -> list[object]:
    return list(map(_form, arrays))


def _describe(form: Any) -> str:
    return f"{dtype_name(form[0])} of shape {form[1]}"


_ALIGNMENT = 16  # bytes; a key says whether an address has it


class TensorGuard:
    """Comparison of open inputs with those of a checked call, of all tensors at once by PyTorch."""

    def __init__(
        self, declared: Sequence[Input], call: Call, inputs: Arguments, places: Sequence[int]
    ) -> None:
        """declared, inputs: all of the operator and of the call. places: indices of open ones."""
        self._backend = call.backend
        self._readers = [reader(declared[place]) for place in places]
        values = [inputs[place] for place in places]
        pairs = zip(self._readers, places, strict=True)
        arrays = {place for place, _ in call.array_places}
        self._keys = [_tensor_key(read, inputs[p], p in arrays) for read, p in pairs]
        tensors = self._tensors(values) or []
        has_holes = any(tensor is None for tensor in tensors)
        self._are_alike = None if has_holes or not tensors else like(tensors)
        self._aligned = _alignment(call.backend.pointers(tensors))

    def match(self, values: Sequence[Any]) -> Addresses | None:
        """Return the tensors' addresses, lists flattened, if the open inputs match, else None.

        Host values match if they are equal, changing numbers always, and tensors if their metadata
        and alignment are the same.
        """
        try:
            tensors = self._tensors(values)
        except (KeyError, TypeError) as error:  # not hashable, or not adopted
            raise_if_from_handler(error)
            return None
        if tensors is None or self._are_alike is None or not self._are_alike(tensors):
            return None
        addresses = self._backend.pointers(tensors)
        return addresses if _alignment(addresses) == self._aligned else None

    def _tensors(self, values: Sequence[Any]) -> list[Any] | None:
        """Return the tensors among values, flattened; None if a value does not match."""
        tensors: list[Any] = []
        for value, key, read in zip(values, self._keys, self._readers, strict=True):
            if type(key) is _Tensors:
                if isinstance(value, list | tuple) != key.are_listed:
                    return None
                items = value if key.are_listed else (value,)
                if len(items) != key.n:
                    return None
                tensors += items
            elif key is CHANGES:
                if type(value) not in CHANGING:
                    return None
            elif (None if value is None else read(value)) != key:
                return None
        return tensors


def _alignment(addresses: Addresses) -> object:
    """Return for each address True if it is a multiple of 16 bytes; None for 0, no array."""
    return [address % _ALIGNMENT == 0 if address else None for address in addresses]


class _Tensors(NamedTuple):
    """The key of an input of tensors: how many, and whether they are in a list."""

    n: int
    are_listed: bool


def _tensor_key(read: Reader, value: Any, is_array: bool) -> object:
    """Return what a later value's key has to be: `_Tensors` for arrays, else `read(value)`."""
    if value is None or not is_array:
        return None if value is None else read(value)
    return _Tensors(len(as_list(value)), isinstance(value, tuple))


def as_list(value: Any) -> Sequence[Array | None]:
    return value if isinstance(value, list | tuple) else (value,)
