# SPDX-License-Identifier: MIT
"""Bits, selections of slices, products along an axis, and operators of early opsets."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto

from .nodes import expected, result, results

INTEGERS = [np.dtype(kind) for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_are_those_of_whole_numbers(dtype: np.dtype, direction: str, rng) -> None:
    """Python's numbers have all bits: x 2^y and the floor of x / 2^y, cut to the type."""
    info, n = np.iinfo(dtype), 8 * dtype.itemsize
    x = rng.integers(info.min, info.max, (5, 1), dtype, endpoint=True)
    y = np.array([0, 1, n - 1, n, n + 3, *([-1, -n] if dtype.kind == "i" else [])], dtype)
    actual = result("BitShift", x, y, direction=direction)
    assert actual.dtype == dtype
    for i, a in enumerate(map(int, x[:, 0])):
        for j, b in enumerate(map(int, y)):
            by = b if 0 <= b < n else n
            exact = a << by if direction == "LEFT" else a >> by
            assert int(actual[i, j]) % 2**n == exact % 2**n, (a, b)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_bitwise_operators(dtype: np.dtype, rng) -> None:
    x, y = (rng.integers(0, 100, shape).astype(dtype) for shape in ((3, 1, 4), (5, 1)))
    for name, exact in (("And", x & y), ("Or", x | y), ("Xor", x ^ y)):
        np.testing.assert_array_equal(result(f"Bitwise{name}", x, y), exact)


def test_bits_of_another_type(rng) -> None:
    x = rng.standard_normal((3, 4)).astype(np.float32)
    actual = result("BitCast", x.T, version=26, to=6)
    np.testing.assert_array_equal(actual, x.view(np.int32).T)
    with pytest.raises(cto.DtypeError, match="expected as many bits as float32, got int64"):
        result("BitCast", x, version=26, to=7)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_products_along_an_axis(exclusive: int, reverse: int, rng) -> None:
    x = rng.uniform(-2, 2, (3, 5))
    actual = result("CumProd", x, np.array(-1), version=26, exclusive=exclusive, reverse=reverse)
    for j in range(5):
        part = x[:, j + exclusive :] if reverse else x[:, : j + 1 - exclusive]
        np.testing.assert_allclose(actual[:, j], part.prod(axis=1), rtol=1e-12)
    empty = result("CumProd", x[:, :0], np.array(1), version=26, exclusive=exclusive)
    assert empty.shape == (3, 0)


@pytest.mark.parametrize("axis", [None, 1, -1])
def test_compressed_slices(axis: int | None, rng) -> None:
    x = rng.standard_normal((3, 4, 2))
    condition = rng.integers(0, 2, 2).astype(bool)
    attributes = {} if axis is None else {"axis": axis}
    actual = result("Compress", x, condition, **attributes)
    np.testing.assert_array_equal(actual, np.compress(condition, x, axis))
    with pytest.raises(cto.ArgumentError, match="condition: expected at most"):
        result("Compress", x, np.ones(25, bool), **attributes)


@pytest.mark.parametrize("dtype", [np.int64, np.float32, cto.dtypes.BFLOAT16], ids=str)
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique_slices(dtype: type, axis: int | None, is_sorted: int, rng) -> None:
    x = rng.integers(0, 3, (6, 5, 2)).astype(dtype)
    attributes = {} if axis is None else {"axis": axis}
    y, first, inverse, counts = results("Unique", x, n=4, sorted=is_sorted, **attributes)
    whole = x.reshape(-1) if axis is None else x
    place = 0 if axis is None else axis
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(np.take(whole, first, place), y)
    np.testing.assert_array_equal(np.take(y, inverse, place), whole)
    np.testing.assert_array_equal(np.bincount(inverse), counts)
    np.testing.assert_array_equal(
        [np.flatnonzero(inverse == i)[0] for i in range(len(counts))], first
    )
    rows = [tuple(np.take(y, i, place).astype(float).ravel()) for i in range(len(counts))]
    assert is_sorted == 0 or rows == sorted(rows)
    assert is_sorted == 1 or list(first) == sorted(first)


def test_upstreams_own_unique_is_another_operator() -> None:
    with pytest.raises(cto.ArgumentError, match="unknown operator Unique of domain"):
        results("Unique", np.arange(3.0), n=3, domain="com.microsoft")


def test_unique_slices_of_nothing_and_of_nan() -> None:
    y, first, inverse, counts = results("Unique", np.array([np.nan, 1, np.nan, 1]), n=4)
    np.testing.assert_array_equal(y, [1, np.nan])
    np.testing.assert_array_equal([*first, *inverse, *counts], [1, 0, 1, 0, 1, 0, 2, 2])
    for shape, n in (((0, 3), 0), ((4, 0), 1), ((0,), 0)):
        y, _, inverse, counts = results("Unique", np.zeros(shape), n=4, axis=0)
        assert (y.shape, inverse.shape, counts.sum()) == ((n, *shape[1:]), shape[:1], shape[0])
    flags = np.array([[True, False], [True, False], [False, True]])
    y = results("Unique", flags, n=4, axis=0)[0]
    assert y.dtype == bool
    np.testing.assert_array_equal(y, [[False, True], [True, False]])


@pytest.mark.parametrize("time_axis", [0, 1])
def test_reversed_sequences(time_axis: int, rng) -> None:
    x = rng.standard_normal((4, 4, 3))
    lengths = np.array([0, 4, 1, 3])
    axes = {"time_axis": time_axis, "batch_axis": 1 - time_axis}
    (exact,) = expected("ReverseSequence", x, np.array([1, 4, 1, 3]), **axes)
    np.testing.assert_array_equal(result("ReverseSequence", x, lengths, **axes), exact)
    with pytest.raises(cto.ArgumentError, match="expected from 0 to 4, got 5"):
        result("ReverseSequence", x, np.array([5, 1, 1, 1]), **axes)


def test_determinants_are_those_of_torch(rng) -> None:
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((2, 3, 4, 4))
    np.testing.assert_allclose(result("Det", x), torch.linalg.det(torch.tensor(x)), rtol=1e-10)
    assert result("Det", x[0, 0].astype(np.float16)).dtype == np.float16
    with pytest.raises(cto.ArgumentError, match="square"):
        result("Det", x[..., :3])


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [-2, 1])
def test_a_cache_takes_updates_at_its_starts(mode: str, axis: int, rng) -> None:
    cache, update = rng.standard_normal((2, 5, 5, 3)), rng.standard_normal((2, 5, 5, 3))
    part = update[:, :, :2] if axis == -2 else update[:, :2]
    starts = np.array([3, 0 if mode == "linear" else 4])
    actual = result("TensorScatter", cache, part, starts, mode=mode, axis=axis)
    exact = cache.copy()
    rows, new = np.moveaxis(exact, axis, 1), np.moveaxis(part, axis, 1)
    for i in range(2):
        for k in range(2):
            rows[i, (starts[i] + k) % 5] = new[i, k]
    np.testing.assert_array_equal(actual, exact)
    if mode == "linear":
        with pytest.raises(cto.ArgumentError, match="write_indices: expected from 0 to 3, got 4"):
            result("TensorScatter", cache, part, np.array([4, 0]), axis=axis)


# ---- early opsets --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axis", "as_now"),
    [((4, 5), None, (4, 5)), ((3, 4), 1, (3, 4, 1)), ((2,), 0, (2, 1, 1, 1)), ((1, 1), None, ())],
)
def test_early_sums_broadcast_as_they_say(shape, axis, as_now, rng) -> None:
    x, y = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal(shape)
    attributes = {} if axis is None else {"axis": axis}
    for op, exact in (("Add", x + y.reshape(as_now)), ("Div", x / y.reshape(as_now))):
        actual = result(op, x, y, version=6, broadcast=1, **attributes)
        np.testing.assert_allclose(actual, exact)
        with pytest.raises(cto.ArgumentError, match="broadcast is 0"):
            result(op, x, y, version=6)


def test_early_arrays_that_do_not_fit_are_refused(rng) -> None:
    x = rng.standard_normal((2, 3, 4))
    for shape, axis in (((3,), 0), ((4, 1), 2), ((2, 3, 4, 1), None)):
        attributes = {} if axis is None else {"axis": axis}
        with pytest.raises(cto.ArgumentError, match="B: expected a part of shape"):
            result("Add", x, np.ones(shape), version=6, broadcast=1, **attributes)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_an_early_hardmax_is_over_all_dimensions_behind(axis: int, rng) -> None:
    x = rng.integers(0, 3, (2, 3, 4)).astype(np.float32)
    actual = result("Hardmax", x, version=11, axis=axis)
    rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
    exact = np.zeros_like(rows)
    exact[np.arange(len(rows)), rows.argmax(axis=1)] = 1
    np.testing.assert_array_equal(actual, exact.reshape(x.shape))


def test_early_slopes_and_statistics_are_by_channel(rng) -> None:
    x, slope = rng.standard_normal((2, 3, 4)), rng.standard_normal(3)
    exact = np.where(x < 0, slope[:, None] * x, x)
    np.testing.assert_array_equal(result("PRelu", x, slope, version=6), exact)
    four = [rng.uniform(1, 2, 3) for _ in range(4)]
    actual = result("BatchNormalization", x, *four, version=6, is_test=1)
    scale, bias, mean, var = (a[:, None] for a in four)
    np.testing.assert_allclose(actual, (x - mean) / np.sqrt(var + 1e-5) * scale + bias)
    for training in ({}, {"is_test": 0}):
        with pytest.raises(cto.ArgumentError, match="is_test"):
            result("BatchNormalization", x, *four, version=6, **training)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_early_enlargements(mode: str, rng) -> None:
    x = rng.standard_normal((1, 2, 3, 4))
    scales = np.array([1, 1, 2, 3], np.float32)
    actual = result("Upsample", x, scales, version=9, mode=mode)
    by_attribute = result("Upsample", x, version=7, mode=mode, scales=[1.0, 1.0, 2.0, 3.0])
    for a, scale in ((2, 2), (3, 3)):
        place = np.arange(x.shape[a] * scale) / scale
        low = np.floor(place).astype(int)
        if mode == "nearest":
            x = np.take(x, low, a)
        else:
            each = [-1 if i == a else 1 for i in range(4)]
            t = (place - low).reshape(each)
            high = np.minimum(low + 1, x.shape[a] - 1)
            x = np.take(x, low, a) * (1 - t) + np.take(x, high, a) * t
    np.testing.assert_allclose(actual, x)
    np.testing.assert_array_equal(actual, by_attribute)
