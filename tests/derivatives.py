# SPDX-License-Identifier: MIT
"""Derivatives of forward operators, by JAX and by finite differences."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence

import jax
import numpy as np

REPEATED = 16  # of as many tests one makes its calls of JAX once more, uncompiled


def vjp(forward: Callable, primals: Sequence[np.ndarray], dy: np.ndarray) -> list[np.ndarray]:
    """The vector-Jacobian product for each primal.

    Compiled as a whole: JAX would compile each operation by itself, which takes twice as long.
    """

    def backward(primals, dy):
        return jax.vjp(forward, *primals)[1](dy)

    results = [np.asarray(gradient) for gradient in jax.jit(backward)(tuple(primals), dy)]
    if is_drawn():
        check_compiled(results, backward(tuple(primals), dy))
    return results


def is_drawn() -> bool:
    """Return True for one test in REPEATED, which the session's seed decides."""
    key = f"{os.environ['CTO_SEED']} {os.environ['PYTEST_CURRENT_TEST']}"
    return random.Random(key).randrange(REPEATED) == 0


def check_compiled(results: Sequence[np.ndarray], expected: Sequence[object]) -> None:
    """Fail where compiling changes more than roundings: then the oracle is wrong."""
    for actual, each in zip(results, expected, strict=True):
        wide = [np.asarray(array).astype(np.float64) for array in (actual, each)]
        np.testing.assert_allclose(*wide, rtol=1e-2, atol=1e-2, err_msg="JAX under jit")


def finite_differences(forward: Callable, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """The same of one float64 input, within 1e-9: differences of fourth order allow a long step."""
    result = np.empty_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-3
        near, far = (forward(x + s) - forward(x - s) for s in (step, 2 * step))
        result[place] = (dy * (8 * near - far)).sum() / 12e-3
    return result
