# SPDX-License-Identifier: MIT
"""Fixtures of the tests of cross_entropy."""

from __future__ import annotations

import pytest

from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.families.softmax.samples import logits


@pytest.fixture
def scores(rng):
    return logits(rng, (6, 37), FLOAT32)
