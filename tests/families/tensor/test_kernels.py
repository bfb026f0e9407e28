# SPDX-License-Identifier: MIT
"""Views, joining and splitting on every provider: what is special about them."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cupy_training_ops import ArgumentError, DtypeError, concat_training, split_training, view
from cupy_training_ops.call import backends
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FIXED_SIZE, dtype_name, to_dtype
from cupy_training_ops.families.tensor.operators import ConcatTraining, SplitTraining
from cupy_training_ops.families.tensor.samples import values
from cupy_training_ops.plan import Device
from cupy_training_ops.planning.copy_runs import Words, words_of
from cupy_training_ops.planning.fast_division import divisor_fields
from cupy_training_ops.testing.compare import assert_matches, poison

ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")
DEVICE = Device(132, (9, 0))
drawn = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def recorded(case: str, *names: str) -> list[np.ndarray]:
    return [ANSWERS[f"{case}|{name}"] for name in names]


def normal(rng: np.random.Generator, *shape: int, dtype="float32") -> np.ndarray:
    return values(rng, shape, to_dtype(dtype))


def address(array) -> int:
    return backends.BACKENDS[type(array)].pointers([array])[0]


# ---- View ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FIXED_SIZE, ids=dtype_name)
def test_views_share_the_inputs_memory(anywhere, rng, dtype) -> None:
    x = anywhere.place(normal(rng, 5, 4, dtype=dtype))
    shapes = [(2, 3), (), (0, 2), (13,)]
    pieces = view(x, shapes)
    replaced = normal(rng, 13, dtype=dtype)
    pieces[3][...] = anywhere.xp.asarray(replaced)
    assert [piece.shape for piece in pieces] == shapes
    assert all(piece.dtype == dtype for piece in pieces)
    assert_matches(anywhere.host(x).ravel()[7:], replaced)
    start, item = address(x), x.itemsize
    assert [address(pieces[i]) for i in (0, 1, 3)] == [start, start + 6 * item, start + 7 * item]


def test_views_keep_the_input_alive(anywhere, rng) -> None:
    x = anywhere.place(normal(rng, 8))
    expected = anywhere.host(x).copy()
    pieces = view(x, [(3,), (5,)])
    owner = weakref.ref(x.base) if anywhere.name == "cpu" else None
    del x
    gc.collect()
    assert owner is None or owner() is not None
    assert_matches(anywhere.host(pieces[1]), expected[3:])


def test_views_launch_nothing(run, rng) -> None:
    with launch_log() as log:
        view(run.place(normal(rng, 6)), [(2,), (4,)])
    assert not log


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 3), (5,)], r"View: shapes: expected sizes that add up to the input's 12 elements, "
         r"got 6 \+ 5 = 11 for \[\(2, 3\), \(5,\)\]"),
        ([], "got nothing = 0"),
        ([(-3, -4)], r"View: shapes: expected extents of at least 0 .*got \(-3, -4\)"),
        ([[[3], [4]]], "View: shapes: expected integers in rank 1"),
        ((1.5,), "View: shapes: expected an integer, got 1.5"),
    ],
)  # fmt: skip
def test_views_that_do_not_fit_are_refused(anywhere, rng, shapes, message) -> None:
    with pytest.raises(ArgumentError, match=message):
        view(anywhere.place(normal(rng, 3, 4)), shapes)


def test_views_of_strided_arrays_are_refused(anywhere, rng) -> None:
    x = anywhere.place(normal(rng, 6, 4))
    with pytest.raises(ArgumentError, match="View: input: expected a C-contiguous array"):
        view(x[::2], [(12,)])


def test_views_go_nowhere(anywhere, rng) -> None:
    x = anywhere.place(normal(rng, 4))
    with pytest.raises(ArgumentError, match="View: out: results are views of the input"):
        view(x, [(4,)], out=(anywhere.place(normal(rng, 4)),))


# ---- ConcatTraining ------------------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(3, 0, 4), (0, 0), (7,)])
def test_lengths_are_a_host_array_also_of_nothing(anywhere, rng, widths) -> None:
    parts = [anywhere.place(normal(rng, 2, width)) for width in widths]
    _, lengths = concat_training(parts, axis=-1)
    assert type(lengths) is np.ndarray
    assert lengths.dtype == np.int64
    assert lengths.tolist() == list(widths)


def test_lengths_are_the_callers_to_change(anywhere, rng) -> None:
    op, parts = ConcatTraining(axis=0), [anywhere.place(normal(rng, 3))]
    op(parts)[1][...] = 0
    assert op(parts)[1].tolist() == [3]


def test_one_output_of_concat(anywhere, rng) -> None:
    parts = [anywhere.place(normal(rng, 2, 3)), anywhere.place(normal(rng, 1, 3))]
    joined, lengths = concat_training(parts, axis=0, outputs=("concat_result",))
    assert lengths is None
    assert joined.shape == (3, 3)


@pytest.mark.parametrize(
    ("shapes", "axis", "message"),
    [
        ([], 0, "inputs: expected at least one array, got an empty list"),
        ([(2, 3), (2, 4)], 0, r"inputs\[1\]: expected shape \(2, 3\) but for axis 0, like inp"),
        ([(2, 3), (2, 3, 1)], 1, r"inputs\[1\]: expected shape \(2, 3\) but for axis 1, like inp"),
        ([(2, 3)], 2, "axis: expected an axis from -2 to 1, got 2"),
        ([()], 0, "axis: expected arrays of at least one dimension, got a scalar"),
    ],
)
def test_parts_that_do_not_fit_are_refused(anywhere, rng, shapes, axis, message) -> None:
    parts = [anywhere.place(normal(rng, *shape)) for shape in shapes]
    with pytest.raises(ArgumentError, match=f"ConcatTraining: {message}"):
        concat_training(parts, axis=axis)


def test_parts_of_two_types_are_refused(anywhere, rng) -> None:
    parts = [anywhere.place(normal(rng, 3)), anywhere.place(normal(rng, 3, dtype="float16"))]
    with pytest.raises(DtypeError, match=r"ConcatTraining: inputs\[1\]: expected dtype float32"):
        concat_training(parts, axis=0)


@pytest.mark.parametrize(
    ("n", "launches", "sizes"),
    [
        (1, 1, (1, 2, 3)),
        (240, 1, (1, 2, 3)),
        (241, 3, (1, 2, 3)),
        (1000, 6, (1, 2, 3)),
        (500, 3, (16,)),  # with starts, where widths differ, a launch knows fewer
        (500, 3, (1,)),
        (600, 3, (0, 200, 4)),
        (500, 4, (16, 17)),
    ],
)
def test_any_number_of_inputs(run, rng, n, launches, sizes) -> None:
    arrays = [normal(rng, 2, sizes[i % len(sizes)]) for i in range(n)]
    with launch_log() as log:
        joined, _ = concat_training([run.place(a) for a in arrays], axis=1)
    assert len(log) == launches
    assert_matches(run.host(joined), np.concatenate(arrays, 1), 0)


# ---- SplitTraining -------------------------------------------------------------------------------


def test_split_into_the_callers_arrays(anywhere, rng) -> None:
    x = normal(rng, 3, 10)
    out = tuple(poison(anywhere.blank(Spec((3, n), x.dtype))) for n in (4, 0, 6))
    result = split_training(anywhere.place(x), (4, 0, 6), axis=1, out=out)
    assert all(a is b for a, b in zip(result, out, strict=True))
    assert_matches(np.concatenate([anywhere.host(a) for a in out], 1), x, 0)


@pytest.mark.parametrize("split", [None, ()])
def test_split_evenly(anywhere, rng, split) -> None:
    x = normal(rng, 2, 6)
    parts = split_training(anywhere.place(x), split, axis=-1, num_outputs=3)
    assert [part.shape for part in parts] == [(2, 2)] * 3
    assert_matches(anywhere.host(parts[2]), x[:, 4:], 0)


@pytest.mark.parametrize(
    ("split", "attributes", "message"),
    [
        ((3, 4), {}, r"split: expected sizes that add up to 6, the length of axis 1, got \(3, 4\)"),
        ((-1, 7), {}, r"split: expected extents of at least 0 .*got \(-1, 7\)"),
        ((3, 3), {"num_outputs": 3}, r"split: expected 3 sizes \(num_outputs\), got \(3, 3\)"),
        ((), {"num_outputs": 4}, "split: expected a length that 4 outputs divide evenly, got 6"),
        ((), {}, "num_outputs: expected at least 1 where split is empty, got None"),
    ],
)
def test_splits_that_do_not_fit_are_refused(anywhere, rng, split, attributes, message) -> None:
    with pytest.raises(ArgumentError, match=f"SplitTraining: {message}"):
        split_training(anywhere.place(normal(rng, 2, 6)), split, axis=1, **attributes)


@pytest.mark.parametrize(
    ("n", "launches", "sizes"),
    [
        (120, 1, (1, 2, 3)),
        (121, 2, (1, 2, 3)),
        (239, 2, (1, 2, 3)),
        (1000, 6, (1, 2, 3)),  # a table of five launches, and one that reads it
        (500, 3, (4,)),  # with starts, where widths differ, a launch knows fewer
        (600, 3, (0, 200, 4)),
        (500, 5, (16, 17)),  # long enough for vectors that start anywhere
    ],
)
def test_any_number_of_outputs(run, rng, n, launches, sizes) -> None:
    sizes = [sizes[i % len(sizes)] for i in range(n)]
    x = normal(rng, 2, sum(sizes))
    out = tuple(poison(run.blank(Spec((2, size), x.dtype))) for size in sizes)
    with launch_log() as log:
        parts = split_training(run.place(x), sizes, axis=1, out=out)
    assert len(log) == launches
    assert_matches(np.concatenate([run.host(part) for part in parts], 1), x, 0)


@drawn
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    rows=st.integers(1, 3),
    offset=st.integers(0, 15),
    dtype=st.sampled_from(["uint8", "float16", "float32", "float64", "complex128"]),
)
def test_split_undoes_concat(run, rng, sizes, rows, offset, dtype) -> None:
    parts = [normal(rng, rows, size, dtype=dtype) for size in sizes]
    placed = [run.place(part, (offset + i) % 16) for i, part in enumerate(parts)]
    joined, lengths = concat_training(placed, axis=1)
    assert_matches(run.host(joined), np.concatenate(parts, 1), 0)
    for part, back in zip(parts, split_training(joined, lengths, axis=1), strict=True):
        assert_matches(run.host(back), part, 0)


# ---- plans and recorded answers ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "aligned", "lengths", "run_nbytes", "expected"),
    [
        ("float32", True, (1024, 4096), 4096, Words(16, 1)),
        ("float32", True, (1024, 6), 4096, Words(8, 2)),
        ("float16", True, (8191, 8190), 16382, Words(2, 8)),
        ("float16", True, (3, 5), 8, Words(2, 1)),
        ("float16", True, (8, 16), 24, Words(16, 1)),
        ("uint8", False, (1024,), 1024, Words(1, 16)),
        ("float64", False, (1024,), 8192, Words(8, 2)),
        ("complex128", False, (3,), 48, Words(16, 1)),
    ],
)
def test_words_are_as_wide_as_everything_allows(
    dtype, aligned, lengths, run_nbytes, expected
) -> None:
    spec = Spec((9,), to_dtype(dtype), aligned)
    assert words_of((spec,), lengths, run_nbytes) == expected


@given(value=st.integers(1, 2**63 - 1), quotient=st.integers(0), rest=st.integers(-1, 1))
@example(value=1, quotient=2**63 - 1, rest=0)
def test_divisors_divide_exactly(value, quotient, rest) -> None:
    dividend = min(max(0, quotient * value + rest), 2**63 - 1)
    _, multiplier, shift = divisor_fields(value)
    assert multiplier < 2**64
    assert 2 * dividend * multiplier >> 64 + shift == dividend // value


@given(value=st.integers(1, 2**31 - 1), quotient=st.integers(0), rest=st.integers(-1, 1))
@example(value=1, quotient=2**31 - 1, rest=0)
@example(value=2**30, quotient=2, rest=-1)
@example(value=2**30 + 1, quotient=1, rest=-1)
def test_half_a_divisor_divides_half_as_many_bits_exactly(value, quotient, rest) -> None:
    dividend = min(max(0, quotient * value + rest), 2**31 - 1)
    _, multiplier, shift = divisor_fields(value)
    upper = (multiplier >> 32) + 1
    assert upper < 2**32
    assert 2 * dividend * upper >> 32 + shift == dividend // value


def test_concat_plans_one_launch_whose_blocks_cover_the_result() -> None:
    xs = tuple(Spec((1024, 8191 - i), to_dtype("float16")) for i in range(8))
    op = ConcatTraining(axis=1)
    y, lengths = op.infer(xs)
    (launch,) = op.plan(DEVICE, xs, y, lengths).steps
    assert launch.symbol == "concat_training"
    assert (launch.slots["T"], launch.slots["WORDS"], launch.slots["CAPACITY"]) == (
        "u16",
        "8",
        "16",
    )
    written = launch.config.grid[0] * int(launch.slots["CHUNKS"]) * launch.config.block[0] * 16
    assert y.nbytes <= written < y.nbytes + 16_384


@pytest.mark.parametrize("case", ["f4,8x same", "f4,8x mixed", "f4,64x same", "f2,8x odd"])
def test_concat_answers_as_upstream_does(anywhere, case) -> None:
    case = f"ConcatTraining[{case}]"
    n = ANSWERS[f"{case}|out1"].size
    parts = recorded(case, *(f"in|I{i}" for i in range(n)))
    joined, lengths = ConcatTraining(axis=1)([anywhere.place(part) for part in parts])
    assert_matches(anywhere.host(joined), ANSWERS[f"{case}|out0"], 0)
    assert lengths.tolist() == ANSWERS[f"{case}|out1"].tolist()


def test_split_answers_as_upstream_does(anywhere) -> None:
    x, split, *expected = recorded(
        "SplitTraining[f4,8]", "in|X", "in|split", *(f"out{i}" for i in range(8))
    )
    parts = SplitTraining(axis=1)(anywhere.place(x), split)
    for part, wanted in zip(parts, expected, strict=True):
        assert_matches(anywhere.host(part), wanted, 0)
