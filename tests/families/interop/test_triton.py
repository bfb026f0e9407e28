# SPDX-License-Identifier: MIT
"""TritonOp: functions that queue kernels of their own."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, ProviderError, TritonOp
from cupy_training_ops.dtypes import BFLOAT16
from cupy_training_ops.testing.compare import assert_matches

from .registered_functions import X


def test_a_numpy_function_is_a_plain_call(anywhere) -> None:
    x, y = anywhere.place(X), anywhere.place(X[::-1].copy())
    (z,) = cto.triton_op([x, y], func_name="added", scale=3)
    assert_matches(anywhere.host(z), X + 3 * X[::-1])
    (z,) = TritonOp(func_name="added")([x, y])
    assert_matches(anywhere.host(z), X + X[::-1])


def test_keywords_are_any_objects(place, registered) -> None:  # noqa: ARG001
    got = {}
    cto.register_triton_op("takes", lambda x, **keywords: (got.update(keywords), x)[1])
    x, options = place(X), {"a": [1], "b": None, "c": object(), "out_of": X}
    assert cto.triton_op([x], func_name="takes", **options)[0] is x
    assert got == options
    op = TritonOp(func_name="takes", **options)
    assert "a=[1]" in repr(op)
    assert op.bound([x])()[0] is x
    assert op.keywords["c"] is options["c"]


def test_a_keyword_that_changes_is_another_call(place, registered) -> None:  # noqa: ARG001
    """Also after calls with equal ones, and if the function changes its own."""
    got = []

    def takes(x, rows):
        got.append(list(rows))
        rows[0] = -1
        return x

    cto.register_triton_op("takes", takes)
    x, rows, array = place(X), [1, 2], np.array([5, 6])
    for value in (rows, [1, 2], array, np.array([5, 6])):
        cto.triton_op([x], func_name="takes", rows=value)
    assert (rows, array.tolist()) == ([-1, 2], [-1, 6])
    for value in (rows, [1, 2]):
        cto.triton_op([x], func_name="takes", rows=value)
    assert got == [[1, 2], [1, 2], [5, 6], [5, 6], [-1, 2], [1, 2]]


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
