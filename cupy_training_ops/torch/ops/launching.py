# SPDX-License-Identifier: MIT
"""Two ways to run an operator over tensors: `launch` computes, `infer` says what would come.

Bodies of registered operators are written for either. Whatever a launch of one kind needs is looked
up once, by dtypes, shapes, alignment and device; the next one allocates and queues. `learn` runs a
body, and gives what goes past it in calls of the same kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...call.backends import TENSORS, tensor_backend
from ...call.interop import Lent
from ...call.keys import CHANGES, exact_key, is_plain
from ...call.op import Op
from ...call.run import KernelCall
from ...declare.schema import Spec
from ...device.arguments import getter
from ...dtypes import ELEMENT_TYPES, UINT8
from ..coding import ALIGNED, KEPT_NBYTES

Run = Callable[..., Any]  # of an operator and its inputs: `launch` or `infer`
Runner = Callable[..., Any]  # of arguments, and of their tensors
Maker = Callable[[], Any]
Numbers = Callable[[Sequence[Any]], Sequence[object]]  # of launches, from arguments
Pick = Callable[[Sequence[Any]], tuple[Any, ...]]
# Which results are asked for; those behind the first may come as slices of one tensor.
EVERY, FIRST, JOINED = range(3)


class Taking(NamedTuple):
    """How a launcher takes tensors' addresses itself."""

    longer: Callable[[Sequence[Any]], Any]  # where one is not aligned, or there is no memory
    has_none: bool  # whether a 0 is behind them
    changing: int | None  # the place of numbers that have to be a tuple


class Ready(NamedTuple):
    """A launcher over an operator's inputs and their addresses, and what it was made from."""

    run: Runner  # of inputs, tensors, and their addresses if they are known
    call: KernelCall
    arrays: Sequence[int]  # their places among the inputs


_MANY = 1024  # kinds of calls, and instances, that are remembered
OURS = {getattr(torch, r.name): r.dtype for r in ELEMENT_TYPES if hasattr(torch, r.name)}
_THEIRS = {dtype: theirs for theirs, dtype in OURS.items()}
_HOSTS = (int, bool, tuple)  # host inputs that stand in a key as they are
_NUMBERS = (int, float, tuple)  # those that may change from call to call
_UNKNOWN: Any = object()
address = Tensor.data_ptr
_ready: dict[object, Ready | None] = {}
_instances: dict[tuple[type[Op], bytes], Op] = {}
_rooms: dict[object, dict[int, Tensor]] = {}


def instance(cls: type[Op], **attributes: Any) -> Any:
    """The operator with these attributes, which functions share."""
    try:
        key = cls, exact_key((*attributes.items(),))
    except ValueError:
        return cls.shared(**attributes)
    op = _instances.get(key)
    if op is None:
        op = cls.shared(**attributes)
        if all(map(is_plain, attributes.values())):
            if len(_instances) >= _MANY:
                _instances.clear()
            _instances[key] = op
    return op


def launch(op: Op, *inputs: Any, outputs: Sequence[str] | None = None) -> Any:
    """The operator's results, one or a tuple: those that are named, all without names."""
    return _launch(op, inputs, outputs)[0]


def _launch_first(op: Op, *inputs: Any, **_: object) -> Any:
    """The first result alone, where the others are what a derivative needs."""
    return _launch(op, inputs, (op.outputs[0].name,))[0]


def _launch_joined(op: Op, *inputs: Any, outputs: Sequence[str] | None = None) -> Any:
    return _launch(op, inputs, outputs, joins=True)[0]


_LAUNCHES = (launch, _launch_first, _launch_joined)  # of EVERY, FIRST, JOINED


def _launch(
    op: Op, inputs: Sequence[Any], outputs: Sequence[str] | None, *, joins: bool = False
) -> tuple[Any, Sequence[Any], Ready | None]:
    """Return results, the inputs that they were computed from, and the launcher, if there is one.

    Tensors whose elements are apart are copied: compilers pad rows, and callers slice them.
    """
    inputs = [x.contiguous() if isinstance(x, Tensor) else x for x in inputs]
    backend = TENSORS.get(Tensor)
    if backend is None:
        if not _is_on_gpu(inputs):
            return _call_op(op, inputs, outputs, joins), inputs, None
        backend = tensor_backend()
    inputs += [None] * (len(op.inputs) - len(inputs))
    key: list[object] = [op, backend, outputs, joins]
    addresses = _addresses(op, inputs, key)
    if addresses is None:
        return _call_op(op, inputs, outputs, joins), inputs, None
    known = tuple(key)
    ready = _ready.get(known, _UNKNOWN)
    if ready is _UNKNOWN:
        if len(_ready) >= _MANY:
            _ready.clear()
        ready = _ready[known] = _prepare(op, inputs, outputs, joins)
    if ready is None:
        return _call_op(op, inputs, outputs, joins), inputs, None
    return ready.run(inputs, (), addresses), inputs, ready


def _call_op(op: Op, inputs: Sequence[Any], outputs: Sequence[str] | None, joins: bool) -> Any:
    """Call an operator; of a view that negates, with the numbers that PyTorch's dispatcher makes.

    What is joined is so in each call: what autograd keeps follows from forms alone, since a
    checkpointed region that is run again has to keep as much.
    """
    given = [x.resolve_neg() if isinstance(x, Tensor) else x for x in inputs]
    results = _unpack(op(*given, outputs=outputs))
    if not joins or not isinstance(results, tuple):
        return results
    first, *others = results
    specs = [Spec(tuple(each.shape), OURS[each.dtype]) for each in others]
    return results if _joint_spec(specs) is None else (first, torch.stack(others))


def _is_on_gpu(inputs: Sequence[Any]) -> bool:
    """Return True if any of the inputs is a tensor on a GPU."""
    return any(isinstance(value, Tensor) and value.is_cuda for value in inputs)


def infer(op: Op, *inputs: Any, outputs: Sequence[str] | None = None) -> Any:
    """Tensors without data, in the place of the results; shapes may be symbols."""
    device = next(value.device for value in inputs if isinstance(value, Tensor))
    inputs += (None,) * (len(op.inputs) - len(inputs))
    specs: Any = op.infer(*[_spec(value) for value in inputs])
    names = [output.name for output in op.outputs]
    return _unpack(
        tuple(
            torch.empty(tuple(spec.shape), dtype=_THEIRS[spec.dtype], device=device)
            for name, spec in zip(names, specs, strict=True)
            if outputs is None or name in outputs
        )
    )


def _spec(value: Any) -> Any:
    return Spec(tuple(value.shape), OURS[value.dtype]) if isinstance(value, Tensor) else value


def _unpack(results: Any) -> Any:
    """Results that were asked for, as a tuple; one result for itself."""
    if not isinstance(results, tuple):
        return results
    returned = tuple([result for result in results if result is not None])
    return returned if len(returned) > 1 else returned[0]


def _addresses(op: Op, inputs: Sequence[Any], key: list[object]) -> list[int] | None:
    """Addresses of the contiguous tensors, 0 for other inputs; extends the key by their facts.

    None for inputs that this short way cannot look at.
    """
    addresses = []
    for place, value in enumerate(inputs):
        if isinstance(value, Tensor):
            at = address(value)
            if not at or value.is_neg():
                return None
            key += (value.dtype, value.shape, value.device, at % ALIGNED == 0)
            addresses.append(at)
        elif value is None:
            key.append(None)
            addresses.append(0)
        elif type(value) in (_NUMBERS if (changes := op.inputs[place].changes) else _HOSTS):
            if not changes and not is_plain(value):
                return None
            key.append(CHANGES if changes else exact_key((value,)))
            addresses.append(0)
        else:
            return None
    return addresses


def launcher(
    call: KernelCall,
    spots: Sequence[int],
    n_given: int,
    numbers: Numbers,
    *,
    taking: Taking | None = None,
    parts: Sequence[tuple[int, int]] = (),
    joins: bool = False,
) -> Runner:
    """A prepared launch: makes results and queues what writes them, on PyTorch's current stream.

    spots: the places of the arrays' addresses, of which it is given n_given; numbers: those of the
    launches. parts: more addresses, each so many bytes behind that of a spot. joins: results behind
    the first may be slices of one tensor, which takes the time of one.
    """
    backend, device, ready = call.backend, call.device, call.ready
    makers = call.makers
    slices: list[int] = []
    one = _joint_spec([r.spec for r in call.prepared.results if r.spec][1:]) if joins else None
    if one is not None:
        makers = [makers[0], backend.maker(one, device)]
        slices = [one.nbytes // one.shape[0] * i for i in range(1, one.shape[0])]
    pick = _in_row(call, spots, n_given + len(parts))
    make_one = makers[0] if len(makers) == 1 else None
    make_some = _maker_of_several(makers, slices)
    changes = bool(call.changing)
    current_stream, is_current = backend.stream_of(device), backend.is_current
    is_alone = backend.is_alone(device)
    queue = _Rooms(call).queue if call.workspace_nbytes else ready.queue
    longer, has_none, changing = taking or (None, False, None)
    unaligned = ALIGNED - 1

    def run(
        inputs: Sequence[Any], given: Sequence[Tensor], addresses: list[int] | None = None
    ) -> Any:
        if addresses is None:
            addresses = [*map(address, given)]
            for at in addresses:
                if at & unaligned or not at:
                    return longer(inputs)  # type: ignore[misc]
            if changing is not None and type(inputs[changing]) is not tuple:
                return longer(inputs)  # type: ignore[misc]
            if has_none:
                addresses.append(0)
        values = numbers(inputs) if changes else ()
        if parts:
            addresses += [addresses[spot] + nbytes for spot, nbytes in parts]
        results: Any
        if make_one is not None:
            results = make_one()
            addresses.append(address(results))
        else:
            results = make_some(addresses)
        row = addresses if pick is None else pick(addresses)
        stream = current_stream()
        if is_alone or is_current(device):
            queue(row, values, stream)
        else:
            with backend.on(device):
                queue(row, values, stream)
        return results

    return run


def _maker_of_several(
    makers: Sequence[Maker], slices: Sequence[int]
) -> Callable[[list[int]], tuple[Any, ...]]:
    """Return a function that makes several results and appends their addresses to a list.

    Those of slices of the last result come behind. Two results, as most have, take no loop.
    """

    def some(addresses: list[int]) -> tuple[Any, ...]:
        results = tuple([make() for make in makers])
        addresses += map(address, results)
        last = addresses[-1]
        addresses += [last + nbytes for nbytes in slices]
        return results

    if len(makers) != 2 or len(slices) > 1:
        return some
    make_first, make_last = makers
    nbytes = sum(slices)

    def two(addresses: list[int]) -> tuple[Any, ...]:
        first, last = make_first(), make_last()
        at = address(last)
        addresses += (address(first), at, at + nbytes) if nbytes else (address(first), at)
        return first, last

    return two


def _joint_spec(specs: Sequence[Spec]) -> Spec | None:
    """The spec of one tensor whose slices are several results: n of (4,) are one (n, 4).

    None if the results differ, or if slices would not be aligned.
    """
    if len(specs) < 2 or len({(spec.shape, spec.dtype) for spec in specs}) > 1:
        return None
    first = specs[0]
    return None if first.nbytes % ALIGNED else Spec((len(specs), *first.shape), first.dtype)


def _in_row(
    call: KernelCall, spots: Sequence[int], n_given: int
) -> Callable[[list[int]], Sequence[int]] | None:
    """A function that puts addresses of arguments and new results in the launches' order.

    None where they are in it. Results that are not computed have the address 0.
    """
    places, n = [*spots], n_given
    for result in call.prepared.results:
        places.append(n if result.spec is not None else -1)
        n += result.spec is not None
    taken = [places[place] for place in sorted(call.ready.taken)]
    if taken == list(range(n)):
        return None
    if -1 not in taken:
        return getter(taken)
    return lambda addresses: [addresses[place] if place >= 0 else 0 for place in taken]


class _Rooms:
    """Scratch memory of a call's launches.

    It is kept for each stream, and is one call's until its last launch: kernels leave zeros behind.
    A graph has its own, since it may run beside other calls.
    """

    def __init__(self, call: KernelCall) -> None:
        self._ready, self._backend, self._device = call.ready, call.backend, call.device
        self._nbytes = nbytes = call.workspace_nbytes
        self._make = call.backend.maker(Spec((nbytes,), UINT8), call.device)
        form = (call.backend, call.device, call.ready.zeros_nbytes, nbytes)
        self._is_kept = nbytes <= KEPT_NBYTES
        self._kept: dict[int, Tensor] = _rooms.setdefault(form, {})

    def queue(self, row: Sequence[int], values: Sequence[object], stream: int) -> None:
        """Queue the launches with scratch memory of the stream."""
        if not self._is_kept or self._backend.capturing(self._device):
            room = self._make()  # held until all is queued
            self._ready.run_at(row, stream, address(room), values=values)
            return
        kept = self._kept.pop(stream, None)
        if kept is None:
            kept = self._backend.zeros(self._nbytes, self._device)
        self._ready.run_at(row, stream, address(kept), is_clear=True, values=values)
        self._kept[stream] = kept


def _prepare(
    op: Op, inputs: Sequence[Any], outputs: Sequence[str] | None, joins: bool
) -> Ready | None:
    """Make a call's launcher; None where it is more than launches over tensors of one GPU."""
    lent = Lent(op.inputs, inputs, (None,), natively=op.knows_tensors, detaches=True)
    call, _, _ = op.prepared_call(tuple(inputs), (None,), outputs, lent)
    if not isinstance(call, KernelCall) or not call.ready.takes_numbers:
        return None
    n_computed = sum(result.spec is not None for result in call.prepared.results)
    is_checked = call.checks or call.check_numbers is not None
    if lent or is_checked or call.supplied is not None or len(call.makers) < n_computed:
        return None
    arrays = [place for place, _ in call.array_places]

    def numbers(given: Sequence[Any]) -> Sequence[object]:
        return call.ready.values(call.values(tuple(given)))

    run = launcher(call, arrays, len(inputs), numbers, joins=joins)
    return Ready(run, call, arrays)


def compute(body: Callable[..., Any], arguments: Sequence[Any], which: int = EVERY) -> Any:
    """The results of a body that are asked for."""
    return body(_LAUNCHES[which], *arguments)


def learn(
    body: Callable[..., Any], arguments: Sequence[Any], which: int, changing: int | None = None
) -> tuple[Any, Runner]:
    """The results, and what runs calls whose tensors are like these and whose others are equal.

    It goes past a body that hands its own tensors to one operator, and gives back what comes, as it
    is; else it runs the body. changing: the place of a tuple of numbers that need not be equal, as
    the operator has it once it is checked.
    """
    # A tensor that is given twice is two arguments, which others may tell apart.
    given = [value.detach() if isinstance(value, Tensor) else value for value in arguments]
    launches = []

    def note(op: Op, *inputs: Any, outputs: Sequence[str] | None = None) -> Any:
        outputs = (op.outputs[0].name,) if which == FIRST else outputs
        launches.append(_launch(op, inputs, outputs, joins=which == JOINED))
        return launches[-1][0]

    results = body(note, *given)
    longer = functools.partial(compute, body, which=which)
    run: Runner | None = None
    if len(launches) == 1 and _are_same(results, launches[0][0]):
        _, inputs, ready = launches[0]
        if ready is not None and (changing is None or type(given[changing]) is tuple):
            has_none = any(value is None for value in given)
            taking = Taking(longer, has_none, changing)
            run = _launcher_past(given, inputs, ready, taking, joins=which == JOINED)
    return results, run or (lambda values, _: longer(values))


def _are_same(results: Any, others: Any) -> bool:
    """Return True if two calls gave the same tensors, one or a tuple."""
    if not isinstance(results, tuple) or not isinstance(others, tuple):
        return results is others
    return len(results) == len(others) and all(a is b for a, b in zip(results, others, strict=True))


def _launcher_past(
    given: Sequence[Any], inputs: Sequence[Any], ready: Ready, taking: Taking, *, joins: bool
) -> Runner | None:
    """Make a launcher over a body's arguments, which goes past the body.

    given: the arguments; inputs: those of the operator that the body called. None where one is
    neither an argument nor a slice of one.
    """
    tensors = [i for i, value in enumerate(given) if isinstance(value, Tensor)]
    if any(given[place].data_ptr() % ALIGNED for place in tensors):
        return None  # of other launches
    spots = {id(given[place]): spot for spot, place in enumerate(tensors)}
    if taking.has_none:
        spots[id(None)] = len(tensors)  # where there is a 0
    n_given = len(tensors) + taking.has_none
    slices: list[tuple[int, int]] = []  # of spots: bytes from where they begin
    sources: list[int] = []
    for each in [inputs[place] for place in ready.arrays]:
        spot = spots.get(id(each))
        if spot is None:
            part = _slice_of(each, [given[place] for place in tensors])
            if part is None:
                return None
            spot = n_given + len(slices)
            slices.append(part)
        sources.append(spot)
    numbers = _numbers_past(given, inputs, ready.call, taking.changing)
    how: dict[str, Any] = {"taking": taking, "parts": slices, "joins": joins}
    return launcher(ready.call, sources, n_given, numbers, **how)


def _slice_of(part: Any, given: Sequence[Tensor]) -> tuple[int, int] | None:
    """The index of the one tensor whose memory contains `part`'s, and the bytes before it there.

    None if no tensor does, or several do.
    """
    if not (isinstance(part, Tensor) and part.numel() and part.is_contiguous()) or part.is_neg():
        return None
    start = part.data_ptr()
    containing = [
        (spot, start - whole.data_ptr())
        for spot, whole in enumerate(given)
        if whole.data_ptr() <= start and start + part.nbytes <= whole.data_ptr() + whole.nbytes
    ]
    return containing[0] if len(containing) == 1 else None


def _numbers_past(
    given: Sequence[Any], inputs: Sequence[Any], call: KernelCall, changing: int | None
) -> Numbers:
    """A function that makes the launches' numbers from the arguments of calls like this one.

    Those that follow from the argument at `changing` are made anew, others stay what they are here.
    """
    known = call.ready.values(call.values(tuple(inputs))) if call.changing else []
    if changing is None:
        return lambda _: known
    place = next((i for i in call.changing if inputs[i] is given[changing]), None)
    if place is None:  # the body hands on no such number
        return lambda _: known
    values = call.ready.values_but(known, place)
    return lambda arguments: values(arguments[changing])


def exact(values: Sequence[Any]) -> object:
    """A key of these values that no others have; None where they may change, or are unknown.

    A shape of PyTorch's is a tuple.
    """
    plain = [tuple(value) if type(value) is torch.Size else value for value in values]
    theirs = [value if type(value) is torch.dtype else None for value in plain]
    if any(theirs):
        plain = [None if type(value) is torch.dtype else value for value in plain]
    if not all(map(is_plain, plain)):
        return None
    key = exact_key(tuple(plain))
    return (key, *theirs) if any(theirs) else key


def pick(places: Sequence[int]) -> Pick:
    """A function that takes a tuple of the items at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    start = places[0] if places else 0
    return itemgetter(slice(start, start + len(places)))
