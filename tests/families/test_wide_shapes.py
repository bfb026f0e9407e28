# SPDX-License-Identifier: MIT
"""Arrays without elements, with the largest extent that there is, are computed like any other."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops.codecs.fidelity import measure

EMPTY = np.zeros((0, 2**59 - 1), np.float16)
SOME = np.arange(3, dtype=np.float16)
S = np.array(2, np.float32)

CALLS = [
    (lambda x: cto.is_all_finite(x), lambda y: bool(y)),
    (lambda x: cto.reduce_all_l2(x), lambda y: y == np.float16(5**0.5)),
    (lambda x: cto.mixed_precision_scale(S, x, to="float16"), lambda y: y[0].shape == EMPTY.shape),
    (
        lambda x: cto.mixed_precision_scale(S, x, to="float32", fuse_outputs=True),
        lambda y: y[0][2] == 4,
    ),
    (lambda x: cto.gradient_norm(x), lambda y: y[0] == np.float32(5**0.5)),
    (
        lambda x: cto.inplace_clip_grad_norm([a.copy() for a in x]),
        lambda y: y[0].shape == EMPTY.shape,
    ),
    (
        lambda x: cto.sgd_optimizer_list(1.0, [a.copy() for a in x], x),
        lambda y: (y[1][1] == 0).all(),
    ),
    (
        lambda x: cto.adam_optimizer_list(1.0, 1, *([a.copy() for a in x] for _ in range(4))),
        lambda y: y[1][0].shape == EMPTY.shape,
    ),
    (
        lambda x: cto.in_place_accumulator_list([a.copy() for a in x], x),
        lambda y: (y[0].shape, y[1][2]) == (EMPTY.shape, 4),
    ),
]


@pytest.mark.parametrize(("call", "is_right"), CALLS)
def test_a_list_holds_one(call, is_right) -> None:
    assert is_right(call([EMPTY, SOME]))


@pytest.mark.parametrize("codec", ["pack16", "msfp15", "pack1"])
def test_a_codec_is_measured_on_one(codec) -> None:
    decoded = cto.compress(EMPTY, codec).decompress()
    assert measure(codec, EMPTY, decoded).violations == 0
