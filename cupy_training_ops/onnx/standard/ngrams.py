# SPDX-License-Identifier: MIT
"""Counts of n-grams: n numbers that follow each other in a row of an array, or with the same number
of elements skipped between each two.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...dtypes import FLOAT32, HostArray
from ...errors import ArgumentError
from .table import Array, Module, standard

MOST = 1 << 24  # comparisons at once


def _refuse(attributes: Mapping[str, Any]) -> None:
    """Refuse attributes of n-grams that do not go together."""
    if attributes.get("pool_strings"):
        raise ArgumentError("pool_strings: texts are not computed here")
    starts, pool = attributes["ngram_counts"], attributes["pool_int64s"]
    least, most = attributes["min_gram_length"], attributes["max_gram_length"]
    if not 1 <= least <= most <= len(starts):
        expected = f"1 <= min_gram_length <= max_gram_length <= {len(starts)}, as ngram_counts"
        raise ArgumentError(f"{expected} says, got {least} and {most}")
    if attributes["max_skip_count"] < 0:
        raise ArgumentError(
            f"max_skip_count: expected 0 or more, got {attributes['max_skip_count']}"
        )
    ends = (*starts, len(pool))
    for n, (first, end) in enumerate(pairwise(ends), 1):
        if not 0 <= first <= end or (end - first) % n:
            raise ArgumentError(f"ngram_counts: expected {n}-grams of {n} numbers, got {starts}")
    count = sum((end - first) // n for n, (first, end) in enumerate(pairwise(ends), 1))
    indexes, weights = attributes["ngram_indexes"], attributes.get("weights")
    if len(indexes) != count or min(indexes, default=0) < 0:
        raise ArgumentError(f"ngram_indexes: expected {count} integers of 0 or more, got {indexes}")
    if weights and len(weights) != max(indexes, default=-1) + 1:
        expected = f"weights: expected {max(indexes, default=-1) + 1}"
        raise ArgumentError(f"{expected}, one of each result, got {len(weights)}")


@standard(
    "TfIdfVectorizer", since=9, only={"mode": ("TF", "IDF", "TFIDF")}, refuse=_refuse, grows=True
)
def tf_idf_vectorizer(
    xp: Module,
    x: Array,
    *,
    mode: str,
    min_gram_length: int,
    max_gram_length: int,
    max_skip_count: int,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int],
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] | None = None,
) -> Array:
    """Return a vector for each row of x; element ngram_indexes[i] is of n-gram i of the pool.

    TF: how often it is in the row, with 0, 1, ... max_skip_count elements skipped between its
    numbers. IDF: its weight if it is there. TFIDF: count times weight. ngram_counts: where the
    1-grams, 2-grams, ... begin in pool_int64s.
    """
    if x.ndim not in (1, 2):
        raise ArgumentError(f"X: expected one or two dimensions, got shape {x.shape}")
    rows = x if x.ndim == 2 else x[None]
    counts = xp.zeros((max(ngram_indexes, default=-1) + 1, len(rows)), FLOAT32)
    places = np.array(ngram_indexes, np.int64)
    for n, first, grams in _grams(ngram_counts, pool_int64s):
        if min_gram_length <= n <= max_gram_length and len(grams):
            own = _count(xp, rows, grams, 1 if n == 1 else max_skip_count + 1)
            xp.add.at(counts, xp.asarray(places[first : first + len(grams)]), own)
    if mode == "IDF":
        counts = (counts > 0).astype(FLOAT32)
    if mode != "TF" and weights:
        counts *= xp.asarray(np.array(weights, np.float32))[:, None]
    return xp.ascontiguousarray(counts.T).reshape(*x.shape[:-1], len(counts))


def _grams(starts: Sequence[int], pool: Sequence[int]) -> Iterator[tuple[int, int, HostArray]]:
    """Yield n, the index of the first n-gram among all, and the n-grams (G, n), n = 1, 2, ..."""
    first, numbers = 0, np.array(pool, np.int64)
    for n, (start, end) in enumerate(pairwise((*starts, len(pool))), 1):
        grams = numbers[start:end].reshape(-1, n)
        yield n, first, grams
        first += len(grams)


def _count(xp: Module, rows: Array, grams: HostArray, n_steps: int) -> Array:
    """Return how often each n-gram (G, n) is in each row (N, length): (G, N).

    Its numbers are 1, 2, ... or n_steps elements apart; counts of all these are added.
    """
    n, length = grams.shape[1], rows.shape[1]
    pool = xp.asarray(grams)
    total = xp.zeros((len(grams), len(rows)), FLOAT32)
    part = max(MOST // max(rows.size, 1), 1)  # n-grams that are compared at once
    for step in range(1, n_steps + 1):
        n_places = length - (n - 1) * step  # where an n-gram may begin in a row
        for g in range(0, len(grams) if n_places > 0 else 0, part):
            some = pool[g : g + part, :, None, None]
            matches = rows[:, :n_places] == some[:, 0]  # (part, N, n_places)
            for k in range(1, n):
                matches &= rows[:, k * step : k * step + n_places] == some[:, k]
            total[g : g + part] += matches.sum(axis=2)
    return total
