# SPDX-License-Identifier: MIT
"""The Gist oracle against worked tables, ml_dtypes, and exact searches and models."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from references import References, computed

from cupy_training_ops import registry
from cupy_training_ops.dtypes import BOOL, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.testing.compare import assert_matches

activation = References("activation")
gist = References("gist")

E5M2 = ml_dtypes.float8_e5m2
NAN, INF = math.nan, math.inf
ALL_CODES = np.arange(256, dtype=np.uint8)
MANY = 1_000_000
PACK8_OPS = {"GistPack8Encoder", "GistPack8Decoder"}

floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


@np.errstate(all="ignore")
def cast(x: np.ndarray, dtype) -> np.ndarray:
    """NumPy's conversion, without its word on signalling NaN and overflow."""
    return x.astype(dtype)


def array(*values: float, dtype=FLOAT32) -> np.ndarray:
    return cast(np.array(values, FLOAT64), dtype)


def random_bits(rng: np.random.Generator, dtype, n: int) -> np.ndarray:
    """Any value the type has: NaN, infinities, subnormals, all exponents alike."""
    width = f"u{np.dtype(dtype).itemsize}"
    return rng.integers(0, np.iinfo(width).max, n, width, endpoint=True).view(dtype)


def every_value(rng: np.random.Generator, dtype) -> np.ndarray:
    """All values of a 16-bit type, a million bit patterns of a wider one."""
    if np.dtype(dtype).itemsize == 2:
        return np.arange(65_536, dtype=np.uint16).view(dtype)
    return random_bits(rng, dtype, MANY)


@floats
def test_relu_grad_from_bits_is_relu_grad(dtype, rng):
    for n in (0, 1, 8, 77):
        x, dy = rng.standard_normal((2, n)).astype(dtype)
        dy[::5] = NAN
        bits = gist.gist_pack1_encoder(x)
        result = gist.relu_grad_from_bits(dy.reshape(n, 1), bits).ravel()
        assert result.tobytes() == np.where(x > 0, dy, dtype.type(0)).tobytes()
        same_bits(result, activation.relu_grad(dy, x))


@floats
@np.errstate(all="ignore")
def test_relu_with_bits_keeps_what_is_above_0_and_nan(dtype, rng):
    """Beside the worked definition, element by element, and what PyTorch's gradient passes."""
    for x in (every_value(rng, dtype), array(-0.0, 0, -1, 1, NAN, INF, -INF, dtype=dtype)):
        y, bits = gist.relu_with_bits(x)
        width, kept = f"u{dtype.itemsize}", np.isnan(x) | (x > 0)
        assert (y.view(width) == np.where(kept, x.view(width), 0)).all()
        assert (np.unpackbits(bits)[: x.size] == kept).all()
        assert (bits == np.packbits(~(x <= 0))).all()


def same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal to the sign of zero; any NaN for any NaN."""
    assert_matches(actual, expected, 0)
    numbers = ~np.isnan(cast(expected, FLOAT64))
    assert (np.signbit(actual) == np.signbit(expected))[numbers].all()


# ---- Binarize, Pack1 -----------------------------------------------------------------------------


@floats
def test_binarize_table(dtype) -> None:
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    x = array(1.0, 0.0, -0.0, -3, NAN, tiny, INF, -tiny, -INF, dtype=dtype)
    expected = [True, False, False, False, False, True, True, False, False]
    assert gist.gist_binarize_encoder(x).tolist() == expected


@floats
def test_binarize_is_the_sign_bit_of_every_number(rng, dtype) -> None:
    x = every_value(rng, dtype)
    wide = cast(x, FLOAT64)
    expected = ~np.signbit(wide) & (wide != 0) & ~np.isnan(wide)
    assert_matches(gist.gist_binarize_encoder(x), expected)


@floats
def test_binarize_decodes_to_zero_and_one(rng, dtype) -> None:
    bits = rng.random((3, 5)) < 0.5
    expected = np.where(bits, 1.0, 0.0)
    assert_matches(gist.gist_binarize_decoder(bits, to=dtype), expected.astype(dtype))
    flat = gist.gist_binarize_decoder(bits, to=dtype, shape=(15,))
    assert_matches(flat, expected.ravel().astype(dtype))


PACK1 = [
    (array(1, -2, 0, 3, 0.5, -0.0, NAN, INF), "99"),
    (np.array([True] + [False] * 7), "80"),
    (np.ones(9, FLOAT32), "ff80"),
    (array(-1, 1), "40"),
    (np.ones((2, 2, 2), FLOAT16), "ff"),
    (np.ones((), FLOAT64), "80"),
    (np.ones((0, 3), FLOAT32), ""),
]


@pytest.mark.parametrize(("x", "expected"), PACK1)
def test_pack1_table(x, expected) -> None:
    codes = gist.gist_pack1_encoder(x)
    assert (codes.tobytes().hex(), codes.shape) == (expected, (len(expected) // 2,))


@pytest.mark.parametrize("n", [1, 7, 8, 9, 15, 16, 17, 1001])
def test_pack1_bits_by_integer_arithmetic(rng, n) -> None:
    x = rng.standard_normal(n).astype(FLOAT32)
    number = sum(1 << (8 * -(-n // 8) - 1 - i) for i in range(n) if x[i] > 0)
    assert int.from_bytes(gist.gist_pack1_encoder(x).tobytes(), "big") == number


@pytest.mark.parametrize("dtype", [BOOL, *FLOATS], ids=dtype_name)
def test_pack1_every_byte_decodes_to_its_bits(dtype) -> None:
    expected = np.array([[code >> (7 - j) & 1 for j in range(8)] for code in range(256)])
    decoded = gist.gist_pack1_decoder(ALL_CODES, to=dtype)
    assert_matches(decoded, expected.ravel().astype(dtype))


# ---- Pack8 ---------------------------------------------------------------------------------------

PACK8 = [
    (0.0, 0x00, 0.0), (-0.0, 0x80, -0.0), (1.0, 0x3C, 1.0), (-1.0, 0xBC, -1.0),
    (1.25, 0x3D, 1.25), (1.375, 0x3E, 1.5), (1.5, 0x3E, 1.5), (1.75, 0x3F, 1.75),
    (1.9375, 0x40, 2.0), (2.0, 0x40, 2.0), (7.0, 0x47, 7.0), (255.0, 0x5C, 256.0),
    (256.0, 0x5C, 256.0), (-300.0, 0xDD, -320.0), (0.5, 0x38, 0.5), (-0.75, 0xBA, -0.75),
    (0.1, 0x2E, 0.09375), (1e-3, 0x14, 9.765625e-4), (1e-20, 0x00, 0.0), (65504.0, 0x7C, INF),
    (3e38, 0x7C, INF), (INF, 0x7C, INF), (-INF, 0xFC, -INF),
    # double rounding, the overflow boundary, ties at the smallest subnormal
    (1.125 + 2.0**-12, 0x3D, 1.25), (61439.99, 0x7B, 57344.0), (61440.0, 0x7C, INF),
    (2.0**-17, 0x00, 0.0), (2.0**-17 * (1 + 2.0**-23), 0x01, 2.0**-16), (2.0**-14, 0x04, 2.0**-14),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=dtype_name)
@pytest.mark.parametrize(("x", "code", "decoded"), PACK8)
def test_pack8_table(dtype, x, code, decoded) -> None:
    codes = gist.gist_pack8_encoder(array(x, dtype=dtype))
    assert codes.tolist() == [code]
    same_bits(gist.gist_pack8_decoder(codes, to=dtype), array(decoded, dtype=dtype))


@floats
def test_pack8_nan_stays_nan_with_its_sign(dtype) -> None:
    assert gist.gist_pack8_encoder(array(NAN, -NAN, dtype=dtype)).tolist() == [0x7E, 0xFE]


@floats
def test_pack8_is_ml_dtypes_e5m2(rng, dtype) -> None:
    x = every_value(rng, dtype)
    if dtype == FLOAT64:  # ml_dtypes goes through float32, so that what rounds to a tie is a tie
        x = x[~np.isin(np.abs(cast(x, FLOAT32)), TIES)]
    expected = cast(x, E5M2).view(np.uint8)
    np.testing.assert_array_equal(gist.gist_pack8_encoder(x), expected)


@floats
def test_pack8_decodes_as_ml_dtypes_does(dtype) -> None:
    expected = cast(ALL_CODES.view(E5M2), dtype)
    same_bits(gist.gist_pack8_decoder(ALL_CODES, to=dtype), expected)


def e5m2_value(code: int) -> Fraction:
    """The value of a finite positive code, from the format's definition; 0x7C as if finite."""
    exponent, fraction = code >> 2, code & 3
    if exponent == 0:
        return Fraction(fraction, 4) * Fraction(2) ** -14
    return (1 + Fraction(fraction, 4)) * Fraction(2) ** (exponent - 15)


VALUES = [e5m2_value(code) for code in range(0x7D)]
TIES = [float((a + b) / 2) for a, b in pairwise(VALUES)]


def nearest_e5m2(x: float) -> int:
    """The code nearest to a number by search; of two, the one with the even last bit."""
    sign, size = (0x80 if math.copysign(1, x) < 0 else 0), Fraction(abs(x))
    above = min(bisect_left(VALUES, size), 0x7C)
    below = max(above - 1, 0)
    up, down = VALUES[above] - size, size - VALUES[below]
    return sign | (above if up < down or (up == down and above % 2 == 0) else below)


def neighbours(x: float, dtype) -> list[float]:
    """A number of the type with the next smaller and the next larger one."""
    with np.errstate(all="ignore"):
        middle = np.asarray(x, FLOAT64).astype(dtype)
        results = [
            np.nextafter(middle, dtype.type(-INF)),
            middle,
            np.nextafter(middle, dtype.type(INF)),
        ]
    return [float(value) for value in results if np.isfinite(value)]


@floats
def test_pack8_is_the_nearest_value_at_every_boundary(dtype) -> None:
    """Every value, every tie between two, and their neighbours, with both signs."""
    points = {p for x in (*map(float, VALUES), *TIES) for p in neighbours(x, dtype)}
    signed = [s * p for p in sorted(points) for s in (1, -1)]
    codes = gist.gist_pack8_encoder(array(*signed, dtype=dtype))
    assert codes.tolist() == [nearest_e5m2(x) for x in signed]


@floats
def test_pack8_is_the_nearest_value_anywhere(rng, dtype) -> None:
    x = cast(rng.standard_normal(3000) * 2.0 ** rng.uniform(-20, 18, 3000), dtype)
    x = x[np.isfinite(x)]
    assert gist.gist_pack8_encoder(x).tolist() == [nearest_e5m2(v) for v in map(float, x)]


@floats
def test_pack8_encoding_a_decoded_code_gives_the_code(dtype) -> None:
    again = gist.gist_pack8_encoder(gist.gist_pack8_decoder(ALL_CODES, to=dtype))
    nan = ALL_CODES & 0x7F > 0x7C
    np.testing.assert_array_equal(again[~nan], ALL_CODES[~nan])
    assert (again[nan] & 0x7F > 0x7C).all()


# ---- Pack16 --------------------------------------------------------------------------------------

PACK16 = [
    (65504.0, 0x7BFF), (65519.996, 0x7BFF), (65520.0, 0x7C00), (2.0**-24, 0x0001),
    (2.0**-25, 0x0000), (2.0**-25 * (1 + 2.0**-23), 0x0001), (0.1, 0x2E66), (-0.0, 0x8000),
    (-INF, 0xFC00), (1 + 2.0**-11, 0x3C00), (1 + 3 * 2.0**-11, 0x3C02),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=dtype_name)
@pytest.mark.parametrize(("x", "bits"), PACK16)
def test_pack16_table(dtype, x, bits) -> None:
    assert gist.gist_pack16_encoder(array(x, dtype=dtype)).view(np.uint16).tolist() == [bits]


def test_pack16_rounds_float64_once() -> None:
    """Just above a tie of float16, and nearer to it than float32 can say."""
    assert (
        gist.gist_pack16_encoder(array(1 + 2.0**-11 + 2.0**-40, dtype=FLOAT64))[0] == 1 + 2.0**-10
    )


@floats
def test_pack16_is_the_nearest_half(rng, dtype) -> None:
    x = cast(every_value(rng, dtype), FLOAT64)
    x = x[np.abs(x) < 65_504]
    halves = gist.gist_pack16_encoder(cast(x, dtype)).astype(FLOAT64)
    step = 2.0 ** np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 2.0**-14))) - 10, -24)
    ties = np.abs(halves - x) == step / 2
    assert (np.abs(halves - x) <= step / 2).all()
    assert (halves[ties] % (2 * step[ties]) == 0).all()
    assert (np.signbit(halves) == np.signbit(x)).all()


@floats
def test_pack16_decodes_every_half(dtype) -> None:
    halves = np.arange(65_536, dtype=np.uint16).view(FLOAT16)
    decoded = gist.gist_pack16_decoder(halves, to=dtype)
    expected = cast(cast(halves, FLOAT64), dtype)  # exact in all but bfloat16
    same_bits(decoded, expected)


# ---- upstream's own answers ----------------------------------------------------------------------

ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")
CASES = sorted({key.split("|")[0] for key in ANSWERS.files if key.startswith("Gist")})


@pytest.mark.parametrize("case", CASES)
def test_upstream_gives_the_same(case) -> None:
    cls = registry.get_op(case.partition("[")[0])
    expected = ANSWERS[f"{case}|out0"]
    attributes = {"to": expected.dtype} if "Decoder" in case else {}
    same_bits(computed(cls(**attributes), ANSWERS[f"{case}|in|X"]), expected)


def test_upstream_was_asked_about_every_codec_it_has_right() -> None:
    asked = {case.partition("[")[0] for case in CASES}
    assert asked == {name for name in registry.FAMILIES["gist"] if "coder" in name} - PACK8_OPS


# ---- any shape -----------------------------------------------------------------------------------

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
PAIRS = ("binarize", "pack1", "pack8", "pack16", "pack_msfp15")
SMALL = st.sampled_from(
    [0.0, 1.0, -1.0, 0.5, -2.0, 4.0]
)  # every codec but the sign tests keeps them


@pytest.mark.parametrize("name", PAIRS)
@given(x=SHAPES.flatmap(lambda shape: hnp.arrays(FLOAT32, shape, elements=SMALL)))
def test_any_shape_comes_back(name, x) -> None:
    codes = getattr(gist, f"gist_{name}_encoder")(x)
    y = getattr(gist, f"gist_{name}_decoder")(codes, to=FLOAT32, shape=x.shape)
    sign_only = name in ("binarize", "pack1")
    assert_matches(y, (x > 0).astype(FLOAT32) if sign_only else x, 0)
