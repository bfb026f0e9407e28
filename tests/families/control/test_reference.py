# SPDX-License-Identifier: MIT
"""What orders work: arrays pass as they are, one record is for one wait, a step comes in halves."""

from __future__ import annotations

import functools
import gc
import itertools
import threading
import time
import weakref

import numpy as np
import pytest
from forks import forking, holding, status_of_child

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, DtypeError, OpError, ProviderError, SplitStep, YieldOp
from cupy_training_ops.dtypes import FIXED_SIZE, FLOAT16, FLOAT32
from cupy_training_ops.families.control import operators as control
from cupy_training_ops.runtime import events

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LIMIT = pytest.mark.timeout(20)  # a thread that hangs is a failure soon
WAITS = {"timeout": 10.0}


@pytest.fixture(autouse=True)
def table(monkeypatch) -> events.Events:
    """Events of its own for each test."""
    found = events.Events()
    monkeypatch.setattr(control, "EVENTS", found)
    return found


@pytest.fixture(params=["numpy", "cupy"])
def place(request):
    """Makes arrays like NumPy's: the same, or CuPy's without memory."""
    if request.param == "numpy":
        yield lambda array: array
        return
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    with hollow_launches():
        yield lambda array: hollow(array.shape, array.dtype)


def every_kind(place) -> list:
    """Of each type, one with strides, one without elements, one twice."""
    found = [place(np.zeros((2, 3), dtype)) for dtype in FIXED_SIZE]
    return [*found, found[0].T, found[1][:, ::2], found[2][:0], found[0]]


def same(results, expected) -> bool:
    return len(results) == len(expected) and all(map(lambda a, b: a is b, results, expected))


# ---- arrays pass as they are ---------------------------------------------------------------------


def test_the_very_arrays_come_back(place) -> None:
    arrays = every_kind(place)
    assert same(cto.pass_through(arrays), arrays)
    for number in (-1, 5):
        assert same(cto.record_event(number, arrays), arrays)
        assert same(cto.wait_event(number, arrays), arrays)
    bound = cto.PassThrough().bound(arrays)
    assert same(bound(), arrays)


def test_nothing_keeps_them_alive() -> None:
    x = X.copy()
    op, held = cto.PassThrough(), weakref.ref(x)
    op([x])
    del x
    gc.collect()
    assert held() is None


def test_a_read_only_array_passes() -> None:
    x = X.copy()
    x.flags.writeable = False
    assert cto.pass_through([x])[0] is x


def test_group_says_that_all_is_there(place) -> None:
    done = cto.group(every_kind(place))
    assert isinstance(done, np.ndarray)
    assert (done.tolist(), done.dtype, done.shape) == ([True], np.bool_, (1,))
    done[0] = False
    assert cto.group([place(X)]).all()


@pytest.mark.parametrize("name", ["record_event", "wait_event"])
@pytest.mark.parametrize("number", [-1, 7, np.int64(7), np.array(7), np.array([7])])
def test_fewer_outputs_than_arrays(place, name, number, table) -> None:
    """The others are there for the order alone."""
    if name == "wait_event":
        table.record(int(np.ravel(number)[0]), lambda: None)
    arrays = [place(X), place(X), place(X)]
    assert same(getattr(cto, name)(number, arrays, num_outputs=2), arrays[:2])


def test_a_record_may_have_no_output(place) -> None:
    assert cto.record_event(3, [place(X)], num_outputs=0) == ()


BAD = [
    (lambda _: cto.group([]), "Group: input_tensors: expected at least one array, got none"),
    (lambda _: cto.pass_through([]), "PassThrough: inputs: expected at least one array, got n"),
    (lambda _: cto.pass_through([None]), r"PassThrough: inputs\[0\]: expected an array, got None"),
    (lambda x: cto.pass_through(x), "PassThrough: inputs: expected a list, got one ndarray"),
    (lambda x: cto.pass_through([x], out=x), "PassThrough: out: nothing is written"),
    (lambda x: cto.wait_event(1, [x], num_outputs=0), "WaitEvent: num_outputs: expected at least"),
    (lambda x: cto.wait_event(1, [x], timeout=-1), "WaitEvent: timeout: expected seconds from 0"),
    (lambda x: cto.wait_event(1, [x], timeout=float("nan")), "WaitEvent: timeout: expected sec"),
    (lambda x: cto.wait_event(1, [x], timeout="1"), "WaitEvent: timeout: expected a number, got"),
    (lambda x: cto.record_event(1, [x], num_outputs=-1), "RecordEvent: num_outputs: expected at l"),
]
NUMBERS = [
    (4096, "expected -1 or a number to 4095, got 4096"),
    (-2, "expected -1 or a number to 4095, got -2"),
    (7.0, "expected an integer, got 7.0"),
    (True, "expected an integer, got True"),
    (np.array([7, 8]), "expected an integer, got array"),
    ("7", "expected an integer, got '7'"),
    (None, "expected a value, got None"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_calls_are_refused(place, call, message) -> None:
    with pytest.raises(ArgumentError, match=f"^{message}"):
        call(place(X))


@pytest.mark.parametrize("name", ["RecordEvent", "WaitEvent"])
@pytest.mark.parametrize(("number", "message"), NUMBERS)
def test_bad_numbers_are_refused(place, name, number, message, table) -> None:
    with pytest.raises(ArgumentError) as caught:
        cto.get_op(name)()(number, [place(X)])
    assert str(caught.value).startswith(f"{name}: EventIdentifier: {message}")
    assert not table._marks


@pytest.mark.parametrize("name", ["RecordEvent", "WaitEvent"])
def test_bad_data_is_refused(place, name, table) -> None:
    op, two = cto.get_op(name)(), cto.get_op(name)(num_outputs=2)
    for make, data, message in (
        (op, [], "InputData: expected at least one array, got none"),
        (
            two,
            [place(X)],
            "num_outputs: expected at most 1, one for each array of InputData, got 2",
        ),
    ):
        with pytest.raises(ArgumentError) as caught:
            make(7, data)
        assert str(caught.value) == f"{name}: {message}"
    assert not table._marks


def test_data_in_two_places_are_refused(table) -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    with hollow_launches(), pytest.raises(ArgumentError, match="expected all arrays in one place"):
        cto.record_event(7, [X, hollow((3,), np.float32)])
    assert not table._marks


# ---- events --------------------------------------------------------------------------------------


def test_one_record_is_for_one_wait(place) -> None:
    x = place(X)
    for _ in range(3):
        cto.record_event(7, [x])
        with pytest.raises(
            ArgumentError, match="RecordEvent: EventIdentifier: expected an event th"
        ):
            cto.record_event(7, [x])
        cto.wait_event(7, [x])
        with pytest.raises(ProviderError, match=r"^WaitEvent: event 7: expected a RecordEvent wi"):
            cto.wait_event(7, [x], timeout=0.02)


def test_the_wait_takes_its_time(place) -> None:
    start = time.monotonic()
    with pytest.raises(ProviderError, match=r"within 0.3 s, got none"):
        cto.wait_event(7, [place(X)], timeout=0.3)
    assert 0.3 <= time.monotonic() - start < 5


def test_minus_one_is_no_event(place, table) -> None:
    x = place(X)
    for _ in range(2):
        cto.record_event(-1, [x])
        cto.wait_event(-1, [x], timeout=0)
    assert not table._marks


def test_on_cupy_the_stream_is_marked_and_waits() -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    with hollow_launches() as found:
        x = hollow((3,), np.float32)
        for number in (-1, 5):
            cto.record_event(number, [x])
            cto.wait_event(number, [x])
    assert [name for name, _ in found] == ["record", "wait"]
    assert type(found[1][1][0]) is object  # the very mark


def test_the_host_waits_for_an_event_of_a_gpu(table) -> None:
    waited = []
    mark = type("Mark", (), {"synchronize": lambda self: waited.append(self)})()
    table.record(7, lambda: mark)
    cto.wait_event(7, [X])
    assert waited == [mark]


def test_an_event_that_cannot_be_waited_for_is_named(table) -> None:
    """And it is gone, so that it may be recorded again."""

    def fails(_):
        raise RuntimeError("cudaErrorCapturedEvent")

    table.record(7, lambda: type("Mark", (), {"synchronize": fails})())
    with pytest.raises(
        ProviderError, match=r"^WaitEvent: event 7: cudaErrorCapturedEvent"
    ) as caught:
        cto.wait_event(7, [X])
    assert isinstance(caught.value.__cause__, RuntimeError)
    cto.record_event(7, [X])


def test_a_mark_that_cannot_be_made_records_nothing(table, monkeypatch) -> None:
    def fails(*_):
        raise RuntimeError("no stream")

    monkeypatch.setattr(control.BACKENDS[np.ndarray], "record", fails, raising=False)
    with pytest.raises(ProviderError, match=r"^RecordEvent: event 7: no stream"):
        cto.record_event(7, [X])
    assert not table._marks


def until(condition) -> None:
    """Wait until it is so, 5 seconds at most."""
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, "it never is so"
        time.sleep(0.001)


def threads_of(*functions) -> list[Exception]:
    """Run them beside each other; what they raised."""
    errors: list[Exception] = []

    def caught(function) -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 15
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return errors


@LIMIT
def test_200_events_in_any_order(place, rng, table) -> None:
    x, order = place(X), rng.permutation(200).tolist()
    record, wait = cto.RecordEvent(), cto.WaitEvent(**WAITS)
    assert not threads_of(
        lambda: [record(i, [x]) for i in range(200)], lambda: [wait(i, [x]) for i in order]
    )
    assert not table._marks


@LIMIT
def test_a_second_waiter_waits_for_the_next_record(place, table) -> None:
    x, passed = place(X), []
    wait = cto.WaitEvent(**WAITS)

    def waiter() -> None:
        wait(7, [x])
        passed.append(1)

    def recorder() -> None:
        for n in (1, 2, 3):
            cto.record_event(7, [x])
            until(lambda n=n: len(passed) >= n)
            time.sleep(0.02)
            assert len(passed) == n  # nobody else passed

    assert not threads_of(waiter, waiter, waiter, recorder)
    assert not table._marks


@LIMIT
def test_who_waits_for_another_event_waits_on(place, table) -> None:
    """A record wakes its own waiter, whoever came first."""
    x, passed = place(X), []
    wait = cto.WaitEvent(**WAITS)

    def waiter(number: int) -> None:
        wait(number, [x])
        passed.append(number)

    def recorder() -> None:
        for n in range(3):
            until(lambda n=n: len(table._changed._waiters) == 3 - n)
            cto.record_event(3 - n, [x])
            until(lambda n=n: len(passed) > n)

    assert not threads_of(*(functools.partial(waiter, n) for n in (1, 2, 3)), recorder)
    assert passed == [3, 2, 1]


@LIMIT
def test_of_many_records_one_is_first(place, table) -> None:
    x, record = place(X), cto.RecordEvent()
    errors = threads_of(*[lambda: record(7, [x])] * 8)
    assert len(errors) == 7
    assert all(isinstance(error, ArgumentError) for error in errors)
    assert list(table._marks) == [7]


@LIMIT
@forking
def test_a_forked_child_has_events_of_its_own() -> None:
    """Also where another thread holds the parent's lock."""
    found = events.EVENTS
    found.record(4000, lambda: None)

    def records() -> int:
        empty = not found._marks
        recorded = found.record(1, lambda: None)
        return 0 if empty and recorded else 1

    status = status_of_child(holding(found._changed), records)
    found.take(4000, 0)
    assert status == 0


# ---- a step in two halves ------------------------------------------------------------------------


def product(a, b):
    """Of matrices, without a library for it."""
    return (a[:, :, None] * b[None]).sum(axis=1)


def linear(x, w, t):
    """Half the gradient of |x w - t|^2 by w."""
    (d,) = yield YieldOp(full_shape_outputs=[0])([product(x, w) - t])
    return product(x.T, d)


def test_a_split_step_trains_as_the_whole_one(anywhere, rng) -> None:
    xp = anywhere.xp
    x, w_true = rng.standard_normal((64, 8)), rng.standard_normal((8, 1))
    split, whole = (xp.zeros((8, 1)) for _ in range(2))
    x, t = xp.asarray(x), xp.asarray(product(x, w_true))
    step = SplitStep(linear)
    for _ in range(100):
        (d,) = step.run_forward(x, split, t)
        split -= 0.004 * step.run_backward(d)
        whole -= 0.004 * product(x.T, product(x, whole) - t)
    assert anywhere.host(split).tobytes() == anywhere.host(whole).tobytes()
    assert np.abs(anywhere.host(split) - w_true).max() < 0.01


def echo(outputs, attributes):
    """Gives back the gradients that it is sent."""
    gradients = yield YieldOp(**attributes)(outputs)
    return gradients


def test_outputs_and_gradients_are_the_callers_objects(place) -> None:
    step, outputs = SplitStep(echo), [place(X), place(X[0].astype(FLOAT16)), place(X)]
    given = step.run_forward(
        outputs, {"full_shape_outputs": [2], "non_differentiable_outputs": [1]}
    )
    assert isinstance(given, tuple)
    assert same(given, outputs)
    gradients = (place(X), place(X))
    assert same(step.run_backward(*gradients), gradients)


def test_a_gradient_that_is_none_is_zeros(place) -> None:
    step = SplitStep(echo)
    outputs = [place(X.astype(FLOAT16)), place(X), place(X[:0]), place(np.float32(1))]
    step.run_forward(outputs, {"full_shape_outputs": [0, 2]})
    found = step.run_backward(None, None, None, None)
    assert [g.shape for g in found] == [(3, 4), (), (0, 4), ()]
    assert [g.dtype for g in found] == [FLOAT16, FLOAT32, FLOAT32, FLOAT32]
    assert all(type(g) is type(outputs[0]) for g in found)
    if isinstance(found[0], np.ndarray):
        assert not any(g.any() for g in found)


def test_no_output_need_have_a_gradient(place) -> None:
    step = SplitStep(echo)
    step.run_forward([place(X)], {"full_shape_outputs": [], "non_differentiable_outputs": [0]})
    assert step.run_backward() == ()


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ((), "SplitStep: gradients: expected 2, one for each output, got 0"),
        ((X, X, X), "SplitStep: gradients: expected 2, one for each output, got 3"),
        ((X.astype(FLOAT16), X), r"SplitStep: gradients[0]: expected dtype float32, got float16"),
        ((X[:2], X), "SplitStep: gradients[0]: expected shape (3, 4), got shape (2, 4)"),
        ((X[0, 0], X), "SplitStep: gradients[0]: expected shape (3, 4), got shape ()"),
        ((X, X[:2]), "SplitStep: gradients[1]: expected shape (3, 4) or (), got shape (2, 4)"),
        ((X, 3), "SplitStep: gradients[1]: expected a NumPy or CuPy array, got int"),
    ],
)
def test_gradients_that_do_not_fit_change_nothing(place, gradients, message) -> None:
    step, outputs = SplitStep(echo), [place(X), place(X)]
    step.run_forward(outputs, {"full_shape_outputs": [0]})
    made = [
        place(np.asarray(g)) if isinstance(g, np.ndarray | np.generic) else g for g in gradients
    ]
    with pytest.raises(OpError) as caught:
        step.run_backward(*made)
    assert str(caught.value) == message
    assert isinstance(caught.value, DtypeError if "dtype" in message else ArgumentError)
    good = (place(X), place(np.asarray(X[0, 0])))
    assert same(step.run_backward(*good), good)


def test_a_gradient_in_another_place_is_refused() -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    step = SplitStep(echo)
    step.run_forward([X], {"full_shape_outputs": [0]})
    with (
        hollow_launches(),
        pytest.raises(ArgumentError, match="expected an array on the host, got"),
    ):
        step.run_backward(hollow(X.shape, X.dtype))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"full_shape_outputs": [0, 0]},
            "full_shape_outputs: expected each place once, got (0, 0)",
        ),
        (
            {"full_shape_outputs": [], "non_differentiable_outputs": [1, 1]},
            "non_differentiable_outputs: expected each place once, got (1, 1)",
        ),
        (
            {"full_shape_outputs": [2]},
            "full_shape_outputs: expected places of 2 arrays, from 0 to 1,",
        ),
        (
            {"full_shape_outputs": [-1]},
            "full_shape_outputs: expected places of 2 arrays, from 0 to",
        ),
        ({}, "full_shape_outputs: expected a value: it is required, got none"),
        ({"full_shape_outputs": 0.5}, "full_shape_outputs: expected an integer"),
    ],
)
def test_bad_places_are_refused(place, attributes, message) -> None:
    step = SplitStep(echo)
    with pytest.raises(ArgumentError) as caught:
        step.run_forward([place(X), place(X)], attributes)
    assert str(caught.value).startswith(f"YieldOp: {message}")
    assert any("in echo, which SplitStep runs" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("keywords", [{"outputs": ()}, {"out": X}, {"nonsense": 1}])
def test_a_yield_takes_nothing_else(keywords) -> None:
    def step():
        yield YieldOp(full_shape_outputs=[])([X], **keywords)

    with pytest.raises(ArgumentError, match=r"^YieldOp: (out|outputs|nonsense): "):
        SplitStep(step).run_forward()


def test_no_yield_outside_a_split_step(place) -> None:
    op = YieldOp(full_shape_outputs=[0])
    calls = (
        lambda: op([place(X)]),
        op.bound([place(X)]),
        lambda: next(echo([place(X)], {"full_shape_outputs": []})),
    )
    for call in calls:
        with pytest.raises(
            ProviderError, match="YieldOp: expected a call inside a generator functi"
        ):
            call()
    step = SplitStep(echo)
    step.run_forward([X], {"full_shape_outputs": [0]})
    with pytest.raises(ProviderError, match="YieldOp: expected a call inside"):
        op([X])


def test_forward_and_backward_take_turns() -> None:
    step = SplitStep(echo)
    with pytest.raises(
        ProviderError, match="SplitStep: echo: expected a forward, got a backward be"
    ):
        step.run_backward(X)
    step.run_forward([X], {"full_shape_outputs": [0]})
    step.run_backward(X)
    with pytest.raises(
        ProviderError, match="SplitStep: echo: expected a forward, got a second bac"
    ):
        step.run_backward(X)
    step.run_forward([X], {"full_shape_outputs": [0]})
    step.run_forward([X, X], {"full_shape_outputs": [0]})  # without a backward
    assert len(step.run_backward(X, X)) == 2
    step.run_forward([X], {"full_shape_outputs": [0]})
    with pytest.raises(ArgumentError, match="full_shape_outputs: expected a value: it is required"):
        step.run_forward([X], {})
    with pytest.raises(
        ProviderError, match="SplitStep: echo: expected a forward, got a backward be"
    ):
        step.run_backward(X)


def test_a_forward_without_backward_is_given_up() -> None:
    ended = []

    def step():
        try:
            yield YieldOp(full_shape_outputs=[])([X])
        finally:
            ended.append(1)

    split = SplitStep(step)
    for n in range(3):
        split.run_forward()
        assert len(ended) == n
    del split
    gc.collect()
    assert len(ended) == 3


OP = YieldOp(full_shape_outputs=[0])


def never():
    if X is None:
        yield


def otherwise():
    yield X


def twice():
    yield OP([X])
    yield OP([X])


def another_runs():
    yield Kept.last


def plain():
    return 1


class Kept:
    """What a step yielded before."""

    last = None


def keeps():
    Kept.last = OP([X])
    yield Kept.last


def test_functions_that_do_not_yield_once() -> None:
    SplitStep(keeps).run_forward()
    for function, message in (
        (never, "SplitStep: never: expected one YieldOp, got a function that returned before it"),
        (otherwise, "SplitStep: otherwise: expected to yield its YieldOp's result, got one of nd"),
        (another_runs, "SplitStep: another_runs: expected to yield its YieldOp's result, got one"),
        (plain, "SplitStep: plain: expected a generator function, got one of int"),
    ):
        step = SplitStep(function)
        with pytest.raises(ArgumentError) as caught:
            step.run_forward()
        assert str(caught.value).startswith(message)
        with pytest.raises(ProviderError, match="expected a forward, got a backward before it"):
            step.run_backward(X)
    step = SplitStep(twice)
    step.run_forward()
    with pytest.raises(
        ArgumentError, match="twice: expected one YieldOp, got a function that yiel"
    ):
        step.run_backward(X)
    with pytest.raises(ProviderError, match="got a second backward"):
        step.run_backward(X)
    with pytest.raises(ArgumentError, match="SplitStep: function: expected a generator function"):
        SplitStep(3)


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_an_error_of_the_function_says_whose_it_is(half) -> None:
    def step(fails):
        if fails == "forward":
            raise KeyError("of its own")
        yield OP([X])
        if fails == "backward":
            raise KeyError("of its own")
        return 5

    split = SplitStep(step)
    with pytest.raises(KeyError, match="of its own") as caught:  # noqa: PT012
        split.run_forward(half)
        split.run_backward(X)
    assert any("step, which SplitStep runs" in note for note in caught.value.__notes__)
    split.run_forward("")
    assert split.run_backward(X) == 5


def test_steps_lie_in_steps() -> None:
    """Each yields for itself; a call after the inner one is the outer's."""

    def inner(x):
        (d,) = yield OP([2 * x])
        return 2 * d

    def outer(x):
        step = SplitStep(inner)
        (y,) = step.run_forward(x)
        (d,) = yield OP([3 * y])
        return step.run_backward(3 * d)

    step = SplitStep(outer)
    (y,) = step.run_forward(X)
    assert (y == 6 * X).all()
    assert (step.run_backward(X) == 6 * X).all()


def test_a_step_does_not_run_itself() -> None:
    def again():
        step.run_forward()
        yield OP([X])

    step = SplitStep(again)
    with pytest.raises(ProviderError, match="again: it is running already"):
        step.run_forward()


@LIMIT
def test_threads_have_steps_of_their_own() -> None:
    """And a thread beside a step is in none."""

    def work(scale) -> None:
        step = SplitStep(echo)
        for _ in range(50):
            (y,) = step.run_forward([scale * X], {"full_shape_outputs": [0]})
            assert (y == scale * X).all()
            step.run_backward(X)

    def outside() -> None:
        for _ in itertools.repeat(None, 50):
            with pytest.raises(ProviderError):
                OP([X])

    assert not threads_of(*[functools.partial(work, n) for n in range(3)], outside)


def test_a_backward_under_capture_needs_its_gradients(monkeypatch) -> None:
    step = SplitStep(echo)
    step.run_forward([X], {"full_shape_outputs": [0]})
    backend = control.BACKENDS[np.ndarray]
    monkeypatch.setattr(backend, "capturing", lambda _: True, raising=False)
    with pytest.raises(ProviderError, match="SplitStep: gradients: a backward under graph capture"):
        step.run_backward(None)
    assert step.run_backward(X)[0] is X


# ---- arrays of other libraries, bound calls ------------------------------------------------------


def test_an_event_may_stay_open(place, table) -> None:
    x, y = place(X), place(X)
    opened = cto.RecordEvent().bound(..., [x])
    bound = cto.WaitEvent(timeout=0).bound(3, [y])
    for number in (3, 5):
        assert opened(EventIdentifier=number)[0] is x
        assert bound(EventIdentifier=number)[0] is y
    with pytest.raises(
        ArgumentError, match="EventIdentifier: expected -1 or a number to 4095, got"
    ):
        opened(EventIdentifier=4096)
    assert not table._marks


def test_arrays_of_jax_pass() -> None:
    import jax.numpy as jnp

    x = jnp.ones(3)
    assert cto.pass_through([x])[0] is x
    assert cto.record_event(-1, [x, X])[0] is x


def test_pytorch_tensors_pass_and_get_zeros() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    tensors = [torch.ones(3, 4, requires_grad=True).T, torch.ones(2, dtype=torch.bfloat16)]
    assert same(cto.pass_through(tensors), tensors)
    assert same(cto.record_event(3, [*tensors, X]), [*tensors, X])
    assert same(cto.wait_event(3, tensors), tensors)
    assert torch.equal(cto.group(tensors), torch.ones(1, dtype=torch.bool))
    step = SplitStep(echo)
    assert same(step.run_forward(tensors, {"full_shape_outputs": [0]}), tensors)
    first, second = step.run_backward(None, None)
    assert (first.shape, first.dtype) == ((4, 3), torch.float32)
    assert (second.shape, second.dtype) == ((), torch.bfloat16)
    assert not first.any()
    assert not second.any()
