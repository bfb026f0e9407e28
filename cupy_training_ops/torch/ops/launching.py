# SPDX-License-Identifier: MIT
"""Two ways to run an operator over tensors: `launch` computes, `infer` makes results without data.

Bodies of registered operators take either as an argument. What a launch needs is looked up once for
each set of dtypes, shapes, alignments and devices; later calls allocate and queue. `trace` runs a
body and returns a function that repeats its launches in calls of the same kind.

op: an operator of this package, as LayerNormalization(axis=-1). outputs: names of the results to
compute; None: all. joins: results after the first may be slices of one tensor, which is returned in
their place. Numbers are arguments of kernels that are no arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...call.backends import TENSORS, tensor_backend
from ...call.interop import ForeignArrays
from ...call.keys import CHANGES, exact_key, is_plain
from ...call.op import Op
from ...call.run import KernelCall
from ...declare.schema import Spec
from ...device.arguments import getter
from ...dtypes import ELEMENT_TYPES, UINT8
from ..coding import ALIGNED, REUSED_NBYTES

Run = Callable[..., Any]  # of an operator and its inputs: `launch` or `infer`
Runner = Callable[..., Any]  # of all arguments, and of the tensors among them
Maker = Callable[[], Any]  # allocates a result
Numbers = Callable[[Sequence[Any]], Sequence[object]]  # arguments -> the launches' numbers
Pick = Callable[[Sequence[Any]], tuple[Any, ...]]  # a sequence -> some of its items
# Which results a body computes. JOINED: all; those after the first may be slices of one tensor.
EVERY, FIRST, JOINED = range(3)


class Bypass(NamedTuple):
    """Settings of a launcher that takes the arguments of an operator's body, and replaces it."""

    fallback: Callable[[Sequence[Any]], Any]  # if a tensor is unaligned or empty
    has_none: bool  # an argument may be None: the address 0 follows those of tensors
    changing: int | None  # index of numbers that have to be a tuple


class Ready(NamedTuple):
    """An operator's launcher, the prepared call that it launches, and which inputs are arrays."""

    run: Runner  # of inputs, tensors, and their addresses if they are known
    call: KernelCall
    arrays: Sequence[int]  # their indices among the inputs


_MANY = 1024  # kinds of calls, and instances, that are remembered
NUMPY_DTYPES = {getattr(torch, r.name): r.dtype for r in ELEMENT_TYPES if hasattr(torch, r.name)}
_TORCH_DTYPES = {dtype: torch_dtype for torch_dtype, dtype in NUMPY_DTYPES.items()}
_HOSTS = (int, bool, tuple)  # types of host inputs that are part of a key
_NUMBERS = (int, float, tuple)  # types of those that may change from call to call
_UNKNOWN: Any = object()
address = Tensor.data_ptr
_ready: dict[object, Ready | None] = {}  # by the key of `_launch`; None: there is no launcher
_instances: dict[tuple[type[Op], bytes], Op] = {}  # by class and attributes
_workspaces: dict[object, dict[int, Tensor]] = {}  # by kind of memory, then by stream


def instance(cls: type[Op], **attributes: Any) -> Any:
    """Return the shared operator with these attributes."""
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
    """Compute an operator's results; return one, or a tuple."""
    return _launch(op, inputs, outputs)[0]


def _launch_first(op: Op, *inputs: Any, **_: object) -> Any:
    """Return only the first result: the others are for a derivative."""
    return _launch(op, inputs, (op.outputs[0].name,))[0]


def _launch_joined(op: Op, *inputs: Any, outputs: Sequence[str] | None = None) -> Any:
    return _launch(op, inputs, outputs, joins=True)[0]


_LAUNCHES = (launch, _launch_first, _launch_joined)  # of EVERY, FIRST, JOINED


def _launch(
    op: Op, inputs: Sequence[Any], outputs: Sequence[str] | None, *, joins: bool = False
) -> tuple[Any, Sequence[Any], Ready | None]:
    """Return (results, inputs made contiguous, launcher or None).

    Compilers pad rows and callers slice them, so strided tensors are copied.
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
    """Call an operator without a launcher; a view's negative bit is applied first.

    Results are joined here too: a checkpointed region that is run again has to save as many
    tensors as at first.
    """
    inputs = [x.resolve_neg() if isinstance(x, Tensor) else x for x in inputs]
    results = _unpack(op(*inputs, outputs=outputs))
    if not joins or not isinstance(results, tuple):
        return results
    first, *others = results
    specs = [Spec(tuple(each.shape), NUMPY_DTYPES[each.dtype]) for each in others]
    return results if _joint_spec(specs) is None else (first, torch.stack(others))


def of_mask(run: Run, op: Any, inputs: Sequence[Any], mask: Sequence[bool]) -> Any:
    """Compute the gradients that the mask selects: a tensor, or a tuple of several or none.

    op: an operator of gradients, as many as the mask has items. inputs: of `op`.
    """
    outputs = [output.name for output in op.outputs]
    names = tuple([name for name, wanted in zip(outputs, mask, strict=True) if wanted])
    return run(op, *inputs, outputs=names) if names else ()


def _is_on_gpu(inputs: Sequence[Any]) -> bool:
    """Return True if any of the inputs is a tensor on a GPU."""
    return any(isinstance(value, Tensor) and value.is_cuda for value in inputs)


def infer(op: Op, *inputs: Any, outputs: Sequence[str] | None = None) -> Any:
    """Return empty tensors with the shapes, dtypes and device of the results of `launch`; shapes
    may be symbolic."""
    device = next(value.device for value in inputs if isinstance(value, Tensor))
    inputs += (None,) * (len(op.inputs) - len(inputs))
    specs: Any = op.infer(*[_spec(value) for value in inputs])
    names = [output.name for output in op.outputs]
    return _unpack(
        tuple(
            torch.empty(tuple(spec.shape), dtype=_TORCH_DTYPES[spec.dtype], device=device)
            for name, spec in zip(names, specs, strict=True)
            if outputs is None or name in outputs
        )
    )


def _spec(value: Any) -> Any:
    return (
        Spec(tuple(value.shape), NUMPY_DTYPES[value.dtype]) if isinstance(value, Tensor) else value
    )


def _unpack(results: Any) -> Any:
    """Drop results that were not computed; return a tuple, or the only result."""
    if not isinstance(results, tuple):
        return results
    returned = tuple([result for result in results if result is not None])
    return returned if len(returned) > 1 else returned[0]


def _addresses(op: Op, inputs: Sequence[Any], key: list[object]) -> list[int] | None:
    """Return the addresses of the contiguous tensors, 0 for other inputs; extend `key` by dtype,
    shape, device and alignment of the tensors, and by the values of the others.

    None if there can be no launcher: a tensor is empty or its negative bit is set, or another input
    is of a type without a key.
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
    slots: Sequence[int],
    n_arguments: int,
    numbers: Numbers,
    *,
    bypass: Bypass | None = None,
    parts: Sequence[tuple[int, int]] = (),
    joins: bool = False,
) -> Runner:
    """Return a function that allocates results and queues launches on PyTorch's current stream.

    It takes (arguments, their tensors, addresses if they are known). call: the prepared launches.
    slots: for each array of the call, the index of its address in [n_arguments addresses, *parts].
    parts: (slot, nbytes), the address of a slot + nbytes. numbers(arguments): numbers of the
    launches. bypass: for arguments of a body; None: they are the operator's inputs.
    """
    backend, device, ready = call.backend, call.device, call.ready
    makers = call.makers
    slices: list[int] = []
    one = _joint_spec([r.spec for r in call.prepared.results if r.spec][1:]) if joins else None
    if one is not None:
        makers = [makers[0], backend.maker(one, device)]
        slices = [one.nbytes // one.shape[0] * i for i in range(1, one.shape[0])]
    reorder = _address_order(call, slots, n_arguments + len(parts))
    make_one = makers[0] if len(makers) == 1 else None
    make_some = _maker_of_several(makers, slices)
    changes = bool(call.changing)
    current_stream, is_current = backend.stream_of(device), backend.is_current
    is_alone = backend.is_alone(device)
    queue = _Workspaces(call).queue if call.workspace_nbytes else ready.queue
    fallback, has_none, changing = bypass or (None, False, None)
    unaligned = ALIGNED - 1

    def run(
        inputs: Sequence[Any], tensors: Sequence[Tensor], addresses: list[int] | None = None
    ) -> Any:
        """Allocate results, queue the launches, and return the results: one, or a tuple.

        addresses: of all inputs, 0 for those that are no tensors; None: those of `tensors`.
        """
        if addresses is None:
            addresses = [*map(address, tensors)]
            for at in addresses:
                if at & unaligned or not at:
                    return fallback(inputs)  # type: ignore[misc]
            if changing is not None and type(inputs[changing]) is not tuple:
                return fallback(inputs)  # type: ignore[misc]
            if has_none:
                addresses.append(0)
        values = numbers(inputs) if changes else ()
        if parts:
            addresses += [addresses[slot] + nbytes for slot, nbytes in parts]
        results: Any
        if make_one is not None:
            results = make_one()
            addresses.append(address(results))
        else:
            results = make_some(addresses)
        ordered = addresses if reorder is None else reorder(addresses)
        stream = current_stream()
        if is_alone or is_current(device):
            queue(ordered, values, stream)
        else:
            with backend.on(device):
                queue(ordered, values, stream)
        return results

    return run


def _maker_of_several(
    makers: Sequence[Maker], slices: Sequence[int]
) -> Callable[[list[int]], tuple[Any, ...]]:
    """Return a function that makes several results and appends their addresses to a list, then
    those of the last result's slices. For two results it has no loop.

    makers: allocate a result each. slices: bytes from the last result's start to each slice.
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
    """Return the spec of one tensor whose slices are the results: n of shape (4,) -> (n, 4).

    None if the results differ, or if slices would not be aligned.
    """
    if len(specs) < 2 or len({(spec.shape, spec.dtype) for spec in specs}) > 1:
        return None
    first = specs[0]
    return None if first.nbytes % ALIGNED else Spec((len(specs), *first.shape), first.dtype)


def _address_order(
    call: KernelCall, slots: Sequence[int], n_arguments: int
) -> Callable[[list[int]], Sequence[int]] | None:
    """Return a function from addresses of arguments and new results to those of the launches.

    slots: for each input array of the call, the index of its address among the first n_arguments.
    None if the function would change nothing. Results that are not computed have the address 0.
    """
    # For inputs, then results: the index of the address; -1: not computed.
    places, n = [*slots], n_arguments
    for result in call.prepared.results:
        places.append(n if result.spec is not None else -1)
        n += result.spec is not None
    # `direct`: arrays whose addresses are kernel arguments.
    order = [places[place] for place in sorted(call.ready.direct)]
    if order == list(range(n)):
        return None
    if -1 not in order:
        return getter(order)
    return lambda addresses: [addresses[place] if place >= 0 else 0 for place in order]


class _Workspaces:
    """Scratch memory of a call's launches.

    Each stream has one, which a call removes from `_free` until its launches are queued: kernels
    leave it zeroed. A captured graph has its own, as it may run beside other calls.
    """

    def __init__(self, call: KernelCall) -> None:
        self._ready, self._backend, self._device = call.ready, call.backend, call.device
        self._nbytes = nbytes = call.workspace_nbytes
        self._make = call.backend.maker(Spec((nbytes,), UINT8), call.device)
        # Calls with as much memory, of which as much is zeroed, share it.
        form = (call.backend, call.device, call.ready.zeros_nbytes, nbytes)
        self._is_reused = nbytes <= REUSED_NBYTES
        self._free: dict[int, Tensor] = _workspaces.setdefault(form, {})

    def queue(self, addresses: Sequence[int], values: Sequence[object], stream: int) -> None:
        """Queue the launches with scratch memory of the stream."""
        if not self._is_reused or self._backend.capturing(self._device):
            memory = self._make()  # referenced until all is queued
            self._ready.run_at(addresses, stream, address(memory), values=values)
            return
        free = self._free.pop(stream, None)
        if free is None:
            free = self._backend.zeros(self._nbytes, self._device)
        self._ready.run_at(addresses, stream, address(free), is_clear=True, values=values)
        self._free[stream] = free


def _prepare(
    op: Op, inputs: Sequence[Any], outputs: Sequence[str] | None, joins: bool
) -> Ready | None:
    """Make the launcher of calls of `op` like this one; None if they are more than launches over
    tensors of one GPU."""
    foreign = ForeignArrays(op.inputs, inputs, (None,), natively=op.knows_tensors, detaches=True)
    call, _, _ = op.prepared_call(tuple(inputs), (None,), outputs, foreign)
    if not isinstance(call, KernelCall) or not call.ready.takes_numbers:
        return None
    n_computed = sum(result.spec is not None for result in call.prepared.results)
    is_checked = call.checks or call.check_numbers is not None
    if foreign or is_checked or call.supplied is not None or len(call.makers) < n_computed:
        return None
    arrays = [place for place, _ in call.array_places]

    def numbers(inputs: Sequence[Any]) -> Sequence[object]:
        return call.ready.values(call.values(tuple(inputs)))

    run = launcher(call, arrays, len(inputs), numbers, joins=joins)
    return Ready(run, call, arrays)


def compute(body: Callable[..., Any], arguments: Sequence[Any], which: int = EVERY) -> Any:
    """Run a body, a function of a Run and its arguments, and return its results: EVERY, only the
    FIRST, or those after the first JOINED, as `which` says."""
    return body(_LAUNCHES[which], *arguments)


def trace(
    body: Callable[..., Any], arguments: Sequence[Any], which: int, changing: int | None = None
) -> tuple[Any, Runner]:
    """Run a body; return its results, and a function for calls that `RecentCalls` matches.

    If the body only passes its own tensors to one operator and returns the results, that function
    launches without the body. which: EVERY, FIRST or JOINED. changing: index of an argument, a
    tuple of numbers, that may differ in these calls.
    """
    # A tensor that is passed twice becomes two, so that identities identify arguments.
    arguments = [value.detach() if isinstance(value, Tensor) else value for value in arguments]
    launches = []

    def note(op: Op, *inputs: Any, outputs: Sequence[str] | None = None) -> Any:
        outputs = (op.outputs[0].name,) if which == FIRST else outputs
        launches.append(_launch(op, inputs, outputs, joins=which == JOINED))
        return launches[-1][0]

    results = body(note, *arguments)
    fallback = functools.partial(compute, body, which=which)
    run: Runner | None = None
    if len(launches) == 1 and _are_same(results, launches[0][0]):
        _, inputs, ready = launches[0]
        if ready is not None and (changing is None or type(arguments[changing]) is tuple):
            has_none = any(value is None for value in arguments)
            bypass = Bypass(fallback, has_none, changing)
            run = _bypassing_launcher(arguments, inputs, ready, bypass, joins=which == JOINED)
    return results, run or (lambda values, _: fallback(values))


def _are_same(results: Any, others: Any) -> bool:
    """Return True if results, tensors or tuples, are the same objects."""
    if not isinstance(results, tuple) or not isinstance(others, tuple):
        return results is others
    return len(results) == len(others) and all(a is b for a, b in zip(results, others, strict=True))


def _bypassing_launcher(
    arguments: Sequence[Any], inputs: Sequence[Any], ready: Ready, bypass: Bypass, *, joins: bool
) -> Runner | None:
    """Make a launcher that takes a body's arguments, and runs without the body.

    inputs: those of the operator that the body called. ready: the operator's launcher. None if an
    input is neither an argument nor a slice of one.
    """
    tensors = [i for i, value in enumerate(arguments) if isinstance(value, Tensor)]
    if any(arguments[place].data_ptr() % ALIGNED for place in tensors):
        return None  # these launches are for unaligned tensors
    slots = {id(arguments[place]): slot for slot, place in enumerate(tensors)}
    if bypass.has_none:
        slots[id(None)] = len(tensors)  # the address 0
    n_arguments = len(tensors) + bypass.has_none
    slices: list[tuple[int, int]] = []  # (slot, bytes from its start)
    sources: list[int] = []
    for each in [inputs[place] for place in ready.arrays]:
        slot = slots.get(id(each))
        if slot is None:
            part = _slice_of(each, [arguments[place] for place in tensors])
            if part is None:
                return None
            slot = n_arguments + len(slices)
            slices.append(part)
        sources.append(slot)
    numbers = _bypassing_numbers(arguments, inputs, ready.call, bypass.changing)
    how: dict[str, Any] = {"bypass": bypass, "parts": slices, "joins": joins}
    return launcher(ready.call, sources, n_arguments, numbers, **how)


def _slice_of(part: Any, tensors: Sequence[Tensor]) -> tuple[int, int] | None:
    """Return (index, offset in bytes) of the one tensor whose memory contains `part`.

    None if no tensor does, or several do.
    """
    if not (isinstance(part, Tensor) and part.numel() and part.is_contiguous()) or part.is_neg():
        return None
    start = part.data_ptr()
    containing = [
        (slot, start - whole.data_ptr())
        for slot, whole in enumerate(tensors)
        if whole.data_ptr() <= start and start + part.nbytes <= whole.data_ptr() + whole.nbytes
    ]
    return containing[0] if len(containing) == 1 else None


def _bypassing_numbers(
    arguments: Sequence[Any], inputs: Sequence[Any], call: KernelCall, changing: int | None
) -> Numbers:
    """Return a function from a body's arguments to the launches' numbers.

    Those that depend on `arguments[changing]` are computed in each call, others only here.
    """
    known = call.ready.values(call.values(tuple(inputs))) if call.changing else []
    if changing is None:
        return lambda _: known
    place = next((i for i in call.changing if inputs[i] is arguments[changing]), None)
    if place is None:  # the body does not pass it on
        return lambda _: known
    values = call.ready.values_but(known, place)
    return lambda arguments: values(arguments[changing])


def exact(values: Sequence[Any]) -> object:
    """Return a key that only equal values have, 1 and 1.0 being different; None if one is neither
    plain (`is_plain`) nor a dtype or torch.Size, which equals a tuple."""
    plain = [tuple(value) if type(value) is torch.Size else value for value in values]
    dtypes = [value if type(value) is torch.dtype else None for value in plain]
    if any(dtypes):
        plain = [None if type(value) is torch.dtype else value for value in plain]
    if not all(map(is_plain, plain)):
        return None
    key = exact_key(tuple(plain))
    return (key, *dtypes) if any(dtypes) else key


def pick(places: Sequence[int]) -> Pick:
    """Return a function from a sequence to the tuple of its items at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    start = places[0] if places else 0  # a slice makes a tuple of one item, or none
    return itemgetter(slice(start, start + len(places)))
