# SPDX-License-Identifier: MIT
"""The batch normalisation oracle against finite differences, JAX, PyTorch and its own rules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import vjp

from cupy_training_ops import ArgumentError, DtypeError, get_op
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, dtype_name
from cupy_training_ops.families.batch_norm.samples import ROWS, inputs
from cupy_training_ops.testing.compare import assert_matches

jax.config.update("jax_enable_x64", True)

DOUBLE = (FLOAT64,) * 3
EPSILON = 1e-3
GRADIENT = get_op("BatchNormalizationGrad")(epsilon=EPSILON)

SHAPES = ((7,), (5, 1), (1, 3), (4, 3), (2, 33, 5), (3, 1, 31), (2, 3, 2, 2, 1, 3), (2,) * 8)
LONG = (
    *((rows, 3, length) for rows in (1, 3, 15, 17) for length in (1, 2, 32, 33, 127, 1000, 4097)),
    *((3, c, 31) for c in (1, 3, 33, 257)),
    (70_000, 3),
    (2, 2, 65_536),
)


def normalized(x, scale, bias, epsilon=EPSILON):
    """The forward, for JAX."""
    x3 = x.reshape((1, 1, -1) if x.ndim == 1 else (*x.shape[:2], -1))
    mean = x3.mean((0, 2), keepdims=True)
    var = ((x3 - mean) ** 2).mean((0, 2), keepdims=True)
    y = (x3 - mean) / jnp.sqrt(var + epsilon) * scale[:, None] + bias[:, None]
    return y.reshape(x.shape)


def both(rng, shape, epsilon=EPSILON):
    """Inputs of the forward, the gradient of its result, the forward's outputs."""
    arguments = inputs(rng, "BatchNormInternal", shape, DOUBLE)
    results = get_op("BatchNormInternal")(epsilon=epsilon)(*[g.copy() for g in arguments])
    return arguments, rng.standard_normal(shape), results


def check_jax(rng, shape) -> None:
    (x, scale, bias, *_), dy, (y, _, _, *saved) = both(rng, shape)
    assert_matches(y, np.asarray(normalized(x, scale, bias)), 1e-10)
    expected = vjp(normalized, [x, scale, bias], dy)
    for actual, gradient in zip(GRADIENT(dy, x, scale, *saved), expected, strict=True):
        assert_matches(actual, gradient, 1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_gradient_are_jax(rng, shape) -> None:
    check_jax(rng, shape)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", LONG, ids=str)
def test_forward_and_gradient_are_jax_at_length(rng, shape) -> None:
    check_jax(rng, shape)


@pytest.mark.parametrize("shape", [(3, 2, 3), (5, 2), (6,)], ids=str)
def test_gradients_are_finite_differences(rng, shape) -> None:
    (x, scale, bias, *others), dy, (_, _, _, *saved) = both(rng, shape)
    op, h = get_op("BatchNormInternal")(epsilon=EPSILON), 1e-5
    result = GRADIENT(dy, x, scale, *saved)
    for place, gradient in enumerate(result):
        for at in np.ndindex(gradient.shape):
            ends = []
            for step in (h, -h):
                moved = [x.copy(), scale.copy(), bias.copy()]
                moved[place][at] += step
                (y, *_) = op(*moved, *[o.copy() for o in others])
                ends.append((dy * y).sum())
            assert abs(gradient[at] - (ends[0] - ends[1]) / (2 * h)) < 1e-7


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(dtype_name, row)))
def test_every_row_of_types_is_float64_rounded_once(rng, row) -> None:
    arguments = inputs(rng, "BatchNormInternal", (5, 3, 4), row)
    wide = [g.astype(FLOAT64) for g in arguments]
    actual = get_op("BatchNormInternal")()(*[g.copy() for g in arguments])
    exact = get_op("BatchNormInternal")()(*wide)
    types = (row[0], *[row[2]] * 4)
    for result, expected, t in zip(actual, exact, types, strict=True):
        assert result.dtype == t
        assert_matches(result, expected.astype(t), 0 if t != BFLOAT16 else None)
    slopes = inputs(rng, "BatchNormalizationGrad", (5, 3, 4), row)
    exact = GRADIENT(*[s.astype(FLOAT64) for s in slopes])
    for result, expected, t in zip(GRADIENT(*slopes), exact, (row[0], row[1], row[1]), strict=True):
        assert result.dtype == t
        assert_matches(result, expected.astype(t), 0 if t != BFLOAT16 else None)


@pytest.mark.parametrize("unbiased", [True, False])
def test_running_statistics(rng, unbiased) -> None:
    x, scale, bias, mean, var = inputs(rng, "BatchNormInternal", (4, 3, 5), DOUBLE)
    before = mean.copy(), var.copy()
    op = get_op("BatchNormInternal")(momentum=0.75, unbiased=unbiased)
    y, running_mean, running_var, saved_mean, saved_inv_std = op(x, scale, bias, mean, var)
    assert running_mean is mean
    assert running_var is var
    flat = np.moveaxis(x, 1, 0).reshape(3, -1)
    assert_matches(mean, 0.75 * before[0] + 0.25 * flat.mean(1))
    assert_matches(var, 0.75 * before[1] + 0.25 * flat.var(1, ddof=int(unbiased)))
    assert_matches(saved_mean, flat.mean(1))
    assert_matches(saved_inv_std, 1 / np.sqrt(flat.var(1) + 1e-5))
    inference = get_op("BatchNormInternal")(training_mode=0)
    result, *none = inference(x, scale, bias, saved_mean, flat.var(1))
    assert_matches(result, y, 1e-10)
    assert none == [None] * 4


def test_one_value_a_channel_has_no_variance(rng) -> None:
    x, scale, bias, mean, var = inputs(rng, "BatchNormInternal", (1, 4), DOUBLE)
    expected = 0.9 * var
    y, _, running_var, saved_mean, saved_inv_std = get_op("BatchNormInternal")()(
        x, scale, bias, mean, var
    )
    assert_matches(running_var, expected)
    assert saved_mean.tolist() == x[0].tolist()
    assert_matches(saved_inv_std, np.full(4, 1e-5**-0.5))
    assert_matches(y, bias[None])
    assert_matches(GRADIENT(x, x, scale, saved_mean, saved_inv_std)[0], np.zeros((1, 4)))


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0), (0, 3), (0,)], ids=str)
def test_nothing_leaves_running_statistics_as_they_are(anywhere, shape) -> None:
    n = 3 if len(shape) > 1 else 1
    x, ones = np.zeros(shape, FLOAT32), np.ones(n, FLOAT32)
    arguments = [anywhere.place(a) for a in (x, ones, ones, 5 * ones, 7 * ones)]
    results = get_op("BatchNormInternal")(epsilon=0.25)(*arguments)
    y, *actual = [anywhere.host(result).tolist() for result in results]
    assert y == x.tolist()
    assert actual == [[5] * n, [7] * n, [0] * n, [2] * n]
    slopes = [anywhere.place(a) for a in (x, x, ones, ones, ones)]
    dx, *sums = [anywhere.host(result).tolist() for result in GRADIENT(*slopes)]
    assert dx == x.tolist()
    assert sums == [[0] * n] * 2


def test_pytorch(rng) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
    for shape in ((5, 3), (4, 3, 6), (2, 3, 4, 5)):
        x, scale, bias, mean, var = inputs(rng, "BatchNormInternal", shape, DOUBLE)
        tensors = [torch.tensor(a) for a in (x, scale, bias, mean, var)]
        theirs = torch.native_batch_norm(*tensors, True, 0.25, EPSILON)
        op = get_op("BatchNormInternal")(momentum=0.75, epsilon=EPSILON)
        y, running_mean, running_var, *saved = op(x, scale, bias, mean, var)
        results = (y, *saved, running_mean, running_var)
        for ours, other in zip(results, (*theirs, *tensors[3:]), strict=True):
            assert_matches(ours, other.numpy(), 1e-10)
        dy = rng.standard_normal(shape)
        slopes = torch.ops.aten.native_batch_norm_backward(
            torch.tensor(dy), *tensors[:2], *tensors[3:], *theirs[1:], True, EPSILON, [True] * 3
        )
        for ours, other in zip(GRADIENT(dy, x, scale, *saved), slopes, strict=True):
            assert_matches(ours, other.numpy(), 1e-10)


# ---- what is refused, everywhere alike and before anything is written ----------------------------

THREE, FOUR = np.ones(3, FLOAT32), np.ones(4, FLOAT32)
X = np.arange(24, dtype=FLOAT32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (0, np.ones((), FLOAT32), "X: expected arrays of at least one dimension, got a scalar"),
        (1, FOUR, r"scale: expected shape \(3,\), as X has channels, got shape \(4,\)"),
        (2, FOUR, r"B: expected shape \(3,\)"),
        (3, FOUR, r"input_mean: expected shape \(3,\)"),
        (4, THREE[None], r"input_var: expected shape \(3,\)"),
        (4, THREE.astype(FLOAT64), "input_var: expected dtype float32"),
        (3, THREE.astype(FLOAT16), "input_"),
        (1, THREE.astype(np.int32), "scale: expected dtype"),
        (1, THREE.astype(BFLOAT16), "B: expected dtype bfloat16 like scale"),
    ],
)
def test_bad_input_of_the_forward(anywhere, place, wrong, message) -> None:
    arguments = [X, THREE, THREE, 2 * THREE, 3 * THREE]
    arguments[place] = wrong
    arrays = [anywhere.place(a) for a in arguments]
    with pytest.raises((ArgumentError, DtypeError), match=f"BatchNormInternal: {message}"):
        get_op("BatchNormInternal")()(*arrays)
    for array, before in zip(arrays, arguments, strict=True):
        assert anywhere.host(array).tolist() == before.tolist()


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (0, X[:, :, :3].copy(), r"dY: expected shape \(2, 3, 4\), as X, got shape \(2, 3, 3\)"),
        (2, FOUR, r"scale: expected shape \(3,\)"),
        (3, FOUR, r"saved_mean: expected shape \(3,\)"),
        (4, FOUR, r"saved_inv_std: expected shape \(3,\)"),
        (4, THREE.astype(FLOAT64), "saved_inv_std: expected dtype float32"),
    ],
)
def test_bad_input_of_the_gradient(anywhere, place, wrong, message) -> None:
    arguments = [X, X, THREE, THREE, THREE]
    arguments[place] = wrong
    with pytest.raises((ArgumentError, DtypeError), match=f"BatchNormalizationGrad: {message}"):
        GRADIENT(*[anywhere.place(a) for a in arguments])


def test_a_row_of_types_that_is_not_there(anywhere) -> None:
    arguments = [X.astype(BFLOAT16), *[THREE.astype(FLOAT16)] * 2, THREE, 2 * THREE]
    with pytest.raises(DtypeError, match=r"BatchNormInternal: .*bfloat16"):
        get_op("BatchNormInternal")()(*[anywhere.place(a) for a in arguments])


@pytest.mark.parametrize("statistics", [BFLOAT16, FLOAT32], ids=str)
def test_parameters_of_bfloat16_are_their_numbers(anywhere, statistics, rng) -> None:
    """Results are those of the same numbers in float32, rounded to bfloat16."""
    seed = int(rng.integers(2**31))

    def run(name: str, parameters: type, row: type) -> list:
        arrays = inputs(np.random.default_rng(seed), name, (3, 5, 4, 6), (BFLOAT16,) * 3)
        arguments = [a.astype(t) for a, t in zip(arrays, types[name](parameters, row), strict=True)]
        results = get_op(name)(epsilon=EPSILON)(*[anywhere.place(a) for a in arguments])
        return [anywhere.host(a).astype(FLOAT32) for a in results]

    types = {
        "BatchNormInternal": lambda t1, t2: (BFLOAT16, t1, t1, t2, t2),
        "BatchNormalizationGrad": lambda t1, t2: (BFLOAT16, BFLOAT16, t1, t2, t2),
    }
    of = {"BatchNormInternal": [statistics] * 4, "BatchNormalizationGrad": [BFLOAT16] * 2}
    for name, kinds in of.items():
        results, wide = run(name, BFLOAT16, statistics), run(name, FLOAT32, FLOAT32)
        assert results[0].tobytes() == wide[0].tobytes()
        for array, kind, other in zip(results[1:], kinds, wide[1:], strict=True):
            assert array.tobytes() == other.astype(kind).astype(FLOAT32).tobytes()


def test_running_statistics_share_no_memory(anywhere) -> None:
    x, ones = anywhere.place(X), anywhere.place(THREE)
    shared = anywhere.place(np.ones(6, FLOAT32))
    for mean, var in ((shared[:3], shared[:3]), (shared[:3], shared[2:5])):
        with pytest.raises(ArgumentError, match=r"Internal: .*expected memory of its own"):
            get_op("BatchNormInternal")()(x, ones, ones, mean, var)
    assert anywhere.host(shared).tolist() == [1] * 6


def test_outputs_of_training_alone(anywhere) -> None:
    arrays = [anywhere.place(a) for a in (X, THREE, THREE, 2 * THREE, 3 * THREE)]
    out = tuple(anywhere.place(a) for a in (X, THREE, THREE, THREE, THREE))
    op = get_op("BatchNormInternal")(training_mode=0)
    with pytest.raises(ArgumentError, match=r"BatchNormInternal: out \(running_mean\): expected"):
        op(*arrays, out=out)
    assert anywhere.host(arrays[3]).tolist() == [2] * 3


@pytest.mark.parametrize(
    "wrong", [{"epsilon": -1e-5}, {"epsilon": np.inf}, {"momentum": 1.5}, {"momentum": np.nan}]
)
def test_bad_attributes(wrong) -> None:
    with pytest.raises(ArgumentError, match=f"BatchNormInternal: {next(iter(wrong))}: expected"):
        get_op("BatchNormInternal")(**wrong)
