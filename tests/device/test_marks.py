# SPDX-License-Identifier: MIT
"""Notes that are made at once with what a call of an operator writes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from interrupts import at_each_line

import cupy_training_ops as cto
from cupy_training_ops.device.marks import Marks, call_with_marks, own_marks


def noting(notes: list[str]) -> Marks:
    return Marks(*[(partial(notes.append, name),) for name in Marks._fields])


def test_the_first_call_alone_has_them(anywhere, rng) -> None:
    del anywhere
    notes: list[str] = []
    x = rng.standard_normal((3, 5)).astype(np.float32)

    def twice() -> tuple[Any, Any]:
        return cto.relu_grad(x, x), cto.relu_grad(x, x)

    first, second = call_with_marks(noting(notes), twice)
    assert notes == ["first", "last"]
    np.testing.assert_array_equal(first, second)
    assert own_marks() == Marks()


def test_they_are_there_if_and_only_if_it_is_written(rng) -> None:
    """At whatever line the call is interrupted; an array of many pieces may be written in part."""
    notes: list[str] = []
    x, out = rng.standard_normal((3, 5)), np.zeros((3, 5))
    x = np.abs(x) + 1

    def begin() -> None:
        notes.clear()
        out[...] = 0

    def check(_: None, line: Any) -> None:
        assert (notes == ["first", "last"]) == out.all() == out.any(), line
        assert own_marks() == Marks(), line

    operator = cto.get_op("LayerNormalization")(axis=-1)
    scale = np.ones(5)

    def call(_: None) -> None:
        call_with_marks(noting(notes), partial(operator, out=(out, None, None)), x, scale, scale)

    at_each_line(begin, call, check)


def test_a_call_that_is_refused_leaves_none() -> None:
    notes: list[str] = []
    with pytest.raises(cto.ArgumentError):
        call_with_marks(noting(notes), cto.relu_grad, np.ones(3), np.ones(4))
    cto.relu_grad(np.ones(3), np.ones(3))
    assert notes == []
