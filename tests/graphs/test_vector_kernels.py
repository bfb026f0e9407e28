# SPDX-License-Identifier: MIT
"""Element-wise operators by kernels of this package, 16 bytes at a time, against NumPy."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

import cupy_training_ops as cto
from cupy_training_ops.device import recording
from cupy_training_ops.device.compiler import compile_for, slot_options
from cupy_training_ops.onnx import vectors
from cupy_training_ops.onnx.standard import elementwise

NAMES = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Sum": "add"}
SHAPES = [  # of operands
    ((64, 512), (64, 512)),
    ((64, 512), (512,)),
    ((1, 1, 512), (4, 16, 512)),
    ((129, 515), (129, 515)),  # a rest behind the vectors
    ((129, 515), (515,)),
    ((64, 512), (1,)),
    ((), (64, 512)),
    ((1, 1, 1), (32768,)),
    ((256, 1), (1, 256)),
    ((64, 512), (64, 1)),
    ((2, 1, 3, 8), (1, 4, 1, 8)),
    ((8, 8), (8, 8)),
    ((), ()),
]
DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64)
UNARY = {
    "abs": np.abs,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "exp": np.exp,
    "log": np.log,
    "negative": np.negative,
    "reciprocal": np.reciprocal,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": np.sqrt,
    "square": np.square,
    "tanh": np.tanh,
}


def numbers(rng, shape, dtype) -> np.ndarray:
    return (rng.standard_normal(shape) * 3 + 0.5).astype(dtype)


BINARY = ("add", "subtract", "multiply", "divide")


def test_a_drawn_binary_kernel(run, rng) -> None:
    """g++ builds each form by itself, so that one of them is drawn."""
    name = BINARY[rng.integers(len(BINARY))]
    check_binary(name, run, rng)


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("name", BINARY)
def test_binary_kernels(name: str, part: int, run, seed: int) -> None:
    check_binary(name, run, np.random.default_rng([seed, part]))


def check_binary(name: str, run, rng) -> None:
    """Compare a kernel with NumPy over operands of drawn shapes and a drawn type."""
    (a, b), dtype = SHAPES[rng.integers(len(SHAPES))], DTYPES[rng.integers(len(DTYPES))]
    offset = int(rng.integers(2))
    x, y = numbers(rng, a, dtype), numbers(rng, b, dtype)
    found = vectors.compute(name, (run.place(x, offset), run.place(y)))
    if name == "divide" and x.dtype.kind == "i":
        assert found is None
        return
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(run.host(found), expected)


def test_a_drawn_unary_kernel(run, rng) -> None:
    name = list(UNARY)[rng.integers(len(UNARY))]
    dtype, eps = [(np.float32, 3e-7), (np.float64, 1e-13)][rng.integers(2)]
    x = numbers(rng, (5, 33), dtype)
    x[0, :4] = 0, -0.0, np.inf, np.nan
    with np.errstate(all="ignore"):
        expected = UNARY[name](x.astype(np.float64))
        found = run.host(vectors.compute(name, (run.place(x),)))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, eps, eps / 1000)


def test_a_condition_chooses_over_an_operand(run, rng) -> None:
    x, y = numbers(rng, (2, 6, 32), np.float32)
    mask = x[:1] > y[:1]
    out = run.place(x)
    assert vectors.compute("where", (run.place(mask), out, run.place(y)), out) is out
    np.testing.assert_array_equal(run.host(out), np.where(mask, x, y))


def test_a_drawn_copy(run, rng) -> None:
    check_copy(1 << int(rng.integers(4)), run, rng)


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_copies(itemsize: int, part: int, run, seed: int) -> None:
    check_copy(itemsize, run, np.random.default_rng([seed, part]))


def check_copy(itemsize: int, run, rng) -> None:
    """Compare the copy of a drawn view with NumPy's."""
    shape, perm = [((3, 4, 5, 16), (2, 0, 1, 3)), ((3, 4, 5, 6), (3, 2, 1, 0))][rng.integers(2)]
    x = rng.integers(0, 100, shape).astype(f"i{itemsize}")
    view_of = [
        lambda a: a.transpose(perm),
        lambda a: a[:, ::-1, :, 1:3],
        lambda a: a[..., ::-2],
    ][rng.integers(3)]
    found = vectors.copy(view_of(run.place(x)))
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(run.host(found), view_of(x))


def test_what_is_no_such_call_is_left_to_cupy(run, rng) -> None:
    """A recording says so; nothing is written."""
    x = run.place(numbers(rng, (4, 8), np.float32))
    other = run.place(numbers(rng, (4, 8), np.float64))
    calls = [
        ("add", (x, other), None),
        ("add", (x, np.float32(1)), None),
        ("add", (x, run.place(np.ones((3, 8), np.float32))), None),
        ("add", (x, x), other),
        ("add", (x, x), run.place(np.ones(8, np.float32))),
        ("add", (x[:, :4], x[:, :4]), x[:, 4:]),
        ("exp", (run.place(np.ones(8, np.float16)),), None),
        ("where", (x, x, x), None),
        ("add", (x[:0], x[:0]), None),
        ("copy", (run.place(np.ones(3, np.complex128)),), None),
    ]
    before = run.host(x).copy()
    for name, operands, out in calls:
        with recording.recorded() as noted:
            assert vectors.compute(name, operands, out) is None
        assert not noted.is_whole
        assert not noted.calls
    np.testing.assert_array_equal(run.host(x), before)


@pytest.mark.parametrize("architecture", ["75", "90"])  # the least that CUDA 13 compiles for
@pytest.mark.parametrize("name", vectors.EXPRESSIONS)
def test_kernels_compile(name: str, architecture: str, rng) -> None:
    dtypes = vectors.EXPRESSIONS[name].dtypes
    dtype = np.dtype(dtypes[rng.integers(len(dtypes))])
    n = 3 if name == "where" else 2 if name in NAMES.values() else 1
    types = [np.dtype(bool) if name == "where" and i == 0 else dtype for i in range(n)]
    places = vectors._merged((4, 6, 64), [[384, 64, 1], [0, 64, 1], [64, 0, 0]][:n])
    launch, source = vectors._launch(name, types, (4, 6, 64), places, 16 // dtype.itemsize)
    (found,) = compile_for(source, slot_options(launch.slots), architecture).values()
    assert found.spill_nbytes == 0


def test_dimensions_are_merged_where_all_operands_go_on() -> None:
    merged = vectors._merged((4, 1, 6, 8), [[48, 0, 8, 1], [0, 0, 8, 1]])
    assert merged == ((4, 48), ((48, 1), (0, 1)))
    assert merged.lines == (True, True)
    assert vectors._merged((4, 6, 8), [[48, 8, 1], [0, 0, 0]]) == ((192,), ((1,), (0,)))
    assert vectors._merged((1, 1), [[0, 0]]) == ((1,), ((0,),))
    assert vectors._vector(merged, 4) == 4
    assert vectors._vector(vectors._merged((4, 6), [[6, 1], [0, 1]]), 4) == 1  # 6 is no multiple
    assert vectors._vector(vectors._merged((4, 8), [[9, 1]]), 4) == 1  # rows are not aligned
    assert vectors._vector(vectors._merged((4, 8), [[1, 4]]), 4) == 1  # columns


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
    computed = elementwise.compute

    def watched(*operands):
        answer = computed(*operands)
        actual.append(answer is not None)
        return answer

    monkeypatch.setattr(elementwise, "compute", watched)
    return actual


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_two_operands(a, b, dtype, rng, vectorized) -> None:
    x, y = (np.asarray(rng.standard_normal(shape) + 3, dtype) for shape in (a, b))
    for op, name in NAMES.items():
        with np.errstate(over="ignore"):
            expected = getattr(np, name)(x, y)
        actual = result(op, on_gpu(x), on_gpu(y))
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual.get(), expected)
    assert vectorized == [True] * len(NAMES)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_memory_past_a_vector(offset: int, rng, vectorized) -> None:
    x, y = rng.standard_normal((2, 129, 515)).astype(np.float32)
    np.testing.assert_array_equal(result("Add", on_gpu(x, offset), on_gpu(y)).get(), x + y)
    assert vectorized == [True]


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


def test_more_threads_than_a_launch_may_have_are_left_to_cupy() -> None:
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    with hollow_launches() as launches:
        x, y = (hollow((2**16, n), np.float32) for n in (2**15 + 4, 2**15 + 1))
        assert vectors.compute("add", (x, x), x) is x
        assert vectors.compute("add", (y, y[:1]), y) is None  # rows of no whole vectors
        assert len(launches) == 1
