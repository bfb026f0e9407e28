# SPDX-License-Identifier: MIT
"""Python functions that are run by name: what they get and give, what is kept for a backward."""

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
    PythonOp,
    PythonOpGrad,
    TritonOp,
)
from cupy_training_ops.callables import contexts
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT64
from cupy_training_ops.testing.compare import assert_matches

X = np.arange(12, dtype=np.float32).reshape(3, 4)
FORWARD = {"input_convention": "d", "output_tensor_types": ["float32"]}
BACKWARD = {
    "output_convention": "d",
    "output_tensor_types": ["float32"],
    "output_tensor_requires_grads": [1],
}
seen: list = []  # what a function got


@pytest.fixture(params=["numpy", "cupy"])
def place(request):
    """Makes arrays like NumPy's: the same, or CuPy's without memory."""
    if request.param == "numpy":
        yield lambda array: array.copy()
        return
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    with hollow_launches():
        yield lambda array: hollow(array.shape, array.dtype)


def watched(ctx, *arguments):
    """Gives back its first argument."""
    ctx.arguments = arguments
    seen[:] = [ctx, *arguments]
    return arguments[0]


def watched_backward(ctx, *gradients):
    seen[:] = [ctx, *gradients]
    return (gradients[0], *(None for _ in ctx.arguments[1:]))


def failing(*_):
    raise ZeroDivisionError("of its own")


cto.register_python_op("watched", watched, watched_backward)
cto.register_python_op("no backward", lambda _, x: x)
cto.register_python_op("fails", failing, failing)
cto.register_python_op("fails later", lambda _, x: x, failing)
cto.register_python_op("scaled", lambda ctx, x, k: (setattr(ctx, "k", k), x * k)[1],
                       lambda ctx, dy: (dy * ctx.k, None))  # fmt: skip
cto.register_triton_op("added", lambda a, b, scale=1: a + scale * b)
cto.register_triton_op("fails", failing)


def forward(name="watched", **attributes) -> PythonOp:
    return PythonOp(**{"func_name": name, **FORWARD, **attributes})


def backward(name="watched", **attributes) -> PythonOpGrad:
    return PythonOpGrad(**{"func_name": name, **BACKWARD, **attributes})


@pytest.fixture
def registered():
    """Registers a function under a name for the test."""
    from cupy_training_ops.callables import functions

    before = dict(functions._python_ops), dict(functions._triton_ops)
    yield cto.register_python_op
    for table, entries in zip((functions._python_ops, functions._triton_ops), before, strict=True):
        table.clear()
        table.update(entries)


# ---- what a function gets and gives --------------------------------------------------------------


def test_arrays_go_over_and_come_back_as_they_are(place) -> None:
    x = place(X)[:, ::2]
    context, (y,) = forward()([x])
    assert seen[1] is x
    assert y is x
    assert context.tolist() == [0]
    assert seen[0].needs_input_grad == (False,)


def test_constants_stand_at_their_places(place) -> None:
    op = forward(
        input_convention="cdccdccc",
        input_requires_grads=[0, 1, 0, 0, 0, 0, 0, 0],
        input_bool_scalars=[True],
        input_bool_scalar_positions=[2],
        input_int_scalars=[7],
        input_int_scalar_positions=[0],
        input_float_scalars=[0.1],
        input_float_scalar_positions=[3],
        input_int_tuples=[1, 2, 3],
        input_int_tuple_positions=[6, 5],
        input_int_tuple_begins=[0, 2],
        input_float_tuples=[],
        input_float_tuple_positions=[7],
        input_float_tuple_begins=[0],
        output_tensor_types=["int32"],
    )
    x, y = place(X), place(X.astype(FLOAT16))
    with pytest.raises(ArgumentError, match=r"PythonOp: outputs\[0\] of 'watched': expected a Num"):
        op([x, y])
    expected = [7, x, True, 0.1, y, (3,), (1, 2), ()]
    assert all(a is b or a == b for a, b in zip(seen[1:], expected, strict=True))
    assert [type(seen[i]) for i in (1, 3, 4)] == [int, bool, float]
    assert seen[0].needs_input_grad == (False, True, *[False] * 6)


def test_a_function_of_one_or_several_results(place, registered) -> None:
    x, y = place(X), place(X.astype(FLOAT16))
    registered("two", lambda _, a, b: (b, a))
    registered("listed", lambda _, a: [a])
    two = forward("two", input_convention="dd", output_tensor_types=[10, np.float32])
    _, results = two([x, y])
    assert results[0] is y
    assert results[1] is x
    assert forward("listed")([x])[1][0] is x


def test_a_later_function_of_a_name_replaces_it(place, registered) -> None:
    """Also of an operator that was made before."""
    x, y = place(X), place(X)
    registered("changing", lambda _, a: a)
    op = forward("changing")
    assert op([x])[1][0] is x
    registered("changing", lambda _, a: y)  # noqa: ARG005
    assert op([x])[1][0] is y


def test_the_memory_of_an_input(place, registered) -> None:
    x, y = place(X), place(X)
    registered("second", lambda _, a, b: b[None])  # noqa: ARG005
    op = forward("second", input_convention="dd", tensor_reuse_map=[-1, 1])
    assert op([x, y])[1][0].shape == (1, 3, 4)
    op = forward("second", input_convention="dd", tensor_reuse_map=[-1, 0])
    with pytest.raises(ArgumentError, match=r"outputs\[0\] of 'second': expected the memory of in"):
        op([x, y])
    assert op([x, x])[1][0].shape == (1, 3, 4)


# ---- what is refused -----------------------------------------------------------------------------

ATTRIBUTES = [
    ({"func_name": "nobody"}, "func_name: expected a name that register_python_op was given (the"),
    ({"func_name": 3}, "func_name: expected a text, got 3"),
    (
        {"input_convention": "x"},
        "input_convention: expected a text of the letters d and c, got 'x'",
    ),
    ({"input_convention": ["d"]}, "input_convention: expected a text of the letters d and c, got"),
    ({"input_convention": "dc"}, "input_convention: expected a letter c for each of 0 constants,"),
    (
        {"input_int_scalars": [1], "input_int_scalar_positions": [0]},
        "input_int_scalar_positions: expected places of the letter c in 'd', got 0",
    ),
    (
        {"input_convention": "dc", "input_int_scalars": [1], "input_int_scalar_positions": [2]},
        "input_int_scalar_positions: expected places of the letter c in 'dc', got 2",
    ),
    (
        {"input_convention": "dc", "input_int_scalars": [1], "input_int_scalar_positions": [-1]},
        "input_int_scalar_positions: expected places of the letter c in 'dc', got -1",
    ),
    (
        {
            "input_convention": "dc",
            "input_int_scalars": [1, 2],
            "input_int_scalar_positions": [1, 1],
        },
        "input_int_scalar_positions: expected each place once, got 1 once more",
    ),
    (
        {
            "input_convention": "dc",
            "input_int_scalars": [1],
            "input_int_scalar_positions": [1],
            "input_float_scalars": [1.5],
            "input_float_scalar_positions": [1],
        },
        "input_float_scalar_positions: expected each place once, got 1 once more",
    ),
    ({"input_int_scalars": [1]}, "input_int_scalar_positions: expected 1 places, one for each val"),
    (
        {"input_int_tuples": [1], "input_int_tuple_positions": [1]},
        "input_int_tuple_begins: expected numbers that rise from 0 to at most 1, got ()",
    ),
    (
        {"input_int_tuples": [1, 2], "input_int_tuple_begins": [0, 2, 1]},
        "input_int_tuple_begins: expected numbers that rise from 0 to at most 2, got (0, 2, 1)",
    ),
    (
        {"input_int_tuples": [1, 2], "input_int_tuple_begins": [0, 3]},
        "input_int_tuple_begins: expected numbers that rise from 0 to at most 2, got (0, 3)",
    ),
    (
        {"input_int_tuples": [1, 2], "input_int_tuple_begins": [1]},
        "input_int_tuple_begins: expected numbers that rise from 0 to at most 2, got (1,)",
    ),
    (
        {"input_pointer_scalars": [140_000]},
        "input_pointer_scalars: expected none, got [140000]: addresses of Python objects mean noth",
    ),
    ({"input_requires_grads": [1, 0]}, "input_requires_grads: expected 1 entries, one for each a"),
    ({"input_tensor_types": [1, 1]}, "input_tensor_types: expected 1 entries, one for each lette"),
    ({"input_tensor_ranks": []}, "input_tensor_ranks: expected 1 entries, one for each letter d,"),
    ({"output_tensor_types": []}, "output_tensor_types: expected at least one, got none"),
    ({"output_tensor_types": 1}, "output_tensor_types: expected a list of dtypes, got 1"),
    ({"output_tensor_types": [99]}, "output_tensor_types: expected a dtype, its name or its ONNX"),
    ({"output_tensor_ranks": [1, 2]}, "output_tensor_ranks: expected 1 entries, one for each out"),
    ({"tensor_reuse_map": [0]}, "tensor_reuse_map: expected 2 entries, one for each output and t"),
    ({"tensor_reuse_map": [0, 0]}, "tensor_reuse_map: expected -1 for the context, and -1 or a p"),
    ({"tensor_reuse_map": [-1, 1]}, "tensor_reuse_map: expected -1 for the context, and -1 or a"),
    ({"input_bool_scalars": [2]}, "input_bool_scalars: expected a bool, got 2"),
    ({"scale": 3}, "scale: expected an attribute among"),
]


@pytest.mark.parametrize(("attributes", "message"), ATTRIBUTES)
def test_attributes_that_do_not_fit_are_refused(attributes, message) -> None:
    with pytest.raises(OpError) as caught:
        forward(**attributes)
    assert str(caught.value).startswith(f"PythonOp: {message}")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"func_name": "nobody"},
            "func_name: expected a name that register_python_op was given (t",
        ),
        ({"output_convention": "dd"}, "output_convention: expected 1 letters d, got 'dd'"),
        ({"output_convention": "c"}, "output_convention: expected 1 letters d, got 'c'"),
        (
            {"output_tensor_requires_grads": [1, 1]},
            "output_tensor_requires_grads: expected 1 entri",
        ),
        (
            {"tensor_reuse_map": [-1, -1]},
            "tensor_reuse_map: expected 1 entries, one for each outpu",
        ),
    ],
)
def test_attributes_of_a_gradient_that_do_not_fit_are_refused(attributes, message) -> None:
    with pytest.raises(OpError) as caught:
        backward(**attributes)
    assert str(caught.value).startswith(f"PythonOpGrad: {message}")


CALLS = [
    (forward(), lambda _: [], "PythonOp: inputs: expected at least one array, got none"),
    (
        forward(),
        lambda x: [x, x],
        "PythonOp: inputs: expected 1 entries, one for each letter d, go",
    ),
    (forward(), lambda _: [None], "PythonOp: inputs[0]: expected an array, got None"),
    (forward(), lambda _: [3], "PythonOp: inputs[0]: expected a NumPy or CuPy array, got int"),
    (
        forward(input_tensor_types=["float16"]),
        lambda x: [x],
        "PythonOp: inputs[0]: expected dtype float16, got float32",
    ),
    (
        forward(input_tensor_ranks=[3]),
        lambda x: [x],
        "PythonOp: inputs[0]: expected rank 3, got ra",
    ),
]


@pytest.mark.parametrize(("op", "inputs", "message"), CALLS)
def test_calls_that_do_not_fit_run_nothing(place, op, inputs, message) -> None:
    seen.clear()
    with pytest.raises(OpError) as caught:
        op(inputs(place(X)))
    assert str(caught.value).startswith(message)
    assert not seen
    with pytest.raises(ArgumentError, match="PythonOp: out: results are the callable's own arrays"):
        forward()([place(X)], out=(None, (place(X),)))


WANTED = "PythonOp: outputs[0] of 'f': expected float32 of rank 2, got"
RESULTS = [
    (lambda _, x: (x, x), "PythonOp: results of 'f': expected 1, got 2"),
    (lambda *_: (), "PythonOp: results of 'f': expected 1, got 0"),
    (lambda *_: None, f"{WANTED} None"),
    (lambda *_: 3, "PythonOp: outputs[0] of 'f': expected a NumPy or CuPy array, got int"),
    (lambda _, x: x.view(np.int32), f"{WANTED} int32 of shape (3, 4)"),
    (lambda _, x: x[0], f"{WANTED} float32 of shape (4,)"),
    (failing, "PythonOp: 'f' raised ZeroDivisionError: of its own"),
]


@pytest.mark.parametrize(("function", "message"), RESULTS)
def test_results_that_do_not_fit_leave_nothing(place, function, message, registered) -> None:
    registered("f", function, failing)
    op = forward("f", output_tensor_ranks=[2], training_mode=1)
    before = contexts.count()
    with pytest.raises(OpError) as caught:
        op([place(X)])
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value.__cause__, ZeroDivisionError if function is failing else object)
    assert not len(op.contexts)
    assert contexts.count() == before


def test_a_result_in_another_place_is_refused(registered) -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    with hollow_launches():
        x = hollow(X.shape, X.dtype)
        registered("moves", lambda _, a: X if a is x else x)
        message = (
            r"outputs\[0\] of 'moves': expected an array on cuda device 0, got one on the host"
        )
        with pytest.raises(ArgumentError, match=message):
            forward("moves")([x])
        with pytest.raises(
            ArgumentError, match="expected an array on the host, got one on cuda dev"
        ):
            forward("moves")([X])
        cto.register_triton_op("moves", lambda _: X)
        with pytest.raises(
            ArgumentError, match="of 'moves': expected an array on cuda device 0, g"
        ):
            TritonOp(func_name="moves")([x])


def test_an_interrupt_or_a_lack_of_memory_is_what_it_is(place, registered) -> None:
    for error in (KeyboardInterrupt, MemoryError):

        def raising(*_, error=error):
            raise error

        registered("stops", raising)
        with pytest.raises(error):
            forward("stops")([place(X)])


@pytest.mark.parametrize(
    "call",
    [
        lambda: cto.register_python_op("", watched),
        lambda: cto.register_python_op(3, watched),
        lambda: cto.register_python_op("f", 3),
        lambda: cto.register_python_op("f", watched, 3),
        lambda: cto.register_triton_op("f", None),
        lambda: cto.register_triton_op("", watched),
        lambda: cto.release_context("one"),
        lambda: cto.release_context(1.0),
        lambda: cto.release_context(0),
        lambda: cto.release_context(-5),
        lambda: cto.release_context(10**12),
    ],
)
def test_registrations_and_releases_that_make_no_sense(call) -> None:
    with pytest.raises(ArgumentError, match=r"^(register_\w+_op|release_context): "):
        call()


# ---- contexts ------------------------------------------------------------------------------------


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
    found = [int(bound()[0][0]) for _ in range(3)]
    assert len(set(found)) == 3
    assert contexts.count() == before + 3
    backward()(found[1], [X])
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


# ---- TritonOp ------------------------------------------------------------------------------------


def test_a_numpy_function_is_a_plain_call(anywhere) -> None:
    x, y = anywhere.place(X), anywhere.place(X[::-1].copy())
    (z,) = cto.triton_op([x, y], func_name="added", scale=3)
    assert_matches(anywhere.host(z), X + 3 * X[::-1])
    (z,) = TritonOp(func_name="added")([x, y])
    assert_matches(anywhere.host(z), X + X[::-1])


def test_keywords_are_any_objects(place, registered) -> None:  # noqa: ARG001
    got = {}
    cto.register_triton_op("takes", lambda x, **keywords: (got.update(keywords), x)[1])
    x, given = place(X), {"a": [1], "b": None, "c": object(), "out_of": X}
    assert cto.triton_op([x], func_name="takes", **given)[0] is x
    assert got == given
    op = TritonOp(func_name="takes", **given)
    assert "a=[1]" in repr(op)
    assert op.bound([x])()[0] is x
    assert op.keywords["c"] is given["c"]


def test_no_other_operator_takes_keywords() -> None:
    takers = {name for name in cto.registry.names() if cto.get_op(name).takes_keywords}
    assert takers == {"TritonOp"}
    with pytest.raises(ArgumentError, match="PassThrough: block: expected an attribute among"):
        cto.pass_through([X], block=3)


def test_no_inputs_and_several_outputs(place, registered) -> None:  # noqa: ARG001
    x = place(X)
    cto.register_triton_op("makes", lambda: (x, x))
    assert [y is x for y in TritonOp(func_name="makes", num_outputs=2)([])] == [True, True]
    with pytest.raises(ArgumentError, match="TritonOp: results of 'makes': expected 3, got 2"):
        TritonOp(func_name="makes", num_outputs=3)([])


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "func_name: expected a name that register_triton_op was given"),
        ({"func_name": "watched"}, "func_name: expected a name that register_triton_op was given"),
        (
            {"func_name": "added", "onnx_string": b"\x08"},
            "onnx_string: expected nothing, got an ON",
        ),
        (
            {"func_name": "added", "onnx_string": "x"},
            "onnx_string: expected nothing, got an ONNX g",
        ),
        ({"func_name": "added", "num_outputs": 0}, "num_outputs: expected at least 1, got 0"),
    ],
)
def test_what_a_triton_op_is_not(attributes, message) -> None:
    with pytest.raises(ArgumentError) as caught:
        TritonOp(**attributes)
    assert str(caught.value).startswith(f"TritonOp: {message}")


def test_errors_of_a_triton_op(place) -> None:
    with pytest.raises(
        ProviderError, match=r"^TritonOp: 'fails' raised ZeroDivisionError: of its"
    ) as e:
        TritonOp(func_name="fails")([place(X)])
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    with pytest.raises(ProviderError, match=r"^TritonOp: 'added' raised TypeError"):
        TritonOp(func_name="added", block=3)([place(X), place(X)])


def test_arguments_of_triton_kernels() -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    with hollow_launches():
        x, y = hollow((3, 4), np.float16, 1), hollow((8,), BFLOAT16)
        first, second = cto.triton_args(x.T, y)
    assert (first.data_ptr(), first.dtype, first.shape) == (x.data.ptr, "float16", (4, 3))
    assert (first.stride(0), first.stride(1)) == (1, 4)
    assert second.dtype == "bfloat16"
    assert cto.triton_args() == ()
    with pytest.raises(
        ProviderError, match=r"triton_args: arrays\[0\]: expected an array on a GPU"
    ):
        cto.triton_args(X)
    with pytest.raises(ArgumentError, match=r"triton_args: arrays\[0\]: expected a NumPy or CuPy"):
        cto.triton_args(3)


# ---- PyTorch -------------------------------------------------------------------------------------


with_torch = pytest.mark.usefixtures("torch")


@pytest.fixture(scope="module")
def torch():
    """PyTorch, with an autograd function under a name."""
    found = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

    class Mixed(found.autograd.Function):
        """x y k and x + y."""

        @staticmethod
        def forward(ctx, x, k, y):
            ctx.save_for_backward(x, y)
            ctx.k = k
            found.Mixed_saw = (x.data_ptr(), y.data_ptr())
            return x * y * k, x + y

        @staticmethod
        def backward(ctx, dp, ds):
            x, y = ctx.saved_tensors
            return dp * y * ctx.k + ds, None, dp * x * ctx.k + ds

    class Doubled(found.autograd.Function):
        """2 x, by the newer form, in place where it may be."""

        @staticmethod
        def forward(x):
            return x.add_(x) if not x.requires_grad else 2 * x

        @staticmethod
        def setup_context(ctx, *_):
            ctx.factor = 2

        @staticmethod
        def backward(ctx, dy):
            return ctx.factor * dy

    cto.register_python_op("mixed", Mixed)
    cto.register_python_op("doubled", Doubled)
    found.Mixed = Mixed
    return found


def mixed(grads=(1, 0, 1), **attributes) -> PythonOp:
    return forward(
        "mixed",
        input_convention="dcd",
        input_requires_grads=grads,
        input_float_scalars=[3.0],
        input_float_scalar_positions=[1],
        output_tensor_types=["float64"] * 2,
        training_mode=1,
        **attributes,
    )


def mixed_grad(grads=(1, 1)) -> PythonOpGrad:
    return backward(
        "mixed",
        output_convention="dcd",
        output_tensor_types=["float64"] * 2,
        output_tensor_requires_grads=grads,
    )


def pytorchs_own(torch, x, y, gradients):
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, y)]
    outputs = torch.Mixed.apply(tensors[0], 3.0, tensors[1])
    pairs = [(o, torch.tensor(g)) for o, g in zip(outputs, gradients, strict=True) if g is not None]
    grads = torch.autograd.grad(*map(list, (dict(pairs), tensors)), list(dict(pairs).values()))
    return [o.detach().numpy() for o in outputs], [g.numpy() for g in grads]


@pytest.mark.parametrize("missing", [None, 0, 1])
def test_pytorch_function_and_gradient_are_pytorchs_own(torch, rng, missing) -> None:
    x, y, dp, ds = rng.standard_normal((4, 3, 5)).astype(FLOAT64)
    gradients = [None if i == missing else g for i, g in enumerate((dp, ds))]
    outputs, expected = pytorchs_own(torch, x, y, gradients)
    op, grad = mixed(), mixed_grad()
    context, found = op([x, y])
    assert torch.Mixed_saw == (x.ctypes.data, y.ctypes.data)
    assert all(isinstance(array, np.ndarray) for array in found)
    for array, wanted in zip(
        (*found, *grad(context, gradients)), (*outputs, *expected), strict=True
    ):
        assert_matches(array, wanted, 0)
    assert not len(op.contexts)


def test_pytorch_tensors_come_back_as_tensors(torch, rng) -> None:
    tensors = [torch.tensor(a, requires_grad=True) for a in rng.standard_normal((2, 3, 5))]
    op = mixed()
    context, found = op(tensors)
    assert torch.Mixed_saw == tuple(t.data_ptr() for t in tensors)
    assert all(isinstance(t, torch.Tensor) and not t.requires_grad for t in (context, *found))
    gradients = mixed_grad()(context, [torch.ones_like(t) for t in found])
    total = sum(o.sum() for o in torch.Mixed.apply(tensors[0], 3.0, tensors[1]))
    wanted = torch.autograd.grad(total, tensors)
    assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))


@with_torch
def test_pytorch_gives_no_gradient_where_none_is_wanted(rng) -> None:
    x, y, g = rng.standard_normal((3, 3, 5))
    op, second = mixed(), mixed(grads=(0, 0, 1))
    context, _ = second([x, y])
    dx, dy = mixed_grad()(context, [g, g])
    assert dx is None
    assert_matches(dy, 3 * g * x + g)
    context, _ = mixed(grads=(0, 0, 0))([x, y])
    assert context.tolist() == [0]
    context, _ = op([x, y])
    assert mixed_grad(grads=(0, 1))(context, [g, g])[0] is None


@with_torch
def test_pytorch_functions_in_place() -> None:
    """Without gradients the memory is the input's; a map says so."""
    x = X.copy()
    op = forward("doubled", tensor_reuse_map=[-1, 0])
    _, (y,) = op([x])
    assert y.ctypes.data == x.ctypes.data
    assert_matches(x, 2 * X)
    trained = forward("doubled", input_requires_grads=[1], training_mode=1)
    context, (y,) = trained([x])
    assert_matches(y, 4 * X)
    assert_matches(backward("doubled")(context, [X])[0], 2 * X)


def test_pytorch_errors_have_the_functions_name(torch, rng) -> None:
    x = rng.standard_normal((3, 5))
    with pytest.raises(ProviderError, match="PythonOp: 'mixed' raised RuntimeError"):
        mixed()([x, x[:2]])
    with pytest.raises(ProviderError, match="PythonOp: 'mixed' raised RuntimeError"):
        mixed()([np.arange(3), np.arange(3)])  # integers have no gradient
    with pytest.raises(ArgumentError, match="backward: expected None: the class has its own"):
        cto.register_python_op("mixed", torch.Mixed, watched)


def test_pytorch_contexts_end(torch, rng) -> None:
    """A graph that sees no backward goes with the operator."""
    before, x = contexts.count(), rng.standard_normal((3, 5))
    op = mixed()
    graphs = []
    for _ in range(10):
        op([x, x])
    for context in op.contexts._by_handle.values():
        graphs.append(weakref.ref(context.kept.outputs[0]))
    del context, op
    gc.collect()
    assert contexts.count() == before
    assert all(ref() is None for ref in graphs)
    assert torch.is_grad_enabled()


def test_pytorch_mode_of_the_caller_does_not_count(torch, rng) -> None:
    x, op = rng.standard_normal((3, 5)), mixed()
    with torch.no_grad():
        context, found = op([x, x])
        assert all(g is not None for g in mixed_grad()(context, list(found)))
        assert not torch.is_grad_enabled()


@with_torch
def test_pytorch_gets_bfloat16_and_strides(rng) -> None:
    x = rng.standard_normal((4, 6)).astype(BFLOAT16)[:, ::2]
    attributes = {"output_tensor_types": ["bfloat16"]}
    op = forward("doubled", input_requires_grads=[1], training_mode=1, **attributes)
    context, (y,) = op([x])
    assert_matches(y, x + x)
    assert_matches(backward("doubled", **attributes)(context, [y])[0], y + y)


def test_pytorch_output_without_a_gradient(torch) -> None:
    """What is sent for it goes nowhere, as in PyTorch."""

    class Signs(torch.autograd.Function):
        """2 x, and where x is positive."""

        @staticmethod
        def forward(ctx, x):
            positive = (x > 0).to(x.dtype)
            ctx.mark_non_differentiable(positive)
            return 2 * x, positive

        @staticmethod
        def backward(ctx, dy, _):  # noqa: ARG004
            return 2 * dy

    cto.register_python_op("signs", Signs)
    op = forward("signs", output_tensor_types=[1, 1], input_requires_grads=[1], training_mode=True)
    context, _ = op([X])
    (dx,) = backward("signs")(context, [X, X])
    assert_matches(dx, 2 * X)
