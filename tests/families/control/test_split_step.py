# SPDX-License-Identifier: MIT
"""A step in two halves, which run in turns."""

from __future__ import annotations

import functools
import gc
import itertools

import numpy as np
import pytest

from cupy_training_ops import ArgumentError, DtypeError, OpError, ProviderError, SplitStep, YieldOp
from cupy_training_ops.dtypes import FLOAT16, FLOAT32
from cupy_training_ops.families.control import operators as control

from .threads import LIMIT, X, echo, same, threads_of


def product(a, b):
    """A product of matrices, without a library for it."""
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


def test_outputs_and_gradients_are_the_callers_objects(place) -> None:
    step, outputs = SplitStep(echo), [place(X), place(X[0].astype(FLOAT16)), place(X)]
    argument = step.run_forward(
        outputs, {"full_shape_outputs": [2], "non_differentiable_outputs": [1]}
    )
    assert isinstance(argument, tuple)
    assert same(argument, outputs)
    gradients = (place(X), place(X))
    assert same(step.run_backward(*gradients), gradients)


def test_a_gradient_that_is_none_is_zeros(place) -> None:
    step = SplitStep(echo)
    outputs = [place(X.astype(FLOAT16)), place(X), place(X[:0]), place(np.float32(1))]
    step.run_forward(outputs, {"full_shape_outputs": [0, 2]})
    result = step.run_backward(None, None, None, None)
    assert [g.shape for g in result] == [(3, 4), (), (0, 4), ()]
    assert [g.dtype for g in result] == [FLOAT16, FLOAT32, FLOAT32, FLOAT32]
    assert all(type(g) is type(outputs[0]) for g in result)
    if isinstance(result[0], np.ndarray):
        assert not any(g.any() for g in result)


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
    gradients = [
        place(np.asarray(g)) if isinstance(g, np.ndarray | np.generic) else g for g in gradients
    ]
    with pytest.raises(OpError) as caught:
        step.run_backward(*gradients)
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
    """Results that a step yielded before."""

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
