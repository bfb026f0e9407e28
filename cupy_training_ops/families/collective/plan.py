# SPDX-License-Identifier: MIT
"""The base of collectives: their group, and steps that queue calls of NCCL or copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from ...backend import Backend
from ...call.bound import BoundCall, OpenCall
from ...call.keys import attribute_key
from ...call.op import LastCall, Op
from ...call.prepared import Prepared
from ...call.run import Call, KernelCall, Placed
from ...declare.schema import Spec, attribute, integer
from ...dtypes import FLOATS
from ...errors import ArgumentError, OpError, raise_if_from_handler, refuse, shown
from ...plan import Pointers, Step, Work
from ...process_group import ProcessGroup
from ...process_group.engine import Ranks
from . import queue
from .members import GLOBAL, members
from .messages import description

T = TypeVar("T")
Specs = Sequence[Spec]
Rows = Sequence[queue.Row]

NUMBERS = (*FLOATS, *queue.INTEGERS)


def process_group(value: object) -> ProcessGroup:
    """Return an attribute's ProcessGroup; refuse other values."""
    if not isinstance(value, ProcessGroup):
        raise ArgumentError(f"expected a ProcessGroup, got {shown(value)}")
    return value


def once_per_group(group: ProcessGroup, key: object, make: Callable[[], T]) -> T:
    """Return the group's object under this key, created on first use; a closed group has none."""
    instance: T | None = group.instances.get(key)
    if instance is None:
        instance = group.instances[key] = make()
    return instance


GROUP_TYPE = attribute(
    integer, 0, doc="0 all ranks, 1 data, 2 node-local data, 3 cross-node data, 4 horizontal"
)


class WarmCall(NamedTuple):
    """A call that queued only NCCL calls, ready to queue them again for the same array objects.

    Arrays are compared by id(): while an object is alive its memory does not move.
    """

    backend: Backend  # of the arrays, CUDA's
    device: int  # has to be current
    calls: queue.Calls  # a step's NCCL calls for any arrays
    prepared: queue.CallsAtAddresses  # the same for these arrays
    identities: tuple[int, ...] = ()  # id() of each array of the list
    dead: Sequence[object] = ()  # not empty once an array was freed: its id() may be reused

    @classmethod
    def of(cls, call: Call, placed: Placed | None) -> WarmCall | None:
        """Return the NCCL calls that `call` queued for arrays at `placed`; None if it did more.

        placed: (addresses of all arrays, tables of them for the steps), or None.
        """
        if not isinstance(call, KernelCall) or placed is None or not placed[1]:
            return None
        step = call.ready.only_step
        calls = step.args[0] if isinstance(step, Work) else None
        if not isinstance(calls, queue.Calls) or calls.each_time:
            return None
        prepared = calls.last_for(*placed[1])
        if prepared is None or not prepared.calls:
            return None
        return cls(call.backend, call.device, calls, prepared)

    @classmethod
    def of_list(cls, last: LastCall) -> WarmCall | None:
        """Return the last call if it was in place and of one list of arrays, else None."""
        call, arrays = last.call, last.arrays
        is_list = len(arrays.declared) == 1 and arrays.declared[0].variadic
        warm = cls.of(call, last.placed)
        if warm is None or not is_list or call.has_out or not call.returns_all:
            return None
        identities = arrays.identities[: len(arrays.references)]  # then those of None
        return warm._replace(identities=identities, dead=arrays.dead)

    def matches(self, inputs: tuple[Any, ...]) -> bool:
        """Return True if inputs are one list of the same array objects, on the current device."""
        if len(inputs) != 1 or self.dead or type(inputs[0]) not in (list, tuple):
            return False
        is_same = tuple(map(id, inputs[0])) == self.identities
        return is_same and self.backend.is_current(self.device)


class Bound:
    """A bound call of a collective; one that is stopped in its middle ends the group.

    Other attributes are those of the bound call that it wraps.
    """

    def __init__(self, op: Collective, bound: BoundCall | OpenCall) -> None:
        """Wrap `bound`, a bound call of the collective `op`."""
        self._op, self._bound = op, bound
        self._warm: WarmCall | None = None
        self._answer: Any = None

    def __call__(self, **values: Any) -> Any:
        """Run the call; if no value changes, queue the previous NCCL calls again."""
        bound, warm, begun = self._bound, self._warm, self._op.group.begun
        try:
            if warm is not None and not values and warm.backend.is_current(warm.device):
                warm.calls.again(warm.prepared)
                return self._answer
            answer = bound(**values)
            if type(bound) is BoundCall and bound.answer is not None:  # not over tensors
                self._warm = WarmCall.of(bound.call, bound.placed)
                self._answer = bound.answer
            return answer
        except BaseException as error:
            self._op.end_if_stopped(begun, error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bound, name)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return self._bound.__reduce__()


class Collective(Op):
    """An operator that ranks call together: in a group that is open and on the arrays' device."""

    takes_tensors = False  # NCCL runs on CuPy's current stream

    provider = "NumPy arrays travel through rank 0, CuPy arrays by NCCL on their device."
    runs_empty = True
    group = attribute(process_group, doc="the ranks that make this call")
    group_type: int = GLOBAL  # where there is no such attribute
    ranks: Ranks
    _warm: list[WarmCall]  # the last call, or empty

    def __init__(self, **attributes: object) -> None:
        super().__init__(**attributes)
        vars(self).update(ranks=members(self.name, self.group, self.group_type), _warm=[])

    def __call__(self, /, *inputs: Any, **keywords: Any) -> Any:
        """Run the collective; for the very arrays of the last call, queue its NCCL calls again."""
        group = self.group
        begun = group.begun
        try:
            for warm in self._warm:  # one at most; another thread may remove it meanwhile
                if not keywords and warm.matches(inputs):
                    warm.calls.again(warm.prepared)
                    return tuple(inputs[0])
            results = super().__call__(*inputs, **keywords)
            if self._last:
                self._warm[:] = filter(None, map(WarmCall.of_list, self._last))
            return results
        except BaseException as error:
            self.end_if_stopped(begun, error)
            raise

    def bound(self, /, *inputs: object, **keywords: Any) -> Any:
        """Bind as other operators do; a bound call that is interrupted ends the group, too."""
        return Bound(self, super().bound(*inputs, **keywords))

    def end_if_stopped(self, begun: int, error: BaseException) -> None:
        """If other ranks know of the call that `error` stopped, end the group and raise its error.

        begun: group.begun before the call. Errors that all ranks raise (OpError) end nothing.
        """
        if not isinstance(error, OpError) and self.group.begun != begun:
            raise self.group.broken(self.name, error) from error

    def _without_cache(self) -> Self:
        """Return a copy of the operator that shares no cached call with it."""
        twin = super()._without_cache()
        vars(twin).update(_warm=[])
        return twin

    @classmethod
    def shared(cls, **attributes: object) -> Self:
        """Return the operator with these attributes, cached in its group until that is closed."""
        group = attributes.get("group")
        if not isinstance(group, ProcessGroup):
            return cls(**attributes)
        key: object = cls
        if len(attributes) == 1:
            instance: Self | None = group.instances.get(key)
            if instance is not None:
                return instance
        else:
            pairs = [(name, value) for name, value in attributes.items() if name != "group"]
            try:
                hash(key := (cls, *[(name, attribute_key(value)) for name, value in pairs]))
            except (KeyError, TypeError) as error:  # what cannot be part of a key
                raise_if_from_handler(error)
                return cls(**attributes)
        return once_per_group(group, key, partial(cls, **attributes))

    def checks(self) -> tuple[Callable[..., None], ...]:
        """Check that the group is open; calls that reach other ranks do so themselves."""
        group, name = self.group, self.name
        return () if self.reaches_others else (lambda *_: group.require_open(name),)

    @property
    def reaches_others(self) -> bool:
        """Return True if the sub-group has other ranks: else nothing has to be communicated."""
        return len(self.ranks) > 1

    def own_call(self, prepared: Prepared) -> Call | None:
        """Refuse calls that would leave other ranks waiting; return None: run as others do.

        prepared: where the call runs, and which outputs it writes.
        """
        own, device = self.group.device, prepared.placement.device
        if own is not None and device >= 0 and device != own:  # -1: the host, which each rank has
            expected = f"one that communicates from cuda device {device}, where the arrays are"
            refuse(self.name, "group", expected, f"one on cuda device {own}")
        if any(result.spec is None for result in prepared.results):
            refuse(self.name, "outputs", "all outputs, which the other ranks wait for", "fewer")
        return None

    def call_name(self) -> str:
        """Return the operator and its attributes, in words that ranks compare."""
        return f"{self.name}(group_type={self.group_type}) on cuda"

    def nccl_step(self, specs: Specs, outputs: Specs, rows: Rows) -> Step:
        """Return a step that queues `rows`, one NCCL call for each array, as one group of calls.

        specs: the arrays that are sent. outputs: those that are written.
        """
        agree = self.agreement(specs)
        calls = queue.Calls(self.group, self.name, self.ranks, rows, agree)
        return Work("call", (calls, table(specs), table(outputs)))

    def agreement(self, specs: Specs) -> Callable[[], object]:
        """Return a function that compares this kind of call, of these arrays, with other ranks'."""
        text = description(self.call_name(), specs)
        group, op, ranks = self.group, self.name, self.ranks
        return lambda: group.agree(op, ranks, text)


def table(specs: Specs) -> Pointers:
    """Return a step's argument: the addresses of these arrays in one struct."""
    return Pointers(tuple(specs), max(1, len(specs)))


def copies(sources: Specs, targets: Specs) -> Iterator[Step]:
    """Yield a copy of each source to its target, unless the target is the source's memory."""
    for source, target in zip(sources, targets, strict=True):
        if source.size and not target.in_place:
            yield Work("copy", (source, target))
