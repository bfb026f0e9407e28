# SPDX-License-Identifier: MIT
"""Sizes beyond 2^24 (where upstream's grids are wrong) and beyond 2^31 (where its indices are)."""

from __future__ import annotations

import numpy as np
import pytest
from codec_names import FLOAT_CODECS, SIGN_CODECS

from cupy_training_ops import compress

pytestmark = pytest.mark.gpu

BEYOND_FLOAT32 = 2**24 + 1
BEYOND_INT32 = 2**31 + 9


def need(nbytes: int) -> None:
    """Skip where the GPU has not the memory this test declares."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    free, _ = cupy.cuda.Device().mem_info
    if free < nbytes:
        pytest.skip(f"needs {nbytes >> 30} GiB of GPU memory, {free >> 30} GiB are free")


def pattern(n: int, start: int = 0):
    """Numbers that differ from place to place, both signs, exact in every codec but the sign's."""
    import cupy

    index = cupy.arange(start, start + n, dtype=np.int64)
    return ((index * 2654435761 >> 7) % 7 - 3).astype(np.float32)


def expected(codec: str, values):
    return (values > 0).astype(np.float32) if codec in SIGN_CODECS else values


def is_right(codec: str, decoded, values) -> bool:
    """Return True if they are what is expected; of scaled integers, within half a step."""
    step = 3 / 126 if codec.startswith("int8") else 0
    return bool((abs(decoded - expected(codec, values)) <= 0.51 * step).all())


@pytest.mark.parametrize("codec", FLOAT_CODECS)
def test_beyond_2_to_the_24(codec: str) -> None:
    x = pattern(BEYOND_FLOAT32)
    assert is_right(codec, compress(x, codec).decompress(), x)


@pytest.mark.large
@pytest.mark.parametrize("codec", FLOAT_CODECS)
def test_beyond_2_to_the_31(codec: str) -> None:
    n = BEYOND_INT32
    need(4 * n + 2 * n + 4 * n + 2**31)
    x = whole(n)
    decoded = compress(x, codec).decompress()
    chunk = 2**27
    for start in range(0, n, chunk):
        part = slice(start, min(n, start + chunk))
        assert is_right(codec, decoded[part], x[part]), f"from element {start}"


def whole(n: int):
    import cupy

    x = cupy.empty(n, np.float32)
    chunk = 2**27
    for start in range(0, n, chunk):
        stop = min(n, start + chunk)
        x[start:stop] = pattern(stop - start, start)
    return x
