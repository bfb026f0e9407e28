# SPDX-License-Identifier: MIT
"""LAMB's kernels over lists: every element once, directions in scratch memory or in gradients."""

from __future__ import annotations

import numpy as np
import pytest
from parameter_lists import SIZES, TABLES, UPSTREAM, assert_all_match, copied, parameters
from references import computed

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, INT64
from cupy_training_ops.families.lamb import operators as lamb
from cupy_training_ops.testing.compare import assert_matches

STATE = ("new_step", "new_weights", "new_moment_1", "new_moment_2")
PLAIN = (None, None, None, 0.01, 2)


@pytest.mark.parametrize("outputs", [None, STATE], ids=["gradients", "scratch"])
@pytest.mark.parametrize("sizes", TABLES.values(), ids=TABLES)
def test_lists_are_updated_once(run, rng, monkeypatch, sizes, outputs) -> None:
    """Chunks of 64 and 32 tensors a table, and room for few directions. At odd addresses."""
    monkeypatch.setattr(lamb, "CHUNK_NBYTES", 4 * 64)
    monkeypatch.setattr(lamb, "CAPACITY", 32)
    monkeypatch.setattr(lamb, "DIRECTIONS_NBYTES", 4 * 64 * 50)
    op, lists = get_op("LambOptimizer")(lambda_=0.1), parameters(rng, sizes)
    placed = [[run.place(x, (i + k) % 3) for i, x in enumerate(xs)] for k, xs in enumerate(lists)]
    op(*PLAIN, *placed, outputs=outputs)
    w, g, m, v, _ = computed(op, *PLAIN, *copied(lists))[1:]
    assert_all_match(run, placed, (w, lists[1] if outputs else g, m, v))


def test_directions_take_no_more_scratch_memory_than_they_may(run, rng, monkeypatch) -> None:
    """64 MiB or the largest tensor's size, beside sums."""
    monkeypatch.setattr(lamb, "DIRECTIONS_NBYTES", 2**16)
    op = get_op("LambOptimizer")()

    def nbytes(sizes):
        placed = [[run.place(x) for x in xs] for xs in parameters(rng, sizes)]
        sums = op.workspace_nbytes(*PLAIN, *placed)
        return op.workspace_nbytes(*PLAIN, *placed, outputs=STATE) - sums

    if run.on_gpu or run.name.startswith("emulated"):
        assert nbytes([5000] * 10) <= 2**16
        assert 4 * 40_000 <= nbytes([5000, 40_000, 5000]) <= 4 * 40_000 + 1024


def test_sums_take_two_numbers_a_chunk_and_a_tensor(run, rng, monkeypatch) -> None:
    monkeypatch.setattr(lamb, "CHUNK_NBYTES", 4 * 64)
    monkeypatch.setattr(lamb, "CAPACITY", 32)
    placed = [[run.place(x) for x in xs] for xs in parameters(rng, (64 * 1000,))]
    nbytes = get_op("LambOptimizer")().workspace_nbytes(*PLAIN, *placed)
    padding = 3 * 256  # behind these sums, those of tensors, and the tickets
    assert 16 * 1000 <= nbytes <= 16 * 1000 + (16 + 4) * 32 + padding


def test_a_weight_that_would_not_be_finite_stays(anywhere) -> None:
    w, g = np.array([3e38, 1], FLOAT32), np.array([-1, 1], FLOAT32)
    zeros = np.zeros(2, FLOAT32)
    placed = [[anywhere.place(x.copy())] for x in (w, g, zeros, zeros)]
    get_op("LambOptimizer")()(None, None, None, 1.0, None, *placed)
    new_w, new_g = (anywhere.host(xs[0]) for xs in placed[:2])
    assert new_w[0] == w[0]
    assert new_g[0] == 0
    assert new_g[1] == new_w[1] < -1e38


def test_each_parameter_has_its_own_numbers(run, rng) -> None:
    sizes = (300, 7, 64, 4099)
    lists, own = parameters(rng, sizes, FLOAT16), {"lambda_": (0.1, 0.2, 0.1, 0.2)}
    placed = [[run.place(x) for x in xs] for xs in lists]
    op = get_op("LambOptimizer")(**own)
    with launch_log() as log:
        op(*PLAIN, *placed)
    assert [launch.symbol for launch in log] == ["lamb__direction", "lamb__update"] * 2
    results = computed(op, *PLAIN, *lists)[1:]
    assert_all_match(run, placed, results[:4])


@pytest.mark.parametrize("of_weights", [1e-30, 1, 1e25])
@pytest.mark.parametrize("of_gradients", [1e-36, 1e-25, 1e-21, 1, 1e17])
def test_norms_whose_squares_are_beyond_the_range(anywhere, of_weights, of_gradients) -> None:
    """A first direction with epsilon 1 is the gradient's; its length is that of the weights."""
    n, rate = 400, 0.25
    w, zeros = np.full(n, of_weights, FLOAT32), np.zeros(n, FLOAT32)
    g = np.full(n, of_gradients, FLOAT32)
    placed = [[anywhere.place(x.copy())] for x in (w, g, zeros, zeros)]
    op = get_op("LambOptimizer")(alpha=0.0, beta=0.0, epsilon=1.0, max_norm_clip=np.inf)
    op(None, None, None, rate, None, *placed)
    if of_weights / of_gradients > 1e38:  # nor is the ratio in the range
        assert_matches(anywhere.host(placed[0][0]), w, 0)
    else:
        change = 1 - anywhere.host(placed[0][0]) / w
        np.testing.assert_allclose(change, rate, rtol=1e-5)


@pytest.mark.parametrize("signal", [True, False])
def test_the_step_is_counted_where_it_is(run, rng, signal) -> None:
    placed = [[run.place(x) for x in xs] for xs in parameters(rng, (300,))]
    step, flag = run.place(np.array([3], INT64)), run.place(np.array([signal]))
    results = get_op("LambOptimizer")()(flag, None, None, 0.01, step, *placed)
    assert results[0] is step
    assert run.host(step).tolist() == [3 + signal]


def test_a_skipped_step_goes_through_to_new_arrays(run, rng) -> None:
    lists = parameters(rng, (300, 17))
    placed = [[run.place(x) for x in xs] for xs in lists]
    new = [tuple(run.blank(Spec((n,), FLOAT32)) for n in (300, 17)) for _ in range(4)]
    call = {"out": (None, *new, None)}
    get_op("LambOptimizer")()(False, None, None, 0.01, 3, *placed, **call)
    assert_all_match(run, new, lists, 0)


def test_the_same_bits_in_every_order(in_every_order, rng) -> None:
    lists = parameters(rng, (30_000, 17))

    def results(run):
        placed = [[run.place(x) for x in xs] for xs in lists]
        get_op("LambOptimizer")()(*PLAIN, *placed)
        return np.concatenate([run.host(x) for xs in placed for x in xs])

    first, *others = in_every_order(results)
    for other in others:
        assert_matches(other, first, 0)


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "size"), [*UPSTREAM, *((1, size) for size in SIZES)])
def test_lists_at_upstreams_own_sizes(n, size) -> None:
    import cupy

    weights, m, v = ([cupy.ones(size, FLOAT32) for _ in range(n)] for _ in range(3))
    gradients = [cupy.full(size, 3, FLOAT32)] * n
    op = get_op("LambOptimizer")(alpha=0.5)
    op(*PLAIN, weights, gradients, m, v, outputs=STATE)
    assert all(bool((x == 2).all()) for x in m)
    assert all(float(abs(w - 0.99).max()) < 1e-5 for w in weights)
