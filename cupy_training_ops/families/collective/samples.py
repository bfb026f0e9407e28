# SPDX-License-Identifier: MIT
"""Samples of collectives, in a group of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import FLOATS, Dtype, dtype_name
from ...process_group import ProcessGroup
from ...samples import Generator, Sample, Shape
from .operators import OPS

ALONE = ProcessGroup(0, 1)

# label, shapes of a list's arrays, offset from a 16-byte boundary in elements
LISTS: tuple[tuple[str, tuple[Shape, ...], int], ...] = (
    ("ordinary", ((16, 64),), 0),
    ("odd", ((3, 5, 7), (5,), (1, 13)), 0),
    ("empty", ((0, 4), (3,)), 0),
    ("one", ((1,),), 0),
    ("misaligned", ((1003,),), 1),
    ("large", ((5, 1640), (257,)), 0),
)


def arrays(rng: Generator, shapes: tuple[Shape, ...], dtype: Dtype, is_list: bool) -> list[Any]:
    """Draw an array of `dtype` for each of shapes; return the list, with is_list [the list].

    Numbers are in [-9, 9], unsigned ones in [0, 9]; bools are True or False.
    """
    least = {"u": 0, "b": -0.9}.get(dtype.kind, -9)
    most = 0.9 if dtype.kind == "b" else 9
    numbers = [rng.uniform(least, most, s) for s in shapes]
    values = [(np.round(x) if dtype.kind == "b" else x).astype(dtype) for x in numbers]
    return [values] if is_list else values


def samples() -> Iterator[Sample]:
    """Yield samples of each operator: all of LISTS in one dtype, and 7 elements in every dtype."""
    for number, (name, cls) in enumerate(OPS.items()):
        is_list = cls.inputs[0].variadic
        if cls.needs:
            continue
        one = FLOATS[number % len(FLOATS)]
        for label, shapes, offset in LISTS:
            some = shapes if is_list else shapes[:1]
            make = partial(arrays, shapes=some, dtype=one, is_list=is_list)
            yield Sample(name, f"{dtype_name(one)}-{label}", make, {"group": ALONE}, offset)
        for dtype in cls.types["T"]:
            make = partial(arrays, shapes=((7,),), dtype=np.dtype(dtype), is_list=is_list)
            yield Sample(name, f"{dtype_name(dtype)}-small", make, {"group": ALONE})


SAMPLES = {name: tuple(sample for sample in samples() if sample.op == name) for name in OPS}
