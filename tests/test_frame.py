# SPDX-License-Identifier: MIT
"""What every operator gets from the frame, shown on operators made for it, on every provider."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from probe.probe import EXTENTS, MAX_INPUTS, ProbeAxpy, ProbeCut, ProbeHalves, ProbeJoin, ProbeSum
from ranks import gathered, results

from cupy_training_ops import ArgumentError, CompileError, DtypeError
from cupy_training_ops.call.backends import numpy_runs_on
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.facts import TensorStarts
from cupy_training_ops.plan import Device, by_value
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.idle import IdleBackend


def normal(rng: np.random.Generator, *shape: int, dtype=np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def test_scratch_memory_is_reused_and_left_clean(anywhere, rng) -> None:
    op = ProbeSum()
    for n in (70_000, 300, 70_000):
        x = rng.integers(-8, 8, n).astype(np.float32)  # sums of them are exact in any order
        assert anywhere.host(op(anywhere.place(x)))[0] == x.sum()


def test_callers_workspace_is_used(anywhere, rng) -> None:
    op = ProbeSum()
    x = anywhere.place(rng.integers(-8, 8, 1000).astype(np.float32))
    scratch = anywhere.xp.zeros(op.workspace_nbytes(x) + 64, np.uint8)
    assert anywhere.host(op(x, workspace=scratch))[0] == anywhere.host(x).sum()
    assert bool(anywhere.host(scratch).any()) == (anywhere.name != "cpu")


def test_a_workspace_that_is_too_small_is_refused(run, rng) -> None:
    x = run.place(normal(rng, 1000))
    with pytest.raises(ArgumentError, match="ProbeSum: workspace: expected a uint8 array of at"):
        ProbeSum()(x, workspace=run.xp.zeros(8, np.uint8))


def test_an_aliased_output_is_the_inputs_array(anywhere, rng) -> None:
    x, y = normal(rng, 999), normal(rng, 999)
    expected = (0.5 * x + y).astype(np.float32)
    target = anywhere.place(y.copy())
    result = ProbeAxpy(a=0.5)(anywhere.place(x), target)
    assert result is target
    assert_matches(anywhere.host(target), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_an_aliased_output_may_be_given(anywhere, rng, dtype) -> None:
    x, y = normal(rng, 77, dtype=dtype), normal(rng, 77, dtype=dtype)
    target = anywhere.place(y.copy(), 1)
    assert ProbeAxpy()(anywhere.place(x), target, out=target) is target
    wide = 2 * x.astype(np.float32) + y.astype(np.float32)
    assert_matches(anywhere.host(target), wide.astype(dtype))


def test_several_outputs_and_a_host_output(anywhere, rng) -> None:
    x = normal(rng, 601)
    low, high, sizes = ProbeHalves()(anywhere.place(x))
    assert_matches(anywhere.host(low), x[:300])
    assert_matches(anywhere.host(high), x[300:])
    assert isinstance(sizes, np.ndarray)
    assert sizes.tolist() == [300, 301]


def test_an_output_that_is_not_asked_for_is_none(anywhere, rng) -> None:
    x = normal(rng, 600)
    low, high, sizes = ProbeHalves()(anywhere.place(x), outputs=("High",))
    assert low is None
    assert sizes is None
    assert_matches(anywhere.host(high), x[300:])


def test_out_may_be_given_in_part(anywhere, rng) -> None:
    x = normal(rng, 600)
    target = anywhere.place(normal(rng, 300))
    low, high, sizes = ProbeHalves()(anywhere.place(x), out=(None, target, None))
    assert high is target
    assert_matches(anywhere.host(low), x[:300])
    assert_matches(anywhere.host(target), x[300:])
    assert sizes.tolist() == [300, 300]


def test_overlap_is_refused_and_sharing_as_declared_is_not(anywhere, rng) -> None:
    x = anywhere.place(normal(rng, 600))
    spare = anywhere.place(normal(rng, 300))
    with pytest.raises(ArgumentError, match=r"out \(Low\): .* shared with X"):
        ProbeHalves()(x, out=(x[:300], None, None))
    with pytest.raises(ArgumentError, match=r"out \(High\): .* shared with out \(Low\)"):
        ProbeHalves()(x, out=(spare, spare, None))
    _, high, _ = ProbeHalves()(x, spare, out=(None, spare, None))
    assert_matches(anywhere.host(high), anywhere.host(x)[300:])


def test_a_list_of_arrays_and_a_shape_from_the_host(anywhere, rng) -> None:
    xs = [normal(rng, 3, 4), normal(rng, 0), normal(rng, 500)]
    expected = np.concatenate([x.ravel() for x in xs]).reshape(4, 128)
    op = ProbeJoin()
    for shape in ((4, 128), [4, 128], np.array([4, 128])):
        assert_matches(anywhere.host(op(shape, [anywhere.place(x) for x in xs])), expected)


IDLE = IdleBackend(Device(4, (9, 0)))
SIZES = np.zeros(MAX_INPUTS, int)
STRUCTS = {
    r"Extents: fields differ from those declared: count": (EXTENTS, {"at": SIZES}),
    r"Extents: field at is int64\[4\], the plan gives int64": (EXTENTS, {"at": 0, "count": 1}),
    r"probe_join: parameter extents \(Extents\): the plan gives TensorStarts<4>": (
        TensorStarts.of(4),
        {"at": SIZES},
    ),
}


@pytest.mark.parametrize("complaint", STRUCTS)
def test_a_struct_that_is_not_the_kernels_is_never_launched(monkeypatch, rng, complaint) -> None:
    struct, fields = STRUCTS[complaint]
    monkeypatch.setattr(ProbeJoin, "extents", lambda *_: by_value(struct, **fields))
    with numpy_runs_on(IDLE), launch_log() as log, pytest.raises(CompileError, match=complaint):
        ProbeJoin()((6,), [normal(rng, 6)])
    assert not log


def test_views_share_memory_on_every_provider(anywhere, rng) -> None:
    x = anywhere.place(normal(rng, 10))
    first, second = ProbeCut()(x, (4, 6))
    second[...] = 7
    assert first.shape == (4,)
    assert (anywhere.host(x)[4:] == 7).all()


def test_errors_name_operator_and_argument(anywhere, rng) -> None:
    x = anywhere.place(normal(rng, 6))
    wrong = [
        (ProbeSum, (x[::2],), ArgumentError, "ProbeSum: X: expected a C-contiguous array"),
        (ProbeSum, (x.astype(np.int32),), DtypeError, "ProbeSum: X: expected dtype float32"),
        (ProbeSum, ([1.0],), ArgumentError, "ProbeSum: X: expected a NumPy or CuPy array"),
        (ProbeSum, (x, x), ArgumentError, r"ProbeSum: inputs: expected \(X\), got 2"),
        (
            ProbeAxpy,
            (x, x.astype(np.float16)),
            DtypeError,
            "Y: expected dtype float32 like X, got float16",
        ),
        (ProbeAxpy, (x, x[:3].copy()), ArgumentError, "ProbeAxpy: Y: expected shape"),
        (ProbeJoin, ((2, -3), [x]), ArgumentError, "ProbeJoin: shape: expected extents"),
        (ProbeJoin, ((2, 2.5), [x]), ArgumentError, "ProbeJoin: shape: expected an integer"),
        (ProbeJoin, ((6,), x), ArgumentError, "ProbeJoin: Xs: expected a list"),
        (ProbeJoin, ((6,), [x, None]), ArgumentError, r"ProbeJoin: Xs\[1\]: expected an array"),
        (ProbeCut, (x, (3, 3), 1), ArgumentError, r"expected \(X, sizes\), got 3"),
    ]
    with launch_log() as log:
        for op, inputs, error, message in wrong:
            with pytest.raises(error, match=message):
                op()(*inputs)
    assert not log


def test_attributes_are_frozen() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        ProbeAxpy().a = 3.0


def test_threads_share_an_operator(anywhere, rng) -> None:
    op = ProbeAxpy()
    xs = [rng.integers(-8, 8, 4000 + i).astype(np.float32) for i in range(8)]
    targets = [anywhere.place(np.ones_like(x)) for x in xs]
    placed = [anywhere.place(x) for x in xs]
    pairs = zip(placed, targets, strict=True)
    results(gathered([functools.partial(op, *pair) for pair in pairs], 60))
    if anywhere.on_gpu:
        anywhere.xp.cuda.Device().synchronize()
    for x, target in zip(xs, targets, strict=True):
        assert_matches(anywhere.host(target), 2 * x + 1)
