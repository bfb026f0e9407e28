# SPDX-License-Identifier: MIT
"""Arrays that are divided among ranks: who owns which elements, and operators that move them.

Of each flat array every rank owns an equal part, a multiple of BLOCK elements, and one rank also
the tail, the elements behind the last part. So NCCL reduces and gathers arrays in place:

    1000 elements, 3 ranks: parts [0, 256), [256, 512), [512, 768), tail [768, 1000)
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ..backend import Info
from ..call.arguments import adopt
from ..call.backends import info, tensor_backend
from ..call.interop import is_tensor
from ..declare.schema import Inferred, Input, Output, Spec, attribute, integers
from ..declare.type_rows import Types
from ..dtypes import FIXED_SIZE, FLOATS, Dtype, HostArray
from ..families.collective import queue
from ..families.collective.messages import as_arrays, as_bytes, description
from ..families.collective.plan import Collective, Specs, table
from ..plan import Device, Plan, Work
from ..process_group import ProcessGroup
from ..process_group.engine import Answer, Part
from ..rules.widening import cast

BLOCK = 128  # elements: parts begin at whole vectors, and are not too small for a message
# Some arrays are gathered while the next are updated: in at most so many turns, each of at least
# so many bytes.
MAX_TURNS, MIN_TURN = 4, 2**26

Piece = tuple[int, int, int]  # (i, start, stop): elements [start, stop) of the i-th array, flat
Arrays = Sequence[HostArray]


def adopt_with_info(op: str, argument: str, value: Any) -> tuple[Any, Info]:
    """Return (array, its properties): a PyTorch tensor on a GPU as it is, others adopted.

    Adopted is an array that operators accept, NumPy's or CuPy's, over the same memory. op and
    argument name the value in errors.
    """
    if is_tensor(value) and value.is_cuda:
        with contextlib.suppress(KeyError):  # a tensor of a form of its own, or of a subclass
            tensor_backend()
            metadata = info(value)
            if metadata[4] is None:  # strides
                return value, metadata
    array = adopt(op, argument, value)
    return array, info(array)


def adopt_without_waiting(op: str, argument: str, value: Any) -> Any:
    """Return a NumPy or CuPy array over the memory of any library's array; None for None.

    PyTorch's tensors on a GPU are wrapped by address alone, so no stream waits for another. op and
    argument name the value in errors.
    """
    if value is None:
        return None
    array, facts = adopt_with_info(op, argument, value)
    if not facts[0].has_tensors:
        return array
    from ..device.tensors import array_over

    return array_over(array, facts)


class Split(NamedTuple):
    """Division of a list of arrays, each of one parameter, among ranks: each rank has an equal part
    of every array, and one rank also its tail, the rest."""

    n_ranks: int
    places: tuple[int, ...]  # of the i-th array: the index of its parameter
    tails: tuple[int, ...]  # of the i-th array: the rank that owns its tail
    block: int = BLOCK  # elements that the size of a part is a multiple of

    @classmethod
    def of(cls, sizes: Sequence[int], n_ranks: int) -> Self:
        """Return the division of all parameters, of these sizes in elements, among n_ranks.

        Each tail goes to the rank that has the fewest elements in tails so far.
        """
        loads, tails = [0] * n_ranks, []
        for size in sizes:
            tails.append(loads.index(min(loads)))
            loads[tails[-1]] += size % (n_ranks * BLOCK)
        return cls(n_ranks, tuple(range(len(sizes))), tuple(tails))

    @classmethod
    def of_elements(cls, n_ranks: int) -> Self:
        """Return the division of one array of n_ranks elements: element r is rank r's."""
        return cls(n_ranks, (0,), (0,), 1)

    def among(self, places: Sequence[int]) -> Self:
        """Return the division of the arrays with these indices, in this order."""
        tails = tuple(self.tails[place] for place in places)
        return self._replace(places=tuple(places), tails=tails)

    def part(self, size: int) -> int:
        """Return the elements of each rank's part of an array of `size` elements, without the tail:
        the largest multiple of `block` that all ranks can have."""
        return size // (self.n_ranks * self.block) * self.block

    def pieces(self, rank: int, sizes: Sequence[int]) -> Iterator[Piece]:
        """Yield a rank's pieces of arrays of these sizes in elements: its part, then its tail."""
        for i, (size, tail) in enumerate(zip(sizes, self.tails, strict=True)):
            part = self.part(size)
            if part:
                yield i, rank * part, (rank + 1) * part
            if tail == rank and self.n_ranks * part < size:
                yield i, self.n_ranks * part, size


def in_turns(places: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Divide places into runs of neighbours of about equal bytes, which are updated in turn.

    sizes: bytes of the array at each place. There are MAX_TURNS runs, fewer if the arrays have
    less than MAX_TURNS * MIN_TURN bytes together.
    """
    room = max(MIN_TURN, -(-sum(sizes) // MAX_TURNS))  # bytes of a turn
    # An array belongs to the turn in which its first byte lies.
    pairs = zip(places, itertools.accumulate(sizes, initial=0), strict=False)
    turns = itertools.groupby(pairs, lambda pair: pair[1] // room)
    return [tuple(place for place, _ in own) for _, own in turns]


def _list(name: str, mixed: bool = False) -> Input:
    """Declare an input that is a list of arrays; mixed: their dtypes may differ."""
    return Input(name, "T", variadic=True, mixed=mixed, shape="any shapes")


def _new_list(name: str) -> Output:
    """Declare the output that is the input list `name`, written in place."""
    return Output(f"new_{name}", "T", variadic=True, aliases=name, shape=f"shapes of {name}")


def as_split(value: object) -> Split:
    """A Split."""
    assert isinstance(value, Split)
    return value


class _InPlace(Collective):
    """Base of collectives over a list of arrays, each of which is replaced in its memory."""

    mixes = True  # takes PyTorch tensors beside CuPy arrays

    def infer(self, xs: Specs) -> tuple[Inferred, ...]:
        return (tuple(Spec(x.shape, x.dtype) for x in xs),)

    def plan(self, device: Device, xs: Specs, ys: Specs) -> Plan:
        """Plan one step that queues all of NCCL's calls; none for a rank alone."""
        if not self.reaches_others:
            return Plan(())
        return Plan((Work("call", (self.calls(xs), table(xs), table(ys))),))

    def calls(self, xs: Specs) -> queue.Calls:
        """Return NCCL's calls that replace arrays of these shapes and dtypes."""
        raise NotImplementedError


class _OfParts(_InPlace):
    """Base of collectives over arrays divided by `split`: one NCCL call for the equal parts of an
    array, one for its tail."""

    name = "AdamW"
    inputs: ClassVar[tuple[Input, ...]]
    split = attribute(as_split)
    in_words: ClassVar[str]  # the call in messages, up to the places of parameters

    def calls(self, xs: Specs) -> queue.Calls:
        """Return NCCL's calls for arrays of these shapes and dtypes; `parts` says for each which
        array it takes, and at which bytes it reads and writes."""
        every = [call for i, x in enumerate(xs) for call in self._calls(i, x)]
        rows, parts = [row for row, *_ in every], [(i, a, b) for _, i, a, b in every]
        return queue.Calls(self.group, self.name, self.ranks, rows, self.agreement(xs), parts)

    def _calls(self, i: int, x: Spec) -> Iterator[tuple[queue.Row, int, int, int]]:
        """Yield (call, i, source, target) for the parts and for the tail of the i-th array.

        source, target: bytes from its start at which the call reads and writes.
        """
        part, n = self.split.part(x.size), self.split.n_ranks
        own, tail = self.group.rank * part * x.dtype.itemsize, n * part * x.dtype.itemsize
        row, source, target = self._each(part, x.dtype, own)
        yield row, i, source, target
        yield self._tail(x.size - n * part, x.dtype, self.split.tails[i]), i, tail, tail

    def _each(self, size: int, dtype: Dtype, own: int) -> tuple[queue.Row, int, int]:
        """Return (call for the equal parts, source, target): bytes at which it reads and writes.

        size: elements of a part. own: bytes from the array's start to this rank's part.
        """
        raise NotImplementedError

    def _tail(self, size: int, dtype: Dtype, owner: int) -> queue.Row:
        """Return the call for the tail, of `size` elements, which the rank `owner` owns."""
        raise NotImplementedError

    def call_name(self) -> str:
        return f"{self.in_words} {_listing(self.split.places)} on cuda"


class MeanOfParts(_OfParts):
    """Replace each part by its mean over ranks, on its owner; other elements are undefined then."""

    name = "AdamW"
    inputs = (_list("gradients"),)
    outputs = (_new_list("gradients"),)
    in_words = "AdamW.step with gradients of parameters"
    types: ClassVar[Types] = {"T": FLOATS}

    def _each(self, size: int, dtype: Dtype, own: int) -> tuple[queue.Row, int, int]:
        return queue.row("reduceScatter", size, dtype, queue.MEAN), 0, own

    def _tail(self, size: int, dtype: Dtype, owner: int) -> queue.Row:
        return queue.row("reduce", size, dtype, queue.MEAN, owner)

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        return mean_of_parts


class GatheredParts(_OfParts):
    """Replace each part by that of its owner, on all ranks."""

    name = "AdamW"
    inputs = (_list("parameters", mixed=True),)
    outputs = (_new_list("parameters"),)
    in_words = "AdamW.step gathering parameters"
    types: ClassVar[Types] = {"T": FIXED_SIZE}

    def _each(self, size: int, dtype: Dtype, own: int) -> tuple[queue.Row, int, int]:
        return queue.row("allGather", size, dtype), own, 0

    def _tail(self, size: int, dtype: Dtype, owner: int) -> queue.Row:
        return queue.row("broadcast", size, dtype, owner)

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        return gathered_parts


class MeanOfAll(_InPlace):
    """Replace each array by its mean over ranks, on all of them.

    places: index of each array's parameter, for messages.
    """

    name = "GradientBuckets"
    inputs = (_list("gradients", mixed=True),)
    outputs = (_new_list("gradients"),)
    places = attribute(integers)
    types: ClassVar[Types] = {"T": FLOATS}

    def calls(self, xs: Specs) -> queue.Calls:
        rows = [queue.row("allReduce", x.size, x.dtype, queue.MEAN) for x in xs]
        return queue.Calls(self.group, self.name, self.ranks, rows, self.agreement(xs))

    def call_name(self) -> str:
        return f"GradientBuckets with gradients of parameters {_listing(self.places)} on cuda"

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        return mean_of_all


def _listing(places: Sequence[int]) -> str:
    return ", ".join(map(str, places))


# ---- on the host: through the first rank ---------------------------------------------------------


def mean_of_parts(arrays: Arrays, *, group: ProcessGroup, split: Split) -> Arrays:
    """Return copies of the arrays with means over ranks in this rank's pieces, those of `split`.

    MeanOfParts on the CPU: the first rank of the group gets all arrays and sends each its pieces.
    """
    sizes = [x.size for x in arrays]

    def answer(of_ranks: list[list[memoryview]]) -> list[Sequence[Part]]:
        means = _means(of_ranks, arrays)
        return [_bytes_of_pieces(means, split, rank) for rank in range(split.n_ranks)]

    parts = [as_bytes(np.ascontiguousarray(x)) for x in arrays]
    got = _exchange("AdamW", MeanOfParts.in_words, group, split.places, arrays, parts, answer)
    return _with_parts(arrays, list(split.pieces(group.rank, sizes)), got)


def mean_of_all(arrays: Arrays, *, group: ProcessGroup, places: tuple[int, ...]) -> Arrays:
    """Return the mean over ranks of each array: MeanOfAll on the CPU, through the first rank.

    group: the ranks. places: indices of the arrays' parameters, for messages.
    """

    def answer(of_ranks: list[list[memoryview]]) -> list[Sequence[Part]]:
        return [list(map(as_bytes, _means(of_ranks, arrays)))] * len(of_ranks)

    parts = [as_bytes(np.ascontiguousarray(x)) for x in arrays]
    words = "GradientBuckets with gradients of parameters"
    got = _exchange("GradientBuckets", words, group, places, arrays, parts, answer)
    return as_arrays([memoryview(part) for part in got], arrays)


def gathered_parts(arrays: Arrays, *, group: ProcessGroup, split: Split) -> Arrays:
    """Return copies of the arrays with each rank's pieces (of `split`) as their owner has them.

    GatheredParts on the CPU: the first rank of the group gets all pieces and sends all to each.
    """
    sizes = [x.size for x in arrays]

    def answer(of_ranks: list[list[memoryview]]) -> list[Sequence[Part]]:
        return [[part for own in of_ranks for part in own]] * len(of_ranks)

    parts = _bytes_of_pieces(arrays, split, group.rank)
    got = _exchange("AdamW", GatheredParts.in_words, group, split.places, arrays, parts, answer)
    every = [piece for rank in range(split.n_ranks) for piece in split.pieces(rank, sizes)]
    return _with_parts(arrays, every, got)


def _means(of_ranks: Sequence[Sequence[memoryview]], like: Arrays) -> list[HostArray]:
    """Return the mean over ranks of each array.

    of_ranks: of each rank the bytes of its arrays. like: arrays of the shapes and dtypes.
    """
    return [_mean(c) for c in zip(*(as_arrays(own, like) for own in of_ranks), strict=True)]


@np.errstate(all="ignore")
def _mean(column: Sequence[HostArray]) -> HostArray:
    """Return the mean of arrays, one of each rank: added in float64 in order, rounded once."""
    total = column[0].astype(np.float64)
    for x in column[1:]:
        total += x.astype(np.float64)
    return cast(total / len(column), column[0].dtype)


def _exchange(
    op: str,
    words: str,
    group: ProcessGroup,
    places: Sequence[int],
    arrays: Arrays,
    parts: Sequence[Part],
    answer: Answer,
) -> Sequence[memoryview]:
    """Send this rank's parts to the first rank; return this rank's share of answer(all parts).

    Raises ArgumentError on all ranks of the group if their calls differ in `words` (the call, for
    messages), in places of parameters, or in shapes and dtypes of the arrays. op: name for errors.
    parts: bytes. answer: from the parts of each rank to those that each gets; called on the first
    rank alone.
    """
    text = description(f"{words} {_listing(places)} on cpu", arrays)
    return group.exchange(op, group.everyone, text, parts, answer)


def _bytes_of_pieces(arrays: Arrays, split: Split, rank: int) -> list[Part]:
    """Return the bytes of a rank's pieces of the arrays, which `split` divides, piece by piece."""
    flat = [np.ascontiguousarray(x).reshape(-1) for x in arrays]
    return [as_bytes(flat[i][a:b]) for i, a, b in split.pieces(rank, [x.size for x in flat])]


def _with_parts(arrays: Arrays, pieces: Sequence[Piece], parts: Sequence[Part]) -> Arrays:
    """Return copies of the arrays, with the n-th of `parts` (bytes) in the n-th piece."""
    copies = [np.array(x) for x in arrays]
    like = [Spec((b - a,), arrays[i].dtype) for i, a, b in pieces]
    values = as_arrays([memoryview(part) for part in parts], like)
    for (i, a, b), value in zip(pieces, values, strict=True):
        copies[i].reshape(-1)[a:b] = value
    return copies
