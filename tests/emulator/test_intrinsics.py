# SPDX-License-Identifier: MIT
"""Intrinsic functions and NVIDIA's half, bfloat16 and FP8 headers against NumPy and ml_dtypes."""

import math

import ml_dtypes
import numpy as np
import pytest

SIZE = 999

erf = np.vectorize(math.erf)


@pytest.fixture(scope="module")
def launch(load_kernels):
    """Calls a kernel of intrinsics.cu with enough threads for n elements."""
    module = load_kernels("intrinsics.cu")

    def call(name, n, *arrays):
        module.get_function(name)((-(-n // 128),), (128,), (*arrays, np.int32(n)))

    return call


def _unsigned(rng, dtype):
    """Random bits, with zero, one and all ones among them."""
    largest = np.iinfo(dtype).max
    values = rng.integers(0, largest, SIZE, dtype, endpoint=True)
    values >>= rng.integers(0, np.iinfo(dtype).bits, SIZE).astype(dtype)
    values[:3] = 0, 1, largest
    return values


def _bits(values, width):
    return [f"{int(v):0{width}b}" for v in values]


def _bit_functions(x, width):
    """Population count, leading zeros, first set bit, reversal."""
    texts = _bits(x, width)
    return [
        [t.count("1") for t in texts],
        [len(t) - len(t.lstrip("0")) for t in texts],
        [width - t.rindex("1") if "1" in t else 0 for t in texts],
        [int(t[::-1], 2) for t in texts],
    ]


def _high(x, y, width):
    return [(int(a) * int(b) >> width) % 2**width for a, b in zip(x, y, strict=True)]


def _expected_integers(x, y):
    pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    joined = [b << 32 | a for a, b in pairs]
    shifts = [b % 32 for _, b in pairs]
    octets = [j.to_bytes(8, "little") for j in joined]
    return [
        *_bit_functions(x, 32),
        _high(x, y, 32),
        _high(x.view("i4"), y.view("i4"), 32),
        [(j << s >> 32) % 2**32 for j, s in zip(joined, shifts, strict=True)],
        [(j >> s) % 2**32 for j, s in zip(joined, shifts, strict=True)],
        [int.from_bytes(bytes([o[0], o[5], o[2], o[7]]), "little") for o in octets],
        np.minimum(x, y),
        np.maximum(x.view("i4"), y.view("i4")).view("u4"),
        x,
        y,
    ]


def test_integer_functions(launch, rng):
    x, y = _unsigned(rng, np.uint32), _unsigned(rng, np.uint32)[::-1].copy()
    expected = _expected_integers(x, y)
    out = np.zeros((len(expected), SIZE), np.uint32)
    launch("integer_functions", SIZE, x, y, out)
    for row, (got, want) in enumerate(zip(out, expected, strict=True)):
        np.testing.assert_array_equal(got, want, f"row {row}")


def test_wide_integer_functions(launch, rng):
    x, y = _unsigned(rng, np.uint64), _unsigned(rng, np.uint64)[::-1].copy()
    smaller = np.minimum(x.view("i8"), y.view("i8")).view("u8")
    expected = [*_bit_functions(x, 64), _high(x, y, 64), x, smaller]
    out = np.zeros((len(expected), SIZE), np.uint64)
    launch("wide_integer_functions", SIZE, x, y, out)
    for row, (got, want) in enumerate(zip(out, expected, strict=True)):
        np.testing.assert_array_equal(got, np.array(want, np.uint64), f"row {row}")


def test_float_functions(launch, rng):
    x = rng.uniform(0.1, 4, SIZE).astype(np.float32)
    y = rng.uniform(-4, 4, SIZE).astype(np.float32)
    a, b = x.astype(np.float64), y.astype(np.float64)
    rounded = np.clip(np.rint(y * np.float32(1e9)), -(2**31), 2**31 - 1)
    powers = [a**-0.5, np.exp(b), np.log(a), a**b, b / a]
    distributions = [erf(b), (1 + erf(b / 2**0.5)) / 2]
    others = [a * b + a, np.clip(b, 0, 1), np.maximum(a, b), rounded, np.tanh(b), a**-0.5]
    expected = np.array([*powers, *distributions, *others])
    out = np.zeros(expected.shape, np.float32)
    launch("float_functions", SIZE, x, y, out)
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=2e-7)


def test_fast_division_by_what_has_no_normal_reciprocal(launch):
    """As CUDA's manual says: 0 beyond 2^126, and of an infinity NaN."""
    divisors, divided = [2.0**126, 2.0**127, -3e38, 2.0**127, np.inf], [1, 2.0**127, 2, np.inf, 1]
    x, y = np.array(divisors, np.float32), np.array(divided, np.float32)
    out = np.zeros((13, x.size), np.float32)
    launch("float_functions", x.size, x, y, out)
    np.testing.assert_array_equal(out[4], np.float32([2.0**-126, 0, 0, np.nan, 0]))


def _rounded(exact):
    """Down, up and towards zero from float64, which holds sums and products of these exactly."""
    nearest = exact.astype(np.float32)
    down = np.where(nearest > exact, np.nextafter(nearest, np.float32(-np.inf)), nearest)
    up = np.where(nearest < exact, np.nextafter(nearest, np.float32(np.inf)), nearest)
    return [down, up, np.where(exact > 0, down, up)]


def test_directed_rounding(launch, rng):
    x, y = (rng.uniform(-4, 4, SIZE).astype(np.float32) for _ in range(2))
    total, product = x.astype(np.float64) + y, x.astype(np.float64) * y
    expected = np.array([*_rounded(total), *_rounded(product), x + y])
    out = np.zeros(expected.shape, np.float32)
    launch("directed_rounding", SIZE, x, y, out)
    np.testing.assert_array_equal(out, expected)
    assert len(np.unique(expected[:3], axis=0)) == 3, "the modes differ on these inputs"


@pytest.mark.parametrize(
    ("name", "dtype"), [("half_functions", np.float16), ("bfloat16_functions", ml_dtypes.bfloat16)]
)
def test_half_precision_functions_round_once(launch, rng, name, dtype):
    x = rng.uniform(0.1, 8, SIZE).astype(dtype)
    y = rng.uniform(0.5, 2, SIZE).astype(dtype) * rng.choice([-1, 1], SIZE).astype(dtype)
    a, b = x.astype(np.float64), y.astype(np.float64)
    exact = [a + b, a * b, a * b + a, np.maximum(a, b), np.exp(b), np.sqrt(a), a + b, a / b]
    out = np.zeros((len(exact), SIZE), dtype)
    launch(name, SIZE, x, y, out)
    for row, (got, want) in enumerate(zip(out, exact, strict=True)):
        np.testing.assert_array_equal(got.view("u2"), want.astype(dtype).view("u2"), f"row {row}")


def test_all_halves_convert_as_in_numpy(launch):
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    y, back = np.zeros(2**16, np.float32), np.zeros(2**16, np.float16)
    launch("half_to_float", 2**16, x, y, back)
    np.testing.assert_array_equal(y, x.astype(np.float32))
    np.testing.assert_array_equal(back, x)


def test_fp8_conversions_match_ml_dtypes(launch, rng):
    x = (rng.standard_normal(20000) * 2.0 ** rng.integers(-12, 10, 20000)).astype(np.float32)
    e4m3, e5m2 = np.zeros((2, 20000), np.uint8)
    launch("to_fp8", 20000, x, e4m3, e5m2)
    np.testing.assert_array_equal(e4m3, x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    np.testing.assert_array_equal(e5m2, x.astype(ml_dtypes.float8_e5m2).view(np.uint8))


def test_vector_types(load_kernels, rng):
    x = rng.standard_normal((16, 4)).astype(np.float32)
    bits, wide = np.zeros((16, 4), np.uint32), np.zeros((16, 2), np.uint64)
    load_kernels("intrinsics.cu").get_function("vector_types")((1,), (16,), (x, bits, wide))
    np.testing.assert_array_equal(bits, x.view(np.uint32))
    np.testing.assert_array_equal(wide, x.view(np.uint64))


def test_inline_ptx_can_be_guarded(load_kernels):
    out = np.zeros(40, np.int32)
    load_kernels("intrinsics.cu").get_function("guarded_ptx")((1,), (40,), (out,))
    np.testing.assert_array_equal(out, np.arange(40) % 32 + 1000)
