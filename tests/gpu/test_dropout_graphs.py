# SPDX-License-Identifier: MIT
"""Captured dropout: a state on the device gives fresh masks, numbers give the same one."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.test_capture import captured

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOAT16
from cupy_training_ops.families.dropout.operators import OPS

pytestmark = pytest.mark.gpu

SEED, REPLAYS = 11, 3
FORWARD = [name for name in OPS if not name.endswith("Grad")]


def call(name: str):
    """The operator, and what it takes before a state."""
    import cupy

    x = cupy.ones((65, 103), FLOAT16)
    if name == "BiasSoftmaxDropout":
        return get_op(name)(is_inner_broadcast=True, seed=SEED), (x, x, 0.5)
    bias = (x[0].copy(), None) if "Bias" in name else ()
    return get_op(name)(seed=SEED), (x, *bias, 0.5, True)


def replays(name: str, *state) -> tuple[list[bytes], list[bytes]]:
    """Masks of each replay of a graph; masks of as many calls beforehand."""
    import cupy

    op, inputs = call(name)
    eager = [op(*inputs, *state)[1].get().tobytes() for _ in range(REPLAYS)]
    if state:
        state[0][...] = cupy.array([SEED, 0], np.uint64)
    out = op(*inputs, (0, 0))
    cupy.cuda.Device().synchronize()
    graph, stream = captured(lambda: op(*inputs, *state, out=out))
    masks = []
    for _ in range(REPLAYS):
        graph.launch(stream)
        stream.synchronize()
        masks.append(out[1].get().tobytes())
    return masks, eager


@pytest.mark.parametrize("name", FORWARD)
def test_a_state_on_the_device_draws_anew(name) -> None:
    import cupy

    state = cupy.array([SEED, 0], np.uint64)
    masks, eager = replays(name, state)
    assert masks == eager
    assert len(set(masks)) == REPLAYS
    assert state.get().tolist() == [SEED, REPLAYS]
    assert replays(name)[1] == eager  # an instance with this seed draws the same


@pytest.mark.parametrize("name", FORWARD)
def test_numbers_draw_the_same_each_time(name) -> None:
    masks, eager = replays(name)
    assert len(set(masks)) == 1
    assert masks[0] not in eager
