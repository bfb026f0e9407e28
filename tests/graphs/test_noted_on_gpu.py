# SPDX-License-Identifier: MIT
"""Noted steps on a GPU: what is made again is what a plain step does."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from .test_any_model_on_gpu import ALL  # noqa: E402
from .test_exported_models import exported  # noqa: E402
from .test_replays import GRAPHS, assert_same, opened, run_steps  # noqa: E402

pytestmark = pytest.mark.gpu


def made_plain(session):
    """The session, whose steps are not noted."""
    session._is_noted = False
    session._run_training, session._run_optimizer = session._runs(graph=False)
    return session


def is_noted(session) -> bool:
    runs = session._run_training, session._run_optimizer
    return all(form.noted is not None for each in runs for form in each._forms.values())


@pytest.mark.parametrize("name", GRAPHS)
def test_noted_steps_are_plain_ones_bit_for_bit(name: str) -> None:
    noted, answers = opened(name)
    plain = made_plain(opened(name)[0])
    assert run_steps(noted, answers, range(10)) == run_steps(plain, answers, range(10))
    assert is_noted(noted)
    assert_same(dict(noted.parameters), dict(plain.parameters))
    assert_same(dict(noted.gradients), dict(plain.gradients))
    assert_same(noted._training.states, plain._training.states)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_exported_models(name: str, is_dynamic: bool, seed: int) -> None:
    import cupy

    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    make, batch = ALL[name]
    x, y = batch(rng)
    x = x.astype(np.float32) if x.dtype.kind == "f" else x
    file = exported(make().float().train(), torch.tensor(x), 17, is_dynamic)
    noted, plain = (
        cto.onnx.TrainingSession.from_model(file, loss="cross_entropy", xp=cupy, clip_norm=1.0)
        for _ in range(2)
    )
    made_plain(plain)
    for i in range(12):
        x, y = batch(rng)
        n = 2 + i // 2 % 2 if is_dynamic else len(x)
        feeds = [cupy.asarray(a[:n]) for a in (x.astype("f4") if x.dtype.kind == "f" else x, y)]
        if i in (5, 9):
            noted.accumulate(*feeds)
            plain.accumulate(*feeds)
        losses = [float(session.step(*feeds)) for session in (noted, plain)]
        assert losses[0] == losses[1], i
    assert_same(dict(noted.parameters), dict(plain.parameters))


def test_forms_streams_and_parts_change_between_steps(tmp_path) -> None:
    import cupy

    noted, answers = opened("cnn_max")
    plain = made_plain(opened("cnn_max")[0])
    streams = [cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)]
    for i in range(24):
        n = (4, 3)[i % 2]
        x, labels = answers["x"][i % 10][:n], answers["labels"][i % 10][:n]
        with streams[i // 12]:
            losses = [session.accumulate(x, labels) for session in (noted, plain)]
            if i % 3 == 2:
                noted.apply()
                plain.apply()
        cupy.cuda.Device().synchronize()
        assert losses[0] == losses[1]
    assert_same(dict(noted.parameters), dict(plain.parameters))
    noted.save(tmp_path / "state.npz")
    again, _ = opened("cnn_max")
    again.load(tmp_path / "state.npz")
    rest = [run_steps(session, answers, range(6)) for session in (plain, noted, again)]
    assert rest[0] == rest[1] == rest[2]


def test_results_are_the_callers_and_calls_of_others_come_between(rng) -> None:
    """Other calls take and free memory, and use scratch memory of the same operators."""
    import cupy

    session, answers = opened("transformer")
    plain = made_plain(opened("transformer")[0])
    losses = []
    for i in range(10):
        x, labels = answers["x"][i], answers["labels"][i]
        losses.append((session.step(x, labels), plain.step(x, labels)))
        session.eval(x, labels)
        cupy.asarray(rng.standard_normal(int(rng.integers(1, 10**6)))).sum()
    for a, b in losses:
        assert a.get().tobytes() == b.get().tobytes()
    assert is_noted(session)


def test_a_second_thread_goes_on() -> None:
    """cuBLAS's handles and their scratch memory belong to the thread that noted."""
    import threading

    session, answers = opened("mlp")
    plain = made_plain(opened("mlp")[0])
    thread = threading.Thread(target=run_steps, args=(session, answers, range(5)))
    thread.start()
    thread.join()
    run_steps(plain, answers, range(5))
    assert run_steps(session, answers, range(5, 10)) == run_steps(plain, answers, range(5, 10))


def test_labels_out_of_range_are_refused_before_anything_is_made_again() -> None:
    session, answers = opened("cnn_max")
    x, labels = answers["x"][0], answers["labels"][0]
    for _ in range(5):
        session.step(x, labels)
    before = {n: a.get() for n, a in session._state_arrays().items()}
    wrong = labels.copy()
    wrong[0] = 99
    with pytest.raises(cto.ArgumentError, match="labels from 0 to"):
        session.step(x, wrong)
    for name, array in session._state_arrays().items():
        np.testing.assert_array_equal(array.get(), before[name])
