# SPDX-License-Identifier: MIT
"""Which elements a guard measures: laws of the sample, and what it still sees."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cupy_training_ops as cto
from cupy_training_ops.families.gist_guard.reference import _elements
from cupy_training_ops.families.gist_guard.sample import FEW, LEAST, MOST, sample_of

lengths = st.integers(1, 90)
groupings = st.tuples(lengths, lengths, lengths)


def measured(n: int, grouping, whole: bool) -> np.ndarray:
    """How often each element is measured."""
    sample = sample_of(n, grouping, whole)
    groups = np.arange(sample.groups)
    at, there = _elements(sample, groups, np.arange(sample.pieces), n)
    if grouping is not None:
        of_group = np.broadcast_to(groups[:, None], at.shape)[there]
        assert (at[there] // grouping[2] % grouping[1] == of_group).all()
    return np.bincount(at[there], minlength=n)


@given(groupings)
def test_the_whole_is_every_element_once(grouping) -> None:
    n = math.prod(grouping)
    assert (measured(n, grouping, True) == 1).all()
    assert (measured(n, None, True) == 1).all()


@given(groupings)
def test_a_sample_has_no_element_twice_and_enough_of_each_group(grouping) -> None:
    n = math.prod(grouping)
    counts = measured(n, grouping, False)
    assert counts.max() <= 1
    outer, groups, inner = grouping
    of_groups = counts.reshape(grouping).sum((0, 2))
    wanted = min(max(LEAST, FEW // groups), MOST)
    # Pieces at the ends of runs have fewer elements.
    assert (of_groups >= min(wanted, outer * inner) // 8).all()
    if outer * inner <= wanted:
        assert counts.all()


@pytest.mark.parametrize(
    ("grouping", "share"),
    [(None, 0.001), ((1, 2**16, 1024), 0.07), ((2**17, 512, 1), 0.01), ((256, 1024, 256), 0.01)],
)
def test_a_large_array_costs_a_few_in_a_hundred(grouping, share) -> None:
    sample = sample_of(2**26, grouping, False)
    assert sample.groups * sample.pieces * sample.tiles * 8 <= share * 2**26


def test_what_repeats_in_an_array_does_not_repeat_in_its_sample() -> None:
    """As positions do in sequences, and columns in rows."""
    by_row = measured(2**20, (1, 2**10, 2**10), False).reshape(2**10, 2**10)
    assert (by_row.sum(0) > 0).all()
    by_token = measured(2**22, (2**14, 2**8, 1), False).reshape(-1, 512, 2**8)
    assert (by_token.sum((0, 2)) > 0).mean() > 0.9


@pytest.mark.parametrize(
    ("shape", "grouping", "bad"),
    [
        ((256, 64, 196), (256, 64, 196), np.s_[:, 7]),
        ((4096, 1024), (1, 4096, 1024), np.s_[77]),
        ((8192, 512), (8192, 512, 1), np.s_[:, 300]),
    ],
    ids=["a channel", "a row", "a feature"],
)
def test_one_group_of_a_large_mean_is_seen(rng, shape, grouping, bad) -> None:
    x = rng.standard_normal(shape, np.float32)
    _, good = cto.gist_guarded_msfp15_encoder(x, grouping=grouping)
    x[bad] += 100
    _, result = cto.gist_guarded_msfp15_encoder(x, grouping=grouping)
    assert good[3] < 0.06**2 < result[3]


def test_measuring_a_sample_is_like_measuring_all(rng) -> None:
    scales = np.exp(rng.standard_normal(512)).astype(np.float32)
    x = rng.standard_normal((8192, 512), np.float32) * scales + scales[::-1]
    for grouping in ((8192, 512, 1), (1, 8192, 512), None):
        guards = [
            cto.gist_guarded_msfp15_encoder(x, grouping=grouping, whole=whole)[1].astype(float)
            for whole in (False, True)
        ]
        ratios = [(g[0] / g[1], g[0] / g[2] if grouping else 0) for g in guards]
        np.testing.assert_allclose(*ratios, rtol=0.15)
