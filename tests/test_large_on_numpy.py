# SPDX-License-Identifier: MIT
"""Large arrays on the NumPy provider, computed in float32: as near to float64 as small ones are."""

from __future__ import annotations

from itertools import repeat

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, HostArray, dtype_name
from cupy_training_ops.rules import pieces
from cupy_training_ops.testing.compare import assert_matches

SHAPE = (301, 257)  # more than a piece's small arrays, odd
NAN, INF = np.nan, np.inf
types = pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=dtype_name)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch) -> None:
    """Several pieces, the last of them shorter."""
    monkeypatch.setattr(pieces, "PIECE", 2**14)


def numbers(rng, dtype, shape=SHAPE) -> HostArray:
    x = (3 * rng.standard_normal(shape)).astype(dtype)
    assert x.size > 2**16
    return x


def wide(*arrays):
    return [
        a.astype(FLOAT64) if getattr(a, "dtype", None) in (FLOAT32, FLOAT16) else a for a in arrays
    ]


def check(name: str, *arrays, tolerance=None, limits=None, **attributes) -> None:
    """An operator beside itself in float64; limits: (tolerance, slack) of each result."""
    op = get_op(name)(**attributes)
    results, exact = op(*arrays), op(*wide(*arrays))
    is_tuple = isinstance(results, tuple)
    pairs = [*zip(results, exact, strict=True)] if is_tuple else [(results, exact)]
    limits = limits or repeat((tolerance, 0.0), len(pairs))
    for (actual, expected), limit in zip(pairs, limits, strict=True):
        with np.errstate(over="ignore"):
            assert_matches(actual, expected.astype(actual.dtype), *limit)


def special_rows(x: HostArray) -> HostArray:
    """Rows of what float32 does not hold, or its squares do not."""
    x[1], x[2, 5], x[3, 7], x[4, 9] = -INF, INF, NAN, -INF
    if x.dtype == FLOAT32:
        x[5] *= 1e15
        x[6] = 1e18
        x[7] *= 1e-25
    return x


@types
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax(rng, dtype, axis) -> None:
    x, dy = special_rows(numbers(rng, dtype)), numbers(rng, dtype)
    for name in ("Softmax", "LogSoftmax"):
        check(name, x, axis=axis)
        y = get_op(name)(axis=axis)(numbers(rng, dtype))
        check(f"{name}Grad_13", dy, y, axis=axis)
    check("Softmax", numbers(rng, dtype, (3, 151, 149)), axis=1)


@types
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(rng, dtype, reduction) -> None:
    scores = numbers(rng, dtype)
    labels = rng.integers(0, SHAPE[1], SHAPE[0])
    labels[10:13], labels[20] = -1, SHAPE[1] + 3
    weights = rng.uniform(0.5, 2, SHAPE[1]).astype(dtype)
    dy = np.array(rng.standard_normal(SHAPE[0] if reduction == "none" else ()), dtype)
    attributes = {"reduction": reduction, "ignore_index": -1}
    fewer = np.where(labels < SHAPE[1], labels, 0)
    logs = get_op("LogSoftmax")()(scores)
    for own in (labels, fewer):
        for each in ([], [weights]):
            check("SoftmaxCrossEntropyLoss", scores, own, *each, **attributes)
            check("SoftmaxCrossEntropyLossGrad", dy, logs, own, *each, **attributes)
    check("SparseSoftmaxCrossEntropy", special_rows(scores), fewer.clip(0), reduction=reduction)
    if reduction != "none":
        check("CrossEntropyLossAndGrad", scores, labels, None, np.array(-1), reduction=reduction)
        targets = get_op("Softmax")()(numbers(rng, dtype))
        targets[:, ::3] = 0
        scores[0, 0] = -INF
        check("SoftmaxCrossEntropy", scores, targets, reduction=reduction)
        check("SoftmaxCrossEntropyGrad", dy, logs, targets, reduction=reduction)


def test_losses_of_images(rng) -> None:
    scores, labels = numbers(rng, FLOAT32, (3, 21, 37, 31)), rng.integers(0, 21, (3, 37, 31))
    check("SoftmaxCrossEntropyLoss", scores, labels)
    logs = get_op("LogSoftmax")(axis=1)(scores)
    check("SoftmaxCrossEntropyLossGrad", np.float32(1.5).reshape(()), logs, labels)
    check("CrossEntropyLossAndGrad", scores, labels)


@types
@pytest.mark.parametrize("offset", [0, 1000])
def test_layer_norms(rng, dtype, offset) -> None:
    """Also of rows far from 0, whose mean in float32 is off by more than a thousandth."""
    x, dy = numbers(rng, dtype), numbers(rng, dtype)
    x += dtype.type(offset)
    scale, bias = rng.standard_normal((2, SHAPE[1])).astype(dtype)
    x = special_rows(x)
    with np.errstate(all="ignore"):
        check("LayerNormalization", x, scale, bias)
        check("SimplifiedLayerNormalization", x, scale)
    plain = (rng.standard_normal(SHAPE) + offset).astype(dtype)
    _, mean, inv_std = get_op("LayerNormalization")()(plain, scale, bias)
    sums = 0.05 if dtype == FLOAT16 else 2e-5
    check("LayerNormalizationGrad", dy, plain, scale, mean, inv_std, tolerance=sums)
    _, inv_std = get_op("SimplifiedLayerNormalization")()(plain, scale)
    check("SimplifiedLayerNormalizationGrad", dy, plain, scale, inv_std, tolerance=sums)
    dy[3, 3], dy[4] = INF, (1e38 if dtype == FLOAT32 else 6e4)
    with np.errstate(all="ignore"):
        check("SimplifiedLayerNormalizationGrad", dy, plain, scale, inv_std, tolerance=sums)


@types
@pytest.mark.parametrize("shape", [(5, 3, 71, 67), (523, 129), (3, 130, 171)])
def test_batch_norm(rng, dtype, shape) -> None:
    x, dy = numbers(rng, dtype, shape) + dtype.type(500), numbers(rng, dtype, shape)
    c = shape[1]
    scale, bias = rng.standard_normal((2, c)).astype(dtype)
    x[:, 1] = 7
    if dtype == FLOAT32:
        x[:, 2] *= 1e12
    for training in (True, False):
        before = rng.standard_normal(c).astype(dtype), rng.uniform(1, 2, c).astype(dtype)
        op = get_op("BatchNormInternal")(training_mode=training)
        result = op(x, scale, bias, *[each.copy() for each in before])
        exact = op(*wide(x, scale, bias, *[each.copy() for each in before]))
        for actual, expected in zip(result, exact, strict=True):
            if actual is not None:
                assert_matches(actual, expected.astype(actual.dtype))
    plain = numbers(rng, dtype, shape)
    *_, mean, inv_std = cto.batch_norm_internal(
        plain, scale, bias, *np.zeros((2, c), dtype), training_mode=True
    )
    limits = [(0.2, 0.0)] * 3
    if dtype == FLOAT32:  # sums, whose terms may cancel, are as exact as their norm
        axes = tuple(k for k in range(plain.ndim) if k != 1)
        centred = plain.astype(FLOAT64) - plain.mean(axes, FLOAT64, keepdims=True)
        terms = dy * centred / centred.std(axes, keepdims=True)
        norms = [np.sqrt(np.square(each, dtype=FLOAT64).sum(axes)) for each in (terms, dy)]
        limits = [(2e-5, 0.0), *((0.0, 2.0**-20 * each) for each in norms)]
    inputs = dy, plain, scale, mean, inv_std
    check("BatchNormalizationGrad", *inputs, epsilon=1e-5, limits=limits)


def test_a_large_result_is_no_copy_and_no_view_of_an_input(rng) -> None:
    x = rng.standard_normal((600, 600)).astype(FLOAT32)
    y = cto.softmax(x)
    assert y.base is None or y.base.nbytes == y.nbytes
    same = cto.dropout(x, 0.0, False)[0]
    assert not np.shares_memory(same, x)
    out = np.empty_like(x)
    assert cto.softmax(x, out=out) is out
    np.testing.assert_array_equal(out, y)


def test_dropped_are_zeros_whatever_they_were() -> None:
    x = np.full((400, 300), NAN, FLOAT32)
    y, mask = cto.dropout(x, 0.4, True, seed=3)
    assert (y[~mask] == 0).all()
    assert not np.signbit(y[~mask]).any()
    assert np.isnan(y[mask]).all()
