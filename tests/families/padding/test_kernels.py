# SPDX-License-Identifier: MIT
"""Slicing, padding and unpadding on every provider: what is special about them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cupy_training_ops import ArgumentError, flatten_and_unpad, pad_and_unflatten, slice_grad
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import to_dtype
from cupy_training_ops.families.padding import reference as padding
from cupy_training_ops.families.padding.operators import PadAndUnflatten, SliceGrad
from cupy_training_ops.families.tensor.samples import values
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches, poison

ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")
DEVICE = Device(132, (9, 0))
INT64_MAX = 2**63 - 1
drawn = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
bounds = st.integers(-12, 12) | st.sampled_from([-90, 35, 120, INT64_MAX, -INT64_MAX - 1])
steps = st.integers(1, 3) | st.integers(-3, -1) | st.sampled_from([INT64_MAX, -INT64_MAX])
types = st.sampled_from(["uint8", "float16", "float32", "float64", "complex128"])


def normal(rng: np.random.Generator, *shape: int, dtype="float32") -> np.ndarray:
    return values(rng, shape, to_dtype(dtype))


# ---- SliceGrad -----------------------------------------------------------------------------------


@drawn
@given(
    outer=st.lists(st.integers(1, 9), max_size=3),
    inner=st.integers(1, 9) | st.sampled_from([70, 150]),
    data=st.data(),
    dtype=types,
)
def test_any_slice(run, rng, outer, inner, data, dtype) -> None:
    """Several of a warp's pieces long, or shorter than one."""
    shape = (*outer, inner)
    axes = data.draw(st.lists(st.sampled_from(range(len(shape))), unique=True))
    some = st.tuples(*[bounds for _ in axes]), st.tuples(*[steps for _ in axes])
    arguments = (data.draw(some[0]), data.draw(some[0]), tuple(axes), data.draw(some[1]))
    op = SliceGrad()
    size = np.prod([axis.count for axis in op._sliced_axes(shape, *arguments)], dtype=int)
    dy = normal(rng, size, dtype=dtype)
    expected = padding.slice_grad(dy, shape, *arguments)
    out = poison(run.blank(Spec(shape, dy.dtype)))
    assert_matches(run.host(op(run.place(dy), shape, *arguments, out=out)), expected, 0)


@settings(drawn, max_examples=12)
@given(
    outer=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    rows=st.sampled_from([(0, 9, 1), (1, 8, 2), (8, 0, -1)]),
    columns=st.sampled_from([(80, 3, 67), (144, 0, 65), (400, 321, 400), (2192, 5, 2180)]),
    offset=st.integers(0, 1),
    dtype=types,
)
def test_slices_of_rows_of_whole_chunks(run, rng, outer, rows, columns, offset, dtype) -> None:
    """A thread writes the same chunk of several rows, wherever in dY its words are."""
    width, *bounds = columns
    shape, arguments = (*outer, width), [*zip(rows, (*bounds, 1), strict=True)]
    arguments.insert(2, (0, -1))
    count = math.prod(axis.count for axis in SliceGrad()._sliced_axes(shape, *arguments))
    dy = normal(rng, count, dtype=dtype)
    expected = padding.slice_grad(dy, shape, *arguments)
    out = poison(run.blank(Spec(shape, dy.dtype)))
    with launch_log() as log:
        slice_grad(run.place(dy, offset), shape, *arguments, out=out)
    assert_matches(run.host(out), expected, 0)
    of_rows = {launch.symbol for launch in log} == {"slice_grad__rows"}
    assert of_rows or dtype == "complex128" or not count


def test_a_slice_of_many_dimensions(run, rng) -> None:
    shape = (2, 3) * 6
    arguments = ((0,) * 12, (1, 2) * 6, None, (1, 2) * 6)
    dy = normal(rng, 1, 1)
    expected = padding.slice_grad(dy, shape, *arguments)
    assert np.count_nonzero(expected) == 1
    assert_matches(run.host(slice_grad(run.place(dy), shape, *arguments)), expected, 0)


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((2, 3), ((0,), (2,)), r"dY: expected 6 elements, a slice of shape \(2, 3\), got 4 of sha"),
        ((-1, 4), ((0,), (2,)), r"shape: expected extents of at least 0 .*got \(-1, 4\)"),
        ((), ((), ()), r"shape: expected at least one dimension, got \(\)"),
        ((2, 2), ((0, 0), (2,)), r"ends: expected 2 entries like starts, got \(2,\)"),
        ((2, 2), ((0,), (2,), (0, 1)), "axes: expected 1 entries like starts"),
        ((2, 2), ((0,), (2,), (2,)), r"axes: expected different axes from -2 to 1, got \(2,\)"),
        ((2, 2), ((0, 0), (2, 2), (1, -1)), r"axes: expected different axes .* got \(1, -1\)"),
        ((2, 2), ((0,), (2,), (0,), (0,)), r"steps: expected steps other than 0, got \(0,\)"),
        ((2, 2), ((0.5,), (2,)), "starts: expected an integer, got 0.5"),
    ],
)
def test_slices_that_do_not_fit_are_refused(anywhere, rng, shape, arguments, message) -> None:
    with pytest.raises(ArgumentError, match=f"SliceGrad: {message}"):
        slice_grad(anywhere.place(normal(rng, 2, 2)), shape, *arguments)


@pytest.mark.parametrize(
    ("shape", "arguments", "word", "outer"),
    [
        ((64, 1024), ((256,), (768,), (1,)), "uint4", 0),
        ((64, 1024), ((3,), (515,), (1,)), "u32", 0),
        ((64, 32, 32), ((5,), (60,), (0,)), "uint4", 0),
        ((64, 32, 32), ((5,), (60,), (0,), (2,)), "uint4", 1),
        ((64, 32, 33), ((0,), (60,), (2,), (2,)), "u32", 0),
        ((4, 1, 8, 16), ((1, 0), (3, 8), (0, 3)), "uint4", 1),
        ((4, 5, 8, 16), ((1, 0), (3, 8), (1, 3)), "uint4", 1),
        ((4, 5, 8, 16), ((1, 1, 0), (3, 3, 8), (0, 1, 3)), "uint4", 2),
        ((4, 5, 8, 16), ((3, 0), (3, 8), (1, 3)), "uint4", 0),
        ((64, 1023), ((3,), (515,), (1,)), "u32", 0),
    ],
)
def test_slices_are_planned_in_the_widest_words_and_fewest_axes(
    shape, arguments, word, outer
) -> None:
    op = SliceGrad()
    bounds = (*arguments, *[None] * (4 - len(arguments)))
    dy = Spec(tuple(axis.count for axis in op._sliced_axes(shape, *bounds)), to_dtype("float32"))
    (dx,) = op.infer(dy, shape, *bounds)
    (launch,) = op.plan(DEVICE, dy, shape, *bounds, dx).steps
    assert (launch.slots["T"], launch.args[4]) == (word, outer)
    by_rows = launch.slots["WORDS"] != "1" and shape[-1] % 4 == 0
    assert launch.symbol == ("slice_grad__rows" if by_rows else "slice_grad")


def test_slice_grad_answers_as_upstream_does(anywhere) -> None:
    dy, *arguments, expected = (
        ANSWERS[f"SliceGrad[f4]|{name}"]
        for name in ("in|dY", "in|shape", "in|starts", "in|ends", "in|axes", "in|steps", "out0")
    )
    assert_matches(anywhere.host(slice_grad(anywhere.place(dy), *arguments)), expected, 0)


# ---- PadAndUnflatten, FlattenAndUnpad ------------------------------------------------------------


@drawn
@given(
    dims=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    width=st.integers(1, 70),
    n=st.integers(0, 40),
    dtype=types,
    index=st.sampled_from([np.int32, np.int64]),
)
def test_any_rows(run, rng, dims, width, n, dtype, index) -> None:
    indices = rng.integers(-2, dims[0] * dims[1] + 2, n).astype(index)
    x = normal(rng, n, width, dtype=dtype)
    y = pad_and_unflatten(run.place(x), run.place(indices), dims)
    assert_matches(run.host(y), padding.pad_and_unflatten(x, indices, dims), 0)
    rows, back = flatten_and_unpad(y, run.place(indices))
    assert_matches(run.host(rows), padding.flatten_and_unpad(run.host(y), indices), 0)
    assert back.tolist() == list(dims)


def test_left_over_rows_of_an_earlier_call_do_not_count(run, rng) -> None:
    """One workspace, other indices each time, smaller and larger calls in turn."""
    op = PadAndUnflatten()
    for n, dims in ((30, (6, 7)), (3, (2, 2)), (0, (6, 7)), (41, (6, 7)), (9, (3, 3))):
        indices = rng.integers(0, dims[0] * dims[1], n)
        x = normal(rng, n, 5)
        y = op(run.place(x), run.place(indices), dims)
        assert_matches(run.host(y), padding.pad_and_unflatten(x, indices, dims), 0)


def test_a_workspace_may_hold_anything(run, rng) -> None:
    op, dims = PadAndUnflatten(), (5, 8)
    x, indices = normal(rng, 20, 3), rng.integers(0, 40, 20)
    placed = (run.place(x), run.place(indices))
    n = op.workspace_nbytes(*placed, dims) // 8
    for junk in (rng.integers(-5, 25, n), rng.integers(-(2**62), 2**62, n)):
        scratch = run.place(junk.view(np.uint8))
        y = op(*placed, dims, workspace=scratch)
        assert_matches(run.host(y), padding.pad_and_unflatten(x, indices, dims), 0)


def test_huge_indices_are_outside(anywhere, rng) -> None:
    far = np.array([2**63 - 1, -(2**63), 2**32, 1])
    x = normal(rng, 4, 3)
    y = anywhere.host(pad_and_unflatten(anywhere.place(x), anywhere.place(far), (1, 2)))
    assert_matches(y[0], np.stack([np.zeros_like(x[3]), x[3]]), 0)
    rows, _ = flatten_and_unpad(anywhere.place(y), anywhere.place(far))
    assert_matches(anywhere.host(rows)[:3], np.zeros((3, 3), np.float32), 0)


def test_all_zeros_when_there_are_no_rows(anywhere, rng) -> None:
    x, none = anywhere.place(normal(rng, 0, 3)), anywhere.place(np.zeros(0, np.int64))
    y = anywhere.host(pad_and_unflatten(x, none, (2, 2)))
    assert_matches(y, np.zeros((2, 2, 3), np.float32), 0)


@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 3, 4)])
def test_dims_are_a_host_array(anywhere, rng, shape) -> None:
    indices = anywhere.place(np.zeros(0, np.int64))
    _, dims = flatten_and_unpad(anywhere.place(normal(rng, *shape)), indices)
    assert type(dims) is np.ndarray
    assert dims.dtype == np.int64
    assert dims.tolist() == list(shape[:2])


@pytest.mark.parametrize(
    ("x_shape", "indices_shape", "dims", "message"),
    [
        ((4, 2), (3,), (2, 3), r"input: expected 3 rows, one an index, got shape \(4, 2\)"),
        ((), (1,), (2, 3), r"input: expected 1 rows, one an index, got shape \(\)"),
        ((4, 2), (4, 1), (2, 3), r"indices: expected rank 1, got shape \(4, 1\)"),
        ((4, 2), (4,), (2, 3, 4), r"unflatten_dims: expected two extents \(M1, M2\), got \(2, 3,"),
        ((4, 2), (4,), (2, -3), r"unflatten_dims: expected extents of at least 0 .*got \(2, -3\)"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    anywhere, rng, x_shape, indices_shape, dims, message
) -> None:
    indices = anywhere.place(np.zeros(indices_shape, np.int64))
    with pytest.raises(ArgumentError, match=f"PadAndUnflatten: {message}"):
        pad_and_unflatten(anywhere.place(normal(rng, *x_shape)), indices, dims)


def test_inputs_without_rows_to_flatten_are_refused(anywhere, rng) -> None:
    indices = anywhere.place(np.zeros(1, np.int64))
    message = r"FlattenAndUnpad: input: expected rank 2 or more, got shape \(4,\)"
    with pytest.raises(ArgumentError, match=message):
        flatten_and_unpad(anywhere.place(normal(rng, 4)), indices)


def test_padding_takes_two_launches(run, rng) -> None:
    x, indices = run.place(normal(rng, 5, 8)), run.place(rng.permutation(6)[:5])
    with launch_log() as log:
        pad_and_unflatten(x, indices, (2, 3))
    symbols = [launch.symbol for launch in log]
    assert symbols == ["pad_and_unflatten__last_rows", "pad_and_unflatten"]


@pytest.mark.parametrize("t", ["f4", "f2"])
def test_rows_answer_as_upstream_does(anywhere, t) -> None:
    x, indices, dims, expected = (
        ANSWERS[f"PadAndUnflatten[{t}]|{name}"]
        for name in ("in|X", "in|indices", "in|dims", "out0")
    )
    y = pad_and_unflatten(anywhere.place(x), anywhere.place(indices), dims)
    assert_matches(anywhere.host(y), expected, 0)
    x, indices, expected, dims = (
        ANSWERS[f"FlattenAndUnpad[{t}]|{name}"] for name in ("in|X", "in|indices", "out0", "out1")
    )
    rows, back = flatten_and_unpad(anywhere.place(x), anywhere.place(indices))
    assert_matches(anywhere.host(rows), expected, 0)
    assert back.tolist() == dims.tolist()
