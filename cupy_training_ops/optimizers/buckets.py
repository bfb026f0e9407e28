# SPDX-License-Identifier: MIT
"""Gradients that become means over ranks in buckets, while others are still computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backend import ArrayInfo, Info
from ..call.arguments import adopt
from ..call.backends import info
from ..call.interop import ForeignArrays, refuse_unwritable
from ..call.overlap import Overlap, Written
from ..device.streams import Cuda, Streams
from ..errors import ArgumentError, GroupError, refuse, shown
from ..families.collective import queue
from ..process_group import ProcessGroup
from ..process_group.engine import Part
from .adam import AdamW
from .base import EVERY
from .parts import MeanOfAll, adopt_with_info, adopt_without_waiting
from .sharded import AdamW as ShardedAdamW
from .sharded import Means
from .state import Places

NAME = "GradientBuckets"
MEGABYTE = 1e6
_GRADIENTS = EVERY[:1]
_LAST = 4e6  # bytes for which the last bucket has room
_MAX_PATTERNS = 256  # buckets, and what of them has gradients


class _Sent(NamedTuple):
    """The prepared exchange of a bucket, for gradients of the same parameters and types."""

    calls: queue.Calls | None  # of a rank alone
    overlap: Overlap


class GradientBuckets:
    """Means over ranks of gradients that are given one by one, as a backward pass finds them.

    parameters: a list of arrays with the shapes and sizes of the gradients. group: the ranks, each
    of which gives gradients of the same parameters in each step. megabytes: of gradients that
    travel together, fewer at the end; a larger one travels alone. optimizer: an AdamW over
    this group; its step takes what `wait` returns, and of each gradient this rank's part alone
    becomes the mean.

    A bucket is on its way once all its gradients are there and all buckets before it are: so all
    ranks send the same in the same order, whatever order their gradients come in. In the first step
    buckets have the parameters from the last to the first, later the order in which rank 0 had its
    gradients then. CuPy arrays travel on a stream beside the caller's; NumPy arrays are exchanged
    before `ready` returns, and nothing overlaps.

    Raises ArgumentError, and GroupError.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        group: ProcessGroup,
        *,
        megabytes: float = 100.0,
        optimizer: AdamW | None = None,
    ) -> None:
        _check(parameters, group, megabytes, optimizer)
        assert optimizer is None or isinstance(optimizer, ShardedAdamW)
        self.group, self._optimizer = group, optimizer
        arrays = [adopt(NAME, f"parameters[{i}]", p) for i, p in enumerate(parameters)]
        self._shapes = [tuple(array.shape) for array in arrays]
        self._sizes = [array.nbytes for array in arrays]
        self._room = megabytes * MEGABYTE
        self._device = info(arrays[0])[5]
        self._is_on_gpu = self._device >= 0 and not isinstance(arrays[0], np.ndarray)
        self._streams = Cuda(self._device, first=True) if self._is_on_gpu else Streams()
        self._ops: dict[Places, Any] = {}
        self._sent: dict[object, _Sent] = {}
        self._is_ordered = group.size == 1
        self._arrange(range(len(parameters))[::-1])

    def ready(self, place: int, gradient: Any) -> None:
        """A gradient of the parameter at this place is there.

        It becomes the mean in place, and is not to be read or written until `wait` has returned.
        """
        own, begun = self._check_gradient(place, gradient), self.group.begun
        try:
            self._found[place] = own
            self._given[place] = gradient
            self._order.append(place)
            self._missing[self._bucket_of[place]] -= 1
            while self._next < len(self._buckets) and not self._missing[self._next]:
                self._send(gradient)
        except BaseException as error:
            self._stop(begun, error)
            raise

    def wait(self) -> list[Any]:
        """The gradients that were given, in the parameters' order: None for those that were not.

        What is left is sent. The caller's stream waits for all of it, the host does not.
        """
        every, given = self._given, [g for g in self._given if g is not None]
        means = every if self._optimizer is None else Means(every, self._optimizer)
        begun = self.group.begun
        try:
            while self._next < len(self._buckets):
                self._send(*given[:1])
            if given:
                self._join(given[0])
                self._follow(self._order)
            self._begin()
        except BaseException as error:
            self._stop(begun, error)
            raise
        return means

    def lasts(self) -> set[int]:
        """The place of each bucket's last gradient, in the order that is known so far."""
        return {bucket[-1] for bucket in self._buckets}

    def lacks(self, place: int) -> int:
        """How many gradients are missing in the bucket of this one."""
        return self._missing[self._bucket_of[place]]

    def __repr__(self) -> str:
        return f"GradientBuckets({len(self._sizes)} gradients in {len(self._buckets)} buckets)"

    # ---- the order -------------------------------------------------------------------------------

    def _arrange(self, order: Sequence[int]) -> None:
        """Buckets of neighbours in this order, as long as they have room.

        From the last on, which nothing hides, each has twice the room of the one behind it.
        """
        buckets: list[list[int]] = []
        left, room = 0.0, min(_LAST, self._room)
        for place in reversed(order):
            if left < self._sizes[place] or not buckets:
                buckets.append([])
                left, room = room, min(2 * room, self._room)
            buckets[-1].append(place)
            left -= self._sizes[place]
        self._buckets = [bucket[::-1] for bucket in reversed(buckets)]
        self._bucket_of = {p: i for i, bucket in enumerate(self._buckets) for p in bucket}
        self._begin()

    def _begin(self) -> None:
        """Begin a step, of which no gradient is there."""
        self._given: list[Any] = [None] * len(self._sizes)
        self._found: list[tuple[Any, Info] | None] = [None] * len(self._sizes)
        self._order: list[int] = []
        self._missing = list(map(len, self._buckets))
        self._next = 0  # bucket to be sent

    def _follow(self, order: list[int]) -> None:
        """Once: arrange as the gradients of rank 0 came."""
        if not self._is_ordered:
            self._is_ordered = True
            others = [place for bucket in self._buckets for place in bucket if place not in order]
            own = np.array([*order, *others], np.int64)
            everyone, parts = self.group.everyone, [own.data.cast("B")]
            (firsts,) = self.group.exchange(NAME, everyone, NAME, parts, _firsts)
            self._arrange(np.frombuffer(firsts, np.int64).tolist())

    # ---- what is sent ----------------------------------------------------------------------------

    def _send(self, *given: Any) -> None:
        """The next bucket, as far as it has gradients."""
        pairs = [(p, self._found[p]) for p in self._buckets[self._next]]
        present = {p: own for p, own in pairs if own is not None}
        if present and not self._send_again(present):
            self._send_anew(present, list(given))
        self._next += 1

    def _stop(self, begun: int, error: BaseException) -> None:
        """After an exception, with what the group had begun before: begin anew, or end the group.

        The former where it was refused on all ranks, or no other has heard of the step.
        """
        is_heard = self.group.begun != begun
        if not (isinstance(error, ArgumentError) if is_heard else not self._next):
            raise self.group.broken(NAME, error) from error
        self._begin()

    def _send_again(self, present: dict[int, tuple[Any, Info]]) -> bool:
        """Past all that was looked at when a bucket of the same parameters and types was sent."""
        infos = [own for _, own in present.values()]
        sent = self._sent.get((*present, *[own[1] for own in infos]))
        if sent is None:
            return False
        addresses = [at for array, own in present.values() for at in own[0].pointers([array])]
        sent.overlap.refuse(addresses)
        if sent.calls is not None:
            stream = infos[-1][0].stream_address(self._device)
            sent.calls.at(addresses, self._streams.side_after(stream))
        return True

    def _send_anew(self, present: dict[int, tuple[Any, Info]], given: list[Any]) -> None:
        """Send by an operator's call, which is compared with the other ranks'."""
        places, streams = tuple(present), self._streams
        operator = self._operator(places)
        arrays = [
            adopt_without_waiting(NAME, f"gradients[{place}]", present[place][0])
            for place in places
        ]
        with ForeignArrays(_GRADIENTS, (given,), ()).stream():
            streams.fork()
            streams.on_side(lambda: operator(arrays))
        if self._is_on_gpu:
            specs = [ArrayInfo.of(own).spec for _, own in present.values()]
            names = [f"gradients[{place}]" for place in places]
            every = [Written(i) for i in range(len(specs))]
            calls = operator.calls(specs) if operator.reaches_others else None
            overlap = Overlap(NAME, names, [spec.nbytes for spec in specs], every)
            self._sent[(*places, *[spec.dtype for spec in specs])] = _Sent(calls, overlap)

    def _join(self, gradient: Any) -> None:
        with ForeignArrays(_GRADIENTS, ([gradient],), ()).stream():
            self._streams.join(self._streams.current(), self._streams.mark())

    def _operator(self, places: Places) -> Any:
        operator = self._ops.get(places)
        if operator is None:
            if len(self._ops) >= _MAX_PATTERNS:
                self._ops.clear()
                self._sent.clear()
            optimizer = self._optimizer
            operator = MeanOfAll(group=self.group, places=places) if optimizer is None else (
                optimizer.means_of(places))  # fmt: skip
            self._ops[places] = operator
        return operator

    # ---- checks ----------------------------------------------------------------------------------

    def _check_gradient(self, place: int, gradient: Any) -> tuple[Any, Info]:
        """The gradient, or what stands for it, and what is known of it."""
        self.group.require_open(NAME)
        if type(place) is not int or not 0 <= place < len(self._sizes):
            refuse(NAME, "place", f"a number below {len(self._sizes)}", shown(place))
        if self._found[place] is not None:
            self._refuse_again(place)
        if gradient is None:
            refuse(NAME, f"gradients[{place}]", "an array", "None")
        refuse_unwritable(NAME, f"gradients[{place}]", gradient)
        metadata = adopt_with_info(NAME, f"gradients[{place}]", gradient)
        _, _, shape, _, strides, device = metadata[1]
        expected = self._shapes[place]
        if tuple(shape) != expected or strides is not None:
            words = f"C-contiguous, of shape {expected}"
            refuse(NAME, f"gradients[{place}]", words, f"shape {tuple(shape)}, strides {strides}")
        if device != self._device:
            refuse(NAME, f"gradients[{place}]", _home(self._device), _home(device))
        return metadata

    def _refuse_again(self, place: int) -> None:
        """Refuse a gradient that came before; other ranks may have a part of the step already."""
        words = f"{NAME}: gradients[{place}]: expected one between two waits, got another"
        if self._next == 0:
            raise ArgumentError(words)
        raise self.group.broken(NAME, GroupError(words))


def _check(
    parameters: Sequence[Any], group: ProcessGroup, megabytes: float, optimizer: AdamW | None
) -> None:
    if not isinstance(parameters, list | tuple) or not parameters:
        refuse(NAME, "parameters", "a list of at least one array", shown(parameters))
    if not isinstance(group, ProcessGroup):
        refuse(NAME, "group", "a ProcessGroup", shown(group))
    if not isinstance(megabytes, int | float | np.number) or not megabytes > 0:
        refuse(NAME, "megabytes", "a number above 0", shown(megabytes))
    if optimizer is None:
        return
    if not isinstance(optimizer, ShardedAdamW) or optimizer.group is not group:
        refuse(NAME, "optimizer", "an AdamW over this group", shown(optimizer))
    if len(optimizer.parameters) != len(parameters):
        n = len(optimizer.parameters)
        refuse(NAME, "parameters", f"the optimizer's {n}", str(len(parameters)))


def _home(device: int) -> str:
    return f"an array on cuda device {device}" if device >= 0 else "one on the host"


def _firsts(of_ranks: list[list[memoryview]]) -> list[Sequence[Part]]:
    """The first rank's parts, for all."""
    return [of_ranks[0]] * len(of_ranks)
