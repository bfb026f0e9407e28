# SPDX-License-Identifier: MIT
"""FP10, 4-bit indices and scaled 8-bit floats against tables, exact rounding and ml_dtypes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from references import References

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, FLOATS, INTEGERS, dtype_name
from cupy_training_ops.families.gist_narrow.samples import scaled_blocks
from cupy_training_ops.testing.compare import assert_matches

cpu = References("gist_narrow")

NAN, INF = np.nan, np.inf
DATA = Path(__file__).parents[2] / "data"
FP8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
formats = pytest.mark.parametrize("name", FP8)


# ---- FP10 ----------------------------------------------------------------------------------------


def value_of_fp10(code: int) -> float:
    """By the definition: 1 sign, 5 exponent and 4 fraction bits."""
    sign, exponent, fraction = -1.0 if code & 0x200 else 1.0, code >> 4 & 31, code & 15
    if exponent == 31:
        return NAN if fraction else sign * INF
    whole = Fraction(fraction, 16) + (exponent > 0)
    return sign * float(whole * Fraction(2) ** (max(exponent, 1) - 15))


TABLE = np.array([value_of_fp10(code) for code in range(1024)])


def words(codes: np.ndarray) -> np.ndarray:
    codes = np.pad(codes, (0, -codes.size % 3)).astype(np.uint32).reshape(-1, 3)
    return codes[:, 0] | codes[:, 1] << 10 | codes[:, 2] << 20


def codes_of(word: np.ndarray, n: int) -> np.ndarray:
    return (word[:, None] >> np.array([0, 10, 20], np.uint32) & 0x3FF).ravel()[:n]


def nearest_fp10(x: np.ndarray) -> np.ndarray:
    """By search among all values: the even code of two that are as near."""
    size = np.abs(x.astype(FLOAT64))
    values = np.append(TABLE[:0x1F0], 65_536.0)  # what comes after the largest rounds to infinity
    above = np.clip(np.searchsorted(values, size), 1, values.size - 1)
    low, high = values[above - 1], values[above]
    with np.errstate(invalid="ignore"):
        to_low, to_high = size - low, high - size
    code = np.where((to_low < to_high) | ((to_low == to_high) & (above % 2 == 1)), above - 1, above)
    code = np.where(size >= 65_536, 0x1F0, code)
    code[np.isnan(size)] = 0x1F8
    return code | np.signbit(x) * 0x200


@floats
def test_fp10_decodes_to_the_table_and_codes_come_back(dtype):
    codes = np.arange(1024)
    values = cpu.gist_fp10_decoder(words(codes), to=dtype, shape=(1024,))
    with np.errstate(invalid="ignore"):  # signalling NaN
        assert_matches(values.astype(FLOAT64), TABLE, 0)
    numbers = ~np.isnan(TABLE)
    assert (np.signbit(values) == (codes >= 512))[numbers].all()
    back = codes_of(cpu.gist_fp10_encoder(values), 1024)
    np.testing.assert_array_equal(back[numbers], codes[numbers])
    assert (back[~numbers] & 0x1FF == 0x1F8).all()


@floats
def test_fp10_is_rounded_correctly(dtype, rng):
    width = np.dtype(f"u{dtype.itemsize}")
    if dtype.itemsize == 2:
        x = np.arange(2**16, dtype=width).view(dtype)
    else:  # all bit patterns alike, and sizes around those of the codes
        bits = rng.integers(0, np.iinfo(width).max, 20_000, width, endpoint=True).view(dtype)
        near = TABLE[rng.integers(0, 0x1F0, 40_000)] * (1 + rng.choice([-1, 0, 1], 40_000) / 32)
        ties = near.astype(dtype)
        x = np.concatenate(
            [bits, ties, np.nextafter(ties, dtype.type(INF)), ties * dtype.type(0.97)]
        )
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(codes_of(cpu.gist_fp10_encoder(x), x.size), nearest_fp10(x))


def test_fp10_words_are_completed_by_zeros():
    x = np.array([1, -2, NAN, INF], FLOAT16)
    one, two = 0xF0, 0x300
    expected = [one | two << 10 | 0x1F8 << 20, 0x1F0]
    np.testing.assert_array_equal(cpu.gist_fp10_encoder(x), np.array(expected, np.uint32))


# ---- 4-bit indices -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS, ids=dtype_name)
def test_indices_come_back(dtype, rng):
    for n in (0, 1, 2, 33):
        x = rng.integers(0, 16, n).astype(dtype)
        code = cto.gist_index4_encoder(x, check=True)
        assert code.tolist() == [
            int(x[k]) + 16 * (int(x[k + 1]) if k + 1 < n else 0) for k in range(0, n, 2)
        ]
        assert_matches(cto.gist_index4_decoder(code, to=dtype, shape=(n,)), x)
        assert_matches(cto.compress(x, "index4", check=True).decompress(), x)


def test_other_indices_lose_their_upper_bits_or_are_refused():
    x = np.array([16, -1, 31, 15], np.int64)
    assert cto.gist_index4_encoder(x).tolist() == [0xF0, 0xFF]
    with pytest.raises(
        ArgumentError, match="GistIndex4Encoder: X: expected indices from 0 to 15, got 16"
    ):
        cto.compress(x, "index4", check=True)
    with pytest.raises(ArgumentError, match="got -1"):
        cto.gist_index4_encoder(x[1:], check=True)


# ---- scaled 8-bit floats -------------------------------------------------------------------------


def blocks_of(x: np.ndarray) -> np.ndarray:
    flat = x.ravel().astype(FLOAT64)
    return np.pad(flat, (0, -flat.size % 128)).reshape(-1, 128)


def taken_apart(code: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales of blocks and codes of elements, tile by tile."""
    scales, codes = [], []
    for start in range(0, code.size, 1040):
        tile = code[start : start + 1040]
        scales.append(tile[:16].copy().view(np.int16))
        codes.append(tile[16:])
    return np.concatenate(scales)[: -(-n // 128)].astype(int), np.concatenate(codes)


@np.errstate(all="ignore")
def fp8(x: np.ndarray, name: str) -> np.ndarray:
    """ml_dtypes' codes of numbers that float32 holds exactly."""
    return x.astype(FLOAT32).astype(FP8[name])


@formats
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, ml_dtypes.bfloat16], ids=dtype_name)
def test_codes_are_those_of_ml_dtypes_at_the_smallest_scale(name, dtype, rng):
    x = scaled_blocks(rng, dtype)[:-7]
    scales, codes = taken_apart(getattr(cpu, f"gist_block_{name}_encoder")(x), x.size)
    exact = blocks_of(x)
    infinite = np.isinf(exact).ravel()[: x.size]
    if name == "e4m3":  # which has no infinity: 0x7E is one where bit 14 of the scale says so
        marked = np.isinf(exact).any(axis=1)
        np.testing.assert_array_equal((scales ^ scales >> 1) & 0x4000 != 0, marked)
        scales = np.where(marked, scales ^ 0x4000, scales)
        np.testing.assert_array_equal(codes[infinite] & 0x7F, 0x7E)
        np.testing.assert_array_equal(codes[infinite] > 0x7F, x[infinite] < 0)
        codes[infinite] |= 1  # NaN, as ml_dtypes
    np.testing.assert_array_equal(
        codes, fp8(np.ldexp(exact, -scales[:, None]), name).ravel()[: x.size].view(np.uint8)
    )
    size = np.where(np.isfinite(exact), np.abs(exact), 0)
    assert np.isfinite(fp8(np.ldexp(size, -scales[:, None]), name).astype(FLOAT32)).all()
    beside = 1 + np.isinf(exact).any(axis=1) if name == "e4m3" else np.ones_like(scales)
    smaller = fp8(np.ldexp(size, (beside - scales)[:, None]), name).astype(FLOAT32)
    used = size.any(axis=1)
    assert (~np.isfinite(smaller)).any(axis=1)[used].all()
    assert (scales[~used] == beside[~used] - 1).all()


@pytest.mark.parametrize(
    ("name", "largest", "more", "back"),
    [
        ("e4m3", 464.0, 0, 448.0),  # a tie that stays
        ("e4m3", np.nextafter(464.0, INF), 1, 480.0),
        ("e5m2", np.nextafter(61_440.0, 0), 0, 57_344.0),
        ("e5m2", 61_440.0, 1, 65_536.0),  # a tie that goes up
    ],
)
def test_the_scale_at_what_just_fits(name, largest, more, back, rng):
    exponent = int(rng.integers(-900, 900))
    packed = cto.compress(np.ldexp([1, -largest], exponent), f"block_{name}")
    assert packed.code[:2].view(np.int16).tolist() == [exponent + more]
    assert packed.decompress()[1] == np.ldexp(-back, exponent)


@formats
def test_double_precision_is_rounded_once(name):
    """A hair above a tie, which a rounding to float32 would make a tie."""
    step = {"e4m3": 2.0**-3, "e5m2": 2.0**-2}[name]
    x = np.array([1 + step / 2, (1 + step / 2) * (1 + 2.0**-50), 1 + step, 1.0], FLOAT64)
    code = cto.compress(x, f"block_{name}")
    assert code.decompress().tolist() == [1, 1 + step, 1 + step, 1]


@formats
@floats
def test_zeros_signs_and_powers_of_two_survive(name, dtype, rng):
    lowest, highest = {"e4m3": (-9, 8), "e5m2": (-16, 15)}[name]
    top = int(rng.integers(-6, 10)) if dtype == FLOAT16 else int(rng.integers(-100, 100))
    powers = np.ldexp(
        1.0, top - np.arange(min(highest - lowest, top + 24 if dtype == FLOAT16 else 99))
    )
    x = np.concatenate([powers, -powers, [0.0, -0.0]]).astype(dtype)
    back = cto.compress(x, f"block_{name}").decompress()
    assert back.tobytes() == x.tobytes()


@floats
def test_what_is_not_finite_counts_for_no_scale(dtype):
    x = np.zeros(256, dtype)
    x[:5] = 3, -INF, NAN, INF, -0.0
    e4m3, e5m2 = (cto.compress(x, f"block_{name}").decompress()[:5] for name in FP8)
    assert_matches(e4m3, np.array([3, -INF, NAN, INF, 0], dtype), 0)
    assert_matches(e5m2, np.array([3, -INF, NAN, INF, 0], dtype), 0)
    assert np.signbit([e4m3[4], e5m2[4]]).all()


def test_block_e4m3_gives_31_db_on_a_gradient():
    x = np.load(DATA / "digits_cnn_activations.npz")["conv1_relu_grad"]
    noise = cto.compress(x, "block_e4m3").decompress().astype(FLOAT64) - x
    assert 10 * np.log10(np.sum(x.astype(FLOAT64) ** 2) / np.sum(noise**2)) >= 31


@formats
@floats
def test_sizes_that_are_no_multiples(name, dtype, rng):
    for n in (0, 1, 127, 129, 1023, 1025, 2500):
        x = rng.standard_normal(n).astype(dtype)
        packed = cto.compress(x, f"block_{name}")
        assert packed.nbytes == n + 16 * -(-n // 1024)
        whole = cto.compress(np.pad(x, (0, 3072 - n)), f"block_{name}").decompress()[:n]
        assert packed.decompress().tobytes() == whole.tobytes()


@floats
def test_integers_of_older_encoders_with_a_scale_that_is_nan(dtype):
    """They gave a block that is not finite NaN as its scale and zeros as codes."""
    x = np.ones(64, dtype)
    code = cto.compress(x, "int8").code.copy()
    code[:2] = 0xC0, 0x7F
    code[64 : 64 + 32] = 0
    decoded = cto.Packed("int8", dtype_name(dtype), (64,), code).decompress()
    assert np.isnan(decoded[:32]).all()
    assert (np.abs(decoded[32:] - 1) < 0.01).all()
