# SPDX-License-Identifier: MIT
"""Steps as CUDA graphs: what a replay does is what a step does."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx import arena

DATA = Path(__file__).parent / "data"
GRAPHS = sorted(path.name for path in DATA.iterdir())


def opened(name: str, **options):
    import cupy

    with np.load(DATA / name / "answers.npz") as file:
        return cto.onnx.TrainingSession(DATA / name, cupy, seed=3, **options), dict(file)


def run_steps(session, answers, steps) -> list[bytes]:
    """Losses of steps at their rates, as bits; each second batch is the host's."""
    import cupy

    losses = []
    for i in steps:
        session.lr = answers["rates"][i]
        place = cupy.asarray if i % 2 else np.asarray
        loss = session.step(place(answers["x"][i]), place(answers["labels"][i]))
        losses.append(loss)
    return [loss.get().tobytes() for loss in losses]


def assert_same(a, b) -> None:
    assert a.keys() == b.keys()
    for name, array in a.items():
        assert array.get().tobytes() == b[name].get().tobytes(), name


@pytest.mark.gpu
@pytest.mark.parametrize("name", GRAPHS)
def test_replays_are_steps_bit_for_bit(name: str) -> None:
    plain, answers = opened(name)
    replayed, _ = opened(name, graph=True)
    assert run_steps(replayed, answers, range(10)) == run_steps(plain, answers, range(10))
    assert_same(dict(replayed.parameters), dict(plain.parameters))
    assert_same(dict(replayed.gradients), dict(plain.gradients))
    x, labels = answers["x"][0], answers["labels"][0]
    assert replayed.eval(x, labels).get().tobytes() == plain.eval(x, labels).get().tobytes()
    assert is_captured(replayed)


def is_captured(session) -> bool:
    return all(
        form.graph is not None
        for runs in (session._run_training, session._run_optimizer)
        for form in runs._forms.values()
    )


@pytest.mark.gpu
def test_parts_forms_and_streams_change_between_replays(tmp_path: Path) -> None:
    import cupy

    plain, answers = opened("cnn_max")
    replayed, _ = opened("cnn_max", graph=True)
    streams = [cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)]
    for i in range(9):
        n = (4, 3)[i % 2]
        x, labels = answers["x"][i][:n], answers["labels"][i][:n]
        with streams[i // 3 % 2]:
            losses = [session.accumulate(x, labels) for session in (plain, replayed)]
            if i % 3 == 2:
                plain.apply()
                replayed.apply()
        cupy.cuda.Device().synchronize()
        assert losses[0] == losses[1]
    assert_same(dict(replayed.parameters), dict(plain.parameters))
    replayed.save(tmp_path / "state.npz")
    again, _ = opened("cnn_max", graph=True)
    again.load(tmp_path / "state.npz")
    rest = [run_steps(session, answers, range(5)) for session in (plain, replayed, again)]
    assert rest[0] == rest[1] == rest[2]


@pytest.mark.gpu
def test_results_are_the_callers() -> None:
    session, answers = opened("mlp", graph=True)
    x, labels = answers["x"], answers["labels"]
    losses, scores = [], []
    for i in range(6):
        losses.append(session.accumulate(x[i], labels[i]))
        scores.append(session.outputs["scores"])
    copies = [array.get() for array in (*losses, *scores)]
    session.accumulate(x[7], labels[7])
    for array, before in zip((*losses, *scores), copies, strict=True):
        np.testing.assert_array_equal(array.get(), before)
    assert len({float(loss) for loss in losses}) == 6


def waits(session, batches) -> bool:
    """Whether a kernel of tenths of a second is over when the steps behind it are queued."""
    import cupy

    spin = cupy.RawKernel(
        r"""extern "C" __global__ void spin(long long n)
        { for (long long t = clock64(); clock64() - t < n;); }""",
        "spin",
    )
    before, after = cupy.cuda.Event(), cupy.cuda.Event()
    before.record()
    spin((1,), (1,), (np.int64(400_000_000),))
    after.record()
    for x, labels in batches:
        session.step(x, labels)
    actual = bool(after.done)
    after.synchronize()
    return actual


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_no_step_waits_for_the_device(name: str, graph: bool) -> None:
    """Behind a long kernel, steps are queued before it ends."""
    import cupy

    session, answers = opened(name, graph=graph)
    x, labels = (cupy.asarray(answers[key]) for key in ("x", "labels"))
    for i in range(4):
        session.step(x[i], labels[i])
    cupy.cuda.Device().synchronize()
    assert not waits(session, [(x[i], labels[i]) for i in range(4, 6)])
    session.step(x[8], labels[8]).get()
    assert waits(Asking(session), [(x[9], labels[9])])


class Asking:
    """A session whose losses are asked for, so that the test can fail."""

    def __init__(self, session) -> None:
        self._session = session

    def step(self, x, labels) -> None:
        self._session.step(x, labels).get()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cnn_max", "cnn_global", "transformer"])
def test_activations_as_codes_train_on_a_gpu(name: str) -> None:
    from cupy_training_ops.onnx import activations

    with mock.patch.object(activations, "LEAST", 0):
        coded, answers = opened(name, activations="default")
        plain, _ = opened(name)
        for i in range(3):
            x, labels = answers["x"][i], answers["labels"][i]
            losses = [session.accumulate(x, labels) for session in (coded, plain)]
            if i == 0:
                assert losses[0] == losses[1]
            pairs = [(coded.gradients[n].get(), g.get()) for n, g in plain.gradients.items()]
            error = sum(((a - b) ** 2).sum() for a, b in pairs)
            assert error < 0.03**2 * sum((b**2).sum() for _, b in pairs)
            for n, p in plain.parameters.items():
                coded.parameters[n][...] = p
            coded.apply()
            plain.apply()
            for n, p in plain.parameters.items():
                coded.parameters[n][...] = p
    assert coded.report()["names"]


@pytest.mark.gpu
def test_what_a_value_of_the_device_decides_is_refused() -> None:
    import cupy

    from cupy_training_ops.onnx.capture import Captures

    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N] x, float[N] old) => (float[M] y)
        { a = com.microsoft.InPlaceAccumulator(old, x) k = Cast <to=7> (a) y = Expand(x, k) }"""
    )
    session = cto.onnx.Session(model, cupy)
    runs = Captures(session, {})
    feeds = {"x": np.ones(1, np.float32), "old": np.zeros(1, np.float32)}
    assert runs(feeds)["y"].shape == (1,)
    with pytest.raises(cto.ProviderError, match=r"node 2.*Expand.*on the host, which"):
        runs(feeds)
    with pytest.raises(cto.ProviderError, match="on the host, which"):
        runs(feeds)
    assert session.run(feeds)["y"].shape == (1,)  # a capture that failed leaves nothing behind


def test_numpy_has_no_graphs() -> None:
    with pytest.raises(cto.ArgumentError, match="graph: expected False with NumPy"):
        cto.onnx.TrainingSession(DATA / "mlp", graph=True)


def test_blocks_of_a_plan_that_live_together_are_apart(rng) -> None:
    starts = np.sort(rng.integers(0, 200, 100))
    blocks = [
        arena.Block(int(n), int(s), int(s + d))
        for n, s, d in zip(
            rng.integers(1, 10_000, 100), starts, rng.integers(1, 40, 100), strict=True
        )
    ]
    plan = arena.place_blocks(blocks)
    for i, a in enumerate(blocks):
        assert plan.offsets[i] % arena.ALIGNMENT == 0
        assert plan.offsets[i] + a.nbytes <= plan.nbytes
        for j, b in enumerate(blocks[:i]):
            if a.start < b.end and b.start < a.end:
                apart = plan.offsets[i] >= plan.offsets[j] + b.nbytes
                assert apart or plan.offsets[j] >= plan.offsets[i] + a.nbytes
    sizes = [-(-b.nbytes // arena.ALIGNMENT) * arena.ALIGNMENT for b in blocks]
    pairs = list(zip(blocks, sizes, strict=True))
    live = max(sum(n for b, n in pairs if b.start <= t < b.end) for t in range(250))
    assert live <= plan.nbytes <= 1.3 * live


@pytest.mark.gpu
def test_two_sessions_replay_at_the_same_time() -> None:
    """Each on a stream of its own, captured in turns: they share no scratch memory."""
    import cupy

    names = ("transformer", "cnn_max", "transformer")
    plain = [opened(name)[0] for name in names]
    replayed = [opened(name, graph=True)[0] for name in names]
    answers = [opened(name)[1] for name in names]
    batches = [[cupy.asarray(a[key]) for key in ("x", "labels")] for a in answers]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in names]
    cupy.cuda.Device().synchronize()
    for i in range(10):
        for session, stream, (x, labels) in zip(replayed, streams, batches, strict=True):
            with stream:
                session.step(x[i], labels[i])
    cupy.cuda.Device().synchronize()
    for i in range(10):
        for session, (x, labels) in zip(plain, batches, strict=True):
            session.step(x[i], labels[i])
    for one, other in zip(replayed, plain, strict=True):
        assert_same(dict(one.parameters), dict(other.parameters))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_what_follows_from_extents_is_on_the_device_before_a_capture(mode: str, rng) -> None:
    import cupy

    from cupy_training_ops.onnx.capture import Captures

    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, N, M] x) => (float[1, 2, P, Q] y) <float[4] scales = {{1, 1, 1.5, 2}}>
        {{ s = Shape(x) f = Cast<to=1>(s) r = Resize<mode="{mode}">(x, , scales)
        k = ReduceMax(f) y = Mul(r, k) }}"""
    )
    session, plain = cto.onnx.Session(model, cupy), cto.onnx.Session(model)
    runs = Captures(session, {})
    for i in range(12):  # forms take turns, and each has its own values of shapes
        x = rng.standard_normal((1, 2, 4 + i % 3, 6)).astype(np.float32)
        cupy.zeros(64)  # takes memory that would be free
        actual = runs({"x": x})["y"].get()
        np.testing.assert_allclose(actual, plain.run({"x": x})["y"], rtol=1e-5, atol=1e-5)
    assert all(form.graph is not None for form in runs._forms.values())


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
def test_labels_from_the_host_are_looked_at_and_those_that_are_there_are_not(graph: bool) -> None:
    import cupy

    session, answers = opened("mlp", graph=graph)
    x, labels = answers["x"], answers["labels"]
    wrong = labels[0].copy()
    wrong[1] = 4
    for i in range(4):  # before the first step, and where steps are replayed
        with pytest.raises(cto.ArgumentError, match="labels from 0 to 3, got 4"):
            session.step(x[i], wrong)
        assert session.step_count == i
        assert np.isfinite(float(session.step(x[i], labels[i])))
    assert np.isnan(float(session.accumulate(x[0], cupy.asarray(wrong))))


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["parts", "shifted", "turned"])
def test_batches_with_gaps_are_replayed_too(way: str) -> None:
    """A plain step copies them, which takes memory."""
    import cupy

    def placed(array):
        array = cupy.asarray(array)
        if way == "parts":
            return cupy.concatenate([array, array], -1)[..., : array.shape[-1]]
        if way == "turned":
            return cupy.asfortranarray(array)
        whole = cupy.empty(array.size + 1, array.dtype)
        whole[1:] = array.ravel()
        return whole[1:].reshape(array.shape)

    plain, answers = opened("gpt")
    replayed, _ = opened("gpt", graph=True)
    for i in range(5):
        x, labels = placed(answers["x"][i]), placed(answers["labels"][i])
        assert replayed.step(x, labels) == plain.step(x, labels)
    assert is_captured(replayed)


def captured(text: str):
    """Runs of a small graph."""
    import cupy

    from cupy_training_ops.onnx.capture import Captures

    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    return Captures(cto.onnx.Session(model, cupy), {})


@pytest.mark.gpu
def test_shapes_among_the_results_are_the_callers() -> None:
    import cupy

    runs = captured("g (float[N, 4] x) => (int64[2] k, float[N, 4] y) { k = Shape(x) y = Neg(x) }")
    for i in range(5):
        actual = runs({"x": cupy.full((2, 4), i, np.float32)})
        assert actual["k"].tolist() == [2, 4]
        assert actual["y"][0, 0] == -i
        actual["k"][...] = 0
    assert all(form.graph is not None for form in runs._forms.values())


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
def test_arrays_of_other_libraries_are_fed(graph: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    session, answers = opened("mlp", graph=graph)
    plain, _ = opened("mlp")
    for i in range(4):
        x, labels = answers["x"][i], answers["labels"][i]
        batches = (torch.tensor(a, device="cuda" if i % 2 else "cpu") for a in (x, labels))
        assert session.step(*batches) == plain.step(x, labels)


@pytest.mark.gpu
def test_shapes_alone_are_an_empty_graph() -> None:
    import cupy

    runs = captured("g (float[N, 4] x) => (int64[2] k) { k = Shape(x) }")
    for i in range(4):
        assert runs({"x": cupy.full((2, 4), i, np.float32)})["k"].tolist() == [2, 4]


@pytest.mark.gpu
def test_views_alone_are_the_callers() -> None:
    import cupy

    runs = captured("g (float[N, 4] x) => (float[N, 4] y) { y = Identity(x) }")
    for i in range(4):
        x = cupy.full((2, 4), i, np.float32)
        y = runs({"x": x})["y"]
        x[...] = -1
        assert (y.get() == i).all()


@pytest.mark.gpu
def test_loops_of_many_runs_are_captured(rng) -> None:
    """CuPy's own stack of more than eight arrays copies their addresses from the host."""
    runs = captured(
        """g (float[2] x) => (float[2] r, float[100, 2] y) {
        k = Constant <value_int = 100> () on = Constant <value = bool {1}> ()
        r, y = Loop(k, on, x) <body = t (int64 i, bool go, float[2] s) =>
        (bool stays, float[2] a, float[2] b)
        { stays = Identity(go) f = Cast <to = 1> (i) a = Add(s, f) b = Sub(s, f) }> }"""
    )
    before = np.concatenate([[0], np.cumsum(np.arange(99))])
    for _ in range(5):
        x = rng.integers(-9, 9, 2).astype(np.float32)
        actual = runs({"x": x})
        np.testing.assert_array_equal(actual["r"].get(), x + 4950)
        np.testing.assert_array_equal(actual["y"].get(), x + (before - np.arange(100))[:, None])
    assert all(form.graph is not None for form in runs._forms.values())
