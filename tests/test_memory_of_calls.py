# SPDX-License-Identifier: MIT
"""Many calls leave no memory behind: what is remembered of them has an end."""

from __future__ import annotations

import gc
import itertools
import sys

import numpy as np
import pytest

import cupy_training_ops as cto

pytest.importorskip("cupy", reason="CuPy is in the extras")

from cupy_training_ops.testing.hollow import HOLLOW, hollow, hollow_launches

MANY = 100_000
ANEW = 4000  # more than instances and calls are remembered, each of which takes a millisecond
FEW = 100  # blocks of memory that a quarter of them may leave


def flat(*shape: int):
    return hollow(shape, np.float32)


def the_same():
    x = flat(64)
    return lambda _: cto.relu_grad(x, x)


def other_arrays():
    return lambda _: cto.relu_grad(flat(64), flat(64))


def other_shapes():
    return lambda n: cto.relu_grad(flat(1 + n % 3000), flat(1 + n % 3000))


def other_numbers():
    xs, step = [flat(64) for _ in range(4)], iter(range(1, 2**60))
    return lambda n: cto.adam_optimizer(1 / (n + 1), next(step), *xs)


def other_attributes():
    x = flat(64)
    return lambda n: cto.leaky_relu_grad(x, x, alpha=n / MANY)


def other_lists():
    op = cto.ConcatTraining(axis=0)
    return lambda n: op([flat(8), flat(8 + n % 5)])


def scratch():
    dy, indices = flat(64, 8), hollow((64,), np.int64)
    return lambda _: cto.gather_grad((100, 8), indices, dy)


def refused():
    x, y = flat(64), flat(65)

    def call(_: int) -> None:
        with pytest.raises(cto.ArgumentError):
            cto.relu_grad(x, y)

    return call


KINDS = [the_same, other_arrays, other_numbers, other_lists, scratch, refused]
CASES = [*((kind, MANY // 10) for kind in KINDS), (other_shapes, ANEW), (other_attributes, ANEW)]
THOROUGH = [pytest.param(kind, MANY, marks=pytest.mark.thorough) for kind in KINDS]


@pytest.mark.parametrize(("kind", "calls"), [*CASES, *THOROUGH])
def test_calls_leave_no_memory_behind(kind, calls, monkeypatch) -> None:
    """A quarter of them leaves what the one before left; what else the process does, others may."""
    monkeypatch.setattr(HOLLOW.driver, "notes", False)
    with hollow_launches() as launches:
        action, results = kind(), []
        for part in range(4):
            for n in range(part * calls // 4, (part + 1) * calls // 4):
                action(n)
            launches.clear()
            gc.collect()
            results.append(sys.getallocatedblocks())
    assert min(after - before for before, after in itertools.pairwise(results)) < FEW
