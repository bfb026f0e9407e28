# SPDX-License-Identifier: MIT
"""Contexts: what is kept from a call for its gradient, and for how long."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
from forks import forking, holding, status_of_child

import cupy_training_ops as cto
from cupy_training_ops import (
    ArgumentError,
    DtypeError,
    OpError,
    ProviderError,
    PythonOpGrad,
    TritonOp,
)
from cupy_training_ops.callables import contexts
from cupy_training_ops.dtypes import FLOAT16
from cupy_training_ops.testing.compare import assert_matches

from .registered_functions import BACKWARD, FORWARD, X, backward, forward, seen


def test_a_backward_ends_its_context(place) -> None:
    op, grad = forward(training_mode=True), backward()
    context, (y,) = op([place(X)])
    assert len(op.contexts) == 1
    g = place(X)
    (dx,) = grad(context, [g])
    assert dx is g
    assert seen[0].arguments[0] is y
    assert not len(op.contexts)
    for handle in (context, int(context[0]), context.astype(np.int32)):
        with pytest.raises(
            ArgumentError, match="PythonOpGrad: context: expected a context that has"
        ):
            grad(handle, [g])


@pytest.mark.parametrize("context", [0, 10**12, -1, 2.5, None, "one"])
def test_unknown_contexts_are_refused(place, context) -> None:
    with pytest.raises(ArgumentError, match=r"^PythonOpGrad: context: expected"):
        backward()(context, [place(X)])


def test_where_nothing_is_kept_the_context_is_0(place) -> None:
    for op in (forward(), forward("no backward", training_mode=1)):
        context, _ = op([place(X)])
        assert context.tolist() == [0]
        with pytest.raises(
            ArgumentError, match="expected the context of a PythonOp with training_m"
        ):
            backward()(context, [place(X)])


def test_gradients_that_do_not_fit_leave_the_context(place) -> None:
    op, x = forward(training_mode=1), place(X)
    context, _ = op([x])
    bad = [
        (backward(), [place(X.astype(FLOAT16))], "inputs[0]: expected dtype float32, got float16"),
        (backward(), [place(X[:2])], "inputs[0]: expected shape (3, 4) or (), got shape (2, 4)"),
        (backward(), [x, x], "inputs: expected 1 entries, one for each output of the forward, got"),
        (backward(input_tensor_types=[10]), [x], "inputs[0]: expected dtype float16, got float32"),
        (backward("scaled"), [x], "context: expected one of 'scaled', got one of 'watched'"),
        (backward(output_convention="dc"), [x], "results of 'watched': expected 2, got 1"),
        (backward(output_tensor_types=[10]), [x], "outputs[0] of 'watched': expected float16, got"),
        (backward(tensor_reuse_map=[2]), [x], "tensor_reuse_map: expected -1 or 1 to 1, got 2"),
    ]
    for grad, gradients, message in bad:
        with pytest.raises(OpError) as caught:
            grad(context, gradients)
        assert str(caught.value).startswith(f"PythonOpGrad: {message}")
        assert isinstance(caught.value, DtypeError if "dtype" in message else ArgumentError)
        assert len(op.contexts) == 1
    assert backward(tensor_reuse_map=[1])(context, [x])[0] is x


def test_a_backward_that_raises_leaves_the_context(place) -> None:
    op, x = forward("fails later", training_mode=1), place(X)
    context, _ = op([x])
    for _ in range(2):
        with pytest.raises(ProviderError, match="PythonOpGrad: 'fails later' raised ZeroDivision"):
            backward("fails later")(context, [x])
    cto.release_context(context)
    with pytest.raises(
        ArgumentError, match="release_context: context: expected a context that has"
    ):
        cto.release_context(context)


def test_gradients_and_results_that_are_not_there(place, registered) -> None:
    x = place(X)
    registered("pair", lambda _, a, b: (a, b), lambda _, *g: (g[0], None, g[1]))
    attributes = {"input_convention": "dd", "output_tensor_types": [1, 1], "training_mode": 1}
    op = forward("pair", **attributes)
    grad = backward(
        "pair",
        output_convention="dcd",
        output_tensor_types=[1, 1],
        output_tensor_requires_grads=[1, 1],
    )
    assert [g is x for g in grad(op([x, x])[0], [x, None])] == [True, False]
    flags = {"output_tensor_requires_grads": [0, 1]}
    grad = PythonOpGrad(**grad.attribute_values | flags)
    first, second = grad(op([x, x])[0], [x, x])
    assert first is None
    assert second is x
    with pytest.raises(ArgumentError, match="expected at least one array, got none"):
        grad(op([x, x])[0], [None, None])


def test_a_gradient_in_another_place_is_refused() -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    op = forward(training_mode=1)
    context, _ = op([X])
    with (
        hollow_launches(),
        pytest.raises(ArgumentError, match="expected an array on the host, got"),
    ):
        backward()(context, [hollow(X.shape, X.dtype)])
    assert len(op.contexts) == 1


def test_a_thousand_forwards_without_backward_leave_nothing(place) -> None:
    before, op = contexts.count(), forward(training_mode=1)
    arrays = [place(X[:1]) for _ in range(1000)]
    for array in arrays:
        op([array])
    alive = [weakref.ref(array) for array in arrays]
    assert contexts.count() == before + 1000
    seen.clear()
    del op, arrays, array
    assert contexts.count() == before
    assert not any(ref() is not None for ref in alive)


def test_a_bound_call_keeps_its_contexts() -> None:
    before = contexts.count()
    bound = forward(training_mode=1).bound([X])
    results = [int(bound()[0][0]) for _ in range(3)]
    assert len(set(results)) == 3
    assert contexts.count() == before + 3
    backward()(results[1], [X])
    seen.clear()
    del bound
    gc.collect()
    assert contexts.count() == before


def test_contexts_of_the_function_form_last() -> None:
    before = contexts.count()
    context, _ = cto.python_op([X], func_name="watched", **FORWARD, training_mode=1)
    gc.collect()
    assert cto.python_op_grad(context, [X], func_name="watched", **BACKWARD)[0] is X
    context, _ = cto.python_op([X], func_name="watched", **FORWARD, training_mode=1)
    cto.release_context(context)
    assert contexts.count() == before


def test_one_thread_of_many_runs_the_backward() -> None:
    op, grad, outcomes = forward(training_mode=1), backward(), []

    def work(context) -> None:
        try:
            outcomes.append(grad(context, [X]))
        except ArgumentError as error:
            outcomes.append(error)

    for _ in range(20):
        context, _ = op([X])
        threads = [threading.Thread(target=work, args=(context,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 20
    assert len(outcomes) == 80


@forking
def test_a_forked_child_has_its_contexts() -> None:
    """Also where another thread holds the parent's lock."""
    op = forward(training_mode=1)
    context, _ = op([X])

    def releases() -> int:
        cto.release_context(context)
        return len(op.contexts)

    assert status_of_child(holding(contexts._shared.lock), releases) == 0
    assert len(op.contexts) == 1


def test_operators_can_be_pickled() -> None:
    op = pickle.loads(pickle.dumps(forward(training_mode=1)))
    assert op([X])[1][0] is X
    triton = pickle.loads(pickle.dumps(TritonOp(func_name="added", scale=3)))
    assert_matches(triton([X, X])[0], 4 * X)


def test_a_gradient_by_the_chain(anywhere) -> None:
    x = anywhere.place(X)
    scale = {"input_float_scalars": [3.0], "input_float_scalar_positions": [1]}
    op = forward("scaled", input_convention="dc", training_mode=1, **scale)
    context, (y,) = op([x])
    (dx,) = backward("scaled", output_convention="dc")(context, [y])
    assert_matches(anywhere.host(y), 3 * X)
    assert_matches(anywhere.host(dx), 9 * X)
