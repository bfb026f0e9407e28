# SPDX-License-Identifier: MIT
"""Adam's kernels over lists: every element once, in or out of place, counts where they are."""

from __future__ import annotations

import numpy as np
import pytest
from parameter_lists import SIZES, TABLES, UPSTREAM, assert_all_match, copied, parameters

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT64
from cupy_training_ops.families.adam import operators as adam
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches, poison
from cupy_training_ops.testing.idle import IdleBackend, launches
from cupy_training_ops.testing.samples import all_samples


@pytest.mark.parametrize("name", ["AdamWOptimizer", "AdamOptimizerList"])
@pytest.mark.parametrize("sizes", TABLES.values(), ids=TABLES)
def test_lists_are_updated_once(run, rng, monkeypatch, name, sizes) -> None:
    """Chunks of 64 and 32 tensors a table: applied twice upstream. In place, at odd addresses."""
    monkeypatch.setattr(adam, "CHUNK_NBYTES", 4 * 64)
    monkeypatch.setattr(adam, "CAPACITY", 32)
    op, lists = get_op(name)(), parameters(rng, sizes)
    placed = [[run.place(x, (i + k) % 3) for i, x in enumerate(xs)] for k, xs in enumerate(lists)]
    with launch_log() as log:
        op(0.1, 2, *placed)
    assert len(log) == -(-np.count_nonzero(sizes) // 32)
    expected = copied(lists)
    results = op.cpu_function()(0.1, 2, *expected, **op.attribute_values)[1:5]
    order = (1, 2, 0) if name == "AdamOptimizerList" else (0, 1, 2)
    w, m, v = (results[order.index(k)] for k in range(3))
    assert_all_match(run, (placed[0], placed[2], placed[3]), (w, m, v))


def test_outputs_of_their_own(run, rng) -> None:
    """Some in place, some not, some not asked for."""
    lists = parameters(rng, (300, 7, 64), FLOAT16)
    placed = [[run.place(x) for x in xs] for xs in lists]
    mixed = [run.place(np.zeros(n, BFLOAT16)) for n in (300, 7, 64)]
    new_w = tuple(poison(run.blank(Spec((n,), FLOAT32))) for n in (300, 7, 64))
    out = (None, None, None, new_w, None, None)
    names = ("new_moment_1", "new_weights", "new_mixed_precision_weights")
    op = get_op("AdamOptimizerList")(lambda_=0.1)
    results = op(0.1, 2, *placed, mixed, 8.0, out=out, outputs=names)
    assert results[3] == new_w
    assert (results[0], *results[2], *results[4]) == (None,) * 7
    m, v, w, _, _ = op.cpu_function()(0.1, 2, *lists, None, 8.0, **op.attribute_values)[1:]
    assert_all_match(run, (placed[0], placed[1]), (lists[0], lists[1]), 0)
    assert_all_match(run, (placed[2], placed[3], new_w), (m, v, w))
    assert_all_match(run, [mixed], [[x.astype(BFLOAT16) for x in w]])


@pytest.mark.parametrize("signal", [True, False])
@pytest.mark.parametrize("name", ["AdamOptimizer", "AdamOptimizerList"])
def test_the_step_is_counted_where_it_is(run, rng, name, signal) -> None:
    listed = name == "AdamOptimizerList"
    lists = parameters(rng, (300,))
    placed = [[run.place(x) for x in xs] for xs in lists]
    step, flag = run.place(np.array([3], INT64)), run.place(np.array(signal))
    arrays = placed if listed else [xs[0] for xs in placed]
    rate = run.place(np.array([0.1], FLOAT16))
    op = get_op(name)()
    results = op(rate, step, *arrays, None, None, None, flag)
    assert results[0] is step
    assert run.host(step).tolist() == [3 + signal]
    plain = np.array([0.1], FLOAT16)
    arguments = lists if listed else [xs[0] for xs in lists]
    wanted = op.cpu_function()(plain, 3, *arguments, update_signal=signal, **op.attribute_values)
    actual, after = (results[1:5], wanted[1:5])
    if not listed:
        actual, after = ([x] for x in actual), ([x] for x in after)
    assert_all_match(run, actual, after, None if signal else 0)


def test_an_empty_step_still_counts(run, rng) -> None:
    placed = [[run.place(x) for x in xs] for xs in parameters(rng, (0,))]
    step = run.place(np.array([3], INT64))
    with launch_log() as log:
        get_op("AdamOptimizerList")()(0.1, step, *placed, outputs=("new_T",))
    assert [launch.symbol for launch in log] == ["adam__count"]
    assert run.host(step).tolist() == [4]


@pytest.mark.parametrize("name", ["AdamOptimizer", "AdamOptimizerList", "AdamCodedList"])
def test_the_count_is_by_a_kernel_that_is_compiled_for_the_step(name) -> None:
    idle, counts = IdleBackend(Device(132, (9, 0), 227 * 1024)), 0
    for sample in all_samples()[name]:
        steps = launches(sample, idle)
        assert len({tuple(sorted(step.slots.items())) for step in steps}) <= 1, sample.id
        counts += len(steps) > 1 and steps[-1].symbol == "adam__count"
    assert counts > 0


def test_the_same_bits_in_every_order(in_every_order, rng) -> None:
    lists = parameters(rng, (3000, 17))

    def results(run):
        placed = [[run.place(x) for x in xs] for xs in lists]
        get_op("AdamWOptimizer")()(0.1, 2, *placed)
        return np.concatenate([run.host(x) for xs in placed for x in xs])

    first, *others = in_every_order(results)
    for other in others:
        assert_matches(other, first, 0)


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "size"), UPSTREAM)
def test_lists_at_upstreams_own_sizes(n, size) -> None:
    """Each step adds 1 to the first moment, whose decay is 1 - 2^-20: counted exactly below 16."""
    import cupy

    weights, m, v = ([cupy.zeros(size, FLOAT32) for _ in range(n)] for _ in range(3))
    gradients = [cupy.full(size, 2, FLOAT32)] * n
    op = get_op("AdamWOptimizer")(alpha=0.5)
    op(1, 1, weights, gradients, m, v)
    assert all(bool((x == 1).all()) for x in m)


@pytest.mark.gpu
@pytest.mark.parametrize("n", SIZES)
def test_every_element_of_a_large_tensor_is_updated_once(n) -> None:
    import cupy

    w, m, v = (cupy.zeros(n, FLOAT32) for _ in range(3))
    g = cupy.full(n, 2, FLOAT32)
    get_op("AdamOptimizer")(alpha=0.5)(1, 1, w, g, m, v, outputs=("new_moment_1",))
    assert bool((m == 1).all())
    get_op("AdamWOptimizer")(alpha=0.5)(1, 1, [w], [g], [m], [v])
    assert bool((m == 1.5).all())


@pytest.mark.large
@pytest.mark.gpu
def test_more_than_2_to_the_31_elements() -> None:
    """56 GB: three arrays in place and a gradient."""
    import cupy

    n = 2**31 + 3
    if cupy.cuda.Device().mem_info[0] < 17 * n:
        pytest.skip("56 GB needed")
    w, m, v = (cupy.zeros(n, FLOAT32) for _ in range(3))
    g = cupy.full(n, 2, FLOAT32)
    get_op("AdamWOptimizer")(alpha=0.5)(1, 1, [w], [g], [m], [v])
    assert bool((m == 1).all())
    assert float(abs(w + 1).max()) < 1e-4
