# SPDX-License-Identifier: MIT
"""Collectives over NumPy arrays, which travel through the first rank of the sub-group.

inputs are this rank's arrays, of the same shapes on all ranks; group_type, 0 to 4, says which ranks
take part (members.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from ...declare.schema import Spec
from ...dtypes import Dtype, HostArray
from ...process_group import ProcessGroup
from ...process_group.engine import Part
from ...rules.widening import cast, quiet
from .members import GLOBAL, members, owners
from .messages import as_arrays, as_bytes, description, transfer_description

Arrays = Sequence[HostArray]
Combine = Callable[[Sequence[Arrays]], Sequence[Arrays]]  # each rank's arrays to its share


SMALL = float(np.sqrt(np.finfo(np.float64).tiny))  # a squared norm below it counts as 0


def nccl_all_reduce(inputs: Arrays, *, group: ProcessGroup, group_type: int) -> Arrays:
    """Sum the ranks' arrays, for every rank; group_type: 0 to 4, which ranks take part."""
    return _together("NcclAllReduce", group, group_type, inputs, _sums)


def nccl_all_gather(inputs: Arrays, *, group: ProcessGroup, group_type: int) -> Arrays:
    """Return every array with the values of the rank that owns it; other ranks' are dropped.

    `owners` assigns arrays to ranks by their sizes. group_type: 0 to 4, which ranks of the group
    take part (members.py).
    """

    def gather(by_rank: Sequence[Arrays]) -> list[Arrays]:
        """Return, for each rank, each array as its owner has it."""
        pairs = enumerate(owners("NcclAllGather", [x.size for x in inputs], len(by_rank)))
        owned = [by_rank[owner][i] for i, owner in pairs]
        return [owned] * len(by_rank)

    return _together("NcclAllGather", group, group_type, inputs, gather)


def nccl_reduce_scatter(inputs: Arrays, *, group: ProcessGroup, group_type: int) -> Arrays:
    """Sum the arrays that this rank owns over all ranks; return the others unchanged.

    `owners` assigns arrays to ranks by their sizes. group_type: 0 to 4, which ranks of the group
    take part (members.py).
    """

    def scatter(by_rank: Sequence[Arrays]) -> list[Arrays]:
        """Return, for each rank, sums of the arrays that it owns and its own other arrays."""
        owned = owners("NcclReduceScatter", [x.size for x in inputs], len(by_rank))
        sums = _sums(by_rank)[0]
        return [
            [sums[i] if owner == rank else own[i] for i, owner in enumerate(owned)]
            for rank, own in enumerate(by_rank)
        ]

    return _together("NcclReduceScatter", group, group_type, inputs, scatter)


def megatron_f(x: HostArray, *, group: ProcessGroup, group_type: int) -> HostArray:  # noqa: ARG001
    """Return x as it is."""
    return x


def megatron_g(x: HostArray, *, group: ProcessGroup, group_type: int) -> HostArray:
    """Sum x over the ranks that group_type (0 to 4, members.py) names, for every one of them."""
    return _together("MegatronG", group, group_type, [x], _sums)[0]


def adasum_all_reduce(inputs: Arrays, *, group: ProcessGroup, reduce_algo: int) -> Arrays:
    """Return the adaptive sum (`_adaptive_sum`) of all ranks' arrays, for every rank.

    Ranks r and r ^ step are combined to one sum, which both go on with, for step = 1, 2, 4, ...;
    with reduce_algo 2 from the number of ranks of one host (local_size) on.
    """
    level = 1 if reduce_algo < 2 else group.local_size or 1

    def combine(by_rank: Sequence[Arrays]) -> Sequence[Arrays]:
        """Return the arrays of each rank after all steps."""
        step = level
        while step < len(by_rank):
            by_rank = [_combine(by_rank[r & ~step], by_rank[r | step]) for r in range(len(by_rank))]
            step *= 2
        return by_rank

    name = f"AdasumAllReduce(reduce_algo={reduce_algo})"
    return _together(name, group, GLOBAL, inputs, combine)


def send(
    signal: bool,  # noqa: ARG001 - looked at already
    remote: int,
    data: Arrays,
    *,
    group: ProcessGroup,
    tag: int,
    element_types: tuple[Dtype, ...],  # noqa: ARG001 - those of the data
) -> None:
    """Send the arrays `data` to rank `remote`; return once its Recv with this tag has them.

    signal, element_types: inputs and attributes of Send that have been checked before.
    """
    text, parts = transfer_description("cpu", tag, data), list(map(as_bytes, data))
    group.exchange("Send", (remote, group.rank), text, parts, _handed_over)


def recv(
    signal: bool,  # noqa: ARG001 - looked at already
    remote: int,
    *,
    group: ProcessGroup,
    tag: int,
    element_types: tuple[Dtype, ...],
    shapes: tuple[tuple[int, ...], ...] | None,
    arrays: str,  # noqa: ARG001 - NumPy's here
) -> list[Arrays]:
    """Receive the arrays that rank `remote` sends with this tag, as a list in a list of one.

    shapes, element_types: of each array; both ranks refuse the message if the sender has others.
    """
    pairs = zip(shapes or (), element_types, strict=True)
    expected = [Spec(shape, dtype) for shape, dtype in pairs]
    text = transfer_description("cpu", tag, expected)
    parts = group.exchange("Recv", (group.rank, remote), text, (), _handed_over)
    return [as_arrays(parts, expected)]


def _handed_over(by_rank: list[list[memoryview]]) -> list[list[memoryview]]:
    """Return the bytes that (receiver, sender) get: the sender's, and none.

    by_rank: the bytes of each array that the receiver (none) and the sender passed.
    """
    return [by_rank[1], []]


def _together(
    name: str, group: ProcessGroup, group_type: int, inputs: Arrays, combine: Combine
) -> Arrays:
    """Return this rank's arrays of combine(all ranks' arrays), which the first rank computes.

    name: the operator with attributes that all ranks have to agree on. inputs: this rank's arrays.
    combine: makes a list of each rank's results from a list of each rank's arrays. group_type: 0 to
    4, which ranks of `group` take part (members.py).
    """

    def answer(by_rank: list[list[memoryview]]) -> list[Sequence[Part]]:
        """Return the bytes of each rank's share, from the bytes of each rank's arrays."""
        arrays = [as_arrays(parts, inputs) for parts in by_rank]
        return [list(map(as_bytes, own)) for own in combine(arrays)]

    op = name.partition("(")[0]
    text = description(f"{name}, group_type {group_type}, on cpu", inputs)
    parts = [as_bytes(np.ascontiguousarray(x)) for x in inputs]
    share = group.exchange(op, members(op, group, group_type), text, parts, answer)
    return as_arrays([memoryview(part) for part in share], inputs)


@quiet
def _sums(by_rank: Sequence[Arrays]) -> list[Arrays]:
    """Sum arrays over ranks, in float64 or as integers; return the same sums for each rank.

    by_rank: each rank's list of arrays.
    """
    sums = [functools.reduce(np.add, map(_wide, column)) for column in zip(*by_rank, strict=True)]
    pairs = zip(sums, by_rank[0], strict=True)
    return [[_narrow(total, x.dtype) for total, x in pairs]] * len(by_rank)


def _wide(x: HostArray) -> HostArray:
    """Return an array in the type that it is added in: float64, or its own integers."""
    return x if x.dtype.kind in "iu" else x.astype(np.float64)


def _narrow(x: HostArray, dtype: Dtype) -> HostArray:
    """Return a sum in its result's dtype, rounded once; integers are in it already."""
    return np.asarray(x) if dtype.kind in "iu" else cast(x, dtype)


@quiet
def _combine(a: Arrays, b: Arrays) -> Arrays:
    """Return the adaptive sums of two ranks' lists of arrays."""
    return [_adaptive_sum(x, y) for x, y in zip(a, b, strict=True)]


def _adaptive_sum(x: HostArray, y: HostArray) -> HostArray:
    """Return a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2) in float64, rounded to x's dtype."""
    a, b = (z.astype(np.float64).ravel() for z in (x, y))
    dot = float(a @ b)
    scaled: list[HostArray] = []
    for z in (a, b):
        square = float(z @ z)
        scaled.append(z if square < SMALL else z * (1 - dot / (2 * square)))
    return cast((scaled[0] + scaled[1]).reshape(x.shape), x.dtype)
