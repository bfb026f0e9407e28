# SPDX-License-Identifier: MIT
"""Moments in codes: how near they are, that they follow their means, and kernels' bits."""

from __future__ import annotations

import numpy as np
import pytest
from parameter_lists import TABLES, assert_all_match, parameters

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.families.adam import operators as adam
from cupy_training_ops.families.adam.codes import coded_nbytes, decode, encode

ERROR = 2.0**-4  # relative: a step of a code


def moments(rng, n: int, octaves: int) -> np.ndarray:
    """Of either sign, over so many powers of two."""
    return (rng.choice([-1, 1], n) * 2.0 ** rng.uniform(-octaves, 0, n)).astype(np.float32)


@pytest.mark.parametrize("n", [1, 127, 128, 129, 1000])
@pytest.mark.parametrize("scale", [1.0, 2.0**-60, 2.0**60])
def test_codes_are_near_what_they_are_of(rng, n, scale) -> None:
    x = moments(rng, n, 6) * np.float32(scale)
    code = encode(x, signed=True, step=3)
    assert code.nbytes == coded_nbytes(n)
    np.testing.assert_array_less(
        np.abs(decode(code, n, signed=True) - x), ERROR * 1.001 * np.abs(x)
    )
    x = np.abs(moments(rng, n, 14)) * np.float32(scale)
    found = decode(encode(x, signed=False, step=3), n, signed=False)
    np.testing.assert_array_less(np.abs(found - x), ERROR * 1.001 * x)


def test_two_bytes_a_weight() -> None:
    assert 2 * coded_nbytes(10**6) <= 2.1 * 10**6


@pytest.mark.parametrize("signed", [True, False])
def test_what_was_decoded_has_the_code_that_it_had(rng, signed) -> None:
    """So that a state that is saved as numbers goes on as it was."""
    x = moments(rng, 1000, 30)
    code = encode(x if signed else np.abs(x), signed=signed, step=5)
    again = encode(decode(code, 1000, signed=signed), signed=signed, step=6)
    np.testing.assert_array_equal(again, code)


def test_a_second_moment_that_is_not_0_is_never_0(rng) -> None:
    """Else its step would be the first moment over epsilon."""
    x = np.abs(moments(rng, 4096, 120))
    x[:5], x[5] = 0, 1e-45
    found = decode(encode(x, signed=False, step=1), x.size, signed=False)
    np.testing.assert_array_equal(found == 0, x == 0)
    assert (found >= x * (1 - ERROR)).all()


def test_special_numbers() -> None:
    x = np.array([np.inf, np.nan, -np.inf, 1, 0], np.float32)
    np.testing.assert_array_equal(
        decode(encode(x, signed=True), 5, signed=True), [np.inf, np.nan, -np.inf, 0, 0]
    )
    found = decode(encode(np.abs(x), signed=False), 5, signed=False)
    assert np.isinf(found[0])
    assert np.isnan(found[1])
    assert found[3] > 0
    assert found[4] == 0
    largest = np.full(3, np.finfo(np.float32).max)
    for step in range(8):
        codes = encode(largest, signed=False, step=step)
        assert (decode(codes, 3, signed=False) >= largest * np.float32(1 - ERROR)).all()


def test_a_second_moment_follows_its_mean(rng) -> None:
    """Each step moves it by a thousandth, a code by a sixteenth: rounded to nearest, it would stay.

    Squares of one size, that of a block's largest stays: exact are 1 - 0.999^n of them.
    """
    size = np.abs(moments(rng, 512, 6))
    size[::128] = 2  # the largest of each block
    v, beta = encode(np.full(512, 0.01, np.float32), signed=False), np.float32(0.999)
    for step in range(1, 2001):
        wide = decode(v, 512, signed=False) * beta + (1 - beta) * size
        v = encode(wide, signed=False, step=step)
    exact = size + (0.01 - size) * 0.999**2000
    ratio = decode(v, 512, signed=False) / exact
    assert abs(ratio.mean() - 1) < 0.02
    assert ratio.min() > 0.6
    assert ratio.max() < 1.5


def test_a_first_moment_follows_its_mean(rng) -> None:
    """Each step moves it by a hundredth, a code by a sixteenth: rounded to nearest, it would lag.

    Gradients of either sign shrink by a hundredth a step, that of a block's largest does not.
    """
    gradients = moments(rng, 2048, 2)
    gradients[::128] = 2  # the largest of each block
    exact, beta, slope = gradients.copy(), np.float32(0.9), np.float32(0.99)
    m = encode(exact, signed=True)
    for step in range(1, 201):
        gradients[gradients != 2] *= slope
        exact = exact * beta + (1 - beta) * gradients
        wide = decode(m, exact.size, signed=True) * beta + (1 - beta) * gradients
        m = encode(wide, signed=True, step=step)
    ratio = decode(m, exact.size, signed=True) / exact
    assert abs(ratio[gradients != 2].mean() - 1) < 0.01
    assert ratio.min() > 0.6
    assert ratio.max() < 1.5


def test_the_roundings_of_both_moments_have_nothing_in_common(rng) -> None:
    """Else steps, which are the first over the root of the second, would have a bias."""
    x = np.abs(moments(rng, 1 << 16, 1))
    x[::128] = 2
    first, second = (decode(encode(x, signed=s, step=9), x.size, signed=s) / x for s in (1, 0))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def coded(rng, sizes):
    """Weights, gradients, and codes of both moments."""
    lists = parameters(rng, sizes)
    for i, signed in ((2, True), (3, False)):
        lists[i] = [encode(x, signed=signed) for x in lists[i]]
    return lists


@pytest.mark.parametrize("sizes", TABLES.values(), ids=TABLES)
def test_lists_are_updated_once(run, rng, monkeypatch, sizes) -> None:
    """A block of codes a chunk, 32 tensors a table, at odd addresses; codes are the same bits."""
    monkeypatch.setattr(adam, "CODED_CHUNK", 128)
    monkeypatch.setattr(adam, "CAPACITY", 32)
    op, lists = get_op("AdamCodedList")(lambda_=0.1), coded(rng, sizes)
    placed = [[run.place(x, (i + k) % 3) for i, x in enumerate(xs)] for k, xs in enumerate(lists)]
    op(0.1, 2, *placed)
    _, m, v, w, *_ = op.cpu_function()(0.1, 2, *lists, **op.attribute_values)
    assert_all_match(run, [placed[0]], [w])
    assert_all_match(run, placed[2:], (m, v), 0)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("scale", [None, 4.0])
def test_blocks_with_special_numbers_have_the_hosts_codes(run, rng, offset, scale) -> None:
    """NaN and infinities in some blocks, in others what rounds up to one, and what is nearly 0."""
    lists = coded(rng, (900, 256))
    huge = np.array([3.39e38, 3.4e38, 1.8e19, -2e19], np.float32)
    nan = np.uint32(0x7FFF_FFFF).view(np.float32)  # as GPUs make it: all bits of the fraction
    special = np.array([nan, np.inf, -np.inf, 0.0, -0.0, 1e-38, *huge], np.float32)
    for start in (5, 300, 700):
        lists[1][0][start : start + 10] = rng.permutation(special)
    lists[1][0][512:640] = 0
    wide = moments(rng, 256, 3) * np.float32(3.4e38)
    lists[2][1], lists[3][1] = encode(wide, signed=True), encode(np.abs(wide), signed=False)
    op = get_op("AdamCodedList")(lambda_=0.1)
    placed = [[run.place(x, offset) for x in xs] for xs in lists]
    op(0.1, 2, *placed, loss_scale=scale)
    with np.errstate(all="ignore"):
        _, m, v, *_ = op.cpu_function()(0.1, 2, *lists, loss_scale=scale, **op.attribute_values)
    assert_all_match(run, placed[2:], (m, v), 0)


def test_steps_are_those_of_numbers_between_codes(rng) -> None:
    """The weights have the new moments before these become codes."""
    w, g, m, v = coded(rng, (300,))
    wide = [[decode(c[0], 300, signed=s)] for c, s in ((m, True), (v, False))]
    expected = [w[0].copy()], g, *wide
    get_op("AdamOptimizerList")()(0.1, 7, *expected, loss_scale=4.0, outputs=("new_weights",))
    get_op("AdamCodedList")()(0.1, 7, w, g, m, v, loss_scale=4.0)
    np.testing.assert_array_equal(w[0], expected[0][0])


def test_codes_of_other_sizes_are_refused(rng) -> None:
    w, g, m, v = coded(rng, (300,))
    with pytest.raises(ArgumentError, match=r"moment_2\[0\]: expected shape \(303,\)"):
        get_op("AdamCodedList")()(0.1, 7, w, g, m, [v[0][:300]])
