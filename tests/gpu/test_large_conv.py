# SPDX-License-Identifier: MIT
"""ConvGrad over more than 2^31 halves, against float64 where it is sampled."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.test_large import need

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64
from cupy_training_ops.families.conv.reference import conv_grad
from cupy_training_ops.testing.compare import assert_matches

pytestmark = [pytest.mark.gpu, pytest.mark.large]

# Of many images, and of one that needs offsets of 64 bits; the last in tiles of 128 rows.
SHAPES = ((64, 64, 736, 736), (1, 64, 5824, 5824), (32, 128, 736, 736))
PADS = (1, 1, 1, 1)
CROP = 16


def filled(shape, shift: int, largest: float):
    """Halves that differ from place to place."""
    import cupy

    x = cupy.empty(shape, FLOAT16)
    flat = x.reshape(-1)
    for start in range(0, flat.size, 2**26):
        index = cupy.arange(start, min(flat.size, start + 2**26), dtype=np.int64)
        values = ((index * 2654435761 >> shift) % 801).astype(FLOAT32) / 400 - 1
        flat[start : start + 2**26] = largest * values
    return x


def product(x, dy, down: int, right: int):
    """Sum and magnitudes of X dY with X moved by at most one place, of one image and channel."""
    height, width = x.shape
    of_x = [slice(max(0, step), n + min(0, step)) for step, n in ((down, height), (right, width))]
    of_y = [slice(max(0, -step), n - max(0, step)) for step, n in ((down, height), (right, width))]
    terms = x[tuple(of_x)].astype(FLOAT64) * dy[tuple(of_y)]
    return float(terms.sum()), float(abs(terms).sum())


def last(array):
    """An array (n, ..., channel) as (n, channel, ...)."""
    return array.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("is_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(shape, is_last) -> None:
    """With the channels first, X and dY are staged; else they are read as they lie."""
    elements = int(np.prod(shape, dtype=np.int64))
    assert elements > 2**31
    need(2 * (3 if is_last else 5) * elements + 2**33)
    x, dy, w = (
        filled(shape, 7, 4),
        filled(shape, 11, 2**-6),
        filled((shape[1], shape[1], 3, 3), 5, 1),
    )
    if is_last:  # of as many elements, each of which differs from its neighbours
        x, dy = (last(a.reshape(shape[0], *shape[2:], shape[1])) for a in (x, dy))
    dx, dw, db = get_op("ConvGrad")(pads=PADS)(dy, x, w)
    for image in {0, shape[0] // 2, shape[0] - 1}:
        check_corners(dx[image], dy[image], w)
    check_sums(dw, x, dy)
    check_bias(db, dy)


def check_corners(dx, dy, w) -> None:
    """The first and the last elements of an image; what lies next to the rest is left out."""
    for part, kept in ((slice(None, CROP), slice(None, -1)), (slice(-CROP, None), slice(1, None))):
        crop = np.ascontiguousarray(dy[:, part, part].get())[None].astype(FLOAT64)
        actual = conv_grad(crop, np.zeros_like(crop), w.get().astype(FLOAT64), pads=PADS)[0][0]
        expected = actual[:, kept, kept].astype(FLOAT16)
        assert_matches(dx[:, part, part].get()[:, kept, kept], expected)


def check_sums(dw, x, dy) -> None:
    """Some elements of dW: rounded to a half, beside what thirty million additions lose."""
    n = len(dw)
    for m, c, row, column in ((0, 0, 0, 0), (n // 2 + 5, 5, 1, 2), (n - 1, n - 1, 2, 2)):
        pairs = [product(a[c], b[m], row - 1, column - 1) for a, b in zip(x, dy, strict=True)]
        exact, magnitudes = map(sum, zip(*pairs, strict=True))
        assert abs(float(dw[m, c, row, column]) - exact) <= 1e-3 * abs(exact) + 1e-6 * magnitudes


def check_bias(db, dy) -> None:
    for channel in (0, len(db) // 2 - 1, len(db) - 1):
        exact = float(dy[:, channel].sum(dtype=FLOAT64))
        magnitudes = float(abs(dy[:, channel]).sum(dtype=FLOAT64))
        assert abs(float(db[channel]) - exact) <= 1e-3 * abs(exact) + 1e-6 * magnitudes
