# SPDX-License-Identifier: MIT
"""Optimizer kernels over lists: every element once, at every alignment, in or out of place."""

from __future__ import annotations

import numpy as np
import pytest
from parameter_lists import SIZES, TABLES, UPSTREAM, normal

from cupy_training_ops import get_op
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT64, dtype_name
from cupy_training_ops.families.optimizer import operators as optimizer
from cupy_training_ops.plan import Device, Launch, Work
from cupy_training_ops.registry import FAMILIES
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.idle import modules
from cupy_training_ops.testing.samples import all_samples


# Sizes that fill upstream's tables of chunks and of tensors at the same time; chunks of 65,536.
def test_at_most_40_compilations() -> None:
    names = [name for family in ("optimizer", "adam", "lamb") for name in FAMILIES[family]]
    samples = [sample for name in names for sample in all_samples()[name]]
    assert len(modules(samples, Device(132, (9, 0)))) <= 40


@pytest.mark.parametrize("capacity", [32, 64])
@pytest.mark.parametrize("sizes", TABLES.values(), ids=TABLES)
def test_lists_are_updated_once(run, rng, monkeypatch, sizes, capacity) -> None:
    """Chunks of 64 and tables of upstream's sizes: applied twice there."""
    monkeypatch.setattr(optimizer, "CHUNK_NBYTES", 4 * 64)
    monkeypatch.setattr(optimizer, "STEP_NBYTES", 4 * 64)
    monkeypatch.setattr(optimizer, "TWO_LISTS", capacity)
    monkeypatch.setattr(optimizer, "ONE_LIST", capacity)
    weights, gradients = ([normal(rng, n) for n in sizes] for _ in range(2))
    placed, arguments = ([run.place(x) for x in xs] for xs in (weights, gradients))
    with launch_log() as log:
        get_op("SGDOptimizerV2")()(0.5, placed, arguments)
    assert len(log) == -(-np.count_nonzero(sizes) // capacity)
    for result, w, g in zip(placed, weights, gradients, strict=True):
        assert_matches(run.host(result), w - FLOAT32.type(0.5) * g)
    norm, finite = get_op("GradientNorm")()(arguments)
    assert_matches(run.host(norm), np.linalg.norm(np.concatenate(gradients)))
    assert run.host(finite)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=dtype_name)
@pytest.mark.parametrize("exponent", [-119, -100, -63, -33, 0, 47, 63, 80, 117])
def test_norms_whose_squares_are_beyond_the_range(anywhere, rng, exponent, dtype) -> None:
    """Of numbers that lie far apart, in several blocks, and what clipping makes of them."""
    sizes = (1, 5000, 40_000)
    numbers = [np.ldexp(rng.uniform(1, 2, n), exponent - 3 * i) for i, n in enumerate(sizes)]
    gradients = [(x * rng.choice([-1, 1], x.size)).astype(dtype) for x in numbers]
    whole = np.concatenate(gradients).astype(np.float64)
    placed, expected = [anywhere.place(g) for g in gradients], np.linalg.norm(whole)
    norm, finite = get_op("GradientNorm")()(placed)
    assert anywhere.host(finite)
    np.testing.assert_allclose(anywhere.host(norm), expected, rtol=1e-5)
    actual = get_op("ReduceAllL2")(output_type="float32")(placed)
    np.testing.assert_allclose(anywhere.host(actual), expected, rtol=1e-5)
    most = 2.0**-6
    get_op("InplaceClipGradNorm")(max_norm=most)(placed)
    clipped = whole * min(1, most / (expected + 1e-6))
    got = np.concatenate([anywhere.host(x) for x in placed]).astype(np.float64)
    np.testing.assert_allclose(got, clipped, rtol=1e-2 if dtype == BFLOAT16 else 1e-5)


def test_norms_beyond_the_range_are_infinite(anywhere) -> None:
    result, finite = get_op("GradientNorm")()([anywhere.place(np.full(9, 3e38, FLOAT32))])
    assert anywhere.host(result) == np.inf
    assert not anywhere.host(finite)


def test_lists_of_any_alignment(run, rng) -> None:
    sizes = rng.integers(0, 6000, 9)
    weights, gradients = [normal(rng, n) for n in sizes], [normal(rng, n, FLOAT16) for n in sizes]
    copies = [normal(rng, n, FLOAT16) for n in sizes]
    rows = (weights, 3), (gradients, 4), (copies, 5)
    placed = [[run.place(x, i % n) for i, x in enumerate(xs)] for xs, n in rows]
    get_op("SGDOptimizerList")()(0.5, *placed, 8.0)
    clipped = get_op("InplaceClipGradNorm")(max_norm=1)(placed[1])
    norm = np.linalg.norm(np.concatenate(gradients).astype(np.float64))
    for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
        expected = w - FLOAT32.type(0.5) * (g.astype(FLOAT32) / 8)
        assert_matches(run.host(placed[0][i]), expected)
        assert_matches(run.host(placed[2][i]), expected.astype(FLOAT16))
        assert_matches(run.host(clipped[i]), (g / (norm + 1e-6)).astype(FLOAT16))


@pytest.mark.parametrize("signal", [True, False])
def test_numbers_in_memory(run, rng, signal) -> None:
    """Learning rate, scale, norm, limit and signal; the signal comes back."""
    weights, gradients = [normal(rng, 300)], [normal(rng, 300)]
    numbers = (np.full(1, x, np.float64) for x in (0.5, 4.0, 8.0, 0.25))
    rate, *others = (run.place(x) for x in numbers)
    placed, flag = run.place(weights[0]), run.place(np.array([signal]))
    arguments = [run.place(gradients[0])]
    done, _, copies = get_op("SGDOptimizerList")()(rate, [placed], arguments, None, *others, flag)
    assert done is flag
    assert copies is None
    expected = weights[0] - FLOAT32.type(0.5) * (gradients[0] / 32) * signal
    assert_matches(run.host(placed), expected, None if signal else 0)


def test_the_signal_may_go_elsewhere(run, rng) -> None:
    flag, out = run.place(np.array([True])), run.place(np.array([False]))
    weights, gradients = [run.place(normal(rng, 5))], [run.place(normal(rng, 5))]
    with launch_log() as log:
        done, _ = get_op("SGDOptimizerV2")()(0.5, weights, gradients, flag, out=(out, None))
    assert done is out
    assert run.host(out).all()
    assert [type(step) for step in log] == [Launch, Work]


def test_nothing_is_launched_for_nothing(run) -> None:
    empties = [run.place(np.zeros((0, 3), FLOAT32)) for _ in range(32)]
    others = [run.place(np.zeros((0, 3), FLOAT32)) for _ in range(32)]
    with launch_log() as log:
        get_op("SGDOptimizerV2")()(0.5, empties, others)
        get_op("InplaceClipGradNorm")()(empties)
    assert not log


def test_ten_thousand_tensors(anywhere, rng) -> None:
    sizes = rng.integers(0, 4, 10_000)
    placed = [anywhere.place(np.ones(n, FLOAT32)) for n in sizes]
    arguments = [anywhere.place(np.ones(n, FLOAT32)) for n in range(4)]
    get_op("SGDOptimizerV2")()(0.25, placed, [arguments[n] for n in sizes])
    joined = np.concatenate([anywhere.host(x) for x in placed])
    assert_matches(joined, np.full(sizes.sum(), 0.75, FLOAT32), 0)


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "size"), UPSTREAM)
def test_lists_at_upstreams_own_sizes(n, size) -> None:
    import cupy

    weights = [cupy.full(size, i, FLOAT32) for i in range(n)]
    get_op("SGDOptimizerV2")()(1, weights, [cupy.ones(size, FLOAT32)] * n)
    assert all(bool((w == i - 1).all()) for i, w in enumerate(weights))


@pytest.mark.gpu
@pytest.mark.parametrize("n", SIZES)
def test_every_element_of_a_large_tensor_is_updated_once(n) -> None:
    import cupy

    w, g = cupy.zeros(n, FLOAT32), cupy.full(n, -1, FLOAT32)
    get_op("SGDOptimizer")()(1, w, g, outputs=("NW",))
    get_op("SGDOptimizerV2")()(1, [w], [g])
    assert bool((w == 2).all())


@pytest.mark.gpu
def test_numbers_may_change_between_replays() -> None:
    """Ten replays equal ten eager steps: a rate that falls, one gradient that is not finite."""
    import cupy

    op, norm_of = get_op("AdamOptimizerList")(), get_op("GradientNorm")()
    start = [cupy.linspace(-1, 1, 999, dtype=cupy.float32) for _ in range(3)]
    results = []
    for captured in (False, True):
        weights, moments = [x.copy() for x in start], [[x * 0 for x in start] for _ in range(2)]
        gradients = [x.copy() for x in start]
        rate, step = cupy.full(1, 0.1, FLOAT32), cupy.ones(1, INT64)
        result = norm_of(gradients)

        def call(weights=weights, moments=moments, gradients=gradients, at=(rate, step, *result)):
            norm_of(gradients, out=at[2:])
            numbers = None, None, at[2], at[3], 1.0
            op(*at[:2], weights, gradients, *moments, *numbers, outputs=STATE)

        replay = graph_of(call, (weights, moments, rate, step)) if captured else call
        for i in range(10):
            rate[:] = 0.1 / (i + 1)
            gradients[1][7] = cupy.nan if i == 4 else i
            replay()
        assert int(step[0]) == 10
        results.append(weights + moments[0] + moments[1])
    assert all(bool((a == b).all()) for a, b in zip(*results, strict=True))


STATE = ("new_T", "new_moment_1", "new_moment_2", "new_weights")


def graph_of(call, state):
    """The call as a graph; what it did before capture is undone."""
    import copy

    import cupy

    snapshot = copy.deepcopy(state)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        call()
        stream.begin_capture()
        call()
        graph = stream.end_capture()
    stream.synchronize()
    restore(state, snapshot)

    def replay():
        cupy.cuda.get_current_stream().synchronize()
        graph.launch(stream)
        stream.synchronize()

    return replay


def restore(arrays, snapshot) -> None:
    for array, before in zip(arrays, snapshot, strict=True):
        if isinstance(array, list):
            restore(array, before)
        else:
            array[...] = before


@pytest.mark.parametrize("signal", [None, True, False], ids=str)
@pytest.mark.parametrize("name", ["SGDOptimizerV2", "SGDOptimizerList", "AdamWOptimizer"])
def test_a_signal_that_is_no_array_comes_back_as_one_of_no_dimension(name, signal, anywhere):
    lists = [[anywhere.place(np.ones(3, FLOAT32))] for _ in range(4 if name[0] == "A" else 2)]
    numbers = (0.1, 1) if name[0] == "A" else (0.1,)
    flag, *_ = get_op(name)()(*numbers, *lists, update_signal=signal)
    assert isinstance(flag, np.ndarray)
    assert (flag.shape, flag.dtype, flag.item()) == ((), np.bool_, signal is not False)
