# SPDX-License-Identifier: MIT
"""Faults that no other test would notice: each test failed once with a fault planted for it."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from foreign import Foreign
from probe.frame_probe import (
    Probe,
    ProbeCopy,
    ProbeDecay,
    ProbeEither,
    ProbeRead,
    ProbeRows,
)
from probe.list_probe import (
    ProbeDescend,
    ProbeSpread,
)
from probe.probe import ProbeHalves, ProbeSum

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, DtypeError, ProviderError
from cupy_training_ops.call import run
from cupy_training_ops.dtypes import FLOAT16, FLOAT32
from cupy_training_ops.plan import Config, Launch, Plan, Pointers, Scratch, Work
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.hollow import hollow, hollow_launches

X = np.arange(1, 301, dtype=np.float32)


def test_a_workspace_is_checked_at_each_call(anywhere) -> None:
    """Also where the arrays are those of the call before, and in bound calls."""
    x, g, small = (anywhere.place(a) for a in (X, X, np.zeros(3, np.float32)))
    op = ProbeDescend()
    op([x], [g])
    for call in (
        lambda: op([x], [g], workspace=small),
        op.bound([x], [g], workspace=small),
        lambda: op.bound([x], ..., workspace=small)(Gs=[g]),
    ):
        with pytest.raises(ArgumentError, match="ProbeDescend: workspace: expected a uint8 array"):
            call()


def test_an_array_that_takes_another_shape_is_looked_at_anew(run) -> None:
    if run.on_gpu:
        pytest.skip("a guard of NumPy's arrays")
    op, x, g = ProbeDescend(), run.place(X.copy()), run.place(X.copy())
    op([x], [g])
    x.resize((3, 100), refcheck=False)  # in place, as `x.shape =` did before NumPy 2.5
    assert op([x], [g])[0].shape == (3, 100)
    assert len(op._remembered) == 2


def test_an_open_input_may_be_foreign(anywhere) -> None:
    bound = ProbeCopy().bound(...)
    assert_matches(anywhere.host(bound(X=Foreign(anywhere.place(X)))), X)


def test_a_bound_number_stays_a_number(anywhere) -> None:
    bound = ProbeEither().bound(anywhere.place(X), 0.5, 1, (0, 0))
    for array in (anywhere.place(np.ones(1, np.float32)), None, Foreign(np.ones(1, np.float32))):
        with pytest.raises(ArgumentError, match="ProbeEither: rate: expected a number, as was"):
            bound(rate=array)


def test_a_bound_call_makes_what_is_asked_for(anywhere) -> None:
    low, high, sizes = ProbeHalves().bound(anywhere.place(X), outputs=("Low",))()
    assert (low.shape, high, sizes) == ((150,), None, None)


def test_a_host_output_is_the_callers_own(anywhere) -> None:
    op, x = ProbeHalves(), anywhere.place(X)
    op(x)[2][0] = 7
    assert op(x)[2].tolist() == [150, 150]


def test_what_is_updated_may_be_written() -> None:
    state = np.array([5, 7], np.uint64)
    state.flags.writeable = False
    with pytest.raises(ArgumentError, match="ProbeEither: state: expected an array to write to"):
        ProbeEither()(X, 0.5, 3, state)
    assert state.tolist() == [5, 7]


@pytest.mark.parametrize(
    "number",
    [
        np.array([True]),
        np.array([-5], np.int32),
        np.array([2**32 - 1], np.uint32),
        np.array([-(2**53)]),
        np.array([2**63 + 2**11], np.uint64),
    ],
    ids=lambda number: str(number.dtype),
)
def test_every_type_is_read_alike(anywhere, number) -> None:
    """As an array and as a number; whole numbers of 64 bits by their bits."""
    x = anywhere.place(X)
    for value in (anywhere.place(number), int(number[0])):
        y, z = ProbeRead()(x, value)
        assert anywhere.host(y).tolist() == [float(number[0])]
        if anywhere.name != "cpu":
            assert anywhere.host(z)[0] == number.astype(np.int64)[0]


def test_plans_lay_their_scratch_memory_behind_each_other() -> None:
    step = Launch("first", Config((1,), (1,)), (Scratch(0), 3))
    one, none = Plan((step,), 10, 20), Plan((step,))
    zeros = Scratch(4, zeros=True)
    joined = one.then(Plan((Work("copy", (Scratch(256), Scratch(0), zeros)),), 300, 8))
    assert joined.steps[0] is step
    assert joined.steps[1].args == (Scratch(512), Scratch(256), Scratch(36, zeros=True))
    assert (joined.scratch_nbytes, joined.zeros_nbytes) == (556, 40)
    behind = one.then(none)
    assert (behind.scratch_nbytes, behind.zeros_nbytes) == (10, 20)
    assert none.then(one) == Plan((step, step), 10, 20)
    assert Plan().then(Plan()) == Plan()


class Traced(Probe):
    """Work with a number that changes, scratch memory, and the addresses of several arrays."""

    inputs = ProbeDecay.inputs
    outputs = ProbeCopy.outputs

    def infer(self, x, rate, step):
        return (x,)

    def plan(self, device, x, rate, step, y):
        args = (rate, step.then(lambda t: t + 1), Scratch(256), y, Pointers((x, None, y), 4))
        return Plan((Work("trace", args),), 512)


def test_work_takes_what_launches_take() -> None:
    x = hollow((300,), np.float32)
    scratch, y = hollow((512,), np.uint8), hollow((300,), np.float32)
    with hollow_launches() as launches:
        Traced()(x, 0.5, 3, out=y, workspace=scratch)
    [(name, (rate, step, address, array, table))] = launches
    assert (name, rate, step, address) == ("trace", 0.5, 4, scratch.data.ptr + 256)
    assert array is y
    assert table["at"].tolist() == [x.data.ptr, 0, y.data.ptr, 0]


def test_no_signal_comes_between_two_results_of_numpy(monkeypatch) -> None:
    """The first one takes some milliseconds, in which the alarm comes."""
    pairs = run.CpuCall._pairs

    def alarmed(*arguments):
        result = pairs(*arguments)
        signal.setitimer(signal.ITIMER_REAL, 5e-4)
        return result

    def stop(*_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run.CpuCall, "_pairs", alarmed)
    sums, ones = ([np.full(1 << 22, x, np.float32) for _ in range(3)] for x in (0, 1))
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            cto.in_place_accumulator_list(sums, ones)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len({float(array[0]) for array in sums}) == 1


def test_a_row_is_refused_with_the_nearest_ones() -> None:
    x, wrong = np.ones(4, FLOAT16), np.ones(4, np.float64)
    with pytest.raises(DtypeError, match="ProbeRows: Z: expected dtype float32, got float64"):
        ProbeRows()(x, wrong)

    class Wider(ProbeRows):
        types = type(ProbeRows.types)("T U", "float32 float32", "float16 float64")

    with pytest.raises(DtypeError) as caught:
        Wider()(np.ones(4, FLOAT32), wrong)
    expected = "expected such as X=float32, Z=float32; X=float16, Z=float64"
    assert str(caught.value) == f"Wider: types: {expected}, got X=float32, Z=float64"
    assert len(ProbeRows.types.nearest({"T": FLOAT16, "U": FLOAT32})) == 1


def test_under_capture_nothing_is_allocated(run, monkeypatch) -> None:
    if run.on_gpu:
        pytest.skip("capture is told, not made")
    x, y = run.place(X), run.place(np.zeros_like(X))
    copy, total = ProbeCopy(), ProbeSum()
    copy(x)
    bound, opened = copy.bound(x), copy.bound(...)
    backend = next(iter(copy._remembered.values())).backend
    monkeypatch.setattr(type(backend), "capturing", lambda *_: True)
    monkeypatch.setattr(type(backend), "keeps_memory", lambda *_: False)
    for call in (lambda: copy(x), lambda: copy.bound(x), lambda: opened(X=x)):
        with pytest.raises(ProviderError, match="ProbeCopy: out: a call under graph capture needs"):
            call()
    with pytest.raises(ProviderError, match="ProbeSum: workspace: a call under graph capture"):
        total(x, out=y[:1])
    assert bound() is bound()
    assert copy(x, out=y) is y
    ProbeSpread()([x], [None], out=(None, None, (y,), (run.place(X.copy()),)))


def test_a_device_array_is_no_host_number() -> None:
    number = hollow((), np.float32)
    with (
        hollow_launches(),
        pytest.raises(ArgumentError, match="rate: expected host data: a Python"),
    ):
        ProbeDecay()(hollow((3,), np.float32), number, 1)
