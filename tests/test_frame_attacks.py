# SPDX-License-Identifier: MIT
"""Calls at the edges of the frame: lists grouped anew, numbers at the ends of types, bound ones."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from foreign import Foreign
from probe.frame_probe import (
    ProbeBorrow,
    ProbeCopy,
    ProbeDecay,
    ProbeDelegate,
    ProbeEither,
    ProbeFill,
    ProbeRead,
    ProbeRows,
)
from probe.list_probe import (
    ProbeDescend,
    ProbeSpread,
)
from probe.probe import ProbeAxpy, ProbeCut, ProbeHalves, one_launch

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.call.op import LastCall
from cupy_training_ops.call.view_ops import DelegatingOp, ViewOp
from cupy_training_ops.declare.schema import Input, Output, real
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16
from cupy_training_ops.testing.compare import assert_matches

X = np.arange(1, 301, dtype=np.float32)
NO_WS = [None, None]


@pytest.fixture
def two(anywhere):
    """Two arrays where the test runs."""
    return [anywhere.place(X[:n].copy()) for n in (3, 5)]


# ---- the call before, known again ----------------------------------------------------------------


def test_the_same_arrays_in_other_lists_are_another_call(anywhere) -> None:
    op, arrays = ProbeDescend(), [anywhere.place(X[:4].copy()) for _ in range(4)]
    op(arrays[:2], arrays[2:])
    with pytest.raises(ArgumentError, match="ProbeDescend: Gs: expected 3 arrays, got 1"):
        op(arrays[:3], arrays[3:])
    assert not anywhere.host(arrays[0]).any()
    assert_matches(anywhere.host(arrays[2]), X[:4])


def test_outputs_grouped_otherwise_are_refused_at_each_call(anywhere, two) -> None:
    op = ProbeSpread()
    new = [anywhere.place(np.zeros(n, np.float32)) for n in (3, 5, 3, 5)]
    op(two, NO_WS, out=(None, None, tuple(new[:2]), tuple(new[2:])))
    for out in ((None, None, None, None, None, *new), (None, None, new[0], (new[1], *new[2:]))):
        with pytest.raises(ArgumentError, match="ProbeSpread: out"):
            op(two, NO_WS, out=out)
    assert_matches(anywhere.host(new[3]), -X[:5])


def test_what_is_no_list_is_refused_at_each_call(anywhere, two) -> None:
    op = ProbeDescend()
    gs = [anywhere.place(np.ones(n, np.float32)) for n in (3, 5)]
    op(two, gs)
    with pytest.raises(ArgumentError, match="ProbeDescend: Xs: expected a list, got generator"):
        op((x for x in two), gs)


@pytest.mark.parametrize("outputs", [np.ones(3), {"Scaled": 1}])
def test_names_that_are_none_are_refused_at_each_call(two, outputs) -> None:
    op = ProbeSpread()
    op(two, NO_WS, outputs=("Scaled",))
    with pytest.raises(ArgumentError, match="ProbeSpread: outputs: expected a tuple of names"):
        op(two, NO_WS, outputs=outputs)


def test_names_of_outputs_may_be_changed_between_calls(anywhere, two) -> None:
    op, names = ProbeSpread(), ["Scaled"]
    assert op(two, NO_WS, outputs=names)[3] == (None, None)
    names[0] = "Negated"
    results = op(two, NO_WS, outputs=names)
    assert results[2] == (None, None)
    assert_matches(anywhere.host(results[3][1]), -X[:5])


def test_a_number_is_followed_by_a_foreign_array(anywhere) -> None:
    op, x, g = ProbeDescend(), anywhere.place(X.copy()), anywhere.place(np.ones_like(X))
    op([x], [g], 0.5)
    op([x], [g], Foreign(anywhere.place(np.array([2], np.float32))))
    assert_matches(anywhere.host(x), X - 2.5)


def test_another_threads_call_comes_between(anywhere, monkeypatch) -> None:
    op = ProbeDescend()
    mine, others = ([anywhere.place(X.copy())] for _ in range(2))
    gs = [anywhere.place(np.ones_like(X))]
    op(mine, gs)
    has = LastCall.has

    def interrupted(self, *call):
        known = has(self, *call)
        with monkeypatch.context() as patch:
            patch.setattr(LastCall, "has", has)
            op(others, gs)
        return known

    monkeypatch.setattr(LastCall, "has", interrupted)
    op(mine, gs)
    monkeypatch.undo()
    assert_matches(anywhere.host(mine[0]), X - 2)


# ---- values --------------------------------------------------------------------------------------


def test_an_either_input_may_be_left_out(anywhere, two) -> None:
    op = ProbeDescend()
    gs = [anywhere.place(np.ones(n, np.float32)) for n in (3, 5)]
    scratch = anywhere.place(np.zeros(64, np.uint8))
    for rate in ((), (None,), (1,), (anywhere.place(np.ones(1, np.float32)),)):
        op(two, gs, *rate, workspace=scratch)
        op.bound(two, gs, *rate)()
        op.bound(two, ..., *rate)(Gs=gs)
    assert_matches(anywhere.host(two[1]), X[:5] - 12)


@pytest.mark.parametrize("rate", [1e20, -1e300, 2.0**63, 5e-324, -0.0])
def test_a_real_number_need_not_be_a_whole_one(anywhere, rate) -> None:
    x = anywhere.place(np.array([1e-20], np.float32))
    with np.errstate(over="ignore"):
        y, _ = ProbeEither()(x, rate, 1, (0, 0))
        expected = np.float32(rate * (1.0 - 0.9**1.0) * np.float64(np.float32(1e-20)))
    assert_matches(anywhere.host(y), expected[None])


@pytest.mark.parametrize("state", [(1,), (1, 2, 3), 7, (1, 2.5), ("a", 1)])
def test_as_many_numbers_as_declared(anywhere, state) -> None:
    with pytest.raises(ArgumentError, match="ProbeEither: state: expected "):
        ProbeEither()(anywhere.place(X), 0.5, 1, state)


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (ProbeEither, (0.5, 2**63, (0, 0)), "step: expected a number that int64 holds, got 92233"),
        (ProbeEither, (0.5, 1, (-1, 0)), "state: expected a number that uint64 holds, got -1"),
        (ProbeEither, (0.5, 1, (0, 2**64)), "state: expected a number that uint64 holds, got 184"),
        (ProbeRead, (2**64,), "value: expected a real number or an integer of 64 bits, got 18446"),
        (ProbeRead, (-(2**63) - 1,), "value: expected a real number or an integer of 64 bits, go"),
    ],
)
def test_a_number_that_no_kernel_could_take_is_refused(anywhere, op, inputs, message) -> None:
    with launch_log() as log, pytest.raises(ArgumentError, match=f"^{op.name}: {message}"):
        op()(anywhere.place(X), *inputs)
    assert not log


def test_the_ends_of_types_are_taken(anywhere) -> None:
    x = anywhere.place(X)
    with np.errstate(all="ignore"):
        for rate in (3.4028235e38, np.inf, -np.inf, 5e-324):
            ProbeDecay()(x, rate, 2**31 - 1)
        for step in (-(2**63), 2**63 - 2):
            ProbeEither()(x, 0.5, step, (2**64 - 1, 0), outputs=("new_step",))


def test_an_output_that_a_type_cannot_hold_is_refused(anywhere) -> None:
    x = anywhere.place(X)
    with pytest.raises(ArgumentError, match=r"ProbeEither: new_step: .* int64 holds, got 9223372"):
        ProbeEither()(x, 0.5, 2**63 - 1, (0, 0))


def test_a_function_of_a_value_that_overflows_is_refused(run) -> None:
    with launch_log() as log, pytest.raises(ArgumentError, match=r"ProbeDecay: step: .* -99999"):
        ProbeDecay()(run.place(X), 0.5, -99999)
    assert not log


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
def test_a_type_that_no_array_binds_does_not_count(anywhere, dtype) -> None:
    x = X.astype(dtype)
    assert_matches(anywhere.host(ProbeRows()(anywhere.place(x))), x)


# ---- outputs -------------------------------------------------------------------------------------


def test_an_array_that_is_replaced_on_request_stays_without_one(anywhere) -> None:
    step = anywhere.place(np.array([3]))
    _, none = ProbeEither()(anywhere.place(X), 0.5, step, (5, 7), outputs=("Y",))
    assert none is None
    assert anywhere.host(step).tolist() == [3]


def test_a_list_that_is_empty_has_nothing_to_compute(anywhere) -> None:
    with launch_log() as log:
        assert ProbeDescend()([], [], anywhere.place(np.ones(1, np.float32))) == ()
    assert not log


def test_outputs_are_computed_one_by_one(anywhere) -> None:
    step, x = anywhere.place(np.array([3])), anywhere.place(X)
    assert ProbeEither()(x, 0.5, step, (5, 7), outputs=("new_step",)) == (None, step)
    assert anywhere.host(step).tolist() == [4]
    zeros, none = ProbeBorrow()(x, outputs=("Zeros",))
    assert none is None
    assert not anywhere.host(zeros).any()


def test_an_output_may_be_written_elsewhere_than_in_its_input(anywhere) -> None:
    step, x = anywhere.place(np.array([3])), anywhere.place(X)
    new_step, y = anywhere.place(np.array([0])), anywhere.place(np.zeros_like(X))
    ProbeEither()(x, 0.5, step, (5, 7), out=(None, new_step))
    ProbeDescend()([x], [anywhere.place(np.ones_like(X))], out=y)
    assert (anywhere.host(step).tolist(), anywhere.host(new_step).tolist()) == ([3], [4])
    assert_matches(anywhere.host(x), X)
    assert_matches(anywhere.host(y), X - 1)


def test_an_output_that_is_no_list_is_no_tuple(anywhere) -> None:
    x, y = anywhere.place(X), anywhere.place(np.zeros_like(X))
    for nested in ((y,), (None,), ()):
        with pytest.raises(ArgumentError, match=r"ProbeCopy: out \(Y\): expected an array"):
            ProbeCopy()(x, out=(nested,))
        with pytest.raises(ArgumentError, match=r"ProbeHalves: out \(High\): expected an array"):
            ProbeHalves()(x, out=(None, nested, None))


# ---- bound calls ---------------------------------------------------------------------------------


def test_a_bound_call_writes_where_it_is_told(anywhere) -> None:
    """Also for an output that would otherwise replace an input."""
    x = [anywhere.place(X.copy())]
    raised = (anywhere.place(np.zeros_like(X)),)
    bound = ProbeSpread().bound(x, [None], out=(raised, None, None, None))
    for _ in range(2):
        assert bound()[0][0] is raised[0]
    assert_matches(anywhere.host(raised[0]), X + 1)
    assert_matches(anywhere.host(x[0]), X)


def test_an_open_call_with_some_outputs(anywhere, two) -> None:
    negated = tuple(anywhere.place(np.zeros(n, np.float32)) for n in (3, 5))
    bound = ProbeSpread().bound(..., NO_WS, out=(None, None, None, negated))
    for _ in range(2):
        assert bound(Xs=two)[3][1] is negated[1]
    assert_matches(anywhere.host(negated[0]), -(X[:3] + 1))


class Signed(ViewOp):
    """X itself; remembers which numbers it was planned for."""

    inputs = (Input("X", "float32"), Input("number", "float64", memory="host", convert=real))
    outputs = (Output("Ys", "float32", variadic=True),)

    def infer(self, x, number):
        seen.append(repr(number))
        return ((x,),)


seen: list[str] = []


def test_an_open_value_that_is_planned_for_does_not_mix(anywhere) -> None:
    bound = Signed().bound(anywhere.place(X), ...)
    seen.clear()
    for number in (0.0, -0.0, 1, 1.0, -0.0):
        bound(number=number)
    assert seen == ["0.0", "-0.0", "1.0"]


def test_as_many_inputs_as_declared_when_bound(anywhere) -> None:
    x = anywhere.place(X)
    for inputs in ((..., 0.5, 1, 2), (...,), (x,)):
        with pytest.raises(ArgumentError, match=r"ProbeDecay: inputs: expected \(X, rate, step\?"):
            ProbeDecay().bound(*inputs)


def test_open_values_that_change_prepare_once(anywhere) -> None:
    bound, x = ProbeDecay().bound(anywhere.place(X), ..., ...), anywhere.place(X)
    ProbeDecay.prepared = 0
    for step in range(1, 40):
        y, _ = bound(rate=1 / step, step=step)
    assert ProbeDecay.prepared == 1
    assert [len(form._calls) for form in bound._forms.values()] == [1]
    assert_matches(anywhere.host(y), anywhere.host(ProbeDecay()(x, 1 / 39, 39)[0]))


def test_views_and_callables_can_be_bound(anywhere) -> None:
    x = anywhere.place(X)
    cut = ProbeCut().bound(x, (100, 200))
    assert [y.shape for y in cut()] == [(100,), (200,)]
    assert [y.shape for y in ProbeCut().bound(..., (100, 200))(X=x)] == [(100,), (200,)]
    scale = ProbeDelegate().bound(x, 2.0)
    assert scale()[1] is x
    assert_matches(anywhere.host(scale(factor=3.0)[0]), 3 * X)
    with pytest.raises(ArgumentError, match="ProbeDelegate: out: results are the callable's own"):
        ProbeDelegate().bound(x, 2.0, out=(x, None))


# ---- callables, no arrays, memory ----------------------------------------------------------------


class Gathered(DelegatingOp):
    """Each X of a list once more, by a Python callable."""

    inputs = (Input("Xs", "float32", variadic=True),)
    outputs = (Output("Ys", "float32", variadic=True),)

    def infer(self, xs):
        return (xs,)

    def check_numbers(self, xs):
        if len(xs) > 2:
            raise ArgumentError("Gathered: Xs: expected two, got more")

    def delegate(self, xs):
        return [x + 1 for x in xs]


def test_a_callable_takes_lists_and_is_checked(anywhere, two) -> None:
    op = Gathered()
    for _ in range(2):
        assert_matches(anywhere.host(op(two)[1]), X[:5] + 1)
    with pytest.raises(ArgumentError, match="Gathered: Xs: expected two"):
        op([*two, *two])


def test_a_callable_gives_all_that_is_asked_for(anywhere, monkeypatch) -> None:
    monkeypatch.setattr(ProbeDelegate, "function", staticmethod(lambda x, _: (None, x)))
    x = anywhere.place(X)
    with pytest.raises(ArgumentError, match=r"ProbeDelegate: Y: expected float32 of .* got None"):
        ProbeDelegate()(x, 2.0)
    assert ProbeDelegate()(x, 2.0, outputs=("Same",))[0] is None


def test_a_call_without_arrays_follows_the_current_device(run, monkeypatch) -> None:
    if run.on_gpu:
        pytest.skip("one device")
    op = ProbeFill(n=3)
    op()
    backend, _ = op.placement()
    monkeypatch.setattr(backend, "current_device", lambda: 1, raising=True)
    op()
    assert [call.device for call in op._remembered.values()] == [0, 1]


class Fading(ProbeDecay):
    """Holds itself in what it plans, as a rate of its own would be."""

    def plan(self, device, x, rate, step, y, new_step):
        decay = step.then(lambda t: self.faded(t))
        return one_launch("probe_decay", x.size, (x, y, rate, decay, step, x.size), 128)

    def infer(self, x, rate, step):
        return x, step.then(lambda t: self.faded(t))

    def faded(self, t):
        return 2.0**-t

    cpu_function = ProbeDecay.cpu_function
    source = ProbeDecay.source


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (Fading, (X, 0.5, 1)),
        (ProbeDecay, (X, 0.5, 1)),
        (ProbeEither, (X, 0.5, 1, (0, 0))),
        (ProbeDelegate, (X, 0.5)),
        (ProbeAxpy, (X, X.copy())),
    ],
)
def test_an_operator_is_freed_at_once(anywhere, op, inputs) -> None:
    """With it its scratch memory, which the collector would leave on the GPU for long."""
    instance = op()
    reference = weakref.ref(instance)
    gc.disable()
    try:
        instance(*(anywhere.place(x) if isinstance(x, np.ndarray) else x for x in inputs))
        del instance
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("change", ["data", "resize_", "set_", "dtype"])
def test_tensors_of_a_repeated_list_that_became_others_are_followed(change, seed) -> None:
    torch = pytest.importorskip("torch")
    from tensor_backends import EmulatedTensors, tensors_on

    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(n, 4, generator=generator) for n in (3, 2))
    with tensors_on(EmulatedTensors()):
        concat = cto.ConcatTraining(axis=0)
        # With `out` launches are at the addresses of the call before.
        out = (torch.empty(5, 4), None) if change in ("data", "set_") else None
        for _ in range(3):
            concat([first, second], out=out)
        if change == "data":
            first.data = torch.randn(3, 4, generator=generator)
        elif change == "resize_":
            first.resize_(2, 4)
        elif change == "set_":
            second.set_(torch.randn(2, 4, generator=generator))
        else:
            first.data, second.data = first.double(), second.double()
        for _ in range(2):
            result = concat([first, second], out=out)[0]
            assert torch.equal(result, torch.cat([first, second]))
