# SPDX-License-Identifier: MIT
"""Counts of n-grams beside ONNX's reference and a search one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx.standard import ngrams

from .nodes import expected, result

POOL = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]  # three 1-grams, two 2-grams, one 3-gram
DEFAULTS: dict[str, Any] = {
    "mode": "TF",
    "min_gram_length": 1,
    "max_gram_length": 3,
    "max_skip_count": 0,
    "ngram_counts": [0, 3, 7],
    "ngram_indexes": [0, 1, 2, 5, 3, 4],
    "pool_int64s": POOL,
}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("skips", [0, 1, 5])
def test_counts_are_those_of_the_reference(skips, has_weights, mode, rng, monkeypatch) -> None:
    monkeypatch.setattr(ngrams, "MOST", 40)  # so that the pool is divided
    attributes = {**DEFAULTS, "mode": mode, "max_skip_count": skips}
    ones = {"weights": [1.0] * 6}  # without which the reference fails
    weights = {"weights": [0.5, 2.0, 1.0, 4.0, 0.25, 3.0]} if has_weights else {}
    for lengths in ((1, 1), (1, 2), (2, 3), (1, 3)):
        attributes |= {"min_gram_length": lengths[0], "max_gram_length": lengths[1]}
        for dtype in (np.int32, np.int64):
            for shape in ((12,), (3, 9), (2, 1)):
                x = rng.integers(2, 9, shape).astype(dtype)
                y = result("TfIdfVectorizer", x, version=9, **attributes, **weights)
                known = {**attributes, **(weights or ones)}
                (other,) = expected("TfIdfVectorizer", x, version=9, **known)
                assert y.dtype == np.float32
                np.testing.assert_array_equal(y, other)


def test_equal_indexes_add_up_and_rows_may_be_short() -> None:
    attributes = {**DEFAULTS, "ngram_indexes": [0, 0, 1, 1, 1, 3]}
    x = np.array([[2, 3, 5, 4], [5, 6, 7, 8]])
    y = result("TfIdfVectorizer", x, version=9, **attributes)
    np.testing.assert_array_equal(y, [[2, 1, 0, 0], [0, 2, 0, 0]])
    np.testing.assert_array_equal(
        result("TfIdfVectorizer", x[:, :0], version=9, **attributes), np.zeros((2, 4))
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mode": "TFX"}, "mode='TFX'"),
        ({"min_gram_length": 0}, "got 0 and 3"),
        ({"max_gram_length": 4}, "got 1 and 4"),
        ({"max_skip_count": -1}, "max_skip_count"),
        ({"ngram_counts": [0, 3, 8]}, "ngram_counts"),
        ({"ngram_counts": [0, 3, 99]}, "ngram_counts"),
        ({"ngram_indexes": [0, 1]}, "ngram_indexes: expected 6"),
        ({"ngram_indexes": [0, 1, 2, 3, 4, -5]}, "ngram_indexes"),
        ({"weights": [1.0]}, "weights: expected 6, one of each result, got 1"),
        ({"pool_strings": ["a"]}, "texts are not computed here"),
    ],
)
def test_attributes_that_do_not_fit(changed, words) -> None:
    with pytest.raises(cto.ArgumentError, match=words):
        result("TfIdfVectorizer", np.array([2, 3]), version=9, **{**DEFAULTS, **changed})


def test_three_dimensions_are_refused() -> None:
    with pytest.raises(cto.ArgumentError, match="one or two dimensions"):
        result("TfIdfVectorizer", np.zeros((1, 2, 3), np.int64), version=9, **DEFAULTS)
