# SPDX-License-Identifier: MIT
"""Updates of parameters: what they have in common; algorithm/parameter_update.cuh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..declare.schema import Spec
from ..dtypes import BFLOAT16, Dtype
from ..plan import Config, Launch, Plan, Work, slots
from .multi_tensor import Columns, Listed, MakeLaunch, batches
from .step import value_or


def launch(
    symbol: str,
    grid: int,
    threads: int,
    args: tuple[object, ...],
    chunk_nbytes: int,
    capacity: int,
    lists: int,
    types: Mapping[str, Dtype],
) -> Launch:
    """A launch of a family whose kernels share their slots.

    A block takes `chunk_nbytes`, a launch `capacity` tensors and addresses of `lists` lists.
    """
    sizes = {"CHUNK_NBYTES": chunk_nbytes, "CAPACITY": capacity, "POINTERS": lists * capacity}
    return Launch(symbol, Config((grid,), (threads,)), args, slots(**types, **sizes))


def low_precision_lists(mixed: Listed | None, copied: Listed | None) -> tuple[Listed, Listed, bool]:
    """Low-precision weights before and after, both () if not wanted; True if they are bfloat16."""
    present = [spec for spec in mixed or () if spec is not None]
    if mixed is None or copied is None or not present or not any(copied):
        return (), (), False
    return mixed, copied, present[0].dtype == BFLOAT16


def over_lists(
    columns: Columns,
    sizes: Sequence[int],
    chunk: int,
    capacity: int,
    launch: MakeLaunch,
    *args: object,
) -> Plan:
    """A launch for as many tensors as its tables have room for; none where nothing is written.

    The kernel takes addresses, Columns, sizes, and then `args`.
    """
    if not columns.are_written:
        return Plan()
    tables = batches(sizes, chunk, capacity, min(capacity, columns.most))
    return Plan(tuple(launch(t.n_chunks, (*t.addresses(columns), t.sizes, *args)) for t in tables))


def count_step(
    launch: MakeLaunch,
    rate: object,
    step: object,
    scale: object,
    update: object,
    stepped: Spec | None,
) -> Plan:
    """The step after this one, where it is an array that is asked for."""
    if stepped is None:
        return Plan()
    count = launch(1, (rate, step, scale, value_or(update, True), stepped))
    return Plan((replace(count, config=Config((1,), (1,))),))


def pass_signal(update: object, signalled: Spec | None) -> Plan:
    """The update signal, where it is to be in another array."""
    if not isinstance(update, Spec) or signalled is None or signalled.in_place:
        return Plan()
    return Plan((Work("copy", (update, signalled)),))
