# SPDX-License-Identifier: MIT
"""States of AdamW over ranks: whole, as shares and in files, with other numbers of ranks."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from optimizers.sharded_training import SHAPES, STEPS, RankTraining, by_means
from ranks import in_threads, results
from training import assert_same

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError


class Training(RankTraining):
    """The same means for each number of ranks: rank r's gradients are g + c (r - (n - 1) / 2)."""

    def __init__(self, group, seed) -> None:
        super().__init__(group, seed, shapes=SHAPES)

    def gradients(self, i: int, rank: int | None = None) -> list[np.ndarray]:
        rng = np.random.default_rng((self.seed, i))
        off = 0 if self.group is None else 2 * self.group.rank - self.group.size + 1
        return [
            self._place(np.asarray(rng.integers(-40, 40, shape) + off, np.float32))
            for shape in self.shapes
        ]

    def means(self, i: int, n: int) -> list[np.ndarray]:
        return self.gradients(i)


def whole(seed: int) -> list[np.ndarray]:
    """Four steps without a stop, by one."""
    training = Training(None, seed)
    training.steps(STEPS)
    return training.results()


def stopped(n: int, seed: int, keep) -> list:
    """Of each rank its parameters and copies after two steps, and what it keeps."""

    def trained(group):
        training = Training(group, seed)
        training.steps(STEPS // 2)
        return training.parameters, training.copies, keep(training.optimizer)

    return list(results(in_threads(n, trained)))


def gone_on(n: int, seed: int, before: list, load) -> list[list[np.ndarray]]:
    """The other two by n ranks, which begin with what was kept."""

    def trained(group):
        training = Training(group, seed)
        parameters, copies, _ = before[0]
        for own, other in zip(training.parameters, parameters, strict=True):
            own[...] = other
        for own, other in zip(training.copies[:-1], copies[:-1], strict=True):
            own[...] = other
        load(training.optimizer)
        training.made = STEPS // 2
        training.steps(STEPS // 2)
        return training.results()

    return list(results(in_threads(n, trained)))


@pytest.mark.parametrize(("n", "m"), [(1, 2), (3, 3), (3, 2), (2, 1), (2, 4)])
def test_a_whole_state_goes_on_with_any_number_of_ranks(n, m, seed) -> None:
    before = stopped(n, seed, lambda optimizer: optimizer.state_dict())
    states = [kept for *_, kept in before]
    for actual in gone_on(m, seed, before, lambda o: o.load_state_dict(states[0])):
        assert_same(actual, whole(seed))


@pytest.mark.parametrize(("n", "m"), [(1, 2), (3, 3), (3, 2), (2, 1), (2, 4)])
def test_shares_go_on_with_any_number_of_ranks(n, m, seed) -> None:
    before = stopped(n, seed, lambda optimizer: optimizer.state_dict(sharded=True))
    states = [kept for *_, kept in before]
    for actual in gone_on(m, seed, before, lambda o: o.load_state_dict(states)):
        assert_same(actual, whole(seed))


def test_a_share_goes_on_by_itself(seed, tmp_path) -> None:
    before = stopped(3, seed, lambda o: o.save(tmp_path / f"{o.group.rank}.npz", sharded=True))
    load = lambda o: o.load(tmp_path / f"{o.group.rank}.npz")  # noqa: E731
    for actual in gone_on(3, seed, before, load):
        assert_same(actual, whole(seed))
    files = [tmp_path / f"{rank}.npz" for rank in range(3)]
    for actual in gone_on(2, seed, before, lambda o: o.load(files)):
        assert_same(actual, whole(seed))


def test_a_whole_file_is_written_once_and_is_anybodys(seed, tmp_path) -> None:
    path = tmp_path / "state.npz"
    before = stopped(2, seed, lambda o: o.save(tmp_path / ("not" * o.group.rank + "state.npz")))
    assert [actual.name for actual in tmp_path.iterdir()] == ["state.npz"]
    for actual in gone_on(3, seed, before, lambda o: o.load(path)):
        assert_same(actual, whole(seed))
    alone = Training(None, seed)
    alone.steps(STEPS // 2)
    alone.optimizer.save(tmp_path / "alone.npz")
    files = [np.load(name, allow_pickle=False) for name in (path, tmp_path / "alone.npz")]
    assert files[0].files == files[1].files
    for name in files[0].files:
        assert_same([files[0][name]], [files[1][name]])


def test_a_state_is_a_copy(seed) -> None:
    def trained(group):
        training = RankTraining(group, seed)
        training.steps(2)
        for sharded in (False, True):
            state = training.optimizer.state_dict(sharded)
            kept = copy.deepcopy(state)
            training.steps(1)
            for moment in training.optimizer.moments:
                assert_same([*state[moment].values()], [*kept[moment].values()])

    results(in_threads(2, trained))


def shares(n: int) -> list[dict]:
    def trained(group):
        training = RankTraining(group, 5)
        training.steps(1)
        return training.optimizer.state_dict(sharded=True)

    return list(results(in_threads(n, trained)))


TWO = shares(2)
WRONG = {
    "another rank's": (lambda rank: TWO[1 - rank], r"AdamW: state: expected rank \d of 2, got ra"),
    "of more ranks": (lambda rank: shares(3)[rank], r"expected rank \d of 2, got rank \d of 3"),
    "in disorder": (lambda _: TWO[::-1], "expected rank 0 of 2, got rank 1 of 2"),
    "too few": (lambda _: TWO[:1], "expected rank 0 of 1, got rank 0 of 2"),
    "none": (lambda _: [], "AdamW: state: expected a state of each rank, got none"),
    "of other steps": (lambda _: [TWO[0], TWO[1] | {"step": 7}], "state step: expected 1, as of"),
    "another class's": (lambda r: TWO[r] | {"optimizer": "Adam"}, "state optimizer: expected Ada"),
    "too long": (
        lambda r: TWO[r] | {"moment_2": {k: np.ones(9, "f") for k in TWO[r]["moment_2"]}},
        r"state moment_2\['0'\]: expected shape \(\d+,\), got shape \(9,\)",
    ),
    "a word": (lambda _: "state", "AdamW: state: expected a dictionary of optimizer, shapes, st"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_share_that_does_not_fit_is_refused(case) -> None:
    """And nothing has changed."""
    make, words = WRONG[case]

    def load(group):
        optimizer = RankTraining(group, 5).optimizer
        with pytest.raises(ArgumentError, match=words):
            optimizer.load_state_dict(make(group.rank))
        state = optimizer.state_dict(sharded=True)
        assert state["step"] == 0
        assert not any(array.any() for m in optimizer.moments for array in state[m].values())

    results(in_threads(2, load))


def test_a_share_is_refused_where_there_are_no_ranks(tmp_path) -> None:
    training = RankTraining(None, 5)
    with pytest.raises(ArgumentError, match="AdamW: state: expected a dictionary of optimizer"):
        training.optimizer.load_state_dict(TWO[0])
    with cto.ProcessGroup(0, 1) as group:
        alone = RankTraining(group, 5)
        alone.optimizer.load_state_dict(TWO)
        alone.optimizer.save(tmp_path / "state.npz")
    training.optimizer.load(tmp_path / "state.npz")
    expected = by_means(2, 5).optimizer.state_dict()["shapes"]
    assert training.optimizer.state_dict()["shapes"] == expected
    assert training.optimizer.state_dict()["step"] == 1


@pytest.mark.parametrize(
    ("dtype", "moments"), [(np.float64, None), (np.float32, None), (np.float32, "bfloat16")]
)
def test_a_rank_without_elements_has_a_share_too(tmp_path, dtype, moments) -> None:
    """Few elements are all of rank 0; the others' shares are empty, in the moments' own type."""

    def trained(group):
        optimizer = cto.AdamW([np.ones(3, dtype)], moment_dtype=moments, group=group)
        optimizer.step([np.ones(3, dtype)])
        share, file = optimizer.state_dict(sharded=True), tmp_path / f"{group.rank}.npz"
        optimizer.save(file, sharded=True)
        for load, state in ((optimizer.load_state_dict, share), (optimizer.load, file)):
            load(state)
        sizes = optimizer.group.size, share["moment_1"]["0"].size
        return sizes, share, optimizer.state_dict()["step"]

    sizes, shares, steps = zip(*results(in_threads(3, trained)), strict=True)
    assert sizes == ((3, 3), (3, 0), (3, 0))
    assert steps == (1, 1, 1)
    (group,) = cto.ProcessGroup.in_threads(1)
    with group:
        cto.AdamW([np.ones(3, dtype)], moment_dtype=moments, group=group).load_state_dict(
            list(shares)
        )
