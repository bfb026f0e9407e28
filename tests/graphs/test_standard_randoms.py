# SPDX-License-Identifier: MIT
"""Operators that draw random numbers: how often each comes, and which come again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto

from .nodes import result

N = 40_000
LEAST = 1e-9  # the probability of chance that a test may fail by


def are_uniform(u: np.ndarray) -> bool:
    """Return True if the distance of a sample's distribution from the uniform one is no wonder.

    Of n numbers it is above d with a probability of at most 2 e^(-2 n d^2).
    """
    ordered = np.sort(u.ravel())
    places = np.arange(ordered.size + 1) / ordered.size
    distance = max(np.abs(ordered - places[1:]).max(), np.abs(ordered - places[:-1]).max())
    return bool(2 * math.exp(-2 * ordered.size * distance**2) > LEAST)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16], ids=lambda d: d.__name__)
def test_uniform_numbers(dtype: type) -> None:
    like = np.zeros((4, N // 4), dtype)
    actual = result("RandomUniformLike", like, low=-2.0, high=3.0)
    assert (actual.dtype, actual.shape) == (dtype, like.shape)
    assert actual.min() >= -2
    assert actual.max() <= 3
    if dtype != np.float16:  # which has few numbers
        assert are_uniform((actual.astype(np.float64) + 2) / 5)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    assert result("RandomUniform", shape=[3, 5], dtype=kind).dtype == dtype


def test_normal_numbers_and_their_neighbours() -> None:
    actual = result("RandomNormal", shape=[N], mean=1.0, scale=2.0, dtype=11)
    standard = (actual - 1) / 2
    shares = np.array([(1 + math.erf(x / math.sqrt(2))) / 2 for x in standard])
    assert are_uniform(shares)
    near = standard[1:] * standard[:-1]  # of mean 0 and deviation 1, if they do not depend
    assert abs(near.mean()) * math.sqrt(near.size) < 6.5
    like = np.zeros((2, 3), np.float16)
    assert result("RandomNormalLike", like).dtype == np.float16


@pytest.mark.parametrize("p", [0.0, 0.2, 0.75, 1.0])
def test_ones_come_as_often_as_said(p: float) -> None:
    actual = result("Bernoulli", np.full(N, p), dtype=9)
    assert actual.dtype == bool
    deviation = math.sqrt(p * (1 - p) * N)
    assert abs(actual.sum() - p * N) <= 6.5 * deviation


def test_classes_come_as_often_as_said(rng) -> None:
    x = rng.uniform(-2, 2, (3, 5))
    x[1, 2] = -np.inf
    actual = result("Multinomial", x, sample_size=N, dtype=7)
    assert (actual.dtype, actual.shape) == (np.int64, (3, N))
    p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    counts = np.stack([np.bincount(row, minlength=5) for row in actual])
    assert counts[1, 2] == 0
    assert (np.abs(counts - p * N) <= 6.5 * np.sqrt(p * (1 - p) * N)).all()


def session(seed: int | None, attributes: str = "") -> cto.onnx.Session:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[8] x) => (float[8] a, float[8] b) {{
        a = RandomUniformLike {attributes} (x)
        b = RandomNormal <shape = [8]> () }}"""
    return cto.onnx.Session(onnx.parser.parse_model(text), seed=seed)


def test_runs_draw_further_numbers_and_a_seed_the_same() -> None:
    x = np.zeros(8, np.float32)
    runs = [[s.run({"x": x}) for _ in range(3)] for s in (session(5), session(5), session(6))]
    for first, again, other in zip(*runs, strict=True):
        for name in "ab":
            np.testing.assert_array_equal(first[name], again[name])
            assert not np.array_equal(first[name], other[name])
    drawn = [tuple(run["a"]) for run in runs[0]]
    assert len(set(drawn)) == 3
    assert not set(drawn[0]).intersection(drawn[1])


def test_a_node_has_its_own_seed() -> None:
    x = np.zeros(8, np.float32)
    first, other = (session(k, "<seed = 1.5>").run({"x": x}) for k in (1, 2))
    np.testing.assert_array_equal(first["a"], other["a"])
    assert not np.array_equal(first["b"], other["b"])
    alone = result("RandomUniformLike", x, seed=0.5)
    np.testing.assert_array_equal(result("RandomUniformLike", x, seed=0.5), alone)
    assert not np.array_equal(result("RandomUniformLike", x), alone)


def test_an_array_that_is_drawn_like_is_not_changed(rng) -> None:
    x = rng.standard_normal(8).astype(np.float32)
    before = x.copy()
    session(1).run({"x": x})
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "words"),
    [
        ("RandomUniformLike", [np.zeros(3, np.int64)], {}, "dtype: expected a type of floats"),
        ("RandomNormal", [], {"shape": [2], "dtype": 7}, "dtype: expected a type of floats"),
        ("RandomNormal", [], {"shape": [-2]}, "extents of at least 0"),
        ("Multinomial", [np.zeros(3)], {}, "batch, classes"),
        ("Multinomial", [np.zeros((1, 3))], {"dtype": 1}, "dtype: expected int32 or int64"),
    ],
)
def test_what_cannot_be_drawn_is_refused(op: str, inputs: Any, attributes: Any, words: str) -> None:
    with pytest.raises(cto.ArgumentError, match=words):
        result(op, *inputs, **attributes)
