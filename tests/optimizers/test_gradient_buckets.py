# SPDX-License-Identifier: MIT
"""Gradients that become means in buckets: bits, order, streams, steps that are stopped."""

from __future__ import annotations

import numpy as np
import pytest
from optimizers.sharded_training import FLOAT32, SHAPES, RankTraining, by_means
from process_group.board import emulated_ranks
from ranks import in_threads, results
from training import assert_same

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, GroupError
from cupy_training_ops.dtypes import BFLOAT16
from cupy_training_ops.optimizers import buckets as buckets_module

KILOBYTES = (0.001, 3.0, 1e6)  # a bucket each, some, one in all


def orders(rank: int, seed: int) -> np.ndarray:
    """In which a rank's gradients come: in another one on each."""
    return np.random.default_rng((seed, rank)).permutation(len(SHAPES))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BFLOAT16])
@pytest.mark.parametrize("kilobytes", KILOBYTES)
def test_gradients_become_the_means_whatever_their_order(kilobytes, dtype, seed) -> None:
    types = (np.float32, dtype, None, None) if dtype != np.float64 else (dtype, dtype, None, None)

    def given(group):
        training = RankTraining(group, seed, types)
        buckets = cto.GradientBuckets(training.gradients(0), group, megabytes=kilobytes / 1000)
        for i in range(3):
            actual = training.gradients(i)
            for place in orders(group.rank, seed + i):
                buckets.ready(int(place), actual[place])
            waited = buckets.wait()
            assert all(a is b for a, b in zip(waited, actual, strict=True))
            assert_same(waited, training.means(i, group.size))

    results(in_threads(3, given))


@pytest.mark.parametrize("by_kernels", [False, True])
def test_a_sharded_step_takes_what_was_reduced(by_kernels, monkeypatch, seed) -> None:
    """The same bits as without buckets, with gradients missing, too."""

    def trained(group, run=None):
        training = RankTraining(group, seed, FLOAT32, run)
        buckets = cto.GradientBuckets(
            training.parameters, group, megabytes=0.003, optimizer=training.optimizer
        )
        for i in range(4):
            for place, gradient in enumerate(training.gradients(i)):
                if i < 2 or place != 3:
                    buckets.ready(place, gradient)
            training.optimizer.step(buckets.wait())
        return training.results()

    if by_kernels:
        with emulated_ranks(monkeypatch, seed) as run:
            expected = by_means(2, seed, run=run, without=(3,)).results()
            actual = results(in_threads(2, lambda group: trained(group, run)))
    else:
        expected = by_means(2, seed, without=(3,)).results()
        actual = results(in_threads(2, trained))
    for own in actual:
        assert_same(own, expected)


def test_a_bucket_may_have_several_types(seed) -> None:
    def given(group):
        values = np.random.default_rng((seed, group.rank)).standard_normal((2, 300))
        arrays = [values[0].astype(np.float16), values[1].astype(np.float32)]
        buckets = cto.GradientBuckets(arrays, group)
        for place, array in enumerate(arrays):
            buckets.ready(place, array)
        return values, buckets.wait()

    (a, actual), (b, others) = results(in_threads(2, given))
    assert_same(actual, others)
    for x, y, mean in zip(a, b, actual, strict=True):
        wide = np.mean([z.astype(mean.dtype).astype(np.float64) for z in (x, y)], axis=0)
        assert_same([mean], [wide.astype(mean.dtype)])


def test_buckets_follow_the_order_of_rank_0s_first_step(seed) -> None:
    """Before it they are from the last to the first; what did not come is behind."""

    def given(group):
        training = RankTraining(group, seed)
        buckets = cto.GradientBuckets(training.parameters, group, megabytes=0.004)
        first = buckets._buckets
        actual = training.gradients(0)
        for place in ((3, 0, 5, 2, 4), (0, 2, 3, 4, 5))[group.rank]:
            buckets.ready(place, actual[place])
        assert buckets.wait()[1] is None
        return first, buckets._buckets

    for first, later in results(in_threads(2, given)):
        # 2772, 20, 0, 4000, 4 and 3072 bytes: from the end on
        assert first == [[5, 4], [3], [2, 1, 0]]
        assert later == [[3], [0], [5, 2, 4, 1]]


def test_buckets_are_small_at_the_end_alone(monkeypatch) -> None:
    monkeypatch.setattr(buckets_module, "_LAST", 4e3)
    arrays = [np.ones(1000, np.float32)] * 40
    buckets = cto.GradientBuckets(arrays, cto.ProcessGroup(0, 1), megabytes=0.032)._buckets
    assert list(map(len, buckets)) == [1, 8, 8, 8, 8, 4, 2, 1]
    assert [place for bucket in buckets for place in bucket] == [*range(40)][::-1]


def test_a_bucket_is_sent_once_it_and_those_before_it_are_whole(seed) -> None:
    def given(group):
        training = RankTraining(group, seed)
        buckets = cto.GradientBuckets(training.parameters, group, megabytes=0.004)
        actual, sent = training.gradients(0), []
        for place in (0, 5, 1, 4, 3):
            buckets.ready(place, actual[place])
            sent.append(buckets._next)
        buckets.ready(2, actual[2])
        assert buckets._next == 3
        return sent

    assert results(in_threads(2, given)) == [[0, 0, 0, 1, 2]] * 2


# ---- PyTorch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [False, True])
def test_autograd_gives_gradients_as_it_finds_them(sharded, seed) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

    def model():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 7))

    data = np.random.default_rng(seed).standard_normal((6, 4, 20)).astype(np.float32)
    models = [model() for _ in range(3)]

    def trained(group):
        own = models[group.rank]
        parameters = list(own.parameters())
        optimizer = cto.AdamW(parameters, 0.1, group=group if sharded else None)
        given = {"optimizer": optimizer} if sharded else {}
        buckets = cto.torch.GradientBuckets(parameters, group, megabytes=0.001, **given)
        for i in range(3):
            first, second = torch.from_numpy(data[2 * group.rank : 2 * group.rank + 2]) + i
            with buckets.paused():
                own(first).square().mean().backward()
            own(second).square().mean().backward()
            optimizer.step(buckets.wait())
            own.zero_grad()
        buckets.close()
        own(first).sum().backward()  # nobody is told
        return [p.detach().numpy() for p in parameters]

    actual = results(in_threads(2, trained))
    alone = models[2]
    parameters = list(alone.parameters())
    optimizer = cto.AdamW(parameters, 0.1)
    for i in range(3):
        for half in torch.from_numpy(data[:4]) + i:
            (alone(half).square().mean() / 2).backward()
        optimizer.step([p.grad for p in parameters])
        alone.zero_grad()
    for a, b, p in zip(*actual, parameters, strict=True):
        assert_same([a], [b])
        np.testing.assert_allclose(a, p.detach().numpy(), rtol=1e-4, atol=1e-4)


def test_buckets_leave_within_the_backward_pass_whatever_its_order_becomes(seed) -> None:
    """Only the last gradients of buckets are looked at as they come, until another one is last."""
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    data = np.random.default_rng(seed).standard_normal((2, 5)).astype(np.float32)

    def sent(group):
        xs = torch.from_numpy(data)
        weights = [torch.nn.Parameter(torch.ones(5)) for _ in range(6)]
        buckets, counts = cto.torch.GradientBuckets(weights, group, megabytes=4e-5), []
        for order in ([2, 0, 1, 5, 3, 4],) * 3 + ([0, 2, 5, 1, 4, 3],) * 3:
            for w in weights:
                w.grad = None
            sum((weights[i] * xs[group.rank] * (i + 1)).sum() for i in order).backward()
            counts.append(buckets._buckets._next)
            for i, actual in enumerate(buckets.wait()):
                mean = data.mean(axis=0) * (i + 1)
                np.testing.assert_allclose(actual.numpy(), mean, rtol=1e-5, atol=1e-6)
        buckets.close()
        closed = cto.torch.GradientBuckets(weights, group, megabytes=4e-5)
        for is_given in (True, False):
            sum(weights[i].sum() for i in (2, 0, 1, 5, 3, 4)).backward()
            closed.close()
            assert all((g is not None) == is_given for g in closed.wait())
        return counts

    for counts in results(in_threads(2, sent)):
        assert counts[1:3] == [3, 3]
        assert counts[4:] == [3, 3]


def test_gradients_of_paused_passes_are_not_noted() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    weights = [torch.nn.Parameter(torch.ones(5)) for _ in range(4)]
    buckets = cto.torch.GradientBuckets(weights, cto.ProcessGroup(0, 1))
    for _ in range(2):
        with buckets.paused():
            sum(w.sum() for w in weights).backward()
        assert buckets.wait() == [None] * 4
    sum(w.sum() for w in weights).backward()
    assert [float(g[0]) for g in buckets.wait()] == [3.0] * 4
    buckets.close()
    sum(w.sum() for w in weights).backward()
    assert buckets.wait() == [None] * 4


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "keywords"),
    [
        ("group: expected a ProcessGroup, got 3", {"group": 3}),
        ("megabytes: expected a number above 0, got 0", {"megabytes": 0}),
        ("megabytes: expected a number above 0, got nan", {"megabytes": float("nan")}),
        (r"megabytes: expected a number above 0, got \[3\]", {"megabytes": [3]}),
        ("parameters: expected a list of at least one array, got", {"parameters": []}),
        (r"parameters\[0\]: expected a NumPy or CuPy array, got", {"parameters": [3]}),
        ("optimizer: expected an AdamW over this group, got", {"optimizer": 3}),
    ],
)
def test_wrong_arguments_are_refused(words, keywords) -> None:
    given = {"parameters": [np.ones(3)], "group": cto.ProcessGroup(0, 1)} | keywords
    with pytest.raises(ArgumentError, match=f"GradientBuckets: {words}"):
        cto.GradientBuckets(**given)


def test_other_optimizers_are_refused() -> None:
    group, other = cto.ProcessGroup(0, 1), cto.ProcessGroup(0, 1)
    parameters = [np.ones(3, "f")]
    for optimizer in (cto.AdamW(parameters), cto.AdamW(parameters, group=other)):
        with pytest.raises(ArgumentError, match="optimizer: expected an AdamW over this group"):
            cto.GradientBuckets(parameters, group, optimizer=optimizer)
    own = cto.AdamW(parameters, group=group)
    with pytest.raises(ArgumentError, match="parameters: expected the optimizer's 1, got 2"):
        cto.GradientBuckets(parameters * 2, group, optimizer=own)


@pytest.mark.parametrize(
    ("words", "place", "gradient"),
    [
        ("place: expected a number below 2, got 2", 2, np.ones(3)),
        ("place: expected a number below 2, got True", True, np.ones(3)),
        (r"gradients\[0\]: expected an array, got None", 0, None),
        (r"gradients\[0\]: expected C-contiguous, of shape \(3,\), got shape", 0, np.ones(4)),
        (r"gradients\[1\]: expected C-contiguous, of shape \(3, 3\)", 1, np.ones((3, 6)).T[::2]),
        (r"gradients\[1\]: expected a NumPy or CuPy array, got", 1, 3),
    ],
)
def test_wrong_gradients_are_refused(words, place, gradient) -> None:
    buckets = cto.GradientBuckets([np.ones(3), np.ones((3, 3))], cto.ProcessGroup(0, 1))
    with pytest.raises(cto.OpError, match=words):
        buckets.ready(place, gradient)
    buckets.ready(0, np.ones(3))
    buckets.ready(1, np.ones((3, 3)))
    assert len(buckets.wait()) == 2


def test_a_step_that_is_begun_anew_ends_the_group_once_something_was_sent() -> None:
    """On a GPU the others would take the new gradients for the rest of the old ones."""

    def given(group):
        arrays = [np.ones(3), np.ones(4)]
        buckets = cto.GradientBuckets(arrays, group, megabytes=1e-5)
        buckets.ready(0, arrays[0])
        with pytest.raises(ArgumentError, match=r"gradients\[0\]: expected one between two waits"):
            buckets.ready(0, arrays[0])  # nothing was sent yet
        buckets.ready(1, arrays[1])
        again = lambda: buckets.ready(1, arrays[1])  # noqa: E731
        go_on = lambda: cto.nccl_all_reduce(arrays, group=group)  # noqa: E731
        with pytest.raises(GroupError, match=r"gradients\[1\]: expected one between two waits"):
            (go_on if group.rank else again)()

    results(in_threads(2, given))


def test_gradients_of_other_parameters_are_refused_on_all_ranks() -> None:
    """The group goes on."""

    def given(group):
        arrays = [np.ones(3), np.ones(3)]
        buckets = cto.GradientBuckets(arrays, group)
        buckets.ready(group.rank, arrays[0])
        words = "the ranks disagree: rank 0 calls GradientBuckets with gradients of parameters 0 on"
        with pytest.raises(ArgumentError, match=words):
            buckets.wait()
        arrays[1][:] = group.rank
        buckets.ready(1, arrays[1])
        buckets.wait()
        assert (arrays[1] == 0.5).all()

    results(in_threads(2, given))
