# SPDX-License-Identifier: MIT
"""How factors of a product are passed to cuBLAS: with NumPy in its place, and on a GPU."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from cupy_training_ops.dtypes import BFLOAT16
from cupy_training_ops.onnx import standard

SHAPES = [
    ((3, 4), (4, 5)),
    ((1, 4), (4, 5)),
    ((3, 1), (1, 5)),
    ((3, 4), (4, 1)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 6, 3, 4), (2, 6, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((1, 3, 4), (7, 4, 5)),
    ((0, 3, 4), (4, 5)),
    ((3, 0), (0, 5)),
]
WAYS = {
    "whole": lambda x: x,
    "turned": lambda x: np_of(x).ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "part": lambda x: np_of(x).concatenate([x, x], -1)[..., : x.shape[-1]],
    "steps": lambda x: np_of(x).repeat(x, 2, -1)[..., ::2],
    "moved": lambda x: np_of(x).ascontiguousarray(np_of(x).moveaxis(x, 0, -2)),
}
WAYS["moved"] = lambda x: np_of(x).moveaxis(
    np_of(x).ascontiguousarray(np_of(x).moveaxis(x, 0, -2)), -2, 0
)


def np_of(x):
    if isinstance(x, np.ndarray):
        return np
    import cupy

    return cupy


@pytest.fixture
def products(monkeypatch):
    """The module, whose calls of cuBLAS are made by NumPy with the same numbers."""
    module = pytest.importorskip("cupy_training_ops.onnx.cublas")
    monkeypatch.setattr(module, "cupy", np)

    def call(a, b, out, extents, factors, _):
        m, n, k, count = extents
        y = out.reshape(count, m, n)
        for i in range(count):
            y[i] = factors[1] * y[i] if factors[1] else 0  # what is there may be NaN
            y[i] += factors[0] * (matrix(a, i, m, k) @ matrix(b, i, k, n))

    def matrix(factor, i, rows, columns):
        step = factor.array.itemsize
        along = (step, factor.leading * step)
        strides = along if factor.is_transposed else along[::-1]
        assert factor.leading >= (rows if factor.is_transposed else columns)
        offset = at(factor.array) + i * factor.batch_stride * step
        base = base_of(factor.array)
        return np.ndarray((rows, columns), factor.array.dtype, base, offset, strides)

    monkeypatch.setattr(module, "_call", call)
    return module


def base_of(x):
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def at(x) -> int:
    return x.ctypes.data - base_of(x).ctypes.data


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_every_layout_is_read_as_it_is(products, a, b, rng) -> None:
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in (a, b))
    for first, second in itertools.product(WAYS, WAYS):
        actual = products.product(WAYS[first](x), WAYS[second](y), alpha=0.5)
        np.testing.assert_allclose(actual, 0.5 * (x @ y), rtol=1e-5, atol=1e-5)


def test_sums_of_nothing_are_zero_whatever_was_there(products, monkeypatch) -> None:
    there = SimpleNamespace(empty=lambda shape, dtype: np.full(shape, np.nan, dtype))
    monkeypatch.setattr(products, "cupy", there)
    actual = products.product(np.ones((3, 0), np.float32), np.ones((0, 5), np.float32))
    np.testing.assert_array_equal(actual, np.zeros((3, 5)))
    out = np.full((3, 5), 2, np.float32)
    products.product(np.ones((3, 0)), np.ones((0, 5)), beta=0.5, out=out)
    np.testing.assert_array_equal(out, np.ones((3, 5)))


@pytest.mark.parametrize(
    ("a", "b"), [((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,))]
)
@pytest.mark.usefixtures("products")
def test_vectors_are_multiplied_by_the_same_call(a, b, rng) -> None:
    """CuPy's own refuse a capture."""
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in (a, b))
    device = SimpleNamespace(__name__="cupy", matmul=lambda *_, **__: pytest.fail("CuPy's own"))
    actual = standard.reductions.product(device, x, y, alpha=0.5)
    assert actual.shape == (x @ y).shape
    np.testing.assert_allclose(actual, 0.5 * (x @ y), rtol=1e-5, atol=1e-5)


def test_transposed_and_cut_factors_are_not_copied(products, rng, monkeypatch) -> None:
    monkeypatch.setattr(products.cupy, "ascontiguousarray", lambda _: pytest.fail("a copy"))
    x = rng.standard_normal((6, 4, 8)).astype(np.float32)
    y = rng.standard_normal((6, 4, 4)).astype(np.float32)
    products.product(x.swapaxes(-1, -2), y)
    products.product(y, x[..., :5])


def test_a_product_is_added_to_what_is_there(products, rng) -> None:
    a, b = rng.standard_normal((2, 3, 3))
    out = np.ones((3, 3))
    products.product(a, b, alpha=2, beta=0.5, out=out)
    np.testing.assert_allclose(out, 2 * (a @ b) + 0.5)
    with pytest.raises(ValueError, match="can be multiplied"):
        products.product(a, b[:2])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BFLOAT16])
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_a_gpu_multiplies_every_layout(a, b, dtype, rng) -> None:
    import cupy

    from cupy_training_ops.onnx import cublas

    x, y = (rng.standard_normal(shape).astype(dtype) for shape in (a, b))
    expected = x.astype(np.float64) @ y.astype(np.float64)
    most = {2: 2e-2, 4: 1e-5, 8: 1e-12}[np.dtype(dtype).itemsize]
    for first, second in itertools.product(WAYS, WAYS):
        if dtype == BFLOAT16 and {first, second} & {"part", "steps"}:
            continue  # CuPy joins and repeats no bfloat16
        actual = cublas.product(WAYS[first](cupy.asarray(x)), WAYS[second](cupy.asarray(y)))
        np.testing.assert_allclose(actual.get().astype(np.float64), expected, most, most)


@pytest.mark.gpu
def test_tf32_has_fewer_bits(rng) -> None:
    import cupy

    from cupy_training_ops.onnx import cublas

    x, y = (cupy.asarray(rng.standard_normal((256, 256)).astype(np.float32)) for _ in range(2))
    exact = cublas.product(x.astype(np.float64), y.astype(np.float64))
    errors = [abs(cublas.product(x, y, tf32=tf32) - exact).max() for tf32 in (False, True)]
    assert errors[0] < 1e-4 < errors[1] < 1e-1
