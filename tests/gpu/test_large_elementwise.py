# SPDX-License-Identifier: MIT
"""Element-wise operators and DivGrad beyond 2^31 elements."""

from __future__ import annotations

import math

import pytest
from gpu.test_large import BEYOND_INT32, need, whole

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOAT16, FLOAT32
from cupy_training_ops.testing.compare import poison

pytestmark = [pytest.mark.gpu, pytest.mark.large]

PIECE = 2**27
SLACK = 2**32


def empty(n: int, dtype, offset: int = 0):
    import cupy

    return poison(cupy.empty(n + offset, dtype))[offset:]


def pieces(shape):
    """Slices of the first axis, of at most about PIECE elements each."""
    rows = max(1, PIECE // math.prod(shape[1:]))
    return (slice(first, first + rows) for first in range(0, shape[0], rows))


@pytest.mark.parametrize("offset", [0, 1])
def test_a_map(offset) -> None:
    need(2 * 4 * BEYOND_INT32 + SLACK)
    x = whole(BEYOND_INT32 + offset)[offset:]
    y = get_op("Scale")()(x, 3, out=empty(x.size, FLOAT32, offset))
    assert all(bool((y[piece] == 3 * x[piece]).all()) for piece in pieces(x.shape))


def test_a_row_is_repeated() -> None:
    """Gelu is the identity for large arguments: every row of C is B + 64."""
    import cupy

    shape = 32_769, 65_537
    need(2 * 2 * math.prod(shape) + SLACK)
    a = cupy.full(shape, 64, FLOAT16)
    b = (cupy.arange(shape[1]) % 997).astype(FLOAT16)
    c = get_op("BiasGelu")()(a, b, out=empty(a.size, FLOAT16).reshape(shape))
    assert all(bool((c[piece] == b + 64).all()) for piece in pieces(shape))


# Shapes of A and B for equal shapes, columns, runs and any others.
DIVISIONS = [
    ((BEYOND_INT32,), (BEYOND_INT32,)),
    ((65_537, 32_776), (32_776,)),
    ((2**6, 2**25 + 8), (2**6, 1)),
    ((2**10, 2**11, 2**10 + 1), (2**10, 1, 2**10 + 1)),
]


@pytest.mark.parametrize(
    ("whole_shape", "part_shape"), DIVISIONS, ids=["equal", "columns", "runs", "any"]
)
def test_division(whole_shape, part_shape) -> None:
    """dY and A are 1, B powers of 2: dA B is 1, and dB B^2 minus the number of terms."""
    import cupy

    n, n_part = math.prod(whole_shape), math.prod(part_shape)
    need(2 * (3 * n + 2 * n_part) + SLACK)
    ones = cupy.ones(whole_shape, FLOAT16)
    powers = cupy.tile(cupy.array([512, 1024, 2048], FLOAT16), n_part // 3 + 1)
    b = powers[:n_part].reshape(part_shape)
    out = tuple(empty(math.prod(s), FLOAT16).reshape(s) for s in (whole_shape, part_shape))
    da, db = get_op("DivGrad")()(ones, ones, b, out=out)
    terms = float(FLOAT16.type(n // n_part * 2.0**-22)) * 2**22
    assert products_are(da, b, 1, 1)
    assert products_are(db, b, 2, -terms)


def products_are(x, b, power: int, value: float) -> bool:
    """Whether x b^power, broadcast, is `value` everywhere."""
    return all(
        bool((x[piece].astype(FLOAT32) * factor(x, b, piece) ** power == value).all())
        for piece in pieces(x.shape)
    )


def factor(x, b, piece: slice):
    """The part of b that a piece of x meets."""
    return (b[piece] if b.ndim == x.ndim else b).astype(FLOAT32)
