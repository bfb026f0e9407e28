# SPDX-License-Identifier: MIT
"""The layer-norm oracle against finite differences, JAX, PyTorch and upstream's answers."""

from __future__ import annotations

import math
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import vjp

from cupy_training_ops import ArgumentError, DtypeError, get_op
from cupy_training_ops.declare.type_rows import combinations
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, dtype_name
from cupy_training_ops.families.layer_norm.operators import OPS
from cupy_training_ops.families.layer_norm.samples import inputs
from cupy_training_ops.testing.compare import assert_matches

jax.config.update("jax_enable_x64", True)

ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")
GRADIENTS = tuple(name for name in OPS if name.endswith("Grad"))
ROWS = combinations(get_op("LayerNormalization").types)
EPSILON = 1e-5

gradients = pytest.mark.parametrize("name", GRADIENTS)
type_rows = pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: "-".join(dtype_name(t) for t in row.values())
)


def forward(name: str, x, scale, bias, axis: int = -1):
    """Y by JAX, or with NumPy's arrays."""
    xp = jnp if isinstance(x, jax.Array) else np
    axes = tuple(range(axis % x.ndim, x.ndim))
    if not name.startswith("Simplified"):
        x = x - x.mean(axes, keepdims=True)
    y = x / xp.sqrt((x * x).mean(axes, keepdims=True) + EPSILON) * scale
    return y if name.startswith("Simplified") else y + bias


def drawn(rng, shape, axis: int = -1, dtype=FLOAT64):
    """dY, X, scale and bias; no scale is near 0."""
    row = shape[axis % len(shape) :]
    scale = rng.choice([-1.0, 1.0], row) * rng.uniform(0.5, 2, row)
    others = (3 * rng.standard_normal(shape) + 1, scale, rng.standard_normal(row))
    return tuple(np.asarray(a).astype(dtype) for a in (rng.standard_normal(shape), *others))


def statistics(x, axis: int = -1):
    """Mean, and inv_std about the mean and about 0."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = x.mean(axes, keepdims=True)
    roots = [((x - m) ** 2).mean(axes, keepdims=True) + EPSILON for m in (mean, 0)]
    return mean, *(1 / np.sqrt(root) for root in roots)


def gradient(name: str, dy, x, scale, bias, axis: int = -1, **attributes):
    """Our answer, from X and exact statistics."""
    mean, inv_std, inv_root = statistics(x, axis)
    arguments = {
        "LayerNormalizationGrad": (x, scale, mean, inv_std),
        "SimplifiedLayerNormalizationGrad": (x, scale, inv_root),
        "InvertibleLayerNormalizationGrad": (
            forward("LayerNormalization", x, scale, bias, axis),
            scale,
            bias,
            inv_std,
        ),
    }
    return get_op(name)(axis=axis, **attributes)(dy, *arguments[name])


# shape, axis
SHAPES = [
    ((40, 1000), -1),
    ((3, 7), -1),
    ((2, 3, 4), 1),
    ((2, 3, 4), 0),
    ((5, 1), -1),
    ((1, 33), -1),
    ((17, 2), 1),
]
LENGTHS = (1, 2, 31, 32, 33, 127, 1000, 1023, 4097, 65_536)
COUNTS = (1, 3, 15, 17)
GRID = [
    *(((count, length), -1) for length in LENGTHS for count in COUNTS),
    ((70_000, 1), -1),
    ((70_000, 33), -1),
    *(((3, 5, 7, 2), axis) for axis in range(-4, 4)),
]


def check_against_jax(rng, name: str, shape, axis: int) -> None:
    """The tolerance counts the row's largest: gradients are differences of larger terms."""
    dy, x, scale, bias = drawn(rng, shape, axis)
    expected = vjp(lambda *primals: forward(name, *primals, axis), (x, scale, bias), dy)
    actual = gradient(name, dy, x, scale, bias, axis)
    for ours, theirs in zip(actual, expected, strict=False):
        size = np.abs(theirs).max(initial=1)
        assert np.abs(ours - theirs).max() <= 1e-11 * size * math.sqrt(len(x))


@gradients
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_gradients_are_jaxs(rng, name, shape, axis) -> None:
    check_against_jax(rng, name, shape, axis)


@pytest.mark.thorough
@gradients
@pytest.mark.parametrize(("shape", "axis"), GRID)
def test_gradients_are_jaxs_over_a_grid(rng, name, shape, axis) -> None:
    check_against_jax(rng, name, shape, axis)


@gradients
@pytest.mark.parametrize("row", [2.0, 0.0])
def test_constant_rows(rng, name, row) -> None:
    dy, x, scale, bias = drawn(rng, (4, 9))
    x[1:3] = row
    expected = vjp(lambda *primals: forward(name, *primals), (x, scale, bias), dy)
    for ours, theirs in zip(gradient(name, dy, x, scale, bias), expected, strict=False):
        assert np.abs(ours - theirs).max() <= 1e-11 * np.abs(theirs).max()


@type_rows
@gradients
def test_gradients_are_finite_differences(rng, name, row) -> None:
    """Of every row of types: their values, in float64, are what is differentiated."""
    t, v = row["T"], row["V"]
    dy, x, scale, bias = drawn(rng, (3, 5), dtype=v)
    x = x.astype(t)
    wide = [a.astype(FLOAT64) for a in (x, scale, bias)]
    expected = differences(lambda *a: (dy.astype(FLOAT64) * forward(name, *a)).sum(), wide)
    narrow = gradient_in(name, dy, x, scale, bias, row)
    for ours, theirs in zip(narrow, expected, strict=False):
        assert ours.dtype in (t, v)
        bound = {FLOAT64: 1e-7, FLOAT32: 1e-5, FLOAT16: 2e-2, BFLOAT16: 0.2}
        worst = max(bound[ours.dtype], bound[v] if name.startswith("Inv") else 0)
        assert np.abs(ours.astype(FLOAT64) - theirs).max() <= worst * max(1, np.abs(theirs).max())


def gradient_in(name: str, dy, x, scale, bias, row):
    """Our answer in these types."""
    wide = [a.astype(FLOAT64) for a in (x, scale, bias)]
    mean, inv_std, inv_root = (a.astype(row["U"]) for a in statistics(wide[0]))
    if name.startswith("Simplified"):
        return get_op(name)()(dy, x, scale, inv_root)
    if name.startswith("Invertible"):
        y = forward("LayerNormalization", *wide).astype(row["V"])
        return get_op(name)(output_type=row["T"])(dy, y, scale, bias, inv_std)
    return get_op(name)()(dy, x, scale, mean, inv_std)


def differences(function, arrays, h: float = 1e-5) -> list[np.ndarray]:
    """The derivative by every element of every array."""
    results = []
    for array in arrays:
        slope = np.empty_like(array)
        for place in np.ndindex(array.shape):
            middle = array[place]
            ends = []
            for step in (h, -h):
                array[place] = middle + step
                ends.append(function(*arrays))
            array[place] = middle
            slope[place] = (ends[0] - ends[1]) / (2 * h)
        results.append(slope)
    return results


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("name", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_forward_is_jaxs(rng, name, shape, axis) -> None:
    _, x, scale, bias = drawn(rng, shape, axis)
    arguments = (x, scale) if name.startswith("Simplified") else (x, scale, bias)
    y, *results = get_op(name)(axis=axis)(*arguments)
    wanted = forward(name, *(jnp.asarray(a) for a in (x, scale, bias)), axis)
    assert_matches(y, np.asarray(wanted))
    mean, inv_std, inv_root = statistics(x, axis)
    for ours, theirs in zip(
        results, (inv_root,) if name.startswith("Simplified") else (mean, inv_std), strict=True
    ):
        assert_matches(ours, theirs)


@pytest.mark.parametrize("name", ["LayerNormalizationGrad", "SimplifiedLayerNormalizationGrad"])
def test_pytorch_agrees(rng, name) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
    dy, x, scale, bias = drawn(rng, (37, 65))
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, scale, bias)]
    if name.startswith("Simplified"):
        y = torch.nn.functional.rms_norm(tensors[0], (65,), tensors[1], eps=EPSILON)
    else:
        y = torch.nn.functional.layer_norm(tensors[0], (65,), *tensors[1:], eps=EPSILON)
    y.backward(torch.tensor(dy))
    for ours, tensor in zip(gradient(name, dy, x, scale, bias), tensors, strict=False):
        assert np.abs(ours - tensor.grad.numpy()).max() < 1e-11


# ---- what else the contract says -----------------------------------------------------------------


def test_statistics_are_taken_as_they_are(rng) -> None:
    """x^ of others than X has: it is not normalised again."""
    dy, x, scale, _ = drawn(rng, (3, 8))
    mean, inv_std = rng.standard_normal((3, 1)), rng.uniform(1, 2, (3, 1))
    actual = get_op("LayerNormalizationGrad")()(dy, x, scale, mean, inv_std)
    x_hat, h = (x - mean) * inv_std, dy * scale
    terms = h - h.mean(1, keepdims=True) - x_hat * (h * x_hat).mean(1, keepdims=True)
    for ours, expected in zip(
        actual, (inv_std * terms, (dy * x_hat).sum(0), dy.sum(0)), strict=True
    ):
        assert_matches(ours, expected)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (2, 3, 1, 1), (6,), (6, 1)])
def test_statistics_come_in_several_shapes(rng, shape) -> None:
    dy, x, scale, bias = drawn(rng, (2, 3, 4, 5), 2)
    mean, inv_std, _ = statistics(x, 2)
    op = get_op("LayerNormalizationGrad")(axis=2)
    actual = op(dy, x, scale, mean.reshape(shape), inv_std.reshape(shape))
    for ours, expected in zip(actual, gradient(op.name, dy, x, scale, bias, 2), strict=True):
        assert_matches(ours, expected, 0)
    flat = op(dy, x, scale.reshape(-1), mean, inv_std)
    assert [a.shape for a in flat] == [x.shape, (20,), (20,)]


def test_a_scale_of_zero_spares_the_other_columns(rng) -> None:
    dy, x, scale, bias = drawn(rng, (9, 12))
    scale[[2, 7]] = 0
    mean, inv_std, _ = statistics(x)
    y = forward("LayerNormalization", x, scale, bias)
    y[:, scale == 0] += 3  # whatever stands there
    dx, scale_grad, bias_grad = get_op("InvertibleLayerNormalizationGrad")()(
        dy, y, scale, bias, inv_std
    )
    expected = get_op("LayerNormalizationGrad")()(dy, x, scale, mean, inv_std)
    alive = scale != 0
    assert not scale_grad[~alive].any()
    assert_matches(dx[:, alive], expected[0][:, alive])
    assert_matches(scale_grad[alive], expected[1][alive])
    assert_matches(bias_grad, expected[2])
    shift = -(dy * scale).mean(1, keepdims=True) * inv_std
    assert_matches(dx[:, ~alive], np.broadcast_to(shift, dx.shape)[:, ~alive].copy())


@gradients
def test_gradients_of_no_rows_are_zero(rng, name) -> None:
    arguments = inputs(rng, name, (0, 4), (FLOAT32, FLOAT32))
    dx, *sums = get_op(name)()(*arguments)
    assert dx.shape == (0, 4)
    assert all(a.tolist() == [0, 0, 0, 0] for a in sums)


def test_empty_rows_have_mean_and_variance_zero() -> None:
    y, mean, inv_std = get_op("LayerNormalization")(epsilon=0.25)(
        np.ones((3, 0), FLOAT32), np.ones(0, FLOAT32)
    )
    assert (y.shape, mean.ravel().tolist(), inv_std.ravel().tolist()) == ((3, 0), [0] * 3, [2] * 3)


def test_large_offsets(rng) -> None:
    x = (1e4 + 1e-2 * rng.standard_normal((50, 1024))).astype(FLOAT32)
    _, mean, inv_std = get_op("LayerNormalization")()(x, np.ones(1024, FLOAT32))
    exact_mean, exact, _ = statistics(x.astype(FLOAT64))
    assert np.abs(mean - exact_mean).max() < 1e-3
    assert np.abs(inv_std / exact - 1).max() < 1e-6


def test_four_million_elements_take_half_a_second(rng) -> None:
    """On two cores; here three times as long is let pass, as the machine may be busy."""
    arguments = inputs(rng, "LayerNormalizationGrad", (4096, 1024), (FLOAT32, FLOAT32))
    op = get_op("LayerNormalizationGrad")()
    start = time.process_time()
    op(*arguments)
    assert time.process_time() - start < 1.5


# ---- bad input -----------------------------------------------------------------------------------

X = np.ones((4, 6), FLOAT32)
ROW, MEAN = np.ones(6, FLOAT32), np.ones((4, 1), FLOAT32)
GIVEN = {
    "LayerNormalizationGrad": [X, X, ROW, MEAN, MEAN],
    "SimplifiedLayerNormalizationGrad": [X, X, ROW, MEAN],
    "InvertibleLayerNormalizationGrad": [X, X, ROW, ROW, MEAN],
    "LayerNormalization": [X, ROW, ROW],
    "SimplifiedLayerNormalization": [X, ROW],
}
SHAPE_FAULTS = [
    (name, place, bad)
    for name, given in GIVEN.items()
    for place in range(1, len(given))
    for bad in ((5,), (6, 4), (), (2, 3), (2, 2))
]


@pytest.mark.parametrize(("name", "place", "bad"), SHAPE_FAULTS)
def test_a_wrong_size_is_named(anywhere, name, place, bad) -> None:
    arguments = list(GIVEN[name])
    arguments[place] = np.ones(bad, FLOAT32)
    declared = get_op(name).inputs[place].name
    with pytest.raises(ArgumentError, match=rf"{name}: {declared}: expected shape"):
        get_op(name)()(*map(anywhere.place, arguments))


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_beyond_the_rank_is_named(anywhere, name, axis) -> None:
    arguments = map(anywhere.place, GIVEN[name])
    message = f"{name}: axis: expected an axis from -2 to 1, got {axis}"
    with pytest.raises(ArgumentError, match=message):
        get_op(name)(axis=axis)(*arguments)


@gradients
def test_types_that_are_in_no_row_are_refused(anywhere, name) -> None:
    arguments = [a.astype(FLOAT64) if a is MEAN else a for a in GIVEN[name]]
    with pytest.raises(DtypeError, match=f"{name}: types: expected such as"):
        get_op(name)()(*map(anywhere.place, arguments))
    arguments = [a.astype(FLOAT16) if a is MEAN else a for a in GIVEN[name]]
    place = next(i for i, a in enumerate(GIVEN[name]) if a is MEAN)
    declared = get_op(name).inputs[place].name
    with pytest.raises(DtypeError, match=f"{name}: {declared}: expected dtype float32, float64"):
        get_op(name)()(*map(anywhere.place, arguments))


def test_the_inverse_has_an_output_type_in_a_row_of_its_inputs(anywhere) -> None:
    arguments = [anywhere.place(a) for a in GIVEN["InvertibleLayerNormalizationGrad"]]
    with pytest.raises(DtypeError, match="types: expected such as"):
        get_op("InvertibleLayerNormalizationGrad")(output_type=FLOAT64)(*arguments)


# ---- upstream ------------------------------------------------------------------------------------


ANSWERED = {
    "InvertibleLayerNormalizationGrad": ("dY", "Y", "scale", "bias", "inv"),
    "LayerNormalizationGrad": ("dY", "X", "scale", "mean", "inv"),
    "SimplifiedLayerNormalizationGrad": ("dY", "X", "scale", "inv"),
}


@pytest.mark.parametrize("t", ["f4", "f2"])
@gradients
def test_upstreams_answers(anywhere, name, t) -> None:
    case = f"{name}[{t}]"
    if f"{case}|out0" not in ANSWERS:
        pytest.skip("this answer of upstream was not recorded")
    keys = ANSWERED[name]
    actual = get_op(name)()(*(anywhere.place(ANSWERS[f"{case}|in|{key}"]) for key in keys))
    for i, array in enumerate(actual):
        expected = ANSWERS[f"{case}|out{i}"]
        assert_within_largest(anywhere.host(array), expected)


def assert_within_largest(actual: np.ndarray, expected: np.ndarray) -> None:
    """Results are differences of larger terms: the bound counts a twentieth of a row's largest."""
    assert actual.dtype == expected.dtype
    wide = expected.astype(FLOAT64)
    largest = np.abs(wide).max(-1, keepdims=True)
    bound = np.maximum(np.abs(wide), 0.05 * largest)
    relative = 1e-5 if expected.dtype == FLOAT32 else 2e-3
    assert (np.abs(actual.astype(FLOAT64) - wide) <= relative * bound).all()
