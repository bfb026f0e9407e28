# SPDX-License-Identifier: MIT
"""The way of a call on a GPU, with emulated kernels, and threads' memory in NCCL's place."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from collective_cases import adasum, all_inputs, check_all, compare
from process_group.board import emulated_ranks
from ranks import in_threads, results

import cupy_training_ops as cto
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.families.collective import operators, queue
from cupy_training_ops.families.collective.facts import CAPACITY


@pytest.fixture
def emulated(monkeypatch, seed):
    with emulated_ranks(monkeypatch, seed) as run:
        yield run


def copied(run, arrays):
    return run.place([x.copy() for x in arrays])


def test_every_operator_for_every_type(emulated) -> None:
    """Of two ranks: those of Send and Recv take turns."""
    place = partial(copied, emulated)
    assert results(in_threads(2, lambda group: check_all(group, place))) == [48, 48]


def test_adasum_of_four_ranks_and_many_arrays(emulated) -> None:
    """More arrays than a launch takes, one of several chunks, empty ones, zeros; two levels."""
    shapes = [(n % 7,) for n in range(CAPACITY + 5)] + [(20_000,)]
    actual = all_inputs(4, np.float32, shapes)
    actual[1][3][:] = 0
    columns = [adasum(column) for column in zip(*actual, strict=True)]

    def combined(group) -> list[str]:
        argument = copied(emulated, actual[group.rank])
        out = tuple(emulated.place([np.zeros(shape, np.float32) for shape in shapes]))
        result = cto.adasum_all_reduce(argument, group=group, out=out)
        compare(result, [column[group.rank] for column in columns], np.float32)
        compare(argument, actual[group.rank], None)
        return [array.tobytes() for array in result]

    first, *others = results(in_threads(4, combined))
    assert all(other == first for other in others)  # bit for bit


def test_adasum_takes_three_launches_a_level_and_hundred_arrays() -> None:
    def steps(n: int, levels: tuple[int, ...]) -> list[str]:
        xs = [Spec((5,), FLOAT32, place=i) for i in range(n)]
        plan = operators.adaptive_sums(lambda *_: None, 0, levels, xs, xs)
        return [getattr(step, "symbol", "swap").rpartition("__")[2] for step in plan.steps]

    each = ["dots", "scales", "combine"]
    assert steps(1, (1,)) == ["swap", *each]
    assert steps(CAPACITY, (1, 2)) == ["swap", *each] * 2
    assert steps(CAPACITY + 1, (2,)) == ["swap", *each * 2]


def test_descriptions_are_compared_at_the_first_call(emulated, monkeypatch) -> None:
    said = []
    inner = cto.ProcessGroup.exchange

    def exchange(self, op, members, text, *rest):
        said.append(text)
        return inner(self, op, members, text, *rest)

    monkeypatch.setattr(cto.ProcessGroup, "exchange", exchange)

    def call(group) -> None:
        x = emulated.place(np.ones(3, np.float32))
        for _ in range(3):
            cto.nccl_all_reduce([x], group=group)
            cto.NcclAllReduce(group=group)([x])  # another instance says the same

    results(in_threads(2, call))
    assert said == ["NcclAllReduce(group_type=0) on cuda of 1 arrays; float32 (3,)"] * 2


def test_a_difference_is_an_error_before_anything_is_queued(emulated) -> None:
    def call(group) -> None:
        x = emulated.place(np.full(3 + group.rank, 5, np.float32))
        with pytest.raises(cto.ArgumentError, match=r"the ranks disagree: .* on cuda of 1 arrays"):
            cto.nccl_all_reduce([x], group=group)
        assert (x == 5).all()

    results(in_threads(2, call))


def test_a_group_on_another_device_is_refused() -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    group = cto.ProcessGroup(0, 1)
    group.device = 1  # as if it had communicated from there
    words = "NcclAllReduce: group: expected one that communicates from cuda device 0, where the"
    with hollow_launches(), pytest.raises(cto.ArgumentError, match=words):
        cto.nccl_all_reduce([hollow((3,), np.float32)], group=group)
    cto.nccl_all_reduce([np.ones(3)], group=group)  # the host is everybody's


def test_what_is_moved_is_bytes_and_what_is_added_elements() -> None:
    assert (
        queue.row("send", 5, FLOAT32, 1).rest == queue.row("recv", 5, FLOAT32, 1).rest == (20, 1, 1)
    )
    assert queue.row("reduce", 5, FLOAT32, queue.SUM, 1).rest == (5, 7, 0, 1)
