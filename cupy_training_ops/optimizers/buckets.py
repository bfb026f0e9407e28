# SPDX-License-Identifier: MIT
"""All-reduce of gradients in buckets, which overlaps the rest of the backward pass."""

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
from ..typing import Arrays
from .adam import AdamW
from .base import EVERY
from .parts import MeanOfAll, adopt_with_info, adopt_without_waiting
from .sharded import AdamW as ShardedAdamW
from .sharded import Means
from .state import Places

NAME = "GradientBuckets"
MEGABYTE = 1e6  # bytes
_GRADIENTS = EVERY[:1]
_LAST = 4e6  # bytes of the last bucket, at most
_MAX_PATTERNS = 256  # cached operators, one for each bucket and subset of it with gradients


class _Sent(NamedTuple):
    """A bucket's exchange without checks, for gradients of the same parameters and dtypes."""

    calls: queue.Calls | None  # of NCCL; None for a rank alone
    overlap: Overlap  # refuses gradients that share memory


class GradientBuckets:
    """Average gradients over ranks, bucket by bucket, while a backward pass computes others.

        for place, gradient in backward():  # in any order
            buckets.ready(place, gradient)
        means = buckets.wait()

    parameters: a list of arrays with the shapes and dtypes of the gradients. group: the ranks, each
    of which has gradients of the same parameters in each step. megabytes: the size of a bucket,
    less for the last ones; a larger gradient has its own. optimizer: an AdamW over this group,
    whose step takes the result of `wait`; each rank averages only its own part of a gradient.

    A bucket is sent once its gradients are ready and all buckets before it are sent, so that all
    ranks send in the same order. In the first step buckets go from the last parameter to the first,
    later in the order in which rank 0's gradients became ready in that step. CuPy arrays are sent
    on a second stream; NumPy arrays before `ready` returns, without overlap.

    Raises ArgumentError, and GroupError.
    """

    def __init__(
        self,
        parameters: Arrays,
        group: ProcessGroup,
        *,
        megabytes: float = 100.0,
        optimizer: AdamW | None = None,
    ) -> None:
        """Check arguments, and form buckets of the parameters, the last parameter's first.

        parameters: list of arrays with the shapes and dtypes of the gradients. group: the ranks.
        megabytes: largest bucket, in 10^6 bytes. optimizer: an AdamW over this group, if it takes
        the means: then each rank averages only its own part.
        """
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
        self._ops: dict[Places, Any] = {}  # see `_operator`
        self._sent: dict[object, _Sent] = {}  # by (places, then dtypes) of a bucket's gradients
        self._is_ordered = group.size == 1  # False until `_follow` has arranged the buckets
        self._arrange(range(len(parameters))[::-1])

    def ready(self, place: int, gradient: Any) -> None:
        """Add the gradient of parameters[place]; send its bucket if that is complete and next.

        The gradient becomes the mean in place: do not read or write it until `wait` has returned.
        """
        own, begun = self._check_gradient(place, gradient), self.group.begun
        try:
            self._adopted[place] = own
            self._gradients[place] = gradient
            self._order.append(place)
            self._missing[self._bucket_of[place]] -= 1
            while self._next < len(self._buckets) and not self._missing[self._next]:
                self._send(gradient)
        except BaseException as error:
            self._stop(begun, error)
            raise

    def wait(self) -> list[Any]:
        """Send the other buckets; return the means in the parameters' order, None without gradient.

        The caller's stream waits for them, the host does not.
        """
        every, present = self._gradients, [g for g in self._gradients if g is not None]
        means = every if self._optimizer is None else Means(every, self._optimizer)
        begun = self.group.begun
        try:
            while self._next < len(self._buckets):
                self._send(*present[:1])
            if present:
                self._join(present[0])
                self._follow(self._order)
            self._begin()
        except BaseException as error:
            self._stop(begun, error)
            raise
        return means

    def lasts(self) -> set[int]:
        """Return the place of each bucket's last parameter."""
        return {bucket[-1] for bucket in self._buckets}

    def lacks(self, place: int) -> int:
        """Return the number of gradients that are not ready in the bucket of `place`."""
        return self._missing[self._bucket_of[place]]

    def __repr__(self) -> str:
        return f"GradientBuckets({len(self._sizes)} gradients in {len(self._buckets)} buckets)"

    # ---- the order -------------------------------------------------------------------------------

    def _arrange(self, order: Sequence[int]) -> None:
        """Divide the parameters into buckets of at most `megabytes`, and begin a step.

        order: indices of all parameters; neighbours share a bucket, the first is sent first.
        The last bucket is sent when the backward pass is over, so it is small (_LAST); each one
        before it has up to twice the size of the next.
        """
        buckets: list[list[int]] = []
        left, room = 0.0, min(_LAST, self._room)  # bytes: of this bucket, of the next one
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
        """Begin a step, without gradients."""
        self._gradients: list[Any] = [None] * len(self._sizes)  # the caller's, by place
        self._adopted: list[tuple[Any, Info] | None] = [None] * len(self._sizes)  # (array, info)
        self._order: list[int] = []  # places of gradients, as they became ready
        self._missing = list(map(len, self._buckets))  # gradients, by bucket
        self._next = 0  # bucket to be sent

    def _follow(self, order: list[int]) -> None:
        """After the first step, arrange buckets by the order of rank 0's gradients.

        order: indices of parameters, as this rank's gradients became ready.
        """
        if not self._is_ordered:
            self._is_ordered = True
            others = [place for bucket in self._buckets for place in bucket if place not in order]
            own = np.array([*order, *others], np.int64)
            everyone, parts = self.group.everyone, [own.data.cast("B")]
            (firsts,) = self.group.exchange(NAME, everyone, NAME, parts, _firsts)
            self._arrange(np.frombuffer(firsts, np.int64).tolist())

    # ---- what is sent ----------------------------------------------------------------------------

    def _send(self, *streams_of: Any) -> None:
        """Send the gradients of the next bucket after work on the stream of these arrays."""
        pairs = [(p, self._adopted[p]) for p in self._buckets[self._next]]
        present = {p: own for p, own in pairs if own is not None}
        if present and not self._send_again(present):
            self._send_anew(present, list(streams_of))
        self._next += 1

    def _stop(self, begun: int, error: BaseException) -> None:
        """After an exception, begin the step anew, or end the group and raise its error.

        begun: group.begun before this call. The step can begin anew if all ranks refused this
        exchange (ArgumentError), or if no other rank knows of the step.
        """
        is_known_to_others = self.group.begun != begun
        can_begin_anew = isinstance(error, ArgumentError) if is_known_to_others else not self._next
        if not can_begin_anew:
            raise self.group.broken(NAME, error) from error
        self._begin()

    def _send_again(self, present: dict[int, tuple[Any, Info]]) -> bool:
        """Send by the prepared exchange, without checks; return False if there is none.

        present: (array, info) of each gradient of the bucket, by the place of its parameter.
        """
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

    def _send_anew(self, present: dict[int, tuple[Any, Info]], streams_of: list[Any]) -> None:
        """Send by an operator's call, which the ranks compare, and prepare the next such send.

        present: (array, info) of each gradient by the place of its parameter. streams_of: arrays
        whose streams the send waits for.
        """
        places, streams = tuple(present), self._streams
        operator = self._operator(places)
        arrays = [
            adopt_without_waiting(NAME, f"gradients[{place}]", present[place][0])
            for place in places
        ]
        with ForeignArrays(_GRADIENTS, (streams_of,), ()).stream():
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
        """Let the stream of `gradient` wait for the second stream."""
        with ForeignArrays(_GRADIENTS, ([gradient],), ()).stream():
            self._streams.join(self._streams.current(), self._streams.mark())

    def _operator(self, places: Places) -> Any:
        """Return the cached operator that averages gradients, or make it.

        places: indices of their parameters, which vary by step. With an optimizer each rank gets
        the means of its own part of the elements alone. A full cache is emptied, and with it the
        prepared exchanges of its operators.
        """
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
        """Refuse a gradient that does not fit parameters[place]; return (array, its properties).

        The array is one that operators take, over the gradient's memory.
        """
        self.group.require_open(NAME)
        if type(place) is not int or not 0 <= place < len(self._sizes):
            refuse(NAME, "place", f"a number below {len(self._sizes)}", shown(place))
        if self._adopted[place] is not None:
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
        """Refuse a second gradient of a step; ends the group if a bucket was sent already."""
        words = f"{NAME}: gradients[{place}]: expected one between two waits, got another"
        if self._next == 0:
            raise ArgumentError(words)
        raise self.group.broken(NAME, GroupError(words))


def _check(
    parameters: Sequence[Any], group: ProcessGroup, megabytes: float, optimizer: AdamW | None
) -> None:
    """Refuse arguments of GradientBuckets() that are of another kind or do not fit together: the
    optimizer has to be over this group, and of as many parameters."""
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
    """Return words for where an array of this CUDA device is; -1: the host."""
    return f"an array on cuda device {device}" if device >= 0 else "one on the host"


def _firsts(of_ranks: list[list[memoryview]]) -> list[Sequence[Part]]:
    """Return for each rank the messages that the first rank sent; of_ranks: those of each."""
    return [of_ranks[0]] * len(of_ranks)
