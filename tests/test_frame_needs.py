# SPDX-License-Identifier: MIT
"""What losses, optimizers and collectives ask of the frame, shown on operators made for it."""

from __future__ import annotations

import gc
import operator
import weakref

import numpy as np
import pytest
from probe import frame_probe, list_probe
from probe.frame_probe import (
    ProbeBorrow,
    ProbeCopy,
    ProbeDecay,
    ProbeDelegate,
    ProbeEither,
    ProbeFill,
    ProbeRows,
    ProbeScale12,
    ProbeScale13,
    ProbeShared,
    ProbeSupplied,
)
from probe.list_probe import (
    ProbeMixed,
    ProbeMomentum,
    ProbeSpread,
)

from cupy_training_ops import ArgumentError, DtypeError
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32
from cupy_training_ops.registry import merge_tables
from cupy_training_ops.testing.compare import assert_matches

X = np.arange(1, 301, dtype=np.float32)


def expected_either(x, rate, step, state):
    return (rate * (1 - 0.9**step) * x + sum(state)).astype(np.float32)


# ---- values that change --------------------------------------------------------------------------


def test_a_thousand_values_prepare_once(anywhere) -> None:
    op, x = ProbeDecay(), anywhere.place(X)
    ProbeDecay.prepared = 0
    for step in range(1, 1001):
        y, new_step = op(x, step / 1000, step)
        assert new_step.tolist() == [step + 1]
    assert ProbeDecay.prepared == 1
    assert len(op._remembered) == 1
    assert_matches(anywhere.host(y), X * np.float32(1 - 0.9**1000) + 1000)


def test_a_value_that_is_not_given_is_another_call(anywhere) -> None:
    op, x = ProbeDecay(), anywhere.place(X)
    assert not anywhere.host(op(x, 0.5)[0]).any()
    assert anywhere.host(op(x, 0.5, 1)[0])[0] == pytest.approx(0.05 + 1)
    assert len(op._remembered) == 2


@pytest.mark.parametrize(
    ("rate", "step", "message"),
    [
        (0.5, 2**40, "ProbeDecay: step: expected a number that int32 holds, got 1099511627776"),
        (1e39, 1, "ProbeDecay: rate: expected a number that float32 holds, got 1e+39"),
        (0.5, 1.5, "ProbeDecay: step: expected an integer, got 1.5"),
        (float("nan"), 1, "ProbeDecay: rate: expected a number, got nan"),
        ("much", 1, "ProbeDecay: rate: expected a number, got 'much'"),
        (None, 1, "ProbeDecay: rate: expected a value, got None"),
    ],
)
def test_values_that_do_not_fit_are_refused(anywhere, rate, step, message) -> None:
    op, x = ProbeDecay(), anywhere.place(X)
    op(x, 0.5, 1)
    bound = op.bound(x, 0.5, 1)
    with launch_log() as log:
        with pytest.raises(ArgumentError) as plain:
            op(x, rate, step)
        with pytest.raises(ArgumentError) as from_bound:
            bound(rate=rate, step=step)
    assert str(plain.value) == message
    if rate is not None:
        assert str(from_bound.value) == message
    assert not log


# ---- a number or an array ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.float64])
def test_an_array_and_a_number_give_the_same(anywhere, dtype) -> None:
    op, x = ProbeEither(), anywhere.place(X)
    step = anywhere.place(np.array([3]))
    state = anywhere.place(np.array([5, 7], np.uint64))
    rate = anywhere.place(np.array(0.5, dtype))
    y, same = op(x, rate, step, state)
    assert_matches(anywhere.host(y), expected_either(X, 0.5, 3, (5, 7)))
    assert same is step
    assert anywhere.host(step).tolist() == [4]
    assert anywhere.host(state).tolist() == [5, 8]
    y, new_step = op(x, 0.5, 3, (5, 7))
    assert_matches(anywhere.host(y), expected_either(X, 0.5, 3, (5, 7)))
    assert isinstance(new_step, np.ndarray)
    assert (new_step.tolist(), new_step.dtype) == (4, np.int64)


def test_neither_place_nor_type_costs_a_compilation(run) -> None:
    op, x = ProbeEither(), run.place(X)
    with launch_log() as log:
        for rate in (0.5, np.float32(0.5), run.place(np.array([0.5], np.float16))):
            op(x, rate, 3, (5, 7))
    assert len({(step.symbol, tuple(step.slots)) for step in log}) == 1


def test_an_array_of_another_size_is_refused(anywhere) -> None:
    op, x = ProbeEither(), anywhere.place(X)
    two = anywhere.place(np.ones(2, np.float32))
    with pytest.raises(ArgumentError, match=r"rate: expected a number or an array of 1 element, g"):
        op(x, two, 1, (1, 2))
    with pytest.raises(DtypeError, match="ProbeEither: step: expected dtype int64, got float32"):
        op(x, 1.0, two[:1], (1, 2))


def test_what_is_updated_is_no_other_argument(anywhere) -> None:
    state = anywhere.place(np.array([5, 7], np.uint64))
    x = state.view(np.float32)
    with pytest.raises(ArgumentError, match="ProbeEither: state: expected memory of its own"):
        ProbeEither()(x, 0.5, 3, state)
    assert anywhere.host(state).tolist() == [5, 7]


# ---- an input that the operator supplies ---------------------------------------------------------


def supplied(anywhere, y) -> float:
    """What was added to X / 10."""
    return round(float(anywhere.host(y)[0] - 0.1 * X[0]), 3)


def test_what_is_left_out_is_supplied_at_each_call(anywhere) -> None:
    op, x = ProbeSupplied(), anywhere.place(X)
    assert [supplied(anywhere, op(x)) for _ in range(3)] == [300, 301, 302]
    assert supplied(anywhere, op(x, None)) == 303
    assert supplied(anywhere, op(x, (5, 7))) == 12
    assert supplied(anywhere, op(X=x)) == 304
    state = anywhere.place(np.array([5, 7], np.uint64))
    assert supplied(anywhere, op(x, state)) == 12
    assert anywhere.host(state).tolist() == [5, 8]
    assert supplied(anywhere, op(x)) == 305


def test_a_bound_call_is_supplied_too(anywhere) -> None:
    """At each call, not when it is bound; other numbers may be given."""
    op, x = ProbeSupplied(), anywhere.place(X)
    bound, opened = op.bound(x), op.bound(...)
    assert [supplied(anywhere, bound()) for _ in range(2)] == [300, 301]
    assert supplied(anywhere, bound(state=(1, 2))) == 3
    assert [supplied(anywhere, opened(X=x)) for _ in range(2)] == [302, 303]
    assert supplied(anywhere, op(x)) == 304


def test_nothing_is_supplied_where_nothing_is_computed(anywhere) -> None:
    op, x = ProbeSupplied(), anywhere.place(X)
    op(x[:0])
    op.workspace_nbytes(x)
    with pytest.raises(ArgumentError, match="state: expected two integers"):
        op(x, (1, 2, 3))
    assert supplied(anywhere, op(x)) == 300


# ---- rows of types -------------------------------------------------------------------------------


@pytest.mark.parametrize(("t", "u"), [(FLOAT32, FLOAT32), (FLOAT16, FLOAT32), (BFLOAT16, FLOAT32)])
def test_rows_that_exist_run(anywhere, t, u) -> None:
    x, z = np.arange(40).astype(t), np.ones(40, u)
    y = ProbeRows()(anywhere.place(x), anywhere.place(z))
    assert_matches(anywhere.host(y), (x.astype(FLOAT32) + 1).astype(t))


def test_a_row_that_does_not_exist_is_refused(anywhere) -> None:
    f16 = anywhere.place(np.ones(4, FLOAT16))
    message = "ProbeRows: types: expected such as X=float16, Z=float32, got X=float16, Z=float16"
    with launch_log() as log, pytest.raises(DtypeError) as caught:
        ProbeRows()(f16, f16)
    assert not log
    assert "expected dtype float32, got float16" in str(caught.value) or message in str(
        caught.value
    )


def test_rows_are_combinations() -> None:
    assert [(str(r["T"]), str(r["U"])) for r in ProbeRows.types.rows] == [
        ("float32", "float32"),
        ("float16", "float32"),
        ("bfloat16", "float32"),
    ]
    assert ProbeRows.types.fitting({"T": FLOAT16}) == [{"T": FLOAT16, "U": FLOAT32}]


# ---- lists ---------------------------------------------------------------------------------------


def test_three_lists_beside_a_host_output(anywhere) -> None:
    xs = [X[:7].copy(), X[:0].copy(), X[:200].copy()]
    placed = [anywhere.place(x) for x in xs]
    w = anywhere.place(X[:200] * 3)
    raised, count, scaled, negated = ProbeSpread()(placed, [None, None, w])
    assert all(a is b for a, b in zip(raised, placed, strict=True))
    assert count.tolist() == [3]
    for i, x in enumerate(xs):
        assert_matches(anywhere.host(raised[i]), x + 1)
        assert_matches(anywhere.host(scaled[i]), x * (X[:200] * 3 if i == 2 else 2))
        assert_matches(anywhere.host(negated[i]), -x)


def test_lists_of_outputs_are_given_as_tuples(anywhere) -> None:
    placed = [anywhere.place(X[:n].copy()) for n in (3, 5)]
    negated = tuple(anywhere.place(np.zeros(n, np.float32)) for n in (3, 5))
    out = (None, None, (None, anywhere.place(np.zeros(5, np.float32))), negated)
    results = ProbeSpread()(placed, [None, None], out=out)
    assert results[3] == negated or all(a is b for a, b in zip(results[3], negated, strict=True))
    assert results[2][1] is out[2][1]
    assert_matches(anywhere.host(results[2][0]), 2 * X[:3])
    assert_matches(anywhere.host(negated[1]), -X[:5])
    with pytest.raises(ArgumentError, match=r"out \(Negated\): expected a tuple of 2 arrays"):
        ProbeSpread()(placed, [None, None], out=(None, None, None, negated[:1]))


def test_lists_that_do_not_fit_are_refused(anywhere) -> None:
    x = anywhere.place(X)
    for xs, ws, message in (
        ([x], [None, None], r"ProbeSpread: Ws: expected 1 arrays or None, got 2"),
        ([None], [None], r"ProbeSpread: Xs\[0\]: expected an array, got None"),
        ([x, x], [None, None], r"ProbeSpread: Xs\[1\]: expected memory of its own"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ProbeSpread()(xs, ws)
    assert_matches(anywhere.host(x), X)


def test_four_lists_of_a_thousand_arrays(anywhere, rng) -> None:
    """More than one launch knows; every element is written once."""
    sizes = rng.integers(0, 40, 1000)
    ws, gs, ms, vs = ([rng.random(n).astype(FLOAT32) for n in sizes] for _ in range(4))
    expected = list_probe.probe_momentum(ws, gs, ms, vs, 0.5)
    lists = [[anywhere.place(x.copy()) for x in xs] for xs in (ws, gs, ms, vs)]
    results = ProbeMomentum()(*lists, 0.5)
    for actual, placed, wanted in zip(results, (lists[0], *lists[2:]), expected, strict=True):
        assert all(map(operator.is_, actual, placed))
        joined = np.concatenate([anywhere.host(x) for x in actual])
        assert_matches(joined, np.concatenate(wanted))


def test_a_list_of_two_dtypes(anywhere) -> None:
    xs = [X[3:].copy(), X[5:9].astype(FLOAT16), X[7:].copy()]
    y = ProbeMixed()([anywhere.place(x) for x in xs])
    assert anywhere.host(y).tolist() == [4, 6, 8]


def test_the_same_arrays_are_known_again(run, monkeypatch) -> None:
    op = ProbeSpread()
    xs = [run.place(X[:n].copy()) for n in (3, 5)]
    op(xs, [None, None])
    refused = []
    overlap = type(next(iter(op._remembered.values())).overlap)
    monkeypatch.setattr(overlap, "refuse", lambda *_: refused.append(1))
    for _ in range(3):
        op(list(xs), [None, None])
    assert not refused
    op([*xs[:1], run.place(X[:5].copy())], [None, None])
    assert refused
    assert_matches(run.host(xs[0]), X[:3] + 5)


def test_a_call_keeps_no_array_alive(run) -> None:
    op = ProbeSpread()
    xs = [run.place(X[:n].copy()) for n in (3, 5)]
    references = [weakref.ref(x) for x in xs]
    op(xs, [None, None])
    del xs
    gc.collect()
    assert [ref() for ref in references] == [None, None]


# ---- bound calls ---------------------------------------------------------------------------------


def test_a_bound_call_takes_values_by_name(anywhere) -> None:
    x, y = anywhere.place(X), anywhere.place(np.zeros_like(X))
    step = ProbeDecay().bound(x, 0.5, 1, out=(y, None))
    for t in (1, 2, 3):
        result, new_step = step(rate=0.25, step=t)
        assert result is y
        assert new_step.tolist() == [t + 1]
        assert_matches(anywhere.host(y), X * np.float32(0.25 * (1 - 0.9**t)) + t)
    assert_matches(anywhere.host(step()[0]), X * np.float32(0.05) + 1)
    with pytest.raises(ArgumentError, match=r"ProbeDecay: scale: expected a name among"):
        step(scale=1)


def test_a_bound_call_keeps_its_arrays_and_new_outputs(anywhere) -> None:
    x = anywhere.place(X)
    reference = weakref.ref(x)
    bound = ProbeDecay().bound(x, 0.5, 1)
    del x
    gc.collect()
    assert reference() is not None
    assert bound()[0] is bound()[0]
    del bound
    gc.collect()
    assert reference() is None


def test_an_input_may_stay_open(anywhere) -> None:
    bound = ProbeSpread().bound(..., [None, None])
    for factor in (1, 2):
        xs = [anywhere.place(factor * X[:n]) for n in (3, 5)]
        raised, _, scaled, _ = bound(Xs=xs)
        assert raised[1] is xs[1]
        assert_matches(anywhere.host(scaled[1]), 2 * factor * X[:5])
        assert_matches(anywhere.host(raised[0]), factor * X[:3] + 1)
    with pytest.raises(ArgumentError, match="ProbeSpread: Xs: expected an argument, because it"):
        bound()
    with pytest.raises(ArgumentError, match=r"ProbeSpread: Xs\[1\]: expected memory of its own"):
        bound(Xs=[xs[0], xs[0]])


# ---- steps ---------------------------------------------------------------------------------------


def test_a_step_that_is_no_kernel(anywhere) -> None:
    with launch_log() as log:
        y = ProbeCopy()(anywhere.place(X))
    assert_matches(anywhere.host(y), X)
    assert [type(step).__name__ for step in log] == ([] if anywhere.name == "cpu" else ["Work"])


def test_a_kernel_of_another_family_and_plans_joined(anywhere) -> None:
    zeros, y = ProbeBorrow()(anywhere.place(X))
    assert not anywhere.host(zeros).any()
    assert_matches(anywhere.host(y), X)


def test_no_input_on_a_device(anywhere) -> None:
    op = ProbeFill(n=300, value=2.5, provider="cuda" if anywhere.on_gpu else "cpu")
    y = op()
    assert isinstance(y, anywhere.xp.ndarray)
    assert_matches(anywhere.host(y), np.full(300, 2.5, np.float32))
    argument = anywhere.place(np.zeros(300, np.float32))
    assert op(out=argument) is argument
    assert anywhere.host(argument)[-1] == 2.5


def test_a_callables_results_are_taken_as_they_are(anywhere, monkeypatch) -> None:
    x = anywhere.place(X)
    y, same = ProbeDelegate()(x, 2.0)
    assert same is x
    assert_matches(anywhere.host(y), 2 * X)
    monkeypatch.setattr(ProbeDelegate, "function", staticmethod(lambda x, _: (x[:3], x)))
    with pytest.raises(ArgumentError, match="ProbeDelegate: Y: expected float32 of shape"):
        ProbeDelegate()(x, 2.0)


@pytest.mark.parametrize("n", [12_288, 25_600])
def test_more_shared_memory_than_every_gpu_gives(anywhere, n) -> None:
    """100 KiB; or 48 KiB, which the kernel's own variables make a little more."""
    x = np.arange(n, dtype=np.float32)
    assert_matches(anywhere.host(ProbeShared()(anywhere.place(x))), x[::-1])


def test_more_shared_memory_than_there_is_is_refused(run) -> None:
    x = run.place(np.zeros(100_000, np.float32))
    with pytest.raises(ArgumentError, match="400000 bytes of shared memory a block, at most"):
        ProbeShared()(x)


# ---- versions ------------------------------------------------------------------------------------


def test_two_versions_share_a_name(anywhere) -> None:
    result = merge_tables({"probe": frame_probe.OPS})
    assert [(name, since) for _, name, since in result] == [("ProbeScale", 12), ("ProbeScale", 13)]
    x = anywhere.place(X)
    assert_matches(anywhere.host(ProbeScale12()(x)), 2 * X)
    assert_matches(anywhere.host(ProbeScale13()(x)), 3 * X)
