# SPDX-License-Identifier: MIT
"""Derivatives of forward operators, by JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np


def vjp(forward: Callable, primals: Sequence[np.ndarray], dy: np.ndarray) -> list[np.ndarray]:
    """The vector-Jacobian product for each primal.

    Compiled as a whole: JAX would compile each operation by itself, which takes twice as long.
    """
    backward = jax.jit(lambda primals, dy: jax.vjp(forward, *primals)[1](dy))
    return [np.asarray(gradient) for gradient in backward(tuple(primals), dy)]
