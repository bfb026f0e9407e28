# SPDX-License-Identifier: MIT
"""Softmax kernels: every division of lines among threads, any axis, in place, accurate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from references import computed

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.facts import MAX_THREADS, WARP
from cupy_training_ops.families.softmax.samples import inputs, logits
from cupy_training_ops.plan import Device
from cupy_training_ops.planning.lines import SHORT_NBYTES, Kernels, Lines, Registers, division
from cupy_training_ops.testing.compare import assert_matches

H200 = Device(132, (9, 0), 227 * 1024)
KERNELS = Kernels("rows", "columns", short_rows="short_rows", bundles="bundles")
NAMES = ("Softmax", "LogSoftmax", "SoftmaxGrad_13", "LogSoftmaxGrad_13")

names = pytest.mark.parametrize("name", NAMES)


def planned(name: str, shape, axis: int = -1, dtype=FLOAT32, aligned: bool = True):
    """The kernel on an H200, its blocks and the threads of one."""
    op = get_op(name)(axis=axis)
    specs = [Spec(shape, dtype, aligned)] * (len(op.inputs) + 1)
    (launch,) = op.plan(H200, *specs).steps
    return launch.symbol.rpartition("__")[2], launch.config.grid, launch.config.block


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "expected"),
    [
        ("SoftmaxGrad_13", (65_536, 64), FLOAT32, ("gradient_short_rows", (8192,), (128,))),
        ("SoftmaxGrad_13", (65_536, 256), FLOAT16, ("gradient_short_rows", (16384,), (128,))),
        ("SoftmaxGrad_13", (65_536, 1024), FLOAT16, ("gradient_rows", (16384,), (128,))),
        ("SoftmaxGrad_13", (65_536, 1024), FLOAT32, ("gradient_rows", (65_536,), (64,))),
        ("SoftmaxGrad_13", (65_536, 1025), FLOAT32, ("gradient_rows", (65_536,), (64,))),
        ("SoftmaxGrad_13", (2048, 32_768), FLOAT16, ("gradient_rows", (2048,), (1024,))),
        ("LogSoftmax", (2048, 32_768), FLOAT32, ("full_rows", (2048,), (1024,))),
        ("LogSoftmax", (2048, 32_768), FLOAT16, ("full_rows", (2048,), (512,))),
        ("LogSoftmax", (256, 32_768), FLOAT32, ("full_rows", (256,), (1024,))),
        ("LogSoftmax", (2048, 65_536), FLOAT32, ("rows", (2048,), (1024,))),
        ("Softmax", (8, 16, 512), FLOAT32, ("full_rows", (16,), (128,))),
        ("Softmax", (1000, 3), FLOAT32, ("columns", (32,), (1, 4, 32))),
    ],
)
def test_the_plan_suits_the_shape(name, shape, dtype, expected) -> None:
    assert planned(name, shape, dtype=dtype) == expected


def test_what_has_no_vectors_goes_by_columns() -> None:
    assert planned("Softmax", (8, 64), aligned=False)[0] == "columns"
    assert planned("Softmax", (8, 64, 9), axis=1)[0] == "columns"
    assert planned("Softmax", (8, 64, 1), axis=1)[0] == "short_rows"


@pytest.mark.parametrize(
    ("shape", "aligned", "expected"),
    [
        ((16, 64, 16_384), True, ("bundles", (2048,), (32, 8))),
        ((2, 3, 16_384), True, ("bundles", (256,), (32, 4))),  # a thread leads each line
        ((2, 128, 200), True, ("bundles", (4,), (32, 16))),
        ((2, 129, 200), True, ("columns", (14,), (32, 32, 1))),  # does not fit
        ((2, 64, 202), True, ("columns", (14,), (32, 8, 1))),
        ((2, 64, 96), True, ("columns", (6,), (32, 8, 1))),
        ((16, 64, 16_384), False, ("columns", (8192,), (32, 8, 1))),
        ((0, 64, 16_384), True, ("columns", (512,), (32, 8, 1))),
    ],
)
def test_neighbouring_lines_share_vectors(shape, aligned, expected) -> None:
    registers = Registers(128, 1, 4, 4, 1)
    actual = division(Lines.along(shape, 1), registers, aligned, KERNELS)
    config = actual.config
    assert (actual.kernel, config.grid, config.block) == expected


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(1, 10**5),
    st.sampled_from([(4, 4), (2, 8), (8, 2)]),
    st.sampled_from([32, 64, 128]),
    st.integers(1, 2),
    st.booleans(),
)
def test_every_line_has_its_threads(
    n_outer, length, stride, sizes, nbytes, arrays, aligned
) -> None:
    """Rows: blocks enough, threads for the edges; columns: threads for all lines and classes."""
    assume(n_outer * max(1, length) * stride < 2**37)  # more than fit into memory
    lines, registers = Lines(n_outer, length, stride), Registers(nbytes, arrays, *sizes, arrays)
    result = division(lines, registers, aligned, replace(KERNELS, bundles=""))
    if result.kernel == "columns":
        x, y, z = result.config.block
        tiles = -(-stride // x)
        assert result.config.grid[0] % tiles == 0
        assert result.config.grid[0] // tiles * z >= n_outer
        assert x * y * z <= MAX_THREADS
        assert y & (y - 1) == 0
        return
    (block,), threads = result.config.block, result.args[2]
    assert result.config.grid[0] * (block // threads) >= n_outer
    assert threads <= WARP or threads == block
    assert length % registers.width == 0 or threads >= 2 * registers.width - 2
    if result.kernel == "short_rows":
        assert threads * registers.depth(SHORT_NBYTES) >= length // registers.width


LENGTHS = (1, 2, 31, 33, 63, 127, 129, 255, 1023, 1024, 1025, 2047, 2048, 2049)


@names
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT64], ids=dtype_name)
def test_lengths_beside_vectors_warps_and_blocks(run, rng, name, dtype) -> None:
    op = get_op(name)()
    for length in LENGTHS:
        arguments = inputs(rng, name, (3, length), dtype)
        result = run.host(op(*map(run.place, arguments)))
        assert_matches(result, computed(op, *arguments))


@pytest.mark.parametrize("length", [131_072, 256_000])
def test_lines_as_long_as_vocabularies(run, rng, length) -> None:
    """Several batches of the largest block: they are read again from behind."""
    op, x = get_op("LogSoftmax")(), logits(rng, (1, length), BFLOAT16)
    assert_matches(run.host(op(run.place(x))), computed(op, x))


@names
@pytest.mark.parametrize("shape", [(5, 1025), (5, 512), (3, 40, 6), (2, 9000)])
def test_any_input_may_be_the_output(anywhere, rng, name, shape) -> None:
    op = get_op(name)(axis=1)
    arguments = inputs(rng, name, shape, FLOAT32, 1)
    expected = computed(op, *arguments)
    for i in range(len(arguments)):
        arrays = [anywhere.place(array) for array in arguments]
        assert op(*arrays, out=arrays[i]) is arrays[i]
        assert_matches(anywhere.host(arrays[i]), expected)


def test_large_logits_lose_no_digits(run, rng) -> None:
    """(x - max) - ln(sum): as x - (max + ln(sum)) the error is 4.5e-4."""
    x = (1e4 * rng.choice([-1, 1], (64, 1000)) + rng.standard_normal((64, 1000))).astype(FLOAT32)
    exact = x.astype(FLOAT64) - x.max(1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    result = run.host(get_op("LogSoftmax")()(run.place(x)))
    assert (np.abs(result - exact) <= 2e-6 + 2e-7 * np.abs(exact)).all()


def test_a_line_whose_first_part_is_minus_infinity(run) -> None:
    """No e^(-inf + inf) comes from threads, warps and batches that have nothing else."""
    for length in (40, 3000, 70_001):
        x = np.full((2, length), -np.inf, FLOAT32)
        x[:, -1] = -100
        result = run.host(get_op("Softmax")()(run.place(x)))
        assert result[:, -1].tolist() == [1, 1]
        assert not result[:, :-1].any()


def fixed(run) -> list[bytes]:
    x = np.random.default_rng(3).standard_normal((7, 2049)).astype(FLOAT32)
    ops = (get_op("LogSoftmax")(), get_op("LogSoftmax")(axis=0))
    return [run.host(op(run.place(x))).tobytes() for op in ops]


def test_the_order_of_threads_changes_no_bit(in_every_order) -> None:
    first, *others = in_every_order(fixed)
    assert all(other == first for other in others)


@names
def test_nothing_is_launched_for_nothing(run, name) -> None:
    op = get_op(name)()
    for shape in ((0, 5), (5, 0), (0,)):
        x = run.place(np.ones(shape, FLOAT32))
        with launch_log() as log:
            assert op(*[x] * len(op.inputs)).shape == shape
        assert not log


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_one_compilation_a_type(dtype) -> None:
    """Whatever the length and the axis."""
    results = set()
    for name in NAMES:
        for shape, axis in (((9, 9), 0), ((9, 64), 1), ((9, 5000), 1), ((9, 100_001), 1)):
            specs = [Spec(shape, dtype)] * (len(get_op(name).inputs) + 1)
            (launch,) = get_op(name)(axis=axis).plan(H200, *specs).steps
            results.add(tuple(launch.slots.items()))
    assert len(results) == 1
