# SPDX-License-Identifier: MIT
"""Rotary kernels: vectors and single elements, both layouts, any extents, in place, NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from references import computed

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, dtype_name
from cupy_training_ops.families.rotary.facts import ITEMS, THREADS
from cupy_training_ops.families.rotary.samples import TYPES, inputs
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches

H200 = Device(132, (9, 0), 227 * 1024)
NAMES = ("RotaryHalves", "RotaryHalvesGrad")

names = pytest.mark.parametrize("name", NAMES)


def planned(shape, n_angles, dtype, heads_last=False, misaligned=()):
    """The only launch of the forward operator on an H200; misaligned: places of arrays."""
    angles = n_angles, shape[1 if heads_last else 2], shape[3]
    op = get_op("RotaryHalves")(heads_last=heads_last)
    specs = [
        Spec(each, dtype, place not in misaligned)
        for place, each in enumerate((shape, angles, angles, shape))
    ]
    (launch,) = op.plan(H200, *specs).steps
    return launch


@pytest.mark.parametrize(
    ("dtype", "width", "is_whole"),
    [
        *((FLOAT16, 128, True), (BFLOAT16, 16, True), (BFLOAT16, 24, False)),
        *((FLOAT32, 8, True), (FLOAT32, 12, False), (FLOAT64, 4, True), (FLOAT64, 6, False)),
    ],
)
def test_halves_of_whole_vectors_are_moved_by_vectors(dtype, width, is_whole) -> None:
    launch = planned((8, 32, 2048, width), 1, dtype)
    assert launch.symbol == ("rotary_halves" if is_whole else "rotary_halves__single")
    elements = 16 // dtype.itemsize if is_whole else 1
    n_items = 8 * 32 * 2048 * width // 2 // elements
    assert launch.config.grid == (-(-n_items // (THREADS * ITEMS)),)
    assert launch.config.block == (THREADS,)


@pytest.mark.parametrize("place", range(4))
def test_each_array_that_is_not_aligned_is_moved_by_elements(place) -> None:
    launch = planned((2, 3, 5, 64), 1, FLOAT32, misaligned=(place,))
    assert launch.symbol == "rotary_halves__single"


@names
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_extents(run, rng, name, data) -> None:
    """Ends of blocks, one row, one head, and each of the batch with its angles."""
    batch, heads = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    rows, half = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 20))
    heads_last, each = data.draw(st.booleans()), data.draw(st.booleans())
    shape = (batch, rows, heads, 2 * half) if heads_last else (batch, heads, rows, 2 * half)
    arrays = inputs(rng, shape, batch if each else 1, heads_last, FLOAT32)
    op = get_op(name)(heads_last=heads_last)
    result = op(*map(run.place, arrays))
    assert_matches(run.host(result), computed(op, *arrays))


@names
@pytest.mark.parametrize(("dtype", "angle_type"), TYPES, ids=dtype_name)
@pytest.mark.parametrize("width", [64, 10], ids=["vectors", "single"])
def test_in_place(run, rng, name, dtype, angle_type, width) -> None:
    """Halves change places: each is read before either is written."""
    arrays = inputs(rng, (2, 3, 30, width), 2, False, dtype, angle_type)
    op = get_op(name)()
    expected = computed(op, *arrays)
    x, cos, sin = map(run.place, arrays)
    assert op(x, cos, sin, out=x) is x
    assert_matches(run.host(x), expected)
    for before, after in zip(arrays[1:], (cos, sin), strict=True):
        assert_matches(run.host(after), before, 0)


@names
def test_angles_are_not_overwritten(anywhere, rng, name) -> None:
    """Also where X, which `out` may be, lies in the same memory."""
    cos, sin = rng.standard_normal((2, 1, 4, 8)).astype(np.float32)
    cos, sin = anywhere.place(cos), anywhere.place(sin)
    x = cos.reshape(1, 1, 4, 8)
    with pytest.raises(ArgumentError, match=f"{name}: .*cos"):
        get_op(name)()(x, cos, sin, out=x)


@names
def test_not_a_number_stays_in_its_pair(run, rng, name) -> None:
    x, cos, sin = inputs(rng, (1, 2, 3, 16), 1, False, FLOAT32)
    x[0, 1, 2, 3] = np.nan
    result = run.host(get_op(name)()(*map(run.place, (x, cos, sin))))
    assert [*map(tuple, np.argwhere(np.isnan(result)))] == [(0, 1, 2, 3), (0, 1, 2, 11)]
    assert_matches(result, computed(get_op(name)(), x, cos, sin))
