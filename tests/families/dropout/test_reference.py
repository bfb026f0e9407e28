# SPDX-License-Identifier: MIT
"""Random words and dropout against published vectors, statistics, differences, JAX, upstream."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import finite_differences, vjp
from probe.random_probe import ProbePhilox, ProbeTile, ProbeWords

import cupy_training_ops as cto
from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.dropout import philox
from cupy_training_ops.testing.compare import assert_matches

from .masks import INF, NAN, RATIO, STATE, mask_of

ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")
MOST = 2**32 - 1
X = np.linspace(1, 3, 67)

floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)

# Of the authors of Philox: counter, key, words.
PUBLISHED = [
    ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (" ".join(["ffffffff"] * 4), "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def hexadecimal(words: str) -> list[int]:
    return [int(word, 16) for word in words.split()]


# ---- random words --------------------------------------------------------------------------------


def test_published_vectors(anywhere) -> None:
    counters, keys, words = (
        np.array([hexadecimal(row[i]) for row in PUBLISHED], np.uint32) for i in range(3)
    )
    result = ProbePhilox()(anywhere.place(counters), anywhere.place(keys))
    assert anywhere.host(result).tolist() == words.tolist()


def test_words_lie_in_the_counter_as_they_should() -> None:
    """Word i % 4 of counter (i / 4 low, high, offset low, high) and key (seed low, high)."""
    seed, offset, element = 0x299F31D0A4093822, 0x0370734413198A2E, 4 * 0x85A308D3243F6A88
    words = [philox.words((seed, offset), element + i, element + i + 1)[0] for i in range(4)]
    assert words == hexadecimal(PUBLISHED[2][2])


def test_elements_beyond_2_to_the_34(run) -> None:
    elements = np.array([0, 1, 2**32 + 2, 2**34 - 1, 2**34, 2**34 + 3, 2**40 + 5, 2**61 + 2])
    actual = run.host(ProbeWords()(run.place(elements), STATE))
    expected = [philox.words(STATE, e, e + 1)[0] for e in elements.tolist()]
    assert actual.tolist() == expected
    assert len(set(expected)) == len(elements)


@pytest.mark.parametrize("first", [0, 2**34 - 2048, 2**34, 2**36 + 3 * 2048])
def test_tiles_beyond_2_to_the_34(run, first) -> None:
    result = run.host(ProbeTile()(run.place(np.zeros(2048, np.uint32)), first, STATE))
    assert result.tolist() == philox.words(STATE, first, first + 2048).tolist()


def test_a_piece_is_what_it_is_in_the_whole() -> None:
    whole = philox.words(STATE, 0, 203)
    for start, stop in [(0, 1), (1, 2), (3, 9), (5, 203), (196, 197), (7, 7)]:
        assert philox.words(STATE, start, stop).tolist() == whole[start:stop].tolist()


@pytest.mark.parametrize(
    "ratio", [0.0, 0.1, 0.5, 0.9, float(np.float32(0.3)), 2.0**-33, 2.0**-32, 1e-300, 1 - 2.0**-53]
)
def test_which_words_keep(ratio) -> None:
    """Those below (1 - ratio) 2^32, exactly."""
    largest, bound = philox.keep_threshold(ratio), (1 - Fraction(ratio)) * 2**32
    assert largest < bound <= largest + 1
    assert (largest == MOST) == (bound > MOST)


def test_one_word_decides_at_the_edge(anywhere) -> None:
    """A ratio whose bound is an element's own word drops it, the next smaller one keeps it."""
    x = anywhere.place(np.ones(40, FLOAT32))
    for i, word in enumerate(philox.words(STATE, 0, 40).tolist()):
        ratio = 1 - word / 2**32
        for arguments, is_kept in ((ratio, False), (ratio - 2.0**-32, True)):
            mask = cto.dropout(x, arguments, True, STATE)[1]
            assert bool(mask[i]) is is_kept


# ---- statistics ----------------------------------------------------------------------------------

PIECE, N_PIECES = 2**20, 96  # 10^8 draws


def z_of_pairs(a: np.ndarray, b: np.ndarray, p: float) -> tuple[float, float]:
    """The sum of (a - p)(b - p), and its variance where they are independent."""
    n, both = a.size, np.count_nonzero(a & b)
    total = both - p * (np.count_nonzero(a) + np.count_nonzero(b)) + n * p * p
    return total, n * (p * (1 - p)) ** 2


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_hundred_million_draws() -> None:
    """Keep rate; neighbours, elements 4 and 32 apart, the next offset, the next seed."""
    seed, offset = 20_26, 7
    totals: dict[tuple[float, str], list[float]] = {}

    def note(ratio: float, what: str, total: float, variance: float) -> None:
        sums = totals.setdefault((ratio, what), [0.0, 0.0])
        sums[0], sums[1] = sums[0] + total, sums[1] + variance

    for piece in range(N_PIECES):
        start = piece * PIECE
        words, later, other = (
            philox.words(state, start, start + PIECE)
            for state in ((seed, offset), (seed, offset + 1), (seed + 1, offset))
        )
        assert words.max() <= philox.keep_threshold(0.0)
        for ratio in (0.1, 0.5, 0.9):
            p = 1 - ratio
            kept, after, beside = (w <= philox.keep_threshold(ratio) for w in (words, later, other))
            note(ratio, "rate", np.count_nonzero(kept) - kept.size * p, kept.size * p * ratio)
            for apart in (1, 4, 32):
                note(ratio, f"{apart} apart", *z_of_pairs(kept[:-apart], kept[apart:], p))
            note(ratio, "next offset", *z_of_pairs(kept, after, p))
            note(ratio, "next seed", *z_of_pairs(kept, beside, p))
    wrong = {k: s / v**0.5 for k, (s, v) in totals.items() if abs(s) > 5 * v**0.5}
    assert not wrong
    assert len(totals) == 18


# ---- the operators -------------------------------------------------------------------------------


def bits_of(mask: np.ndarray) -> list[int]:
    """The words of a bitmask, bit by bit."""
    words = [0] * -(-mask.size // 32)
    for i in np.flatnonzero(mask).tolist():
        words[i // 32] |= 1 << i % 32
    return words


@floats
def test_dropout(dtype) -> None:
    x, mask = X.astype(dtype), mask_of(67)
    output, result = cto.dropout(x, RATIO, True, STATE)
    assert result.tolist() == mask.tolist()
    assert_matches(output, np.where(mask, X / (1 - RATIO), 0).astype(dtype))
    same, bits = cto.bitmask_dropout(x, RATIO, True, STATE)
    assert_matches(same, output, 0)
    assert bits.tolist() == bits_of(mask)
    dx = cto.dropout_grad(x, result, RATIO, True)
    assert_matches(dx, output, 0)
    assert_matches(cto.bitmask_dropout_grad(x, bits, RATIO, True), output, 0)


@floats
def test_dropout_with_a_bias(dtype) -> None:
    """Nothing is rounded before the end."""
    mask = mask_of(66).reshape(6, 11)
    data, whole, residual = (np.random.default_rng(i).standard_normal((6, 11)) for i in range(3))
    for bias, added in itertools.product((whole, whole[0]), (None, residual)):
        arrays = [None if a is None else a.astype(dtype) for a in (data, bias, added)]
        wide = [np.float64(0) if a is None else a.astype(FLOAT64) for a in arrays]
        expected = np.where(mask, (wide[0] + wide[1]) / (1 - RATIO), 0) + wide[2]
        output, actual = cto.bias_dropout(*arrays, RATIO, True, STATE)
        assert_matches(output, expected.astype(dtype))
        assert actual.tolist() == mask.tolist()
        same, bits = cto.bitmask_bias_dropout(*arrays, RATIO, True, STATE)
        assert_matches(same, output, 0)
        assert bits.tolist() == bits_of(mask)


@pytest.mark.parametrize(
    ("shape", "bias", "axis", "inner", "index"),
    [
        ((4, 3, 5), (4, 3, 5), 2, False, lambda r: r),
        ((4, 3, 5), (3, 5), 2, False, lambda r: r % 3),
        ((4, 3, 5), (1, 1, 5), 2, True, lambda _: 0),
        ((4, 3, 5), (4, 1, 5), 2, True, lambda r: r // 3),
        ((2, 3, 2, 2, 5), (2, 1, 1, 2, 5), 3, True, lambda r: r // 6),
        ((2, 3, 2, 2, 5), (2, 2, 5), 3, False, lambda r: r % 2),
        ((4, 1, 5), (4, 1, 5), -1, True, lambda r: r),
        ((6,), (6,), 0, False, lambda _: 0),
    ],
)
def test_softmax_with_bias_and_dropout(rng, shape, bias, axis, inner, index) -> None:
    x, b = rng.standard_normal(shape), rng.standard_normal(bias)
    before = shape[: axis % len(shape)]
    rows = x.reshape(math.prod(before), -1)
    shifted = np.array([row + b.reshape(-1, rows.shape[1])[index(r)] for r, row in enumerate(rows)])
    p = np.asarray(jax.nn.softmax(shifted, -1)).reshape(shape)
    mask = mask_of(x.size).reshape(shape)
    op = get_op("BiasSoftmaxDropout")(axis=axis, is_inner_broadcast=inner)
    dropped, result, softmax = op(x, b, RATIO, STATE)
    assert_matches(softmax, p)
    assert result.tolist() == mask.tolist()
    assert_matches(dropped, np.where(mask, p / (1 - RATIO), 0))
    dropped, result, softmax = op(x, b, 0, STATE)
    assert result.all()
    assert_matches(dropped, softmax, 0)


def test_dropped_is_zero_whatever_it_was() -> None:
    """Chosen, not multiplied: no -0, no NaN."""
    mask = mask_of(67)
    for value in (NAN, INF, -INF, -3.0):
        x = np.full(67, value, FLOAT32)
        for results in (
            cto.dropout(x, RATIO, True, STATE)[0],
            cto.bias_dropout(x, x[:67], None, RATIO, True, STATE)[0],
            cto.dropout_grad(x, mask, RATIO),
        ):
            assert results.view(np.uint32)[~mask].tolist() == [0] * np.count_nonzero(~mask)
            assert not (results[mask] == 0).any()
    y = np.full((1, 67), 1 / 67)
    dy = np.where(mask, 1.0, INF).reshape(1, 67)
    assert np.isfinite(cto.softmax_dropout_grad(dy, mask.reshape(1, 67), y, RATIO, axis=1)).all()


@pytest.mark.parametrize("numbers", [(0.0, True), (0.0, None), (0.4, False), (0.0, False)])
def test_the_identity(numbers) -> None:
    """Nothing is drawn, every element is kept; a gradient then heeds no mask."""
    state = np.array(STATE, np.uint64)
    x = np.array([1e-45, -0.0, NAN, 2.5, -INF], FLOAT32)
    output, mask = cto.dropout(x, *numbers, state)
    assert output.tobytes() == x.tobytes()
    assert mask.all()
    output, bits = cto.bitmask_dropout(x, *numbers, state)
    assert output.tobytes() == x.tobytes()
    assert bits.tolist() == [31]
    assert state.tolist() == list(STATE)
    assert_matches(cto.dropout_grad(x, np.zeros(5, np.bool_), *numbers), x, 0)
    assert_matches(cto.bitmask_dropout_grad(x, np.zeros(1, np.uint32), *numbers), x, 0)


def test_what_is_left_out() -> None:
    """Ratio 0.5; no training in a forward, and a mask that counts in a gradient."""
    x, mask = X.astype(FLOAT32), mask_of(67, ratio=0.5)
    assert_matches(cto.dropout(x)[0], x, 0)
    assert_matches(cto.bias_dropout(x, x)[0], x + x, 0)
    assert cto.dropout(x, None, True, STATE)[1].tolist() == mask.tolist()
    assert_matches(cto.dropout_grad(x, mask), np.where(mask, 2 * x, 0).astype(FLOAT32), 0)


# ---- gradients -----------------------------------------------------------------------------------


PAIRS = {
    "Dropout": (
        lambda x: cto.dropout(x, RATIO, True, STATE),
        lambda dy, out: cto.dropout_grad(dy, out[1], RATIO),
    ),
    "BitmaskDropout": (
        lambda x: cto.bitmask_dropout(x, RATIO, True, STATE),
        lambda dy, out: cto.bitmask_dropout_grad(dy, out[1], RATIO),
    ),
    "BiasDropout": (
        lambda x: cto.bias_dropout(x, x[0], x, RATIO, True, STATE),
        lambda dy, out: (
            cto.dropout_grad(dy, out[1], RATIO)
            + dy
            + np.eye(1, len(dy)).T * cto.dropout_grad(dy, out[1], RATIO).sum(0)
        ),
    ),
    "BitmaskBiasDropout": (
        lambda x: cto.bitmask_bias_dropout(x, np.ones(5), None, RATIO, True, STATE),
        lambda dy, out: cto.bitmask_dropout_grad(dy, out[1], RATIO),
    ),
    "BiasSoftmaxDropout": (
        lambda x: cto.bias_softmax_dropout(x, 2 * x, RATIO, STATE, is_inner_broadcast=True),
        lambda dy, out: 3 * cto.softmax_dropout_grad(dy, out[1], out[2], RATIO, axis=1),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_gradients_are_finite_differences(rng, name) -> None:
    forward, backward = PAIRS[name]
    x, dy = rng.standard_normal((7, 5)), rng.standard_normal((7, 5))
    expected = finite_differences(lambda x: forward(x)[0], x, dy)
    assert np.abs(backward(dy, forward(x)) - expected).max() < 1e-8


def test_gradients_are_jax_on_the_same_mask(rng) -> None:
    x, dy = rng.standard_normal((6, 11)), rng.standard_normal((6, 11))
    mask = mask_of(66).reshape(6, 11)
    through = lambda x: jnp.where(mask, x / (1 - RATIO), 0)  # noqa: E731
    (dx,) = vjp(through, [x], dy)
    assert_matches(cto.dropout_grad(dy, mask, RATIO), dx)
    bits = np.array(bits_of(mask.ravel()), np.uint32)
    assert_matches(cto.bitmask_dropout_grad(dy, bits, RATIO), dx)
    (dx,) = vjp(lambda x: through(jax.nn.softmax(x)), [x], dy)
    y = np.asarray(jax.nn.softmax(x))
    assert_matches(cto.softmax_dropout_grad(dy, mask, y, RATIO, axis=-1), dx)


# ---- upstream's answers --------------------------------------------------------------------------


def answers(anywhere, case: str, *names: str) -> list:
    """The inputs of a case: arrays placed, numbers as they are."""
    arguments = [ANSWERS[f"{case}|in|{name}"] for name in names]
    return [value if value.size == 1 else anywhere.place(value) for value in arguments]


@pytest.mark.parametrize("t", ["f4", "f2"])
@pytest.mark.parametrize("name", ["DropoutGrad", "BitmaskDropoutGrad"])
def test_upstreams_gradients(anywhere, name, t) -> None:
    result = get_op(name)()(*answers(anywhere, f"{name}[{t}]", "dY", "mask", "ratio", "training"))
    assert_matches(anywhere.host(result), ANSWERS[f"{name}[{t}]|out0"])


@pytest.mark.parametrize("t", ["f4", "f2"])
def test_upstreams_softmax(anywhere, t) -> None:
    case = f"BiasSoftmaxDropout[{t}]"
    op = get_op("BiasSoftmaxDropout")(is_inner_broadcast=True)
    for i, result in enumerate(op(*answers(anywhere, case, "X", "B", "ratio"))):
        assert_matches(anywhere.host(result), ANSWERS[f"{case}|out{i}"])


@pytest.mark.parametrize(("t", "bound"), [("f4", 1e-5), ("f2", 2e-3)])
def test_upstreams_softmax_gradient(anywhere, t, bound) -> None:
    """In float16 upstream rounds dy y, so that small results differ by any relative amount."""
    case = f"SoftmaxDropoutGrad[{t}]"
    arguments = answers(anywhere, case, "dY", "mask", "Y", "ratio")
    actual = anywhere.host(get_op("SoftmaxDropoutGrad")(axis=1)(*arguments)).astype(FLOAT64)
    expected = ANSWERS[f"{case}|out0"].astype(FLOAT64)
    largest = np.abs(expected).max(-1, keepdims=True)
    of = largest if t == "f2" else np.maximum(np.abs(expected), 0.05 * largest)
    assert (np.abs(actual - expected) <= bound * of).all()
