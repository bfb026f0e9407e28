# SPDX-License-Identifier: MIT
"""Atomic operations in all their types, and in no others."""

import ml_dtypes
import numpy as np
import pytest

from emulator import EmulatedModule, EmulatorCompileError, require_emulator, thread_order

ADDED = {
    "int": np.int32,
    "unsigned": np.uint32,
    "unsigned long long": np.uint64,
    "float": np.float32,
    "double": np.float64,
    "__half": np.float16,
    "__nv_bfloat16": ml_dtypes.bfloat16,
}
PAIRS = {"__half2": np.float16, "__nv_bfloat162": ml_dtypes.bfloat16}
ORDERED = {"int": "i4", "unsigned": "u4", "long long": "i8", "unsigned long long": "u8"}
BITS = {"int": "i4", "unsigned": "u4", "unsigned long long": "u8"}
EXCHANGED = {**BITS, "float": "f4"}
COMPARED = {**BITS, "unsigned short": "u2"}
EXPRESSIONS = tuple(
    f"{template}<{name}>"
    for template, names in (
        ("add", ADDED),
        ("add_pairs", PAIRS),
        ("extremes", ORDERED),
        ("bitwise", BITS),
        ("exchange", EXCHANGED),
        ("add_by_compare_and_swap", COMPARED),
    )
    for name in names
)

every_order = pytest.mark.parametrize("order", ["forward", "reverse", "random"])


@pytest.fixture(scope="module")
def kernel(load_kernels):
    """A function of a name expression: the kernel."""
    return load_kernels("atomics.cu", (), EXPRESSIONS).get_function


def _random_values(rng, dtype, shape):
    """Any bits for integers; small whole numbers, whose sums are exact, for other types."""
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return rng.integers(-3, 4, shape).astype(dtype)


@every_order
@pytest.mark.parametrize("name", ADDED)
def test_additions(kernel, rng, order, name):
    x = _random_values(rng, ADDED[name], 100)
    total, old = x[:1].copy(), np.full(100, 99).astype(x.dtype)
    with thread_order(order, seed=1), np.errstate(over="ignore"):
        kernel(f"add<{name}>")((2,), (64,), (x, total, old, np.int32(100)))
        assert total[0] == x.sum(dtype=x.dtype) + x[0]
    assert x[0] in old
    assert len(set(old.tolist())) > 1


@pytest.mark.parametrize("name", PAIRS)
def test_additions_of_pairs(kernel, rng, name):
    x = _random_values(rng, PAIRS[name], (64, 2))
    total = np.array([1, -1]).astype(x.dtype)
    kernel(f"add_pairs<{name}>")((1,), (64,), (x, total))
    np.testing.assert_array_equal(total.astype(int), x.astype(int).sum(0) + np.array([1, -1]))


@pytest.mark.parametrize("name", ORDERED)
def test_extremes(kernel, rng, name):
    x = _random_values(rng, ORDERED[name], 96)
    results = x[:1].repeat(2)
    kernel(f"extremes<{name}>")((3,), (32,), (x, results))
    np.testing.assert_array_equal(results, [x.min(), x.max()])


@pytest.mark.parametrize("name", BITS)
def test_bitwise_operations(kernel, rng, name):
    x = _random_values(rng, BITS[name], 64)
    results = x[:3].copy()
    kernel(f"bitwise<{name}>")((2,), (32,), (x, results))
    functions = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
    expected = [f(f.reduce(x), start) for f, start in zip(functions, x[:3], strict=True)]
    np.testing.assert_array_equal(results, expected)


@every_order
@pytest.mark.parametrize("name", EXCHANGED)
def test_exchanges(kernel, rng, order, name):
    x = _random_values(rng, EXCHANGED[name], 40)
    cell, out = np.array([5], x.dtype), np.zeros_like(x)
    with thread_order(order, seed=2):
        kernel(f"exchange<{name}>")((1,), (40,), (x, cell, out))
    assert sorted([*out, *cell]) == sorted([*x, 5])


@every_order
@pytest.mark.parametrize("name", COMPARED)
def test_compare_and_swap(kernel, rng, order, name):
    x = rng.integers(0, 100, 64).astype(COMPARED[name])
    total = np.array([17], x.dtype)
    with thread_order(order, seed=3):
        kernel(f"add_by_compare_and_swap<{name}>")((1,), (64,), (x, total))
    assert total[0] == 17 + x.sum() + 64


def test_compare_and_swap_of_halves(kernel, rng):
    x = _random_values(rng, np.float16, 64)
    total = np.array([5], np.float16)
    kernel("add_half_by_compare_and_swap")((1,), (64,), (x, total))
    assert total[0] == 5 + x.astype(int).sum()


def test_wrapping_counters(kernel):
    up, down = np.array([4], np.uint32), np.array([2], np.uint32)
    difference = np.array([-(2**31) + 4], np.int32)
    kernel("wrap_around")((1,), (5,), (up, down, difference, np.uint32(6)))
    assert (up[0], down[0], difference[0]) == (2, 4, 2**31 - 11)


@every_order
def test_locks_without_a_barrier_inside(kernel, order):
    lock, counter = np.zeros(1, np.int32), np.full(1, 7, np.int32)
    with thread_order(order, seed=4):
        kernel("locked_increment")((3,), (50,), (lock, counter))
    assert (lock[0], counter[0]) == (0, 157)


@pytest.mark.parametrize(
    "call",
    [
        "atomicAdd((unsigned long*)p, 1ul)",
        "atomicAdd((long long*)p, 1ll)",
        "atomicAdd((unsigned short*)p, (unsigned short)1)",
        "atomicMax((float*)p, 1.0f)",
        "atomicMin((double*)p, 1.0)",
        "atomicSub((float*)p, 1.0f)",
        "atomicExch((double*)p, 1.0)",
        "atomicCAS((float*)p, 1.0f, 2.0f)",
    ],
)
def test_types_without_an_atomic_operation_do_not_compile(call):
    require_emulator()
    with pytest.raises(EmulatorCompileError, match=r"no matching function|invalid conversion"):
        EmulatedModule(f'extern "C" __global__ void wrong(void* p) {{ {call}; }}')
