# SPDX-License-Identifier: MIT
"""The softmax oracle against finite differences, JAX, exact arithmetic and upstream's answers."""

from __future__ import annotations

import math
from pathlib import Path

import jax
import mpmath
import numpy as np
import pytest
from derivatives import finite_differences, vjp
from within_rows import assert_within_rows

from cupy_training_ops import ArgumentError, DtypeError, get_op
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.softmax.samples import logits
from cupy_training_ops.testing.compare import assert_matches

jax.config.update("jax_enable_x64", True)

NAN, INF = math.nan, math.inf
ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")
FORWARD = {"Softmax": jax.nn.softmax, "LogSoftmax": jax.nn.log_softmax}

floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
forward = pytest.mark.parametrize("name", FORWARD)


def apply(name: str, *arrays, **attributes) -> np.ndarray:
    return get_op(name)(**attributes)(*arrays)


@forward
@pytest.mark.parametrize(("shape", "axis"), [((7, 11), -1), ((3, 5, 7), 1), ((4, 2, 9), 0)])
def test_both_are_jax(rng, name, shape, axis) -> None:
    x, dy = logits(rng, shape, FLOAT64), logits(rng, shape, FLOAT64)
    y = apply(name, x, axis=axis)
    assert_matches(y, np.asarray(FORWARD[name](x, axis)))
    (dx,) = vjp(lambda x: FORWARD[name](x, axis), [x], dy)
    assert_matches(apply(f"{name}Grad_13", dy, y, axis=axis), dx)


@forward
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_rows_of_the_old_gradients_are_all_that_follows(rng, name, axis) -> None:
    x, dy = logits(rng, (3, 4, 5), FLOAT64), logits(rng, (3, 4, 5), FLOAT64)
    rows = x.reshape(math.prod(x.shape[: axis % 3]), -1)
    y = np.asarray(FORWARD[name](rows)).reshape(x.shape)
    (dx,) = vjp(FORWARD[name], [rows], dy.reshape(rows.shape))
    assert_matches(apply(f"{name}Grad", dy, y, axis=axis), dx.reshape(x.shape))


@forward
def test_gradients_are_finite_differences(rng, name) -> None:
    x, dy = logits(rng, (3, 7), FLOAT64), logits(rng, (3, 7), FLOAT64)
    expected = finite_differences(lambda x: apply(name, x), x, dy)
    assert np.abs(apply(f"{name}Grad_13", dy, apply(name, x)) - expected).max() < 1e-9


@floats
def test_special_lines(dtype) -> None:
    """As in PyTorch: -inf alone, and inf, make a line NaN."""
    x = np.array([[-INF, -INF], [INF, 0], [NAN, 0], [-INF, 3], [0, 0]]).astype(dtype)
    half = math.log(2)
    logs = [[NAN] * 2, [NAN] * 2, [NAN] * 2, [-INF, 0], [-half, -half]]
    assert_matches(apply("LogSoftmax", x), np.array(logs).astype(dtype))
    shares = [[NAN] * 2, [NAN] * 2, [NAN] * 2, [0, 1], [0.5, 0.5]]
    assert_matches(apply("Softmax", x), np.array(shares).astype(dtype))


def test_float64_is_exact_to_its_digits(rng) -> None:
    """Upstream's short rows are evaluated in float32."""
    x = 300 * rng.standard_normal((2, 9))
    with mpmath.workdps(40):
        for row, result in zip(x, apply("LogSoftmax", x), strict=True):
            total = mpmath.log(mpmath.fsum(mpmath.exp(v) for v in row))
            assert_matches(result, np.array([float(v - total) for v in row]))


@pytest.mark.parametrize("name", ["Softmax", "SoftmaxGrad", "LogSoftmaxGrad_13"])
def test_bad_input_is_named(name) -> None:
    n = len(get_op(name).inputs)
    with pytest.raises(ArgumentError, match=f"{name}: axis: expected an axis from -2 to 1, got 2"):
        apply(name, *[np.ones((2, 3), FLOAT32)] * n, axis=2)
    with pytest.raises(ArgumentError, match=f"{name}: axis: expected arrays of at least one dim"):
        apply(name, *[np.ones((), FLOAT32)] * n)
    with pytest.raises(DtypeError, match=f"{name}: \\w+: expected dtype float32"):
        apply(name, *[np.ones((2, 3), np.int64)] * n)
    if n == 2:
        other = np.ones((3, 2), FLOAT32)
        with pytest.raises(ArgumentError, match=rf"{name}: [YX]: expected shape \(2, 3\), as dY"):
            apply(name, np.ones((2, 3), FLOAT32), other)


@pytest.mark.parametrize("t", ["f4", "f2"])
@pytest.mark.parametrize("name", ["SoftmaxGrad_13", "LogSoftmaxGrad_13"])
def test_upstreams_answers(anywhere, name, t) -> None:
    case = f"{name}[{t}]"
    inputs = [anywhere.place(ANSWERS[f"{case}|in|{i}"]) for i in ("dY", "Y")]
    expected = ANSWERS[f"{case}|out0"]
    assert expected.dtype == (FLOAT32 if t == "f4" else FLOAT16)
    assert_within_rows(anywhere.host(apply(name, *inputs)), expected)


@forward
@pytest.mark.parametrize(("shape", "axis"), [((7, 11), -1), ((3, 5, 7), 1)])
def test_both_are_pytorchs(anywhere, rng, name, shape, axis) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
    x, dy = logits(rng, shape, FLOAT64), logits(rng, shape, FLOAT64)
    x[0, 0], x[-1, 0] = -INF, INF
    theirs = torch.tensor(x, requires_grad=True)
    wanted = (torch.softmax if name == "Softmax" else torch.log_softmax)(theirs, axis)
    wanted.backward(torch.tensor(dy))
    y = apply(name, anywhere.place(x), axis=axis)
    assert_matches(anywhere.host(y), wanted.detach().numpy())
    dx = apply(f"{name}Grad_13", anywhere.place(dy), y, axis=axis)
    assert_matches(anywhere.host(dx), theirs.grad.numpy())
