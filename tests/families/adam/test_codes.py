# SPDX-License-Identifier: MIT
"""Moments in codes: how near they are, that they follow their means, and kernels' bits."""

from __future__ import annotations

import numpy as np
import pytest
from parameter_lists import TABLES, assert_all_match, parameters

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.families.adam import operators as adam
from cupy_training_ops.families.adam.codes import (
    coded_sizes,
    decode,
    decode_old,
    encode,
    old_size,
)

ERROR = 2.0**-3  # relative: a step of an 8-bit code
BITS = pytest.mark.parametrize("bits", [8, 4])


def moments(rng, n: int, octaves: float, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """First ones of either sign near the roots of second ones, which are over so many octaves."""
    v = scale**2 * 2.0 ** rng.uniform(-octaves, 0, n)
    ratio = rng.choice([-1, 1], n) * 2.0 ** rng.uniform(-6, 2, n)
    return (ratio * np.sqrt(v)).astype(np.float32), v.astype(np.float32)


@BITS
@pytest.mark.parametrize("n", [1, 127, 128, 129, 1000])
def test_codes_have_their_sizes(rng, bits, n) -> None:
    codes = encode(*moments(rng, n, 6), bits, step=3)
    assert tuple(map(len, codes)) == coded_sizes(n, bits)


@pytest.mark.parametrize("n", [1, 127, 128, 129, 1000])
@pytest.mark.parametrize("scale", [1.0, 2.0**-30, 2.0**30])
def test_codes_of_8_bits_are_near_what_they_are_of(rng, n, scale) -> None:
    """Codes of second moments over 30 powers of two in one block, and of first ones beside them."""
    m, v = moments(rng, n, 30, scale)
    wide = decode(encode(m, v, 8, step=3), n, 8)
    for result, exact in zip(wide, (m, v), strict=True):
        np.testing.assert_array_less(np.abs(result - exact), ERROR * 1.001 * np.abs(exact))


@pytest.mark.parametrize(("octaves", "error"), [(2, 0.25), (6, 0.5), (14, 1)])
def test_codes_of_4_bits_are_as_near_as_their_block_allows(rng, octaves, error) -> None:
    m, v = moments(rng, 1000, octaves)
    first, second = decode(encode(m, v, 4, step=3), 1000, 4)
    assert (np.abs(second - v) <= error * v).all()
    ratio, results = (np.abs(x) / np.sqrt(second) for x in (m, first))
    most = np.repeat(np.pad(ratio, (0, 24)).reshape(-1, 128).max(1), 128)[:1000]
    assert (
        np.abs(results - ratio) <= 2 * most / 7
    ).all()  # the root is within 2 of the power of two


def test_bytes_of_a_weight() -> None:
    assert sum(coded_sizes(10**6, 8)) <= 2.01 * 10**6
    assert sum(coded_sizes(10**6, 4)) <= 1.04 * 10**6


@BITS
@pytest.mark.parametrize("octaves", [3, 30])
def test_what_was_decoded_is_decoded_again(rng, bits, octaves) -> None:
    """So that a state that is saved as numbers goes on as it was."""
    wide = decode(encode(*moments(rng, 1000, octaves), bits, step=5), 1000, bits)
    again = decode(encode(*wide, bits, step=6), 1000, bits)
    for some, others in zip(again, wide, strict=True):
        np.testing.assert_array_equal(some, others)


@BITS
def test_a_second_moment_that_is_not_0_is_never_0(rng, bits) -> None:
    """Else its step would be the first moment over epsilon."""
    m, v = moments(rng, 4096, 120)
    v[:5], v[5] = 0, 1e-45
    result = decode(encode(m, v, bits, step=1), v.size, bits)[1]
    np.testing.assert_array_equal(result == 0, v == 0)
    assert (result >= v / 2).all()


@BITS
def test_special_numbers(bits) -> None:
    """A NaN or an infinity stays in the second moment, which makes the weight a NaN."""
    x = np.array([np.inf, np.nan, -np.inf, 1, 0], np.float32)
    m, v = decode(encode(x, np.abs(x), bits), 5, bits)
    assert not np.isfinite(v[:3]).any()
    assert np.isnan(v[1]) == (bits == 8)  # 4 bits have no NaN
    assert v[3] > 0
    assert v[4] == m[4] == 0
    largest = np.full(3, np.finfo(np.float32).max)
    for step in range(8):
        v = decode(encode(largest, largest, bits, step=step), 3, bits)[1]
        assert (v >= largest * np.float32(1 - 2 * ERROR)).all()


@pytest.mark.parametrize(("bits", "most"), [(8, 1.7), (4, 3.0)])
def test_a_second_moment_follows_its_mean(rng, bits, most) -> None:
    """Each step moves it by a thousandth, a code by an eighth: rounded to nearest, it would stay.

    Squares of one size, that of a block's largest stays: exact are 1 - 0.999^n of them.
    """
    size = moments(rng, 2048, 3)[1]
    size[::128] = 2  # the largest of each block
    m, beta = np.zeros(2048, np.float32), np.float32(0.999)
    codes = encode(m, np.full(2048, 0.25, np.float32), bits)
    for step in range(1, 1001):
        wide = decode(codes, 2048, bits)[1] * beta + (1 - beta) * size
        codes = encode(m, wide, bits, step=step)
    exact = size + (0.25 - size) * 0.999**1000
    ratio = decode(codes, 2048, bits)[1] / exact
    assert abs(ratio.mean() - 1) < 0.03
    assert ratio.min() > 1 / most
    assert ratio.max() < most


@pytest.mark.parametrize(("bits", "error"), [(8, 0.01), (4, 0.03)])
def test_a_first_moment_follows_its_mean(rng, bits, error) -> None:
    """Each step moves it by a hundredth, a code by an eighth: rounded to nearest, it would lag.

    Gradients of either sign shrink by a hundredth a step, that of a block's largest does not.
    """
    gradients, v = moments(rng, 8192, 2)
    gradients[::128] = 2  # the largest of each block
    exact, beta, slope = gradients.copy(), np.float32(0.9), np.float32(0.99)
    codes = encode(exact, v, bits)
    for step in range(1, 201):
        gradients[gradients != 2] *= slope
        exact = exact * beta + (1 - beta) * gradients
        wide = decode(codes, exact.size, bits)[0] * beta + (1 - beta) * gradients
        codes = encode(wide, v, bits, step=step)
    result = decode(codes, exact.size, bits)[0]
    others = gradients != 2
    assert abs((result * exact)[others].sum() / np.square(exact[others]).sum() - 1) < error


@BITS
def test_a_mean_below_the_least_code_is_right(bits) -> None:
    """Rounded to 0 always, as older versions did, it would be lost."""
    v = np.ones(1 << 14, np.float32)
    m = np.full_like(v, 2.0**-13)
    m[::128] = 1
    every = [decode(encode(m, v, bits, step), m.size, bits)[0][m < 1].mean() for step in range(40)]
    assert abs(np.mean(every) / 2.0**-13 - 1) < (0.1 if bits == 8 else 0.5)


@pytest.mark.parametrize("larger", [30, 100, 1000, 10_000])
def test_small_gradients_move_beside_a_larger_one(rng, larger) -> None:
    """One in 128 is so many times larger: the others go 0.95 to 1.05 of float32's way."""
    n = 128 * 64
    scale = np.ones(n, np.float32)
    scale[::128] = larger
    w, m, v = ([np.zeros(n, np.float32)] for _ in range(3))
    codes = [[np.zeros(size, np.uint8)] for size in coded_sizes(n, 8)]
    other = [np.zeros(n, np.float32)]
    exact, coded = get_op("AdamOptimizerList")(), get_op("AdamCodedList")()
    for step in range(1, 101):
        g = [((rng.standard_normal(n) + 0.3) * scale).astype(np.float32)]
        exact(1e-3, step, w, g, m, v, outputs=("new_weights",))
        coded(1e-3, step, other, g, *codes, outputs=("new_weights",))
    small = scale == 1
    share = (other[0] * w[0])[small].sum() / np.square(w[0][small]).sum()
    assert 0.95 < share < 1.05
    each = np.abs(other[0][small]).mean() / np.abs(w[0][small]).mean()
    assert 0.95 < each < 1.05


def test_the_roundings_of_both_moments_have_nothing_in_common(rng) -> None:
    """Else steps, which are the first over the root of the second, would have a bias."""
    v = 2.0 ** rng.uniform(-1, 0, 1 << 16).astype(np.float32)
    v[::128] = 2
    first, second = decode(encode(v, v, 8, step=9), v.size, 8)
    assert abs(np.corrcoef(first / v, second / v)[0, 1]) < 0.02


def test_codes_of_older_versions_are_decoded(rng) -> None:
    """By their definition, element by element."""
    n = 300
    codes = [rng.integers(0, 256, old_size(n)).astype(np.uint8) for _ in range(2)]
    for array in codes:
        array[n:] = rng.integers(120, 140, 3)
    first, second = decode_old(tuple(codes), n)
    for i in range(n):
        for array, results, top in ((codes[0], first, 127), (codes[1], second, 255)):
            code, exponent = int(array[i]), int(array[n + i // 128])
            upper = (code & top) + max(exponent * 16 + 15 - top, 0)
            size = 0.0 if code & top == 0 else (1 + upper % 16 / 16) * 2.0 ** (upper // 16 - 127)
            assert results[i] == (-size if code > top else size)


def coded(rng, sizes, bits=8):
    """Weights, gradients, and codes of both moments."""
    lists = parameters(rng, sizes)
    pairs = [encode(*pair, bits) for pair in zip(*lists[2:], strict=True)]
    return [*lists[:2], [first for first, _ in pairs], [second for _, second in pairs]]


@BITS
@pytest.mark.parametrize("sizes", TABLES.values(), ids=TABLES)
def test_lists_are_updated_once(run, rng, monkeypatch, sizes, bits) -> None:
    """A block of codes a chunk, 32 tensors a table, at odd addresses; codes are the same bits."""
    monkeypatch.setattr(adam, "CODED_CHUNK", 128)
    monkeypatch.setattr(adam, "CAPACITY", 32)
    op, lists = get_op("AdamCodedList")(lambda_=0.1, bits=bits), coded(rng, sizes, bits)
    placed = [[run.place(x, (i + k) % 3) for i, x in enumerate(xs)] for k, xs in enumerate(lists)]
    op(0.1, 2, *placed)
    _, m, v, w, *_ = op.cpu_function()(0.1, 2, *lists, **op.attribute_values)
    assert_all_match(run, [placed[0]], [w])
    assert_all_match(run, placed[2:], (m, v), 0)


@BITS
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("scale", [None, 4.0])
def test_blocks_with_special_numbers_have_the_hosts_codes(run, rng, offset, scale, bits) -> None:
    """NaN and infinities in some blocks, in others what rounds up to one, and what is nearly 0."""
    lists = coded(rng, (900, 256, 300), bits)
    huge = np.array([3.39e38, 3.4e38, 1.8e19, -2e19], np.float32)
    nan = np.uint32(0x7FFF_FFFF).view(np.float32)  # as GPUs make it: all bits of the fraction
    special = np.array([nan, np.inf, -np.inf, 0.0, -0.0, 1e-38, *huge], np.float32)
    for start in (5, 300, 700):
        lists[1][0][start : start + 10] = rng.permutation(special)
    lists[1][0][512:640] = 0
    m, v = moments(rng, 256, 3)
    wide = m * np.float32(1e19), v * np.float32(3.4e38)
    far = moments(rng, 300, 60)
    for place, pair in ((1, wide), (2, far)):
        lists[2][place], lists[3][place] = encode(*pair, bits)
    op = get_op("AdamCodedList")(lambda_=0.1, bits=bits)
    placed = [[run.place(x, offset) for x in xs] for xs in lists]
    op(0.1, 2, *placed, loss_scale=scale)
    with np.errstate(all="ignore"):
        _, m, v, *_ = op.cpu_function()(0.1, 2, *lists, loss_scale=scale, **op.attribute_values)
    assert_all_match(run, placed[2:], (m, v), 0)


@BITS
def test_any_bytes_are_codes(run, rng, bits) -> None:
    """As of a damaged state: the same on every provider."""
    lists = coded(rng, (700,), bits)
    for codes in lists[2:]:
        codes[0][:] = rng.integers(0, 256, codes[0].size)
    op = get_op("AdamCodedList")(bits=bits)
    placed = [[run.place(x) for x in xs] for xs in lists]
    op(0.1, 2, *placed, update_signal=False)
    assert_all_match(run, placed, lists, 0)
    op(0.1, 2, *placed)
    with np.errstate(all="ignore"):
        op.cpu_function()(0.1, 2, *lists, **op.attribute_values)


@BITS
def test_steps_are_those_of_numbers_between_codes(rng, bits) -> None:
    """The weights have the new moments before these become codes."""
    w, g, m, v = coded(rng, (300,), bits)
    wide = [[x] for x in decode((m[0], v[0]), 300, bits)]
    expected = [w[0].copy()], g, *wide
    get_op("AdamOptimizerList")()(0.1, 7, *expected, loss_scale=4.0, outputs=("new_weights",))
    get_op("AdamCodedList")(bits=bits)(0.1, 7, w, g, m, v, loss_scale=4.0)
    np.testing.assert_array_equal(w[0], expected[0][0])


def test_codes_of_other_sizes_are_refused(rng) -> None:
    w, g, m, v = coded(rng, (300,))
    with pytest.raises(ArgumentError, match=r"moment_2\[0\]: expected shape \(303,\)"):
        get_op("AdamCodedList")()(0.1, 7, w, g, m, [v[0][:300]])
    with pytest.raises(ArgumentError, match=r"moment_1\[0\]: expected shape \(156,\)"):
        get_op("AdamCodedList")(bits=4)(0.1, 7, w, g, m, v)
