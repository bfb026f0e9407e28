# SPDX-License-Identifier: MIT
"""Gradients that become means in buckets: bits, order, streams, steps that are stopped."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from optimizers.sharded_training import FLOAT32, SHAPES, RankTraining, by_means
from process_group.board import emulated_ranks
from ranks import in_threads, results
from training import assert_same

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, GroupError
from cupy_training_ops.dtypes import BFLOAT16

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
            found = training.gradients(i)
            for place in orders(group.rank, seed + i):
                buckets.ready(int(place), found[place])
            waited = buckets.wait()
            assert all(a is b for a, b in zip(waited, found, strict=True))
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
            found = results(in_threads(2, lambda group: trained(group, run)))
    else:
        expected = by_means(2, seed, without=(3,)).results()
        found = results(in_threads(2, trained))
    for own in found:
        assert_same(own, expected)


def test_a_bucket_may_have_several_types(seed) -> None:
    def given(group):
        values = np.random.default_rng((seed, group.rank)).standard_normal((2, 300))
        arrays = [values[0].astype(np.float16), values[1].astype(np.float32)]
        buckets = cto.GradientBuckets(arrays, group)
        for place, array in enumerate(arrays):
            buckets.ready(place, array)
        return values, buckets.wait()

    (a, found), (b, others) = results(in_threads(2, given))
    assert_same(found, others)
    for x, y, mean in zip(a, b, found, strict=True):
        wide = np.mean([z.astype(mean.dtype).astype(np.float64) for z in (x, y)], axis=0)
        assert_same([mean], [wide.astype(mean.dtype)])


def test_buckets_follow_the_order_of_rank_0s_first_step(seed) -> None:
    """Before it they are from the last to the first; what did not come is behind."""

    def given(group):
        training = RankTraining(group, seed)
        buckets = cto.GradientBuckets(training.parameters, group, megabytes=0.004)
        first = buckets._buckets
        found = training.gradients(0)
        for place in ((3, 0, 5, 2, 4), (0, 2, 3, 4, 5))[group.rank]:
            buckets.ready(place, found[place])
        assert buckets.wait()[1] is None
        return first, buckets._buckets

    for first, later in results(in_threads(2, given)):
        # 2772, 20, 0, 4000, 4 and 3072 bytes
        assert first == [[5, 4], [3, 2], [1, 0]]
        assert later == [[3], [0], [5, 2, 4, 1]]


def test_a_bucket_is_sent_once_it_and_those_before_it_are_whole(seed) -> None:
    def given(group):
        training = RankTraining(group, seed)
        buckets = cto.GradientBuckets(training.parameters, group, megabytes=0.004)
        found, sent = training.gradients(0), []
        for place in (0, 5, 1, 4, 3):
            buckets.ready(place, found[place])
            sent.append(buckets._next)
        buckets.ready(2, found[2])
        assert buckets._next == 3
        return sent

    assert results(in_threads(2, given)) == [[0, 0, 0, 1, 1]] * 2


class Side:
    """Streams of CUDA, played by a list."""

    def __init__(self, log: list) -> None:
        self.log = log

    def current(self):
        return "current"

    def fork(self):
        self.log.append("fork")

    def behind(self, stream):
        self.log.append(("behind", stream))
        return SimpleNamespace(ptr=9)

    def beside(self, function):
        self.log.append("beside")
        function()
        self.log.append("end")

    def mark(self):
        return "mark"

    def join(self, *arguments):
        self.log.append(arguments)


@pytest.fixture
def played(monkeypatch):
    """With CuPy's own arrays, whose memory is not there: what streams and NCCL are told."""
    cupy = pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.optimizers import buckets as module
    from cupy_training_ops.process_group import nccl
    from cupy_training_ops.testing.hollow import hollow_launches

    class Binding:
        def __getattr__(self, name):
            return lambda *args: log.append((name, *args))

    log: list = []
    monkeypatch.setattr(module, "Cuda", lambda *_, **__: Side(log))
    monkeypatch.setattr(cupy.cuda, "Event", lambda **_: None)
    made = nccl.Communicator(Binding(), Binding(), 0, 10.0)
    monkeypatch.setattr(nccl, "connect", lambda *_: made)
    monkeypatch.setattr(nccl.Communicator, "trouble", lambda _: "")
    group = two_ranks_of_which_one_is_here(monkeypatch)
    with hollow_launches() as launches:
        yield SimpleNamespace(group=group, log=log, launches=launches)
    group.close()


def test_on_a_gpu_they_travel_beside_the_callers_stream(played) -> None:
    from cupy_training_ops.testing.hollow import hollow

    arrays = [hollow((1000,), np.float32) for _ in range(3)]
    buckets = cto.GradientBuckets(arrays, played.group, megabytes=0.004)
    for place in (2, 1):
        buckets.ready(place, arrays[place])
        assert played.log == ["fork", "beside", "end"]
        assert [name for name, _ in played.launches] == ["call"]
        played.log.clear()
        played.launches.clear()
    buckets.ready(0, arrays[0])
    played.log.clear()
    buckets.wait()
    assert played.log == [("current", "mark")]


def means(arrays, stream: int = 9) -> list:
    """What NCCL is told of a bucket."""
    each = [("allReduce", x.data.ptr, x.data.ptr, x.size, KINDS[x.dtype.char], 4, stream)
            for x in arrays]  # fmt: skip
    return each if len(each) == 1 else [("groupStart",), *each, ("groupEnd",)]


KINDS = {"e": 6, "f": 7, "d": 8}  # ncclDataType_t


def test_a_bucket_like_one_before_goes_to_nccl_at_once(played) -> None:
    """By where its gradients are now; another type, and one that is missing, are looked at."""
    from cupy_training_ops.testing.hollow import hollow

    like = [hollow((300, 2), np.float32), hollow((7,), np.float32), hollow((0,), np.float32)]
    buckets = cto.GradientBuckets(like, played.group)

    def step(*dtypes):
        given = [t and hollow(x.shape, t) for x, t in zip(like, dtypes, strict=True)]
        played.log.clear()
        for place in (2, 1, 0):
            if given[place] is not None:
                buckets.ready(place, given[place])
        assert buckets.wait() == given
        return [given[place] for place in (2, 1, 0) if given[place] is not None]

    again = lambda given: [("behind", 0), *means([x for x in given if x.size]),  # noqa: E731
                           ("current", "mark")]  # fmt: skip
    anew = ["fork", "beside", "end", ("current", "mark")]
    for dtypes in ("fff", "eff", "ff\0", "ddd"):
        dtypes = [None if char == "\0" else char for char in dtypes]
        step(*dtypes)
        assert played.log == anew
        for _ in range(2):
            given = step(*dtypes)
            assert played.log == again(given)


def one_step(buckets, gradients) -> None:
    for place in reversed(range(len(gradients))):
        buckets.ready(place, gradients[place])
    buckets.wait()


def test_gradients_that_share_memory_are_refused_each_time(played) -> None:
    """The group goes on where nobody has heard of the step; else the others would wait."""
    from cupy_training_ops.testing.hollow import hollow

    both = hollow((2000,), np.float32)
    apart, same = [both[:1000], both[1000:]], [both[:1000], both[999:1999]]
    others = [hollow((1000,), np.float32) for _ in range(2)]
    buckets = cto.GradientBuckets(others * 2, played.group, megabytes=0.008)
    for _ in range(2):
        one_step(buckets, others + apart)
    with pytest.raises(ArgumentError, match=r"gradients\[2\]: expected memory of its own, got mem"):
        one_step(buckets, others + same)
    one_step(buckets, apart + others)
    with pytest.raises(GroupError, match=r"gradients\[0\]: expected memory of its own, got memory"):
        one_step(buckets, same + others)
    with pytest.raises(GroupError, match=r"gradients\[0\]: expected memory of its own, got memory"):
        one_step(buckets, apart + others)


@pytest.mark.parametrize("place", [0, 1])
def test_a_step_that_is_interrupted_ends_the_group_once_something_was_sent(
    place, played, monkeypatch
) -> None:
    from cupy_training_ops.testing.hollow import hollow

    arrays = [hollow((1000,), np.float32) for _ in range(2)]
    buckets = cto.GradientBuckets(arrays, played.group, megabytes=0.001)
    for _ in range(2):
        one_step(buckets, arrays)
    with monkeypatch.context() as patch:

        def behind(*_):
            if buckets._next == place:
                raise KeyboardInterrupt
            return SimpleNamespace(ptr=9)

        patch.setattr(buckets._streams, "behind", behind)
        with pytest.raises(KeyboardInterrupt):
            one_step(buckets, arrays)
    if place:
        with pytest.raises(GroupError, match="stopped in the middle of GradientBuckets: Keyboard"):
            one_step(buckets, arrays)
    else:
        one_step(buckets, arrays)


def test_gradients_elsewhere_are_refused(played) -> None:
    from cupy_training_ops.testing.hollow import hollow

    like = [hollow((3,), np.float32)]
    buckets = cto.GradientBuckets(like, played.group)
    words = "expected an array on cuda device 0, got one on the host"
    with pytest.raises(ArgumentError, match=words):
        buckets.ready(0, np.ones(3, np.float32))
    buckets.ready(0, like[0])
    buckets.wait()


def two_ranks_of_which_one_is_here(monkeypatch) -> cto.ProcessGroup:
    """Nothing is compared, and an order is the own one."""
    group, _ = cto.ProcessGroup.in_threads(2)
    monkeypatch.setattr(cto.ProcessGroup, "exchange", lambda *given: given[4])
    return group


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

    found = results(in_threads(2, trained))
    alone = models[2]
    parameters = list(alone.parameters())
    optimizer = cto.AdamW(parameters, 0.1)
    for i in range(3):
        for half in torch.from_numpy(data[:4]) + i:
            (alone(half).square().mean() / 2).backward()
        optimizer.step([p.grad for p in parameters])
        alone.zero_grad()
    for a, b, p in zip(*found, parameters, strict=True):
        assert_same([a], [b])
        np.testing.assert_allclose(a, p.detach().numpy(), rtol=1e-4, atol=1e-4)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "keywords"),
    [
        ("group: expected a ProcessGroup, got 3", {"group": 3}),
        ("megabytes: expected a number above 0, got 0", {"megabytes": 0}),
        ("megabytes: expected a number above 0, got nan", {"megabytes": float("nan")}),
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
