# SPDX-License-Identifier: MIT
"""Steps of AdamW that ranks make together, and the same by the means of all ranks' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from runs import Run

import cupy_training_ops as cto
from cupy_training_ops.call.backends import to_host
from cupy_training_ops.optimizers.state import steps

# Parts of a block and tails, tails alone, empty, of rank 0.
SHAPES = ((33, 21), (5,), (0, 3), (1000,), (), (128, 6))
FLOAT32 = (np.float32, np.float32, np.float16, None)
STEPS = 4


class RankTraining:
    """What one rank has; without a group what it would have by the means."""

    def __init__(
        self,
        group: cto.ProcessGroup | None,
        seed: int,
        types: Sequence[Any] = FLOAT32,
        run: Run | Any = None,
        shapes: Sequence[tuple[int, ...]] = SHAPES,
    ) -> None:
        self.group, self.seed, self.types, self.shapes = group, seed, types, shapes
        self._place = run.place if run else np.array
        dtype, _, low, moments = types
        rng = np.random.default_rng(seed)
        start = [np.asarray(rng.standard_normal(shape)).astype(dtype) for shape in shapes]
        self.parameters = [self._place(array) for array in start]
        made = [None if low is None else self._place(array.astype(low)) for array in start]
        self.copies = None if low is None else [*made[:-1], None]
        self.optimizer = cto.AdamW(
            self.parameters, 0.1, low_precision=self.copies, moment_dtype=moments, group=group
        )
        self.made = 0

    def gradients(self, i: int, rank: int | None = None) -> list[Any]:
        """A rank's of a step: this one's."""
        rng = np.random.default_rng((self.seed, i, self.group.rank if rank is None else rank))
        actual = [np.asarray(rng.standard_normal(shape)) * 8 for shape in self.shapes]
        return [self._place(array.astype(self.types[1])) for array in actual]

    def means(self, i: int, n: int) -> list[Any]:
        """Of all ranks."""
        every = [map(to_host, self.gradients(i, rank)) for rank in range(n)]
        columns = zip(*every, strict=True)
        wide = [np.mean([x.astype(np.float64) for x in column], axis=0) for column in columns]
        return [self._place(rounded(array, self.types[1])) for array in wide]

    def steps(self, count: int, without: Sequence[int] = (), n: int = 0, **numbers: Any) -> None:
        for _ in range(count):
            actual = self.means(self.made, n) if self.group is None else self.gradients(self.made)
            chosen = [None if i in without else g for i, g in enumerate(actual)]
            self.optimizer.step(chosen, **numbers)
            self.made += 1

    def results(self) -> list[np.ndarray]:
        """Parameters, copies, moments and the counts of steps."""
        state = self.optimizer.state_dict()
        moments = [array for name in ("moment_1", "moment_2") for array in state[name].values()]
        copies = [] if self.copies is None else self.copies[:-1]
        arrays = [to_host(array).copy() for array in (*self.parameters, *copies, *moments)]
        return [*arrays, np.array(steps(self.optimizer.names, state["step"]))]


def rounded(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Once: NumPy rounds float64 to bfloat16 by way of float32, as the package does."""
    return np.asarray(array).astype(dtype)


def by_means(n: int, seed: int, types: Sequence[Any] = FLOAT32, run: Run | Any = None,
             shapes: Sequence[tuple[int, ...]] = SHAPES, without: Sequence[int] = (),
             **numbers: Any) -> RankTraining:  # fmt: skip
    """Four steps of one that has all ranks' gradients, the last two without some of them."""
    training = RankTraining(None, seed, types, run, shapes)
    training.steps(STEPS // 2, n=n, **numbers)
    training.steps(STEPS // 2, without, n, **numbers)
    return training
