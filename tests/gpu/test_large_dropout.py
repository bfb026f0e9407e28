# SPDX-License-Identifier: MIT
"""Dropout and the gradient of its bits over more than 2^31 elements, at 1,000 places."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.test_large import BEYOND_INT32, need
from gpu.test_large_elementwise import empty

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import BOOL, FLOAT16
from cupy_training_ops.families.dropout import philox

pytestmark = [pytest.mark.gpu, pytest.mark.large]

N, RATIO, STATE = BEYOND_INT32, 0.3, (2**63 + 5, 2**33)
SCALED = FLOAT16.type(3 / np.float32(1 - RATIO))


def places(rng) -> list[int]:
    """The first, the last, those on either side of 2^31, and others."""
    edges = [0, 1, 2**31 - 1, 2**31, N - 2, N - 1]
    return sorted({*edges, *rng.integers(0, N, 994).tolist()})


def kept_at(place: int) -> bool:
    return bool(philox.words(STATE, place, place + 1)[0] <= philox.keep_threshold(RATIO))


@pytest.mark.parametrize("offset", [0, 1])
def test_a_forward(rng, offset) -> None:
    need(5 * N + 2**31)
    x = empty(N, FLOAT16, offset)
    x[...] = 3
    y, mask = get_op("Dropout")()(x, RATIO, True, STATE, out=(x, empty(N, BOOL)))
    at = places(rng)
    expected = [kept_at(place) for place in at]
    assert mask[at].get().tolist() == expected
    assert y[at].get().tolist() == np.where(expected, SCALED, 0).tolist()
    rate = float(mask.sum()) / N
    assert abs(rate - (1 - RATIO)) < 5 * (RATIO * (1 - RATIO) / N) ** 0.5


def test_bits_and_their_gradient(rng) -> None:
    need(5 * N + 2**31)
    dy = empty(N, FLOAT16)
    dy[...] = 3
    op = get_op("BitmaskDropout")()
    bits = op(dy, RATIO, True, STATE, outputs=("mask",))[1]
    dx = get_op("BitmaskDropoutGrad")()(dy, bits, RATIO, out=dy)
    at = places(rng)
    expected = [kept_at(place) for place in at]
    assert dx[at].get().tolist() == np.where(expected, SCALED, 0).tolist()
