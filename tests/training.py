# SPDX-License-Identifier: MIT
"""Steps that tests make with every optimizer: clipped, unscaled, with new rates, one skipped."""

from __future__ import annotations

from typing import Any

import numpy as np
from runs import Run

import cupy_training_ops as cto
from cupy_training_ops.optimizers.state import steps

OPTIMIZERS = ("SGD", "Adam", "AdamW", "Lamb")
SHAPES = ((33, 7), (5,), (0, 3), (1000,), ())
RATES = (0.1, 0.03, 0.01)
N_STEPS, SKIPPED = 10, 4  # the step with a NaN among its gradients
LOSS_SCALE, MAX_NORM = 8.0, 1.5


class Training:
    """An optimizer, gradients that it is given, and a learning rate where the parameters are."""

    def __init__(self, run: Run, name: str, rng: np.random.Generator, **options: Any) -> None:
        self._run = run
        self._values = [rng.standard_normal((N_STEPS, *shape)) for shape in SHAPES]
        self._values[1][SKIPPED, 2] = np.nan
        start = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
        self.parameters = [run.place(array) for array in start]
        self.copies = [run.place(array.astype(np.float16)) for array in start[:-1]] + [None]
        self.gradients = [run.place(np.zeros(shape, np.float32)) for shape in SHAPES]
        self.lr = run.place(np.full(1, RATES[0], np.float32))
        make = getattr(cto, name)
        self.optimizer = make(self.parameters, self.lr, low_precision=self.copies, **options)

    def prepare(self, i: int) -> None:
        """Write the gradients of a step into their arrays, and the learning rate."""
        for array, values in zip(self.gradients, self._values, strict=True):
            array[...] = self._run.place(np.asarray(values[i], np.float32) * LOSS_SCALE)
        self.lr[...] = RATES[i * len(RATES) // N_STEPS]

    def step(self) -> None:
        self.optimizer.step(self.gradients, loss_scale=LOSS_SCALE, max_norm=MAX_NORM)

    def host(self, array: Any) -> np.ndarray:
        """An array of this training as NumPy's."""
        return self._run.host(array)

    def results(self) -> list[np.ndarray]:
        """All that steps change, on the host."""
        state = self.optimizer.state_dict()
        moments = [
            array.copy() for name in self.optimizer.moments for array in state[name].values()
        ]
        arrays = [*self.parameters, *(copy for copy in self.copies if copy is not None)]
        actual = [np.array(self._run.host(array)) for array in arrays]
        return [*actual, *moments, np.array(steps(self.optimizer.names, state.get("step", 0)))]


def assert_same(some: list[np.ndarray], others: list[np.ndarray]) -> None:
    """Bit for bit."""
    for a, b in zip(some, others, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
