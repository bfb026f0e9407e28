# SPDX-License-Identifier: MIT
"""ResizeGrad on every provider: what is special about it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from references import References

from cupy_training_ops import ArgumentError, DtypeError, get_op, resize_grad
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOATS, dtype_name
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches

resize = References("resize")

ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")
MODES = ("half_pixel", "align_corners")
drawn = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
extents = st.integers(1, 40) | st.sampled_from([64, 65, 130])


def normal(rng: np.random.Generator, *shape: int, dtype="float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


@drawn
@given(
    n=st.tuples(st.integers(1, 20), extents),
    m=st.tuples(st.integers(0, 30), extents),
    mode=st.sampled_from(MODES),
    dtype=st.sampled_from(FLOATS),
)
def test_any_sizes(run, rng, n, m, mode, dtype) -> None:
    dy, x = normal(rng, 2, 1, *m, dtype=dtype), normal(rng, 2, 1, *n, dtype=dtype)
    expected = resize.resize_grad(dy, x, coordinate_transformation_mode=mode)
    dx = resize_grad(run.place(dy), run.place(x), coordinate_transformation_mode=mode)
    assert_matches(run.host(dx), expected)


@drawn
@given(
    n=st.tuples(st.integers(1, 20), st.integers(1, 90)),
    scales=st.tuples(st.floats(0.1, 6), st.floats(0.1, 6)),
)
def test_any_scales(run, rng, n, scales) -> None:
    m = [int(extent * np.float32(scale)) for extent, scale in zip(n, scales, strict=True)]
    dy, x = normal(rng, 1, 1, *m), normal(rng, 1, 1, *n)
    expected = resize.resize_grad(dy, x, None, (1, 1, *scales))
    dx = resize_grad(run.place(dy), run.place(x), None, (1, 1, *scales))
    assert_matches(run.host(dx), expected)


@drawn
@given(
    n=st.tuples(st.integers(1, 3), st.integers(1, 25), st.integers(1, 90)),
    dtype=st.sampled_from(FLOATS),
)
def test_any_doubled_size(run, rng, n, dtype) -> None:
    n_planes, n_rows, n_pieces = n
    n_columns = n_pieces * 8 // np.dtype(dtype).itemsize
    dy = normal(rng, n_planes, 1, 2 * n_rows, 2 * n_columns, dtype=dtype)
    x = normal(rng, n_planes, 1, n_rows, n_columns, dtype=dtype)
    with launch_log() as log:
        dx = resize_grad(run.place(dy), run.place(x), None, (1, 1, 2, 2))
    assert [launch.symbol for launch in log] == ["resize_grad__upsample2x"]
    assert_matches(run.host(dx), resize.resize_grad(dy, x))


DOUBLES = [
    ({}, True),
    ({"scales": (1, 1, 2, 2)}, True),
    ({"mode": "align_corners"}, False),
    ({"shape": (9, 16)}, False),
    ({"shape": (7, 16), "scales": (1, 1, 1.99999999, 2)}, False),
    ({"shape": (9, 16), "scales": (1, 1, 2.00000001, 2)}, False),
    ({"shape": (8, 15), "scales": (1, 1, 2, 1.9)}, False),
    ({"x": (4, 6), "shape": (8, 12)}, False),
    ({"x": (2**22, 8), "shape": (2**23, 16)}, True),
    ({"x": (2**22 + 1, 8), "shape": (2**23 + 2, 16)}, False),
    ({"aligned": (False, True)}, False),
    ({"aligned": (True, False)}, False),
]


@pytest.mark.parametrize(("how", "doubled"), DOUBLES, ids=str)
def test_which_kernel_runs(how, doubled) -> None:
    """Rows of whole 16-byte pieces, from pixels that became two by two, have one of their own."""
    ready = {"x": (4, 8), "shape": (8, 16), "mode": "half_pixel", "scales": None} | how
    places = zip((ready["shape"], ready["x"]), how.get("aligned", (True, True)), strict=True)
    dy, dx = (Spec((2, 3, *shape), FLOAT16, aligned) for shape, aligned in places)
    op = get_op("ResizeGrad")(coordinate_transformation_mode=ready["mode"])
    plan = op.plan(Device(132, (9, 0)), dy, dx, None, ready["scales"], dx)
    expected = "resize_grad__upsample2x" if doubled else "resize_grad"
    assert [launch.symbol for launch in plan.steps] == [expected]


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_the_same_call_gives_the_same_bits(run, rng, dtype) -> None:
    dy, x = (run.place(normal(rng, 1, 2, *size, dtype=dtype)) for size in ((21, 33), (10, 17)))
    once, again = run.host(resize_grad(dy, x)), run.host(resize_grad(dy, x))
    assert once.tobytes() == again.tobytes()


SIZES = [
    ((4, 4), (8, 8)),
    ((4, 16), (8, 32)),
    ((5, 6), (5, 6)),
    ((5, 7), (13, 9)),
    ((9, 5), (4, 3)),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n", "m"), SIZES, ids=str)
def test_an_infinity_reaches_what_its_output_touches(anywhere, rng, mode, n, m) -> None:
    dy, at = normal(rng, 1, 1, *m), tuple(rng.integers(m))
    x, touch = np.zeros((1, 1, *n), np.float32), np.zeros_like(dy)
    touch[0, 0, *at] = 1
    touched = resize.resize_grad(touch, x, coordinate_transformation_mode=mode) > 0
    dy[0, 0, *at] = 0
    expected = resize.resize_grad(dy, x, coordinate_transformation_mode=mode)
    expected[touched] = np.inf
    dy[0, 0, *at] = np.inf
    dx = resize_grad(anywhere.place(dy), anywhere.place(x), coordinate_transformation_mode=mode)
    assert_matches(anywhere.host(dx), expected)


@pytest.mark.parametrize("scale", [1.99999999, 2.00000001])
def test_a_scale_near_two_is_not_two(anywhere, rng, scale) -> None:
    x, dy = normal(rng, 2, 1, 4, 8), normal(rng, 2, 1, 7 if scale < 2 else 9, 16)
    dx = resize_grad(anywhere.place(dy), anywhere.place(x), None, (1, 1, scale, 2))
    assert_matches(anywhere.host(dx), resize.resize_grad(dy, x, None, (1, 1, scale, 2)))


def test_a_long_axis_takes_memory_for_itself_alone(anywhere, rng) -> None:
    x, dy = np.zeros((1, 1, 1, 160_000)), normal(rng, 1, 1, 1, 480_000, dtype="float64")
    dx = anywhere.host(resize_grad(anywhere.place(dy), anywhere.place(x)))
    thirds = dy.reshape(-1, 3)
    inner = thirds[1:-1] @ [2 / 3, 1, 2 / 3] + thirds[:-2, 2] / 3 + thirds[2:, 0] / 3
    assert_matches(dx[0, 0, 0, 1:-1], inner, 1e-9)


def test_attributes_of_resize_without_a_meaning_here(anywhere, rng) -> None:
    dy, x = anywhere.place(normal(rng, 1, 1, 8, 8)), anywhere.place(normal(rng, 1, 1, 4, 4))
    ignored = {"antialias": 0, "axes": [], "nearest_mode": "ceil", "cubic_coeff_a": -0.5}
    assert_matches(
        anywhere.host(resize_grad(dy, x, **ignored)), anywhere.host(resize_grad(dy, x)), 0
    )
    for name, value in (("antialias", 1), ("axes", (2, 3)), ("keep_aspect_ratio_policy", "any")):
        with pytest.raises(ArgumentError, match=f"ResizeGrad: {name}: expected"):
            resize_grad(dy, x, **{name: value})


def test_x_counts_only_by_its_shape(anywhere, rng) -> None:
    dy = anywhere.place(normal(rng, 1, 1, 6, 8))
    some, other = (resize_grad(dy, anywhere.place(normal(rng, 1, 1, 3, 4))) for _ in range(2))
    assert_matches(anywhere.host(some), anywhere.host(other), 0)


@pytest.mark.parametrize(
    ("dy_shape", "x_shape", "scales", "message"),
    [
        ((1, 2, 8), (1, 2, 4), None, r"dY: expected rank 4 .* got shape \(1, 2, 8\)"),
        ((1, 2, 8, 8), (1, 2, 4), None, r"X: expected rank 4 .* got shape \(1, 2, 4\)"),
        ((1, 3, 8, 8), (1, 2, 4, 4), None, r"dY: expected shape \(1, 2, ..\), like X, got shape"),
        ((1, 2, 8, 8), (1, 2, 4, 4), (2, 2), r"scales: expected four numbers above 0, got \(2.0, "),
        ((1, 2, 8, 8), (1, 2, 4, 4), (1, 1, 2, 0), "scales: expected four numbers above 0"),
        ((1, 2, 8, 8), (1, 2, 4, 4), (1, 1, 2, 3), r"scales: expected scales that take 4 pixels to "
         r"8 \(axis 3\), got 3.0"),
        ((1, 2, 8, 8), (1, 2, 4, 4), "wide", "scales: expected numbers in rank 1, got 'wide'"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(
    anywhere, rng, dy_shape, x_shape, scales, message
) -> None:
    dy, x = anywhere.place(normal(rng, *dy_shape)), anywhere.place(normal(rng, *x_shape))
    with pytest.raises(ArgumentError, match=f"ResizeGrad: {message}"):
        resize_grad(dy, x, None, scales)


@pytest.mark.parametrize("axis", [2, 3])
@pytest.mark.parametrize(("scale", "fits"), [(1.75, 0), (1.76, 1), (2.24, 1), (2.25, 0)])
def test_a_scale_is_less_than_a_pixel_off(anywhere, rng, axis, scale, fits) -> None:
    scales = [1, 1, 2, 2]
    scales[axis] = scale
    dy, x = anywhere.place(normal(rng, 1, 1, 8, 8)), anywhere.place(normal(rng, 1, 1, 4, 4))
    refused = pytest.raises(
        ArgumentError, match=rf"take 4 pixels to 8 \(axis {axis}\), got {scale}"
    )
    with contextlib.nullcontext() if fits else refused:
        resize_grad(dy, x, None, scales)


def test_other_modes_and_types_are_refused(anywhere) -> None:
    with pytest.raises(ArgumentError, match=r"ResizeGrad: mode: expected one of \('linear',\)"):
        resize_grad(None, None, mode="cubic")
    message = r"ResizeGrad: coordinate_transformation_mode: expected one of \('half_pixel', 'align_"
    with pytest.raises(ArgumentError, match=message):
        resize_grad(None, None, coordinate_transformation_mode="asymmetric")
    x = anywhere.place(np.ones((1, 1, 2, 2), np.int32))
    with pytest.raises(DtypeError, match="ResizeGrad: dY: expected dtype float32, float16"):
        resize_grad(x, x)


@pytest.mark.parametrize(("t", "tolerance"), [("f4", 2e-6), ("f2", 4e-3)])
def test_answers_as_upstream_does(anywhere, t, tolerance) -> None:
    """Upstream adds atomically, in half for half."""
    dy, x, scales, expected = (
        ANSWERS[f"ResizeGrad[{t},linear]|{name}"] for name in ("in|dY", "in|X", "in|scales", "out0")
    )
    dx = resize_grad(anywhere.place(dy), anywhere.place(x), None, scales)
    assert_matches(anywhere.host(dx), expected, tolerance)
