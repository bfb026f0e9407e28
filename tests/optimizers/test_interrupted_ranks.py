# SPDX-License-Identifier: MIT
"""Steps over ranks, one of which is interrupted: whole, begun anew, or the end of the group."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interrupts import at_each_line
from optimizers.sharded_training import FLOAT32, RankTraining

import cupy_training_ops as cto
from cupy_training_ops import OpError

SHAPES = ((130,), (5,), (33, 7))


class Ranks:
    """Two ranks of a new group, this one and a thread's, which makes one step."""

    def __init__(
        self, seed: int, step: Callable[[RankTraining], None], before: list[bytes]
    ) -> None:
        self._step, self._before = step, before
        groups = cto.ProcessGroup.in_threads(2, 5.0)
        self.group = groups[0]
        trainings: list[Any] = [None, None]

        def made(rank: int) -> None:
            trainings[rank] = RankTraining(groups[rank], seed, FLOAT32, None, SHAPES)

        def other() -> None:
            made(1)
            with contextlib.suppress(OpError):
                step(trainings[1])

        self._thread = threading.Thread(target=other, daemon=True)
        self._thread.start()
        made(0)
        self.training = trainings[0]

    def step(self) -> None:
        self._step(self.training)

    def state(self) -> list[np.ndarray]:
        """Of this rank, which no other has to give."""
        state, own = self.training.optimizer.state_dict(sharded=True), self.training
        moments = [x for name in ("moment_1", "moment_2") for x in state[name].values()]
        return [np.array(x) for x in (*own.parameters, *own.copies[:-1], *moments, state["step"])]

    def check(self, after: list[bytes], place: object) -> str:
        """What it is: before, after, or the end of the group."""
        try:
            actual = [x.tobytes() for x in self.state()]
        except OpError:
            actual = []
        if actual == after:
            outcome = "after"
        else:
            assert actual in ([], self._before), f"torn at {place}"
            try:
                self.step()
                assert [x.tobytes() for x in self.state()] == after, place
                outcome = "anew"
            except OpError:
                outcome = "ended"
        self.group.close()
        self._thread.join(20)
        assert not self._thread.is_alive(), place
        return outcome


def plain(training: RankTraining) -> None:
    training.optimizer.step(training.gradients(0))


def by_buckets(training: RankTraining) -> None:
    buckets = vars(training).get("buckets")
    if buckets is None:
        buckets = training.buckets = cto.GradientBuckets(
            training.parameters, training.group, megabytes=0.0006, optimizer=training.optimizer
        )
    for place, gradient in enumerate(training.gradients(0)):
        buckets.ready(place, gradient)
    training.optimizer.step(buckets.wait())


@pytest.mark.thorough
@pytest.mark.parametrize("step", [plain, by_buckets])
def test_a_rank_that_is_interrupted_is_whole_or_ends_the_group(step, seed) -> None:
    def begun() -> Ranks:
        return Ranks(seed, step, before)

    before: list[bytes] = []
    first = begun()
    before += [x.tobytes() for x in first.state()]
    first.step()
    after = [x.tobytes() for x in first.state()]
    first.check(after, "the end")
    outcomes: dict[str, int] = {}

    def check(ranks: Ranks, place: object) -> None:
        outcome = ranks.check(after, place)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    assert at_each_line(begun, Ranks.step, check)
    assert outcomes.keys() == {"after", "anew", "ended"}
