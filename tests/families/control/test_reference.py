# SPDX-License-Identifier: MIT
"""Control flow: arrays pass as they are, one record is for one wait, a step comes in halves."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, SplitStep
from cupy_training_ops.dtypes import FIXED_SIZE

from .threads import X, echo, same


def every_kind(place) -> list:
    """Arrays of each type, one with strides, one without elements, one twice."""
    results = [place(np.zeros((2, 3), dtype)) for dtype in FIXED_SIZE]
    return [*results, results[0].T, results[1][:, ::2], results[2][:0], results[0]]


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
    op, reference = cto.PassThrough(), weakref.ref(x)
    op([x])
    del x
    gc.collect()
    assert reference() is None


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
