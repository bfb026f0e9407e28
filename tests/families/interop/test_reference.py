# SPDX-License-Identifier: MIT
"""Python functions that are run by name: what they get and give, what is kept for a backward."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, OpError, TritonOp
from cupy_training_ops.callables import contexts
from cupy_training_ops.dtypes import FLOAT16

from .registered_functions import X, backward, failing, forward, seen, watched

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
