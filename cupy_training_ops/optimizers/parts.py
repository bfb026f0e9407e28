# SPDX-License-Identifier: MIT
"""Arrays that are divided among ranks: who has which elements, and what moves them.

Of each array every rank has an equal part, a multiple of a block, and one rank the tail behind the
last part. So NCCL reduces and gathers arrays where they lie.
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
# Some arrays are gathered while the next are updated: so often at most, so many bytes at least.
MAX_TURNS, MIN_TURN = 4, 2**26

Piece = tuple[int, int, int]  # an array of the list, and its elements from one to another
Arrays = Sequence[HostArray]


def adopt_with_info(op: str, argument: str, value: Any) -> tuple[Any, Info]:
    """An array and what is known of it: PyTorch's on a GPU as it is, others as adopted."""
    if is_tensor(value) and value.is_cuda:
        with contextlib.suppress(KeyError):  # a tensor of a form of its own, or of a subclass
            tensor_backend()
            metadata = info(value)
            if metadata[4] is None:  # strides
                return value, metadata
    array = adopt(op, argument, value)
    return array, info(array)


def adopt_without_waiting(op: str, argument: str, value: Any) -> Any:
    """An array over the memory of another library's, as adopted.

    Of PyTorch's tensors on a GPU by their addresses alone: no stream waits for another.
    """
    if value is None:
        return None
    array, facts = adopt_with_info(op, argument, value)
    if not facts[0].has_tensors:
        return array
    from ..device.tensors import array_over

    return array_over(array, facts)


class Split(NamedTuple):
    """How arrays are divided, each of which is one of the parameters."""

    n_ranks: int
    places: tuple[int, ...]  # among the parameters
    tails: tuple[int, ...]  # the rank that has the tail of each array
    block: int = BLOCK

    @classmethod
    def of(cls, sizes: Sequence[int], n_ranks: int) -> Self:
        """The division of all parameters: each tail goes to the rank whose tails are smallest."""
        loads, tails = [0] * n_ranks, []
        for size in sizes:
            tails.append(loads.index(min(loads)))
            loads[tails[-1]] += size % (n_ranks * BLOCK)
        return cls(n_ranks, tuple(range(len(sizes))), tuple(tails))

    @classmethod
    def of_elements(cls, n_ranks: int) -> Self:
        """An array of an element for each rank."""
        return cls(n_ranks, (0,), (0,), 1)

    def among(self, places: Sequence[int]) -> Self:
        """The division of some of the arrays, as they are divided here."""
        tails = tuple(self.tails[place] for place in places)
        return self._replace(places=tuple(places), tails=tails)

    def part(self, size: int) -> int:
        """Elements that each rank has of an array, beside the tail."""
        return size // (self.n_ranks * self.block) * self.block

    def pieces(self, rank: int, sizes: Sequence[int]) -> Iterator[Piece]:
        """The pieces of a rank, of arrays of these sizes."""
        for i, (size, tail) in enumerate(zip(sizes, self.tails, strict=True)):
            part = self.part(size)
            if part:
                yield i, rank * part, (rank + 1) * part
            if tail == rank and self.n_ranks * part < size:
                yield i, self.n_ranks * part, size


def in_turns(places: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """The places of arrays with these bytes, some neighbours at a time."""
    room = max(MIN_TURN, -(-sum(sizes) // MAX_TURNS))
    pairs = zip(places, itertools.accumulate(sizes, initial=0), strict=False)
    turns = itertools.groupby(pairs, lambda pair: pair[1] // room)
    return [tuple(place for place, _ in own) for _, own in turns]


def _list(name: str, mixed: bool = False) -> Input:
    return Input(name, "T", variadic=True, mixed=mixed, shape="any shapes")


def _new_list(name: str) -> Output:
    return Output(f"new_{name}", "T", variadic=True, aliases=name, shape=f"shapes of {name}")


def as_split(value: object) -> Split:
    """A Split."""
    assert isinstance(value, Split)
    return value


class _InPlace(Collective):
    """A collective over a list of arrays, each of which becomes another in its memory."""

    mixes = True

    def infer(self, xs: Specs) -> tuple[Inferred, ...]:
        return (tuple(Spec(x.shape, x.dtype) for x in xs),)

    def plan(self, device: Device, xs: Specs, ys: Specs) -> Plan:
        if not self.reaches_others:
            return Plan(())
        return Plan((Work("call", (self.calls(xs), table(xs), table(ys))),))

    def calls(self, xs: Specs) -> queue.Calls:
        """NCCL's calls for arrays in place."""
        raise NotImplementedError


class _OfParts(_InPlace):
    """A collective over parts of arrays, in place."""

    name = "AdamW"
    inputs: ClassVar[tuple[Input, ...]]
    split = attribute(as_split)
    in_words: ClassVar[str]

    def calls(self, xs: Specs) -> queue.Calls:
        every = [call for i, x in enumerate(xs) for call in self._calls(i, x)]
        rows, parts = [row for row, *_ in every], [(i, a, b) for _, i, a, b in every]
        return queue.Calls(self.group, self.name, self.ranks, rows, self.agreement(xs), parts)

    def _calls(self, i: int, x: Spec) -> Iterator[tuple[queue.Row, int, int, int]]:
        """Calls for one array, with where they read and write, in bytes."""
        part, n = self.split.part(x.size), self.split.n_ranks
        own, tail = self.group.rank * part * x.dtype.itemsize, n * part * x.dtype.itemsize
        row, source, target = self._each(part, x.dtype, own)
        yield row, i, source, target
        yield self._tail(x.size - n * part, x.dtype, self.split.tails[i]), i, tail, tail

    def _each(self, size: int, dtype: Dtype, own: int) -> tuple[queue.Row, int, int]:
        """The call for equal parts."""
        raise NotImplementedError

    def _tail(self, size: int, dtype: Dtype, owner: int) -> queue.Row:
        """The call for what is behind them."""
        raise NotImplementedError

    def call_name(self) -> str:
        return f"{self.in_words} {_listing(self.split.places)} on cuda"


class MeanOfParts(_OfParts):
    """The mean over ranks of each part, for its owner; the rest is as it was, or is not."""

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
    """Each part as its owner has it, for all."""

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
    """The mean over ranks of each array, for all."""

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
    """Means in float64, rounded once."""
    sizes = [x.size for x in arrays]

    def answer(of_ranks: list[list[memoryview]]) -> list[Sequence[Part]]:
        means = _means(of_ranks, arrays)
        return [_bytes_of_pieces(means, split, rank) for rank in range(split.n_ranks)]

    parts = [as_bytes(np.ascontiguousarray(x)) for x in arrays]
    got = _exchange("AdamW", MeanOfParts.in_words, group, split.places, arrays, parts, answer)
    return _with_parts(arrays, list(split.pieces(group.rank, sizes)), got)


def mean_of_all(arrays: Arrays, *, group: ProcessGroup, places: tuple[int, ...]) -> Arrays:
    """Means in float64, rounded once."""

    def answer(of_ranks: list[list[memoryview]]) -> list[Sequence[Part]]:
        return [list(map(as_bytes, _means(of_ranks, arrays)))] * len(of_ranks)

    parts = [as_bytes(np.ascontiguousarray(x)) for x in arrays]
    words = "GradientBuckets with gradients of parameters"
    got = _exchange("GradientBuckets", words, group, places, arrays, parts, answer)
    return as_arrays([memoryview(part) for part in got], arrays)


def gathered_parts(arrays: Arrays, *, group: ProcessGroup, split: Split) -> Arrays:
    """Return the arrays whole, from the pieces that the ranks have: by messages."""
    sizes = [x.size for x in arrays]

    def answer(of_ranks: list[list[memoryview]]) -> list[Sequence[Part]]:
        return [[part for own in of_ranks for part in own]] * len(of_ranks)

    parts = _bytes_of_pieces(arrays, split, group.rank)
    got = _exchange("AdamW", GatheredParts.in_words, group, split.places, arrays, parts, answer)
    every = [piece for rank in range(split.n_ranks) for piece in split.pieces(rank, sizes)]
    return _with_parts(arrays, every, got)


def _means(of_ranks: Sequence[Sequence[memoryview]], like: Arrays) -> list[HostArray]:
    """The mean of what the ranks have, of each array."""
    return [_mean(c) for c in zip(*(as_arrays(own, like) for own in of_ranks), strict=True)]


@np.errstate(all="ignore")
def _mean(column: Sequence[HostArray]) -> HostArray:
    """The mean of an array of each rank, added in float64 in the ranks' order."""
    total = column[0].astype(np.float64)
    for x in column[1:]:
        total += x.astype(np.float64)
    return cast(total / len(column), column[0].dtype)


# This rank's share of what `answer` makes of all ranks' `parts`, once they are known to call with
# the same words and places, and arrays of the same types and shapes.
def _exchange(
    op: str,
    words: str,
    group: ProcessGroup,
    places: Sequence[int],
    arrays: Arrays,
    parts: Sequence[Part],
    answer: Answer,
) -> Sequence[memoryview]:
    """Send this rank's parts to the group, and return what `answer` gives it."""
    text = description(f"{words} {_listing(places)} on cpu", arrays)
    return group.exchange(op, group.everyone, text, parts, answer)


def _bytes_of_pieces(arrays: Arrays, split: Split, rank: int) -> list[Part]:
    """The bytes of a rank's pieces."""
    flat = [np.ascontiguousarray(x).reshape(-1) for x in arrays]
    return [as_bytes(flat[i][a:b]) for i, a, b in split.pieces(rank, [x.size for x in flat])]


def _with_parts(arrays: Arrays, pieces: Sequence[Piece], parts: Sequence[Part]) -> Arrays:
    """Copies of the arrays with these bytes in the places of pieces."""
    copies = [np.array(x) for x in arrays]
    like = [Spec((b - a,), arrays[i].dtype) for i, a, b in pieces]
    values = as_arrays([memoryview(part) for part in parts], like)
    for (i, a, b), value in zip(pieces, values, strict=True):
        copies[i].reshape(-1)[a:b] = value
    return copies
