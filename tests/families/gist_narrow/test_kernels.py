# SPDX-License-Identifier: MIT
"""Kernels that convert two elements at a time: every number beside every kind of other."""

from __future__ import annotations

import numpy as np
import pytest
from references import computed

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, UINT8, dtype_name

NARROW = pytest.mark.parametrize("dtype", [FLOAT16, np.dtype("bfloat16")], ids=dtype_name)


@NARROW
@pytest.mark.parametrize("name", ["GistFp10Encoder", "GistSparseFp10Encoder"])
def test_fp10_of_every_number(run, rng, name, dtype) -> None:
    """In order, where neighbours are rounded alike, and in any other."""
    op, ordered = get_op(name)(), np.arange(2**16, dtype=np.uint16)
    for bits in (ordered, rng.permutation(ordered)):
        x = bits.view(dtype)
        expected = computed(op, x)
        nbytes = int(expected[:8].view(np.int64)[0]) if expected.dtype == UINT8 else None
        np.testing.assert_array_equal(run.host(op(run.place(x)))[:nbytes], expected[:nbytes])


@pytest.mark.parametrize("dtype", [FLOAT16, np.dtype("bfloat16"), FLOAT32], ids=dtype_name)
@pytest.mark.parametrize("name", ["GistBlockE4m3", "GistBlockE5m2"])
def test_every_code_of_scaled_floats(run, rng, name, dtype) -> None:
    """NaN beside numbers, and scales up to those whose power is beyond a float."""
    n = 64 * 1024
    encoded = computed(get_op(f"{name}Encoder")(), np.ones(n, FLOAT32))
    tiles = encoded.reshape(-1, 16 + 1024)
    tiles[:, 16:] = rng.integers(0, 256, (64, 1024))
    tiles[:32, 16:] = rng.permutation(np.arange(1024) % 256)
    tiles[:, :16] = rng.integers(-160, 160, (64, 8)).astype(np.int16).view(UINT8)
    op = get_op(f"{name}Decoder")(to=dtype, shape=(n,))
    actual = run.host(op(run.place(encoded)))
    np.testing.assert_array_equal(actual.view(UINT8), computed(op, encoded).view(UINT8))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=dtype_name)
@pytest.mark.parametrize(
    ("name", "tie"), [("GistBlockE4m3Encoder", 464), ("GistBlockE5m2Encoder", 61_440)]
)
def test_scales_at_what_just_fits(run, rng, name, tie, dtype) -> None:
    """The largest element of a block is a tie between the largest code and what is beyond it, or
    one of its neighbours."""
    sizes = np.nextafter(np.full(3, tie, dtype), np.array([0, tie, np.inf], dtype))
    x = rng.uniform(-1, 1, (48, 128)).astype(dtype)
    x[np.arange(48), rng.integers(0, 128, 48)] = np.tile(sizes, 16) * rng.choice([-1, 1], 48)
    x = np.ldexp(x, rng.integers(-90, 90, (48, 1))).ravel()
    op = get_op(name)()
    np.testing.assert_array_equal(run.host(op(run.place(x))), computed(op, x))
