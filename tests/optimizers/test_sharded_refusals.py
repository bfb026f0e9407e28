# SPDX-License-Identifier: MIT
"""What AdamW over ranks refuses, on all of them and before anything has changed, and faults."""

from __future__ import annotations

import numpy as np
import pytest
from optimizers.sharded_training import RankTraining
from ranks import in_threads, results
from training import assert_same

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, GroupError


def refused(n: int, words: str, function, kind: type = ArgumentError) -> None:
    """By each rank."""
    for error in in_threads(n, function):
        assert isinstance(error, kind), error
        with pytest.raises(kind, match=words):
            raise error


def test_ranks_that_differ_are_refused_at_construction() -> None:
    def shapes(group):
        cto.AdamW([np.ones(3, "f"), np.ones(4 + group.rank, "f")], group=group)

    def rates(group):
        cto.AdamW([np.ones(3, "f")], betas=(0.9, 0.99 + group.rank / 1000), group=group)

    def types(group):
        cto.AdamW([np.ones(3, np.float64 if group.rank else "f")], group=group)

    refused(2, r"AdamW: the ranks disagree: .* number 1 float32 \(4,\), rank 1 .* \(5,\)", shapes)
    refused(2, r"AdamW: the ranks disagree: .*'beta': 0.99", rates)
    refused(2, r"rank 0 .* moment_dtype=float32\) .* rank 1 .* moment_dtype=float64\)", types)


def test_gradients_of_other_parameters_are_refused_on_all_ranks() -> None:
    """Before anything has changed; the group goes on."""

    def step(group):
        ps = [np.ones(3, "f"), np.ones(3, "f")]
        optimizer = cto.AdamW(ps, group=group)
        actual = [np.ones(3, "f"), None]
        words = "the ranks disagree: rank 0 calls AdamW.step with gradients of parameters 1 on cpu"
        with pytest.raises(ArgumentError, match=words):
            optimizer.step(actual if group.rank else actual[::-1])
        assert (ps[0] == 1).all()
        optimizer.step(actual)
        assert (ps[0] < 1).all()

    results(in_threads(2, step))


@pytest.mark.parametrize(
    ("words", "keywords"),
    [
        ("AdamW: group: expected a ProcessGroup, got 3", {"group": 3}),
        ("AdamW: state: expected None, over ranks, got '8bit'", {"state": "8bit"}),
        ("AdamW: lr: ", {"lr": -1.0}),
        ("AdamW: betas: expected two numbers", {"betas": 0.9}),
        ("AdamW: moment_dtype: expected float32 or bfloat16", {"moment_dtype": "float16"}),
        ("AdamW: names: expected 1 entries", {"names": ["a", "b"]}),
        (r"AdamW: low_precision\[0\]: expected shape \(3,\)", {"low_precision": [np.ones(4, "e")]}),
        (r"AdamW: parameters\[0\]: expected a C-contig", {"parameters": [np.ones((4, 4), "f").T]}),
        (r"AdamW: parameters: expected a list, got ndarray", {"parameters": np.ones(3)}),
        (r"AdamW: parameters: expected at least one array", {"parameters": []}),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(words, keywords) -> None:
    given = {"parameters": [np.ones(3, "f")], "group": cto.ProcessGroup(0, 1)} | keywords
    with pytest.raises(ArgumentError, match=words):
        cto.AdamW(**given)


def test_a_class_of_the_callers_is_refused_a_group() -> None:
    class Own(cto.AdamW):
        pass

    with pytest.raises(ArgumentError, match="Own: group: expected None, for a class of your own"):
        Own([np.ones(3, "f")], group=cto.ProcessGroup(0, 1))


@pytest.mark.parametrize(
    ("words", "gradients", "keywords"),
    [
        (r"gradients\[1\]: expected shape \(3,\) like", [None, np.ones(4, "f")], {}),
        (r"gradients\[0\]: expected a C-contiguous", [np.ones((5, 4), "f").T, None], {}),
        (r"gradients: expected 2 entries", [np.ones((4, 5), "f")], {}),
        (r"gradients\[0\]: expected dtype float32.*, got int32", [np.ones((4, 5), "i"), None], {}),
        (r"lr: ", [None, np.ones(3, "f")], {"lr": -1.0}),
        (r"max_norm: ", [None, np.ones(3, "f")], {"max_norm": -1.0}),
    ],
)
def test_wrong_steps_are_refused_before_anything_is_sent(words, gradients, keywords) -> None:
    def step(group):
        optimizer = cto.AdamW([np.ones((4, 5), "f"), np.ones(3, "f")], group=group)
        before, begun = optimizer.state_dict(sharded=True), group.begun
        with pytest.raises(cto.OpError, match=words):
            optimizer.step(gradients, **keywords)
        assert group.begun == begun
        after = optimizer.state_dict(sharded=True)
        for moment in optimizer.moments:
            assert_same([*after[moment].values()], [*before[moment].values()])

    results(in_threads(2, step))


def test_a_step_that_is_stopped_ends_the_group_of_all(seed) -> None:
    """Between what it sends: what comes later would be taken for the rest of it."""

    class Stopped(KeyboardInterrupt):
        pass

    def trained(group):
        training = RankTraining(group, seed)
        training.steps(1)
        if group.rank == 1:
            training.optimizer._measure = stop
        with pytest.raises(Stopped if group.rank == 1 else GroupError):
            training.steps(1)
        with pytest.raises(GroupError, match=r"rank 1 stopped in the middle of AdamW: Stopped"):
            training.steps(1)

    def stop(*_, **__):
        raise Stopped

    results(in_threads(3, trained))


def test_a_closed_group_is_refused(seed) -> None:
    def trained(group):
        training = RankTraining(group, seed)
        group.close()
        with pytest.raises(GroupError, match="AdamW: group: expected an open group"):
            training.steps(1)

    results(in_threads(2, trained))
