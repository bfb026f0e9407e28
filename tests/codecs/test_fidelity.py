# SPDX-License-Identifier: MIT
"""Each codec's bound: real codecs hold it on all kinds of values, one planted error breaks it."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from codec_names import FLOAT_CODECS

from cupy_training_ops import compress
from cupy_training_ops.codecs import fidelity
from cupy_training_ops.codecs.fidelity import Measurement, measure, within_bound
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOATS, dtype_name
from cupy_training_ops.families.gist.samples import special, wide_range

NAN, INF = float("nan"), float("inf")
ZEROING = ("msfp15", "msfp15_signed")  # where it is asked for


def above(value: float) -> float:
    """The next float64 away from zero."""
    return float(np.nextafter(value, np.copysign(INF, value)))


def below(value: float) -> float:
    """The next float64 towards zero."""
    return float(np.nextafter(value, 0))


def holds(codec: str, x, y, **options) -> bool:
    """Whether the first value is within the bound; the others are its tile."""
    return bool(within_bound(codec, np.array(x, float), np.array(y, float), **options)[0])


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
@pytest.mark.parametrize("codec", FLOAT_CODECS)
def test_codecs_hold_their_bounds(codec, dtype, rng):
    x = np.concatenate([wide_range(rng, (1003,), dtype), special(rng, dtype)])
    options = {"keep_nonfinite": bool(rng.integers(2))} if codec in ZEROING else {}
    decoded = compress(x, codec, **options).decompress()
    assert measure(codec, x, decoded, **options).violations == 0


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=dtype_name)
@pytest.mark.parametrize("codec", FLOAT_CODECS)
def test_no_two_byte_value_needs_slack_for_the_rounding_to_its_own_type(codec, dtype, rng):
    values = np.arange(2**16, dtype=np.uint16)
    tiles = np.stack([values, *([np.zeros_like(values)] * 7)], axis=1)
    tiles[:, 1:4] = rng.permuted(tiles[:, :1].repeat(3, axis=1), axis=0)
    x = tiles.view(dtype)
    assert measure(codec, x, compress(x, codec).decompress()).violations == 0


@pytest.mark.parametrize("codec", FLOAT_CODECS)
def test_one_planted_error_is_found_where_it_is(codec, rng):
    x = rng.standard_normal(1003).astype(np.float32)
    decoded = compress(x, codec).decompress()
    place = int(rng.integers(x.size))
    decoded[place] += np.copysign(1 + abs(x[place]), decoded[place])
    fidelity = measure(codec, x, decoded)
    assert (fidelity.violations, fidelity.first_violation) == (1, place)


@pytest.mark.parametrize(
    ("codec", "relative", "absolute", "infinite_from", "largest"),
    [
        ("pack8", 2**-3, 2**-17, 61_440, 57_344),
        ("pack16", 2**-11, 2**-25, 65_520, 65_504),
        ("fp10", 2**-5, 2**-19, 64_512, 63_488),
    ],
)
def test_rounding_bounds_are_tight(codec, relative, absolute, infinite_from, largest, rng):
    sign = float(rng.choice([-1, 1]))
    x = sign * float(rng.integers(1, 2**10)) * 2.0 ** float(rng.integers(-14, 5))
    assert holds(codec, [x], [x * (1 + relative)])
    assert not holds(codec, [x], [above(x * (1 + relative))])
    x = sign * 2.0**-15
    assert holds(codec, [x], [x + absolute])
    assert not holds(codec, [x], [x + 1.001 * absolute])
    assert holds(codec, [sign * infinite_from], [sign * INF])
    assert not holds(codec, [sign * infinite_from], [-sign * INF])
    assert not holds(codec, [sign * infinite_from], [sign * largest])
    assert not holds(codec, [sign * below(infinite_from)], [sign * INF])
    assert holds(codec, [sign * below(infinite_from)], [sign * largest])


@pytest.mark.parametrize("codec", ["pack8", "pack16"])
def test_rounding_codecs_keep_infinities_and_nan(codec):
    assert holds(codec, [NAN], [NAN])
    assert holds(codec, [-INF], [-INF])
    assert not holds(codec, [NAN], [0])
    assert not holds(codec, [1], [NAN])
    assert not holds(codec, [INF], [65_504])


@pytest.mark.parametrize("codec", ["binarize", "pack1"])
def test_the_sign_test_is_exact(codec):
    for x, kept in [(1e-45, 1), (INF, 1), (0.0, 0), (-0.0, 0), (-1, 0), (NAN, 0)]:
        assert holds(codec, [x], [kept])
        assert not holds(codec, [x], [1 - kept])
    assert not holds(codec, [2], [2])


def test_msfp15_bound_is_half_a_step_of_the_tile(rng):
    scale = 2.0 ** float(rng.integers(-100, 100))
    for x in (0.3 * scale, -1.97 * scale):
        error = np.copysign(scale * 2**-6, x)
        assert holds("msfp15", [x, scale], [x + 0.999 * error, scale])
        assert not holds("msfp15", [x, scale], [x + 1.001 * error, scale])


def test_msfp15_bound_is_a_whole_step_where_the_mantissa_saturates():
    saturated = 63.5 * 2**-5
    assert holds("msfp15", [saturated], [saturated - 2**-5])
    assert not holds("msfp15", [saturated], [saturated - 1.001 * 2**-5])
    assert not holds("msfp15", [below(saturated)], [below(saturated) - 1.001 * 2**-6])


def test_msfp15_makes_zero_of_subnormals():
    tiny = below(2.0**-126)
    assert holds("msfp15", [tiny], [0])
    assert not holds("msfp15", [tiny], [2.0**-149])
    assert not holds("msfp15", [2.0**-126], [0])


def test_integers_are_half_a_step_off_and_with_their_signs_a_step_below_half(rng):
    scale = 2.0 ** float(rng.integers(-90, 100))
    largest = 127 * scale
    assert holds("int8", [3.5 * scale, largest], [4 * scale, largest])
    assert not holds("int8", [3.4 * scale, largest], [4 * scale, largest])
    assert holds("int8", [0.1 * scale, largest], [0, largest])
    assert holds("int8_signed", [0.1 * scale, largest], [scale, largest])
    assert not holds("int8_signed", [0.1 * scale, largest], [0, largest])
    assert not holds("int8_signed", [-0.1 * scale, largest], [scale, largest])
    assert holds("int8", [1, NAN], [1, NAN])
    assert not holds("int8", [1, NAN], [NAN, NAN])
    assert holds("int8", [INF, 1], [INF, 1])
    assert not holds("int8", [INF, 1], [NAN, 1])


@pytest.mark.parametrize("lost", [NAN, INF, -INF, 2.0**128])
def test_msfp15_gives_up_a_tile_without_a_shared_exponent(lost):
    assert holds("msfp15", [1, lost], [0, 0], keep_nonfinite=False)
    assert not holds("msfp15", [1, lost], [1, 0], keep_nonfinite=False)
    kept = NAN if lost != lost else np.copysign(INF, lost)
    for codec, bits in (("msfp15", 4), ("msfp15_signed", 3)):
        assert holds(codec, [1, lost], [1 + 2.0**-bits, kept])
        assert not holds(codec, [1, lost], [1 + 1.001 * 2.0**-bits, kept])
        assert not holds(codec, [1, lost], [0, 0])
        assert holds(codec, [lost, 1], [kept, 1])
        assert not holds(codec, [lost, 1], [0, 1])
    assert holds("msfp15", [1, *[0] * 7, lost], [1, *[0] * 8])


def test_numbers_by_hand():
    x = np.array([4.0, -2.0, 0.0, -0.0, INF, NAN, 1e300], np.float64)
    y = np.array([4.5, -2.5, 0.0, 1e-7, INF, NAN, INF], np.float64)
    f = measure("pack16", x, y)
    assert (f.max_abs_error, f.zeros_kept, f.lost) == (0.5, 0.5, 1)
    assert f.rmse == pytest.approx(np.sqrt(0.5 / 4))
    assert f.cosine == pytest.approx(23 / np.sqrt(20 * (4.5**2 + 2.5**2)))
    assert f.snr_db == pytest.approx(10 * np.log10(20 / 0.5))
    assert (f.nonfinite, f.overflowed, f.dropped, f.violations) == (2, 1, 0, 3)


def test_snr_is_that_of_the_definition_at_any_scale(rng):
    x, noise = rng.standard_normal((2, 999))
    snr = 10 * np.log10(np.sum(x**2) / np.sum((1e-3 * noise) ** 2))
    for scale in (2.0**-1000, 1.0, 2.0**1000):
        f = measure("pack16", x * scale, (x + 1e-3 * noise) * scale)
        assert f.snr_db == pytest.approx(snr, rel=1e-6)
        assert f.rmse == pytest.approx(scale * 1e-3 * np.sqrt(np.mean(noise**2)), rel=1e-9)


def test_the_cosine_is_that_of_the_definition_at_any_angle_and_scale(rng):
    x, other = rng.standard_normal((2, 999))
    for y in (x + 0.1 * other, other, -x, 1e3 * x, 1e-3 * other - x):
        cosine = np.dot(x, y) / np.linalg.norm(x) / np.linalg.norm(y)
        for scale in (2.0**-1000, 1.0, 2.0**1000):
            f = measure("pack16", x * scale, y * scale)
            assert f.cosine == pytest.approx(cosine, abs=1e-12)


def test_what_does_not_exist_is_none():
    nothing = measure("pack8", np.empty(0), np.empty(0))
    assert (nothing.max_abs_error, nothing.snr_db, nothing.zeros_kept) == (None, None, None)
    assert (nothing.rmse, nothing.cosine) == (None, None)
    assert measure("pack8", np.ones(3), np.ones(3)).snr_db == INF
    assert measure("pack1", np.ones(3), np.ones(3)).max_abs_error is None
    assert measure("pack8", np.zeros(3), np.zeros(3)).cosine is None
    assert measure("pack8", np.ones(3), np.zeros(3)).cosine is None


def test_dropped_values_are_the_finite_ones_of_lost_tiles(rng):
    x = rng.standard_normal(20).astype(np.float32)
    x[[3, 5, 17]] = NAN, INF, -INF
    for codec in ZEROING:
        decoded = compress(x, codec, keep_nonfinite=False).decompress()
        f = measure(codec, x, decoded, keep_nonfinite=False)
        assert (f.nonfinite, f.dropped, f.violations) == (3, 6 + 3, 0)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
@pytest.mark.parametrize("codec", FLOAT_CODECS)
def test_parts_show_together_what_the_whole_shows(codec, dtype, rng, monkeypatch):
    tile = {"block_e4m3": 128, "block_e5m2": 128, "int8": 32, "int8_signed": 32}
    tile |= {"sparse_msfp15": 16_384 // dtype.itemsize}
    piece = tile.get(codec, 16)
    x = np.concatenate([wide_range(rng, (2 * piece + 1003,), dtype), special(rng, dtype)])
    decoded = compress(x, codec).decompress()
    decoded[rng.integers(x.size, size=5)] = 3
    decoded[np.abs(x[:piece].astype(float)).argmax()] *= -1  # beside large ones 3 is not far off
    whole = measure(codec, x, decoded)
    monkeypatch.setattr(fidelity, "PIECE", piece)
    in_pieces = Measurement(codec)
    in_pieces.add(x[: 2 * piece], decoded[: 2 * piece])
    in_pieces.add(x[2 * piece :], decoded[2 * piece :])
    ours, expected = asdict(in_pieces.fidelity()), asdict(whole)
    for name in ("snr_db", "rmse", "cosine"):  # sums, in another order
        if expected[name] is not None:
            assert ours.pop(name) == pytest.approx(expected.pop(name), rel=1e-9, abs=1e-9)
    assert ours == expected
    assert whole.violations


def test_the_first_violation_is_counted_from_the_start_of_all_parts():
    measurement = Measurement("pack16")
    for decoded in (np.ones(8), np.array([1, 1, 5.0])):
        measurement.add(np.ones(decoded.size), decoded)
    actual = measurement.fidelity()
    assert (actual.violations, actual.first_violation, actual.max_abs_error) == (1, 10, 4)
