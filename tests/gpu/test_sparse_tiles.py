# SPDX-License-Identifier: MIT
"""Sparse codes of more tiles than blocks run at a time: each block packs several, in turns."""

from __future__ import annotations

import numpy as np
import pytest

from cupy_training_ops import get_op
from cupy_training_ops.families.gist_sparse.samples import code_bytes

pytestmark = pytest.mark.gpu

TILES = 5000
TILE_NBYTES = 16_384
CASES = (
    ("GistSparseEncoder", np.uint8),
    ("GistSparseEncoder", np.float32),
    ("GistSparseMsfp15Encoder", np.float16),
    ("GistSparseFp10Encoder", np.float64),
)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_many_tiles_have_the_bytes_of_the_cpu(name: str, dtype: type, rng) -> None:
    import cupy

    n = TILES * TILE_NBYTES // np.dtype(dtype).itemsize - 5
    share = np.repeat(rng.random(n // 1000 + 1), 1000)[:n]  # some parts are full, some are empty
    x = (rng.integers(1, 100, n) * (rng.random(n) < share)).astype(dtype)
    encode = get_op(name)()
    expected = encode(x)
    for _ in range(3):
        code = cupy.full(expected.shape, 0x5A, np.uint8)
        actual = encode(cupy.asarray(x), out=code).get()
        np.testing.assert_array_equal(actual[: code_bytes(expected).size], code_bytes(expected))
    to = get_op(name.replace("Encoder", "Decoder"))(to=dtype, shape=x.shape)
    np.testing.assert_array_equal(to(code).get(), to(expected))
