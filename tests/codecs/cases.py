# SPDX-License-Identifier: MIT
"""Codecs, types, shapes and values that tests of codecs share."""

from __future__ import annotations

import numpy as np
import pytest
from codec_names import FLOAT_CODECS

from cupy_training_ops.dtypes import FLOATS, dtype_name

SHAPES = [(), (0,), (3, 0, 2), (1,), (8,), (3, 5, 7), (16, 64)]
floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
codecs = pytest.mark.parametrize("codec", FLOAT_CODECS)


def activations(rng: np.random.Generator, shape=(3, 5, 7), dtype=np.float32) -> np.ndarray:
    values = rng.standard_normal(shape) * 2.0 ** rng.uniform(-13, 9, shape)
    return np.asarray(values).astype(dtype)
