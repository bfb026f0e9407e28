# SPDX-License-Identifier: MIT
"""Grids, orders, arguments and limits of launches."""

import ml_dtypes
import numpy as np
import pytest

from emulator import EmulatorError, thread_order

SHAPE = np.dtype([("rows", "i8"), ("columns", "i4"), ("factor", "f4")])


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize(("grid", "block"), [((5,), (33,)), ((2, 3), (4, 5, 6)), ((1, 2, 3), (7,))])
def test_every_thread_of_every_block_runs_once(load_kernels, order, grid, block):
    blocks, threads = int(np.prod(grid)), int(np.prod(block))
    out = np.full((blocks, threads), 7, np.int64)
    with thread_order(order, seed=3):
        load_kernels("launch.cu").get_function("positions")(grid, block, (out,))
    expected = 7 + 1000 * np.arange(blocks)[:, None] + np.arange(threads)
    np.testing.assert_array_equal(out, expected)


def _order_of_threads(load_kernels, blocks, threads):
    order, count = np.full(blocks * threads, -1, np.int32), np.zeros(1, np.int32)
    kernel = load_kernels("launch.cu").get_function("order_of_threads")
    kernel((blocks,), (threads,), (order, count))
    return order


def test_thread_orders_are_what_they_are_called(load_kernels):
    ascending = np.arange(64)
    np.testing.assert_array_equal(_order_of_threads(load_kernels, 1, 64), ascending)
    with thread_order("reverse"):
        np.testing.assert_array_equal(_order_of_threads(load_kernels, 1, 64), ascending[::-1])
    with thread_order("random", seed=1):
        shuffled = _order_of_threads(load_kernels, 1, 64)
        np.testing.assert_array_equal(_order_of_threads(load_kernels, 1, 64), shuffled)
    with thread_order("random", seed=2):
        other = _order_of_threads(load_kernels, 1, 64)
    assert sorted(shuffled) == sorted(other) == list(ascending)
    assert not np.array_equal(shuffled, other)
    assert not np.array_equal(shuffled, ascending)


def test_blocks_can_run_in_reverse(load_kernels):
    with thread_order("forward", blocks="reverse"):
        order = _order_of_threads(load_kernels, 4, 2)
    np.testing.assert_array_equal(order, [6, 7, 4, 5, 2, 3, 0, 1])


def test_unknown_orders_are_refused():
    with pytest.raises(ValueError, match="forward, reverse, random"), thread_order("sideways"):
        pass


@pytest.mark.parametrize(
    ("dtype", "slot"),
    [(np.float32, "float"), (np.float16, "__half"), (ml_dtypes.bfloat16, "__nv_bfloat16")],
)
def test_type_slots_reach_the_source(load_kernels, rng, dtype, slot):
    x = rng.standard_normal(1000).astype(dtype)
    y = np.full(1000, np.nan, dtype)
    kernel = load_kernels("launch.cu", (f"-DCTO_T={slot}",)).get_function("scale")
    kernel((8,), (128,), (x, y, np.float32(0.37), np.int64(1000)))
    expected = (x.astype(np.float32) * np.float32(0.37)).astype(dtype)
    np.testing.assert_array_equal(y.view(f"u{y.itemsize}"), expected.view(f"u{y.itemsize}"))


def test_arguments_of_all_kinds_arrive(load_kernels):
    out = np.zeros(7)
    shape = np.array([(3, 5, 0.5)], SHAPE)[0]
    values = (np.bool_(True), np.uint8(200), np.int32(-6), np.uint64(2**40), np.float64(2.25))
    kernel = load_kernels("launch.cu").get_function("argument_kinds")
    kernel((1,), (1,), (out, *values, shape, None))
    np.testing.assert_array_equal(out, [1, 200, -6, 2**40, 2.25, 7.5, 1])


X, Y = np.ones(4, np.float32), np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X, Y, np.float32(1)), r"scale takes 4 arguments, not 3"),
        ((X, np.float32(1), np.float32(1), np.int64(4)), "argument 1 must be a pointer"),
        ((X, Y, X, np.int64(4)), "argument 2 must be a floating-point number of 4 bytes, not an a"),
        ((X, Y, np.float64(1), np.int64(4)), r"argument 2 .* not float64 \(8 bytes\)"),
        ((X, Y, np.int32(1), np.int64(4)), "argument 2 must be a floating-point number"),
        ((X, Y, 1.0, np.int64(4)), "argument 2 .* not float .*has a size"),
        ((X, Y, np.float32(1), 4), "argument 3 must be an integer of 8 bytes, not int"),
        ((X, Y, np.float32(1), np.int32(4)), "argument 3 must be an integer of 8 bytes, not int32"),
        ((X, True, np.float32(1), np.int64(4)), "argument 1 must be a pointer, not bool"),
        (([1.0], Y, np.float32(1), np.int64(4)), "argument 0 must be a pointer, not list"),
    ],
)
def test_arguments_that_do_not_fit_are_type_errors(load_kernels, args, message):
    kernel = load_kernels("launch.cu").get_function("scale")
    with pytest.raises(TypeError, match=message):
        kernel((1,), (4,), args)


@pytest.mark.parametrize(
    ("name", "grid", "block"),
    [
        ("positions", (1,), (1025,)),
        ("positions", (1,), (1, 1, 65)),
        ("positions", (1, 65536), (1,)),
        ("positions", (1, 1, 65536), (1,)),
        ("positions", (0,), (1,)),
        ("positions", (1,), (32, 0)),
        ("positions", (1, 1, 1, 1), (1,)),
    ],
)
def test_launches_beyond_the_hardware_are_refused(load_kernels, name, grid, block):
    out = np.zeros(1, np.int64)
    with pytest.raises(EmulatorError, match=r"positions: |grid must"):
        load_kernels("launch.cu").get_function(name)(grid, block, (out,))


@pytest.mark.parametrize(("name", "most"), [("scale", 128), ("argument_kinds", 256)])
def test_launch_bounds_are_enforced(load_kernels, name, most):
    kernel = load_kernels("launch.cu").get_function(name)
    shape = np.array([(1, 1, 1)], SHAPE)[0]
    values = (np.bool_(True), np.uint8(1), np.int32(1), np.uint64(1), np.float64(1), shape, None)
    args = (X, Y, np.float32(1), np.int64(4)) if name == "scale" else (np.zeros(7), *values)
    kernel((1,), (most,), args)
    with pytest.raises(EmulatorError, match=f"has {most + 1} threads, over {most}"):
        kernel((1,), (most + 1,), args)


def test_kernels_left_out_by_the_preprocessor_are_absent(load_kernels):
    module = load_kernels("launch.cu")
    assert module.kernel_names == ["argument_kinds", "order_of_threads", "positions", "scale"]
    with pytest.raises(EmulatorError, match="no kernel 'left_out'; there are argument_kinds"):
        module.get_function("left_out")


FILLED = {
    "float": np.float32,
    "long long": np.int64,
    "__half": np.float16,
    "__nv_bfloat16": ml_dtypes.bfloat16,
}


def test_templates_are_found_by_name_expression(load_kernels):
    expressions = tuple(f"fill<{name}, 32>" for name in FILLED)
    module = load_kernels("launch.cu", (), expressions)
    for expression, dtype in zip(expressions, FILLED.values(), strict=True):
        out = np.zeros(32, dtype)
        module.get_function(expression)((1,), (32,), (out, np.dtype(dtype).type(3)))
        np.testing.assert_array_equal(out, np.full(32, 35, dtype))
