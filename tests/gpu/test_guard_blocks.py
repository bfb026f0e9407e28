# SPDX-License-Identifier: MIT
"""The guarded encoder over more tiles than blocks run at a time, in each of its layouts."""

from __future__ import annotations

import numpy as np
import pytest

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import BFLOAT16
from cupy_training_ops.testing.samples import place

pytestmark = pytest.mark.gpu

N = 2**24
GROUPINGS = (
    None,
    (1, N // 64, 64),
    (1, N // 4096, 4096),
    (1, 1, N),
    (N // 512, 512, 1),
    (64, 64, N // 4096),
    (64, 64, 49),
    (N // 64, 63, 1),
)


@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=str)
def test_many_tiles_have_the_bytes_and_the_guard_of_the_cpu(grouping, dtype, rng) -> None:
    import cupy

    n = N if grouping is None else int(np.prod(grouping))
    x = (2 + rng.standard_normal(n, np.float32)).astype(dtype)
    op = get_op("GistGuardedMsfp15Encoder")(grouping=grouping)
    codes, guard = op(x)
    device_x, guards = place(x, 0, cupy), []
    for _ in range(3):
        actual, measured = op(device_x)
        np.testing.assert_array_equal(actual.get(), codes)
        np.testing.assert_allclose(measured.get(), guard, rtol=2e-5)
        guards.append(measured.get().tobytes())
    assert len(set(guards)) == 1
