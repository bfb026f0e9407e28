# SPDX-License-Identifier: MIT
"""Element-wise operators over CuPy's arrays, 16 bytes at a time, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import cupy_training_ops as cto
from cupy_training_ops.onnx.standard import elementwise

NAMES = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Sum": "add"}
SHAPES = [  # of operands, and whether these kernels take them
    ((64, 512), (64, 512), True),
    ((64, 512), (512,), True),
    ((1, 1, 512), (4, 16, 512), True),
    ((129, 515), (129, 515), True),  # a rest behind the vectors
    ((129, 515), (515,), False),
    ((64, 512), (1,), True),
    ((), (64, 512), True),
    ((1, 1, 1), (32768,), False),  # of more dimensions than the largest
    ((256, 1), (1, 256), False),
    ((64, 512), (64, 1), False),
    ((8, 8), (8, 8), False),
]


def on_gpu(array: np.ndarray, offset: int = 0):
    """A copy whose memory begins so many elements past a vector."""
    import cupy

    whole = cupy.empty(array.size + offset, array.dtype)
    actual = whole[offset:].reshape(array.shape)
    actual[...] = cupy.asarray(array)
    return actual


def result(op: str, *inputs, **attributes):
    node = helper.make_node(op, [f"x{i}" for i in range(len(inputs))], ["y"], **attributes)
    return cto.onnx.call(node, inputs, version=18)[0]


@pytest.fixture
def vectorized(monkeypatch) -> list[bool]:
    """Whether the kernels took each call."""
    actual: list[bool] = []
    computed = elementwise.compute_by_vectors

    def watched(*operands):
        answer = computed(*operands)
        actual.append(answer is not None)
        return answer

    monkeypatch.setattr(elementwise, "compute_by_vectors", watched)
    return actual


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("a", "b", "takes"), SHAPES)
def test_two_operands(a, b, takes, dtype, rng, vectorized) -> None:
    x, y = (np.asarray(rng.standard_normal(shape) + 3, dtype) for shape in (a, b))
    for op, name in NAMES.items():
        with np.errstate(over="ignore"):
            expected = getattr(np, name)(x, y)
        actual = result(op, on_gpu(x), on_gpu(y))
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual.get(), expected)
    if dtype == np.float32:
        assert vectorized == [takes] * len(NAMES)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_memory_past_a_vector_is_left_to_cupy(offset: int, rng, vectorized) -> None:
    x, y = rng.standard_normal((2, 129, 515)).astype(np.float32)
    np.testing.assert_array_equal(result("Add", on_gpu(x, offset), on_gpu(y)).get(), x + y)
    assert vectorized == [offset != 1]


@pytest.mark.gpu
def test_relu_keeps_nan(rng, vectorized) -> None:
    x = rng.standard_normal((129, 515)).astype(np.float32)
    x[:, :4] = np.nan, np.inf, -np.inf, 0
    np.testing.assert_array_equal(result("Relu", on_gpu(x)).get(), np.maximum(x, 0))
    assert vectorized == [True]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(64, 64), (1, 64, 64), (8, 64, 64), (64,), ()])
def test_a_mask_chooses(shape, rng, vectorized) -> None:
    mask = np.asarray(rng.random(shape) < 0.5)
    x = rng.standard_normal((8, 64, 64)).astype(np.float32)
    for y in (np.float32(-1e4), rng.standard_normal((8, 64, 64)).astype(np.float32)):
        actual = result("Where", on_gpu(mask), on_gpu(x), on_gpu(np.asarray(y)))
        np.testing.assert_array_equal(actual.get(), np.where(mask, x, y))
    assert vectorized == [True, True]


def test_numpy_is_not_asked(vectorized, rng) -> None:
    x = rng.standard_normal((129, 515))
    np.testing.assert_array_equal(result("Add", x, x), x + x)
    assert vectorized == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int64, bool])
@pytest.mark.parametrize("perm", [(2, 0, 1, 3), (1, 0, 2, 3), (3, 2, 1, 0), (0, 1, 3, 2)])
@pytest.mark.parametrize("last", [16, 6])
@pytest.mark.parametrize("offset", [0, 1])
def test_transposes(dtype, perm, last: int, offset: int, rng) -> None:
    x = (rng.standard_normal((3, 4, 5, last)) * 9).astype(dtype)
    actual = result("Transpose", on_gpu(x, offset), perm=list(perm))
    assert actual.dtype == x.dtype
    np.testing.assert_array_equal(actual.get(), x.transpose(perm))
