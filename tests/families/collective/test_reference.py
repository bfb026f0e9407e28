# SPDX-License-Identifier: MIT
"""Every collective for every type, in groups of 1 to 4 ranks, as threads and as processes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from collective_cases import all_inputs, check_all, compare, inputs, owners
from ranks import Processes, in_threads, results

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.families.collective import members, operators
from cupy_training_ops.families.collective import members as rule
from cupy_training_ops.process_group.group import Sizes

SCRIPT = Path(__file__).parents[2] / "process_group" / "all_operators.py"
CHECKS = 48  # four types with five checks, six with three, five with two


@pytest.mark.parametrize("n", [1, 2, 3, pytest.param(4, marks=pytest.mark.thorough)])
def test_threads(n) -> None:
    assert results(in_threads(n, check_all)) == [CHECKS] * n


@pytest.mark.thorough
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_processes(n) -> None:
    with Processes(n, SCRIPT) as ranks:
        expected = [(0, f"rank {rank}: {CHECKS} checks, embedded\n") for rank in range(n)]
        assert ranks.ended() == expected


# ---- sub-groups ----------------------------------------------------------------------------------

# Four ranks, two on a node, horizontal groups of two: who shares a sub-group with rank r.
SHARED = {
    0: lambda _: {0, 1, 2, 3},
    1: lambda r: {r, (r + 2) % 4},
    2: lambda r: {r},
    3: lambda r: {r, (r + 2) % 4},
    4: lambda r: {r, r ^ 1},
}


def test_sub_groups() -> None:
    def reduced(group) -> list[int]:
        actual = []
        for group_type in SHARED:
            x = np.array([1 << group.rank], np.int64)
            cto.nccl_all_reduce([x], group=group, group_type=group_type)
            actual.append(int(x[0]))
        return actual

    actual = results(in_threads(4, reduced, local_size=2, data_size=2, horizontal_size=2))
    expected = [[sum(1 << m for m in ranks(r)) for ranks in SHARED.values()] for r in range(4)]
    assert actual == expected


def test_data_groups_on_a_node() -> None:
    """Eight ranks, four on a node, no horizontal groups."""
    result = members.sub_groups(5, 8, Sizes(data_size=8, local_size=4))
    assert result[members.NODE_LOCAL] == (4, 5, 6, 7)
    assert result[members.CROSS_NODE] == (1, 5)
    assert members.HORIZONTAL not in result


@pytest.mark.parametrize(
    ("group_type", "message"),
    [
        (5, r"group_type: expected one of 0 \(global\), .*, got 5$"),
        (-1, r"group_type: expected one of 0 \(global\)"),
        (1, r"a type that the group's sizes .* tell, got 1 \(data\)"),
        (4, r"a type that the group's sizes .* tell, got 4 \(horizontal\)"),
    ],
)
def test_other_sub_groups_are_refused(group_type, message) -> None:
    with pytest.raises(ArgumentError, match=f"^NcclAllReduce: .*{message}"):
        cto.NcclAllReduce(group=cto.ProcessGroup(0, 1), group_type=group_type)


def test_sizes_are_divisors() -> None:
    for sizes in ({"data_size": 3}, {"horizontal_size": 0}, {"local_size": 5}):
        with pytest.raises(ArgumentError, match=r"size: expected a divisor of the 4 ranks"):
            Sizes(**sizes).check(4)
    for sizes, n, left in (((2, 4), 4, 2), ((2, 2), 8, 4)):
        words = f"horizontal_size: expected {left}, so that 2 times it are the {n} ranks"
        with pytest.raises(ArgumentError, match=words):
            Sizes(*sizes).check(n)
    with pytest.raises(ArgumentError, match="ProcessGroup: data: expected a keyword among"):
        cto.ProcessGroup(0, 1, data=1)


# ---- ownership -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_ownership_follows_the_formula(n, rng) -> None:
    for _ in range(50):
        sizes = rng.integers(0, 40, rng.integers(1, 9)).tolist()
        alignment = 32 * n
        chunk = (sum(sizes) // alignment + 1) * alignment // n
        starts = np.cumsum([0, *sizes])
        straddles = any(a // chunk != max(a, b - 1) // chunk for a, b in pairwise(starts))
        if straddles:
            with pytest.raises(ArgumentError, match=r"owned whole, got elements \d+ to \d+"):
                rule.owners("X", sizes, n)
        else:
            assert rule.owners("X", sizes, n) == owners(sizes, n)


def test_a_multiple_of_the_alignment_is_padded_too() -> None:
    assert rule.owners("X", [32, 32], 2) == [0, 0]  # chunks of 64
    assert rule.owners("X", [32, 31], 2) == [0, 1]  # chunks of 32


def test_an_array_across_two_chunks_is_an_error_on_every_rank() -> None:
    def straddle(group) -> None:
        cto.nccl_all_gather([np.ones(20, np.float32), np.ones(20, np.float32)], group=group)

    for error in in_threads(3, straddle):
        assert isinstance(error, ArgumentError)
        assert "input[1]: expected a tensor inside one rank's chunk of 32 elements" in str(error)


# ---- Adasum --------------------------------------------------------------------------------------


def test_adasum_of_equal_and_of_orthogonal_gradients() -> None:
    def combined(group) -> list[np.ndarray]:
        g = np.array([3.0, -4.0, 0.5], np.float64)
        apart = np.array([2.0, 0.0]) if group.rank % 2 else np.array([0.0, 5.0])
        nothing = np.zeros(2) if group.rank else np.array([1.0, 2.0])
        return list(cto.adasum_all_reduce([g, apart, nothing], group=group))

    expected = [np.array([3.0, -4.0, 0.5]), np.array([2.0, 5.0]), np.array([1.0, 2.0])]
    for actual in results(in_threads(2, combined)):
        compare(actual, expected, None)


def test_adasum_over_nodes_begins_with_ranks_of_two_nodes() -> None:
    def combined(group) -> np.ndarray:
        x = np.array([1.0, 2.0]) if group.rank < 2 else np.array([3.0, -1.0])
        return cto.adasum_all_reduce([x], group=group, reduce_algo=2)[0]

    a, b = np.array([1.0, 2.0]), np.array([3.0, -1.0])
    expected = (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b
    for actual in results(in_threads(4, combined, local_size=2)):
        compare([actual], [expected], np.float64)


@pytest.mark.parametrize(
    ("n", "algorithm", "message"),
    [
        (3, 0, "group: expected a number of ranks that is a power of two, got 3"),
        (2, 3, r"reduce_algo: expected one of \(0, 1, 2\), got 3"),
        (2, 2, "group: expected one with a local_size, for reduce_algo 2, got none"),
    ],
)
def test_adasum_refuses(n, algorithm, message) -> None:
    def refused(group) -> None:
        with pytest.raises(ArgumentError, match=f"^AdasumAllReduce: {message}"):
            cto.AdasumAllReduce(group=group, reduce_algo=algorithm)

    results(in_threads(n, refused))


# ---- Send and Recv -------------------------------------------------------------------------------


def letters(group, tags, types=("float32",), shape=(3,)) -> list[object]:
    """Rank 0 sends, rank 1 receives, a message for each tag."""
    results = []
    for i, tag in enumerate(tags[group.rank]):
        keywords = {"group": group, "tag": tag, "element_types": types}
        if group.rank == 0:
            results.append(cto.send(True, 1, [np.full(shape, i, np.float32)], **keywords))
        else:
            done, (x,) = cto.recv(True, 0, arrays="numpy", **keywords)
            assert done
            results.append(float(x[0]))
    return results


def test_messages_arrive_in_order() -> None:
    assert results(in_threads(2, lambda g: letters(g, ([7, 7, 8], [7, 7, 8]))))[1] == [0, 1, 2]


def test_another_tag_is_an_error_on_both_ranks() -> None:
    for error in in_threads(2, lambda g: letters(g, ([7], [8]))):
        assert isinstance(error, ArgumentError)
        said = "rank {0} calls Send and Recv with tag {1} on cpu of 1 arrays"
        assert f"{said.format(1, 8)}, {said.format(0, 7)}" in str(error)


SHAPE_OF_ANOTHER = [
    {"shapes": [(3, 2)], "arrays": "numpy"},
    {"out": (None, (np.zeros((3, 2), np.float32),))},
]


@pytest.mark.parametrize("said", SHAPE_OF_ANOTHER, ids=lambda said: next(iter(said)))
def test_another_shape_is_an_error_on_both_ranks(said) -> None:
    def call(group) -> None:
        keywords = {"group": group, "tag": 1, "element_types": [1]}
        if group.rank == 0:
            cto.send(True, 1, [np.ones((2, 3), np.float32)], **keywords)
        else:
            cto.recv(True, 0, **keywords, **said)

    for error in in_threads(2, call):
        assert isinstance(error, ArgumentError)
        assert ", number 0 float32 (3, 2), rank 0 calls Send and Recv with tag 1 on " in str(error)


def test_a_message_may_hold_arrays_of_several_types() -> None:
    sent = [np.array([1.5], np.float32), np.array([[2, 3]], np.int64), np.array([True])]

    def call(group) -> tuple[np.ndarray, ...]:
        types = [array.dtype for array in sent]
        keywords = {"group": group, "tag": 1, "element_types": types}
        if group.rank == 0:
            cto.send(True, 1, sent, **keywords)
            return ()
        return cto.recv(True, 0, arrays="numpy", **keywords)[1]

    received = results(in_threads(2, call))[1]
    assert [array.dtype for array in received] == [array.dtype for array in sent]
    assert [array.tolist() for array in received] == [array.tolist() for array in sent]


REFUSED_LETTERS = [
    ((False, 1), {}, "InputSignal: expected True, got False"),
    ((True, 0), {}, "Remote: expected another rank than 0, below 2, got 0"),
    ((True, 2), {}, "Remote: expected another rank than 0, below 2, got 2"),
    ((True, 1), {"element_types": [10]}, r"element_types\[0\]: expected float32, as the array"),
    ((True, 1), {"element_types": []}, "element_types: expected 1, one for each array, got 0"),
]


def test_letters_are_refused() -> None:
    def refused(group) -> None:
        if group.rank:
            return
        keywords = {"group": group, "tag": 1, "element_types": [1]}
        for arguments, other, message in REFUSED_LETTERS:
            with pytest.raises(ArgumentError, match=f"^Send: {message}"):
                cto.send(*arguments, [np.ones(3, np.float32)], **keywords | other)
        for arguments, _, message in REFUSED_LETTERS[:3]:
            for extra in ({}, {"shapes": [(3,)]}):
                with pytest.raises(ArgumentError, match=f"^Recv: {message}"):
                    cto.recv(*arguments, arrays="numpy", **keywords, **extra)
        with pytest.raises(ArgumentError, match=r"^Recv: shapes: expected 1, one for each of"):
            cto.recv(True, 1, arrays="numpy", shapes=[(3,), (4,)], **keywords)

    results(in_threads(2, refused))


def test_receiving_on_a_gpu_that_does_not_answer_is_refused(monkeypatch) -> None:
    class Silent:
        runs_kernels = True

        def current_device(self) -> int:
            raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(operators.backends, "cuda_backend", Silent)
    first, second = cto.ProcessGroup.in_threads(2)
    with first, second, pytest.raises(cto.ProviderError, match=r"^Recv: no GPU answers \(cudaE"):
        cto.recv(True, 1, group=first, tag=1, element_types=[1], shapes=[(3,)])


# ---- refusals ------------------------------------------------------------------------------------


def test_no_group_is_refused() -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(ArgumentError, match=r"^NcclAllReduce: group: expected a value: it is req"):
        cto.nccl_all_reduce([x])
    with pytest.raises(ArgumentError, match=r"^MegatronG: group: expected a ProcessGroup, got 'w'"):
        cto.megatron_g(x, group="w")


def test_two_types_are_refused() -> None:
    group, x = cto.ProcessGroup(0, 1), np.ones(3, np.float32)
    with pytest.raises(cto.DtypeError, match=r"^NcclAllReduce: input\[1\]: expected dtype float32"):
        cto.nccl_all_reduce([x, x.astype(np.float16)], group=group)
    assert cto.nccl_all_reduce([x], group=group, outputs=()) == (None,)


def test_an_instance_lives_with_its_group() -> None:
    """Function calls share one, which the group keeps and lets go of as it is closed."""
    import gc
    import weakref

    group = cto.ProcessGroup(0, 1)
    first = cto.NcclAllReduce.shared(group=group)
    assert cto.NcclAllReduce.shared(group=group) is first
    assert cto.NcclAllReduce.shared(group=group, group_type=0) is not first
    reference = weakref.ref(group)
    del first, group
    gc.collect()
    assert reference() is None


def test_inputs_of_all_ranks_differ() -> None:
    """Else a sum that takes one rank's twice would pass."""
    a, b = all_inputs(2, np.float32)
    assert not np.array_equal(a[0], b[0])
    compare(inputs(1, np.float32), b, None)
