# SPDX-License-Identifier: MIT
"""AdamW over ranks beside AdamW by the means of all gradients: bits, norms, skips."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from optimizers.sharded_training import SHAPES, RankTraining, by_means
from process_group.board import emulated_ranks
from ranks import in_threads, results
from training import assert_same

import cupy_training_ops as cto
from cupy_training_ops.device.streams import Streams
from cupy_training_ops.dtypes import BFLOAT16
from cupy_training_ops.families.collective.queue import CallsAtAddresses
from cupy_training_ops.optimizers import parts, sharded

TYPES = {  # of parameters, gradients, copies and moments
    "float32": (np.float32, np.float32, np.float16, "bfloat16"),
    "float64": (np.float64, np.float64, None, None),
    "float16": (np.float16, np.float16, None, None),
    "bfloat16": (BFLOAT16, BFLOAT16, None, None),
    "float32 bfloat16": (np.float32, BFLOAT16, BFLOAT16, None),
}


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_bits_are_those_of_a_step_by_the_means(n, types, seed) -> None:
    expected = by_means(n, seed, TYPES[types]).results()

    def trained(group):
        training = RankTraining(group, seed, TYPES[types])
        training.steps(4)
        return training.results()

    for actual in results(in_threads(n, trained)):
        assert_same(actual, expected)


@pytest.mark.parametrize("types", ["float32", "float32 bfloat16"])
def test_kernels_and_nccl_have_the_same_bits(types, monkeypatch, seed) -> None:
    """Emulated; what stands for NCCL adds in float64, as the host does."""
    with emulated_ranks(monkeypatch, seed) as run:
        expected = by_means(2, seed, TYPES[types], run).results()

        def trained(group):
            training = RankTraining(group, seed, TYPES[types], run)
            training.steps(2)
            training.steps(2, without=(1, 3))
            return training.results()

        actual = results(in_threads(2, trained))
        expected = by_means(2, seed, TYPES[types], run, without=(1, 3)).results()
    for own in actual:
        assert_same(own, expected)


@pytest.mark.parametrize("types", ["float32", "bfloat16"])
@pytest.mark.parametrize("n", [2, 3])
def test_bits_are_the_same_however_many_turns_the_parameters_take(
    n, types, monkeypatch, seed
) -> None:
    """Some turns have nothing of some ranks, or no copies; the step counts once."""
    monkeypatch.setattr(parts, "MIN_TURN", 1)
    expected = by_means(n, seed, TYPES[types], without=(1, 3)).results()

    def trained(group):
        training = RankTraining(group, seed, TYPES[types])
        training.steps(2)
        training.steps(2, without=(1, 3))
        return training.results(), len(training.optimizer._operators(range(len(SHAPES)))[1])

    for actual, turns in results(in_threads(n, trained)):
        assert turns == 3
        assert_same(actual, expected)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1, 1], [(0, 1)]),
        ([60, 60, 60], [(0, 1), (2,)]),
        ([500, 0, 500], [(0,), (1, 2)]),
        ([900] * 16, [(i, i + 1) for i in range(0, 16, 2)]),
        ([0, 0], [(0, 1)]),
    ],
)
def test_turns_are_few_and_not_small(sizes, expected, monkeypatch) -> None:
    monkeypatch.setattr(parts, "MIN_TURN", 100)
    monkeypatch.setattr(parts, "MAX_TURNS", 8)
    assert parts.in_turns(range(len(sizes)), sizes) == expected


class Noted:
    """A communicator that notes what is queued: method, addresses, and what follows."""

    device = 0
    current_stream = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.log: list[list[tuple]] = []

    def queue(self, prepared) -> None:
        self.log.append([(name, *given[:2], given[2:]) for name, given in prepared.calls])

    def end(self, is_well: bool) -> None:
        pass


def test_on_a_gpu_arrays_are_reduced_and_gathered_where_they_lie(monkeypatch) -> None:
    """CuPy's own arrays, whose memory is not there: the second of two ranks."""
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.process_group import nccl
    from cupy_training_ops.testing.hollow import HollowBackend, hollow, hollow_launches

    made, names = Noted(), []
    work = lambda _, name: lambda f, *args: f(*args) if name == "call" else None  # noqa: E731
    monkeypatch.setattr(HollowBackend, "work", work)
    monkeypatch.setattr(nccl, "connect", lambda *_: made)
    monkeypatch.setattr(CallsAtAddresses, "queue", lambda prepared, to, _: to.queue(prepared))
    monkeypatch.setattr(cto.ProcessGroup, "exchange", lambda *_: ())
    with hollow_launches() as launches:
        _, group = cto.ProcessGroup.in_threads(2)
        shapes = ((33, 21), (5,), (256,))  # 693: two blocks a rank, and a tail of rank 0; rank 1's
        parameters = [hollow(shape, np.float32) for shape in shapes]
        copies = [hollow((33, 21), np.float16), None, None]
        optimizer = cto.AdamW(parameters, group=group, low_precision=copies)
        for _ in range(2):
            launches.clear()
            made.log.clear()
            gradients = [hollow(shape, np.float32) for shape in shapes]
            optimizer.step(gradients, max_norm=1.0)
            names.append([name for name, _ in launches if "__" in name])
            check_queued(made.log, *([a.data.ptr for a in arrays if a is not None] for arrays in (
                gradients, parameters, copies)))  # fmt: skip
    assert names == [["optimizer__norm", "optimizer__norm", "adam__list", "adam__count"]] * 2


def test_parameters_travel_while_the_next_are_updated(monkeypatch) -> None:
    """Beside the caller's stream, which waits for all of it at last."""
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.process_group import nccl
    from cupy_training_ops.testing.hollow import HollowBackend, hollow, hollow_launches

    class Side(Streams):
        def fork(self) -> None:
            launches.append(("fork", ()))

        def join(self, stream, mark) -> None:
            launches.append(("join", ()))

    class Logged(Noted):
        def queue(self, prepared) -> None:
            launches.append((" ".join(method for method, *_ in prepared.calls), ()))

    def work(_, name):
        return lambda f, *args: f(*args) if name == "call" else None

    monkeypatch.setattr(parts, "MIN_TURN", 1)
    monkeypatch.setattr(sharded, "Cuda", lambda *_, **__: Side())
    monkeypatch.setattr(HollowBackend, "work", work)
    monkeypatch.setattr(nccl, "connect", lambda *_: Logged())
    monkeypatch.setattr(CallsAtAddresses, "queue", lambda prepared, to, _: to.queue(prepared))
    monkeypatch.setattr(cto.ProcessGroup, "exchange", lambda *_: ())
    with hollow_launches() as launches:
        _, group = cto.ProcessGroup.in_threads(2)
        shapes = ((256,), (256,), (1,))  # the last is rank 0's
        optimizer = cto.AdamW([hollow(shape, np.float32) for shape in shapes], group=group)
        gradients = [hollow(shape, np.float32) for shape in shapes]
        for _ in range(2):
            launches.clear()
            optimizer.step(gradients)
    names = [name for name, _ in launches if name not in ("call", "optimizer__norm")]
    assert names == [
        *["reduceScatter reduceScatter reduce", "allGather"],
        *["adam__list", "fork", "allGather"] * 2,
        *["adam__list", "adam__count", "fork", "broadcast", "join"],
    ]


def check_queued(log: list, g: list[int], p: list[int], c: list[int]) -> None:
    """Means, norms of both ranks, parameters and copies; types and sums by NCCL's numbers."""
    float32, uint8, mean = 7, 1, 4
    means, norms, gathered = log
    assert means == [
        ("reduceScatter", g[0], g[0] + 4 * 256, (256, float32, mean)),
        ("reduce", g[0] + 4 * 512, g[0] + 4 * 512, (181, float32, mean, 0)),
        ("reduce", g[1], g[1], (5, float32, mean, 1)),
        ("reduceScatter", g[2], g[2] + 4 * 128, (128, float32, mean)),
    ]
    ((method, source, target, rest),) = norms
    assert (method, source - target, rest) == ("allGather", 4, (4, uint8))
    assert gathered == [
        ("allGather", p[0] + 4 * 256, p[0], (4 * 256, uint8)),
        ("broadcast", p[0] + 4 * 512, p[0] + 4 * 512, (4 * 181, uint8, 0)),
        ("broadcast", p[1], p[1], (4 * 5, uint8, 1)),
        ("allGather", p[2] + 4 * 128, p[2], (4 * 128, uint8)),
        ("allGather", c[0] + 2 * 256, c[0], (2 * 256, uint8)),
        ("broadcast", c[0] + 2 * 512, c[0] + 2 * 512, (2 * 181, uint8, 0)),
    ]


def test_clipped_steps_are_within_a_millionth(seed) -> None:
    expected = by_means(3, seed, max_norm=1.5, loss_scale=8.0)

    def trained(group):
        training = RankTraining(group, seed)
        training.steps(4, max_norm=1.5, loss_scale=8.0)
        return training

    for training in results(in_threads(3, trained)):
        norms = training.optimizer.gradient_norm, expected.optimizer.gradient_norm
        assert float(norms[0]) > 8 * 1.5  # clipped
        np.testing.assert_allclose(*norms, rtol=1e-6)
        for own, wanted in zip(training.parameters, expected.parameters, strict=True):
            np.testing.assert_allclose(own, wanted, rtol=1e-6, atol=1e-6)


def test_fewer_parameters_than_ranks(seed) -> None:
    """Of two ranks one has an element, and the others none."""
    shapes = ((3,), ())
    expected = by_means(4, seed, shapes=shapes).results()

    def trained(group):
        training = RankTraining(group, seed, shapes=shapes)
        training.steps(4)
        held = sum(
            len(actual) for actual in training.optimizer.state_dict(True)["moment_1"].values()
        )
        return training.results(), held

    actual = results(in_threads(4, trained))
    assert sorted(held for _, held in actual) == [0, 0, 1, 3]
    for own, _ in actual:
        assert_same(own, expected)


def test_parameters_without_gradients_stay(seed) -> None:
    def trained(group):
        training = RankTraining(group, seed)
        training.steps(2)
        before = training.results()
        training.optimizer.step([None] * len(SHAPES))
        assert_same(training.results(), before)
        training.steps(2, without=(0, 4, 5))
        return training.results()

    expected = by_means(2, seed, without=(0, 4, 5)).results()
    for actual in results(in_threads(2, trained)):
        assert_same(actual, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_rank_without_a_finite_gradient_skips_the_step_of_all(bad, seed) -> None:
    def trained(group):
        training = RankTraining(group, seed)
        training.steps(1)
        before = training.results()
        gradients = training.gradients(1)
        if group.rank == 1:
            gradients[3][-1] = bad
        training.optimizer.step(gradients)
        assert not training.optimizer.is_finite
        assert not np.isfinite(training.optimizer.gradient_norm)
        assert_same(training.results(), before)
        training.steps(1)
        assert training.optimizer.is_finite

    results(in_threads(3, trained))


def test_moments_are_divided_evenly(seed) -> None:
    """Of the smallest share to the largest there are less than a block for each rank."""
    shapes = ((1000, 7), (1000,), (768,), (5,), (0, 3), (129,), (64,))

    def held(group):
        training = RankTraining(group, seed, shapes=shapes)
        inner = training.optimizer._inner
        return [sum(m.nbytes for m in inner._moments[name]) for name in inner.moments]

    total = 4 * sum(int(np.prod(shape)) for shape in shapes)
    for n in (2, 3, 4):
        actual = results(in_threads(n, held))
        for moment in zip(*actual, strict=True):
            assert sum(moment) == total + 4 * n  # an element of padding each
            assert max(moment) <= total / n + 4 * n * 128


def test_tensors_are_updated_where_they_are(seed) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    expected = by_means(2, seed).results()

    def trained(group):
        training = RankTraining(group, seed)
        tensors = [torch.from_numpy(p).requires_grad_() for p in training.parameters]
        copies = [c if c is None else torch.from_numpy(c) for c in training.copies]
        training.optimizer = cto.AdamW(tensors, 0.1, low_precision=copies, group=group)
        for i in range(4):
            training.optimizer.step([torch.from_numpy(g) for g in training.gradients(i)])
            if i == 1:
                tensors[0].data = tensors[0].data.clone()  # other memory
                training.parameters[0] = tensors[0].detach().numpy()
        return training.results()

    for actual in results(in_threads(2, trained)):
        assert_same(actual, expected)


def test_a_copy_goes_on_by_itself(seed) -> None:
    def trained(group):
        training = RankTraining(group, seed)
        training.steps(2)
        other = copy.deepcopy(training.optimizer)
        before = training.results()
        other.step(training.gradients(2))
        assert_same(training.results(), before)
        training.optimizer.step(training.gradients(2))
        assert_same([np.asarray(p) for p in other.parameters], training.parameters)

    results(in_threads(2, trained))
