# SPDX-License-Identifier: MIT
"""Launches of DivGrad where A and B broadcast; the kernels are in include/div_grad.cuh.

What is summed is divided into chunks; each gives a row of partial sums, and a second launch adds
the rows up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dtypes import element_type
from ..plan import Config, Launch, Plan, Scratch, by_value, ceil_div
from ..schema import Spec
from .broadcasting import Dimension, strides
from .elementwise import THREADS, type_slots
from .fast_division import divisor

WARP = 32
PACKETS = 16  # that a thread sums before it writes a partial sum
BLOCKS = 2048  # about as many keep a large GPU busy
# The same for columns by bytes of an element, as measured on an H200: rows of partial sums are wide
# beside rows of narrow elements.
COLUMN_BLOCKS = {2: 512, 4: 2048, 8: 4096}
MAX_DIMENSIONS = 32  # Dimensions::MOST, and more than CuPy's arrays have
FINISH_THREADS = 1024
SECTOR = 8  # floats that are read at once: fewer columns a block, and so more blocks, cost nothing
ACCUMULATOR_NBYTES = {"float": 4, "double": 8}


def plan_part(
    form: tuple[int, int, int], part: str, t: np.dtype[Any], aligned: bool, wanted: bool
) -> Plan:
    """One operand has every dimension, the part only the middle one of `form`."""
    outer, kept, inner = form
    row = kept if inner == 1 else inner
    packets = aligned and row % (16 // t.itemsize) == 0
    width = 16 // t.itemsize if packets else 1
    if inner == 1:
        return _columns(outer, kept, part, t, width, wanted)
    return _runs(form, part, t, width, wanted)


def plan_general(dims: Sequence[Dimension], t: np.dtype[Any], outputs: Mapping[str, Any]) -> Plan:
    """A launch for each gradient, and one that adds up partial sums where it has chunks."""
    launches: list[Launch] = []
    nbytes = 0
    for name, spec in outputs.items():
        if spec is not None and spec.size:
            more, needed = _general(dims, name, spec, t)
            launches += more
            nbytes = max(nbytes, needed)
    return Plan(tuple(launches), nbytes)


def _whole_and_part(part: str) -> tuple[str, ...]:
    whole = "A" if part == "B" else "B"
    return ("dY", whole, part, f"d{whole}")


def _columns(
    rows: int, columns: int, part: str, t: np.dtype[Any], width: int, wanted: bool
) -> Plan:
    """A part that is one row: a block as wide as the row, as far as it goes."""
    packets = ceil_div(columns, width)
    x = min(THREADS, _power_of_2(packets))
    y = THREADS // x
    across = ceil_div(packets, x)
    chunks = max(1, min(COLUMN_BLOCKS[t.itemsize] // across, ceil_div(rows, y * PACKETS)))
    rows_each = ceil_div(rows, chunks)
    partials, nbytes = _partials(chunks * y, columns, t, wanted)
    args = (*_whole_and_part(part), partials, rows, columns, rows_each, part == "B", width > 1)
    launch = Launch("div_grad__columns", Config((across, chunks), (x, y)), args, type_slots(t))
    return Plan((launch, *_finish(f"d{part}", chunks * y, columns, t, wanted)), nbytes)


def _runs(
    form: tuple[int, int, int], part: str, t: np.dtype[Any], width: int, wanted: bool
) -> Plan:
    """A part that is one dimension with others inside it: a group of lanes sums along those."""
    outer, kept, inner = form
    packets = ceil_div(inner, width)
    lanes = min(WARP, _power_of_2(packets))
    inner_each = min(inner, lanes * width * PACKETS)
    outer_each = max(1, min(outer, PACKETS // max(1, ceil_div(packets, lanes))))
    inner_chunks = max(1, ceil_div(inner, max(1, inner_each)))
    chunks = inner_chunks * max(1, ceil_div(outer, outer_each))
    partials, nbytes = _partials(chunks, kept, t, wanted and chunks > 1)
    runs = by_value(
        **_int64(
            outer=outer,
            kept=kept,
            inner=inner,
            outer_each=outer_each,
            inner_each=inner_each,
            inner_chunks=inner_chunks,
            chunks=chunks,
        ),
        lanes=np.uint32(lanes),
    )
    config = Config((ceil_div(kept * chunks, THREADS // lanes),), (THREADS,))
    args = (*_whole_and_part(part), f"d{part}", partials, runs, part == "B", width > 1)
    launch = Launch("div_grad__runs", config, args, type_slots(t))
    return Plan((launch, *_finish(f"d{part}", chunks, kept, t, wanted and chunks > 1)), nbytes)


def _general(
    dims: Sequence[Dimension], name: str, spec: Spec, t: np.dtype[Any]
) -> tuple[list[Launch], int]:
    """Neighbouring threads take neighbouring elements of dY, kept or summed over."""
    has = [d.in_a if name == "dA" else d.in_b for d in dims]
    summed = math.prod(d.extent for d, there in zip(dims, has, strict=True) if not there)
    lanes = 1 if has[-1] else min(WARP, _power_of_2(summed))
    tasks = THREADS * BLOCKS // lanes
    most = max(1, min(tasks // spec.size, ceil_div(summed, lanes * PACKETS)))
    each = max(1, ceil_div(summed, most))
    chunks = max(1, ceil_div(summed, each))
    partials, nbytes = _partials(chunks, spec.size, t, chunks > 1)
    config = Config((ceil_div(spec.size * chunks, THREADS // lanes),), (THREADS,))
    counts = (spec.size, summed, each, chunks, lanes, name == "dA")
    args = ("dY", "A", "B", name, partials, _dimensions(dims, has), *counts)
    launch = Launch("div_grad__general", config, args, type_slots(t))
    return [launch, *_finish(name, chunks, spec.size, t, chunks > 1)], nbytes


def _dimensions(dims: Sequence[Dimension], kept: Sequence[bool]) -> Any:
    """The struct Dimensions: kept ones first."""
    order = sorted(range(len(dims)), key=lambda i: not kept[i])
    steps = {
        "dy": strides(dims, (True,) * len(dims)),
        "a": strides(dims, [d.in_a for d in dims]),
        "b": strides(dims, [d.in_b for d in dims]),
    }
    rest = MAX_DIMENSIONS - len(dims)
    extents = [*(dims[i].extent for i in order), *[1] * rest]
    tables = {name: [*(step[i] for i in order), *[0] * rest] for name, step in steps.items()}
    return by_value(
        extent=np.array([divisor(max(1, extent)) for extent in extents]),
        **{name: np.array(table, np.int64) for name, table in tables.items()},
        n_kept=np.int32(sum(kept)),
        n=np.int32(len(dims)),
    )


def _partials(rows: int, columns: int, t: np.dtype[Any], needed: bool) -> tuple[Any, int]:
    """The launch argument and the bytes of the partial sums."""
    if not needed:
        return None, 0
    return Scratch(0), rows * columns * ACCUMULATOR_NBYTES[element_type(t).accumulator]


def _finish(name: str, rows: int, columns: int, t: np.dtype[Any], needed: bool) -> list[Launch]:
    """The launch that adds up the rows of partial sums."""
    if not needed:
        return []
    least = min(SECTOR, _power_of_2(columns))
    y = min(FINISH_THREADS // least, _power_of_2(rows))
    x = max(least, THREADS // y)
    config = Config((ceil_div(columns, x),), (x, y))
    return [Launch("div_grad__finish", config, (Scratch(0), name, rows, columns), type_slots(t))]


def _int64(**values: int) -> dict[str, Any]:
    return {name: np.int64(value) for name, value in values.items()}


def _power_of_2(n: int) -> int:
    """The smallest power of 2 that is not below n."""
    return 1 << max(0, n - 1).bit_length()
