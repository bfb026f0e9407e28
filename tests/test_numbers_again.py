# SPDX-License-Identifier: MIT
"""Numbers of the call before are known again, and no other is taken for one of them."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops.call.checks import Freezing
from cupy_training_ops.declare.schema import Changing, Input, flag, integer, real
from cupy_training_ops.device.arguments import DynamicArgument

NUMBERS = [
    *(0.0, -0.0, 1.0, 1, True, False, 0, 2**53 + 1, float(2**53), math.inf, -1.5),
    *(np.float32(1), np.float32(-0.0), np.float16(0.1), np.float32(0.1), 0.1, np.int64(1)),
    *(np.bool_(True), np.array(1.0), np.array([2]), math.nan, np.float64(math.nan)),
]


def shown(freeze, value) -> str:
    """What it makes of a value, its type and sign too, or what it says."""
    try:
        result = freeze(value)
    except cto.OpError as error:
        return str(error)
    return f"{type(result)} {result!r}"


@pytest.mark.parametrize("convert", [real, integer, flag])
def test_each_number_is_frozen_as_if_it_came_first(convert, seed) -> None:
    declared = Input("N", "float64", memory="host", convert=convert, static=False)
    again, draw = Freezing("Op", declared), random.Random(seed)
    for value in draw.choices(NUMBERS, k=2000):
        assert shown(again, value) == shown(Freezing("Op", declared), value)


def test_the_same_number_is_the_same_object() -> None:
    freeze = Freezing("Op", Input("N", "float64", memory="host", convert=real, static=False))
    assert freeze(np.float32(0.3)) is freeze(np.float32(0.3))


def test_what_follows_from_several_numbers_follows_each(seed) -> None:
    draw = random.Random(seed)
    several = Changing(0).then(lambda a, b: (a, b), Changing(2).then(lambda b: -b))
    dynamic, values = DynamicArgument(None, several, several.of), {0: 1.5, 1: 2.5, 2: 3.5}
    for _ in range(50):
        values = values | {draw.randrange(3): draw.random()}
        assert dynamic.of(values) == (values[0], -values[2])


def test_an_array_of_one_number_may_change(anywhere) -> None:
    """An array is read anew, although it is the same object."""
    op, x, ratio = cto.Dropout(seed=1), anywhere.place(np.ones(4096, np.float32)), np.array(0.25)
    counts = []
    for ratio[...] in (0.25, 0.75):
        counts.append(int(op(x, ratio, True)[1].sum()))
    assert counts[1] < 2048 < counts[0]


def test_an_array_that_holds_another_number_now_is_read_anew() -> None:
    freeze = Freezing("Op", Input("N", "float64", memory="host", convert=flag, static=False))
    array = np.array([True])
    assert freeze(array) is True
    array[:] = False
    assert freeze(array) is False


def test_arrays_that_were_apart_are_compared_again(anywhere) -> None:
    """The same operator, shapes and alignment; then memory of its own, at the same place."""
    op, memory = cto.ReluGrad(), anywhere.place(np.ones(96, np.float32))
    dy, x, out = memory[:32], memory[32:64], memory[64:]
    op(dy, x, out=out)
    with pytest.raises(cto.ArgumentError, match="shared with"):
        op(dy, x, out=memory[16:48])
    op(dy, x, out=out)
