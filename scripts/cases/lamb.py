# SPDX-License-Identifier: MIT
"""LAMB over a transformer's parameters; PyTorch has no peer."""

from __future__ import annotations

from typing import Any

import cupy

from cupy_training_ops.dtypes import FLOAT16, FLOAT32

from . import Case
from .optimizer import RATE, N
from .parameters import normal, parameters

STATE = ("new_step", "new_weights", "new_moment_1", "new_moment_2")


def _one(rng: Any) -> tuple[Any, ...]:
    w, g, m, v = (normal(rng, (N,), FLOAT32) for _ in range(4))
    numbers = (cupy.ones(1, cupy.float32), cupy.full(1, 0.5, cupy.float32))
    return True, *numbers, RATE, 3, [w], [g], [m], [cupy.abs(v)]


def _model(rng: Any) -> tuple[Any, ...]:
    weights, gradients = parameters(rng, FLOAT32), parameters(rng, FLOAT32)
    moments = ([cupy.zeros_like(w) for w in weights] for _ in range(2))
    return None, None, None, RATE, 3, weights, gradients, *moments


def _mixed(rng: Any) -> tuple[Any, ...]:
    weights = parameters(rng, FLOAT32)
    moments = ([cupy.zeros_like(w) for w in weights] for _ in range(2))
    copies = [w.astype(FLOAT16) for w in weights]
    return None, None, None, RATE, 3, weights, parameters(rng, FLOAT16), *moments, copies


def _moved(*inputs: Any) -> int:
    """28 bytes for direction and moments, 12 for the weights, as directions go through memory."""
    return 40 * sum(w.size for w in inputs[5])


def _moved_mixed(*inputs: Any) -> int:
    """Two bytes less for the gradient and for each way of the direction, two more for the copy."""
    return 36 * sum(w.size for w in inputs[5])


CASES = [
    Case("LambOptimizer", "f4,one", _one, nbytes=_moved, outputs=STATE),
    Case("LambOptimizer", "f4,model", _model, nbytes=_moved, outputs=STATE),
    Case(
        "LambOptimizer",
        "f4,f2,copy,model",
        _mixed,
        nbytes=_moved_mixed,
        outputs=(*STATE, "new_mixed_precision_weights"),
    ),
]
