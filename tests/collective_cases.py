# SPDX-License-Identifier: MIT
"""What every rank asks of every collective: results beside the definition, from all ranks' inputs.

Each rank makes the inputs of all ranks, so that it needs no other's word for what is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import cupy_training_ops as cto
from cupy_training_ops.dtypes import BFLOAT16, FIXED_SIZE, FLOATS, dtype_name
from cupy_training_ops.families.collective.operators import NUMBERS
from cupy_training_ops.families.collective.queue import INTEGERS
from cupy_training_ops.testing.compare import assert_matches

# Unequal, empty and of rank 0; not adjacent, since each is an array of its own.
SHAPES = ((2, 3), (), (0, 4), (129,), (3, 5))


def inputs(rank: int, dtype: Any, shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[np.ndarray]:
    """A rank's arrays."""
    rng = np.random.default_rng(100 + rank)
    kind = np.dtype(dtype).kind
    low = 0 if kind == "u" else -9
    arrays = [np.asarray(rng.uniform(low, 9, shape)) for shape in shapes]
    if kind == "c":
        return [np.asarray(x + 1j * np.roll(x, 1)).astype(dtype) for x in arrays]
    return [np.asarray(x > 0 if kind == "b" else x).astype(dtype) for x in arrays]


def all_inputs(n: int, dtype: Any, shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[Any]:
    """Every rank's arrays."""
    return [inputs(rank, dtype, shapes) for rank in range(n)]


def rounded(x: np.ndarray, dtype: Any) -> np.ndarray:
    return np.asarray(x, np.float32 if dtype == BFLOAT16 else None).astype(dtype)


def sums(ranks: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Element by element, by Python's exact sums."""
    dtype = ranks[0][0].dtype
    summed = []
    for column in zip(*ranks, strict=True):
        elements = zip(*map(np.ravel, column), strict=True)
        if dtype.kind in "iu":
            bits = 8 * dtype.itemsize
            low = 0 if dtype.kind == "u" else -(2 ** (bits - 1))
            values = [(sum(map(int, v)) - low) % 2**bits + low for v in elements]
        else:
            values = [math.fsum(map(float, v)) for v in elements]
        kind = dtype if dtype.kind in "iu" else np.float64
        summed.append(rounded(np.array(values, kind), dtype).reshape(column[0].shape))
    return summed


def owners(sizes: Sequence[int], n: int) -> list[int]:
    """By walking over elements: the chunk that each array's first one is in."""
    alignment = 32 * n
    padded = (sum(sizes) // alignment + 1) * alignment
    chunks = np.repeat(np.arange(n), padded // n)
    return [int(chunks[sum(sizes[:i])]) for i in range(len(sizes))]


def adasum(ranks: Sequence[np.ndarray], first: int = 1) -> list[np.ndarray]:
    """The formula in float64, each level rounded to the arrays' type; what each rank has."""
    values, level = list(ranks), first
    while level < len(values):
        after = list(values)
        for low in (r for r in range(len(values)) if not r & level):
            a, b = (values[r].astype(np.float64).ravel() for r in (low, low | level))
            aa, bb, ab = (math.fsum(x * y) for x, y in ((a, a), (b, b), (a, b)))
            small = math.sqrt(np.finfo(np.float64).tiny)
            ca, cb = (1 if square < small else 1 - ab / (2 * square) for square in (aa, bb))
            both = rounded((ca * a + cb * b).reshape(ranks[0].shape), ranks[0].dtype)
            after[low] = after[low | level] = both
        values, level = after, 2 * level
    return values


def check_sums(group: cto.ProcessGroup, dtype: Any, place: Any, host: Any) -> None:
    expected = sums(all_inputs(group.size, dtype))
    op = cto.NcclAllReduce(group=group)
    arrays = place(inputs(group.rank, dtype))
    result = op(arrays)
    assert all(a is b for a, b in zip(result, arrays, strict=True))  # in place
    compare(host(result), expected, dtype)
    arrays = place(inputs(group.rank, dtype))
    out = tuple(place([np.zeros(shape, dtype) for shape in SHAPES]))
    compare(host(op(arrays, out=out)), expected, dtype)
    compare(host(arrays), inputs(group.rank, dtype), None)


def check_megatron(group: cto.ProcessGroup, dtype: Any, place: Any, host: Any) -> None:
    (x,) = inputs(group.rank, dtype, ((7, 13),))
    compare(host([cto.megatron_f(*place([x]), group=group)]), [x], None)
    expected = sums(all_inputs(group.size, dtype, ((7, 13),)))
    compare(host([cto.megatron_g(*place([x]), group=group)]), expected, dtype)


def check_owned(group: cto.ProcessGroup, dtype: Any, place: Any, host: Any) -> None:
    n = group.size
    for shapes in owned_shapes(n):
        owned, ranks = owners([math.prod(s) for s in shapes], n), all_inputs(n, dtype, shapes)
        expected = [ranks[owner][i] for i, owner in enumerate(owned)]
        result = cto.nccl_all_gather(place(ranks[group.rank]), group=group)
        compare(host(result), expected, None)
        if dtype in FLOATS:
            own, total = ranks[group.rank], sums(ranks)
            pairs = enumerate(owned)
            expected = [total[i] if owner == group.rank else own[i] for i, owner in pairs]
            out = tuple(place([np.zeros(shape, dtype) for shape in shapes]))
            for target in (None, out):
                result = cto.nccl_reduce_scatter(place(own), group=group, out=target)
                compare(host(result), expected, dtype)


def owned_shapes(n: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Lists whose arrays lie in one chunk each; their sums below, at and above the alignment."""
    yield tuple((4, 8) for _ in range(n))  # a multiple of it: padded all the same
    yield ((7,), (0,), (2, 3))
    yield (*((96,) for _ in range(n - 1)), (5, 19))  # one for each rank
    yield ((5,), (), (1, 1))


def check_adasum(group: cto.ProcessGroup, dtype: Any, place: Any, host: Any) -> None:
    n = group.size
    if n & (n - 1):
        return
    for count in range(1, 6):
        shapes = SHAPES[-count:]
        ranks = all_inputs(n, dtype, shapes)
        expected = [adasum(column)[group.rank] for column in zip(*ranks, strict=True)]
        result = cto.adasum_all_reduce(place(ranks[group.rank]), group=group)
        compare(host(result), expected, dtype)


def check_letters(group: cto.ProcessGroup, dtype: Any, place: Any, host: Any) -> None:
    """Around the ring: with shapes of the message's, of `shapes`, and of out=."""
    if group.size == 1:
        return
    n, number = group.size, group.rank
    types = [dtype_name(dtype)] * len(SHAPES)
    keywords = {"group": group, "tag": 5, "element_types": types}
    library = "numpy" if type(place([np.ones(1)])[0]) is np.ndarray else "cupy"

    def give() -> None:
        assert cto.send(True, (number + 1) % n, place(inputs(number, dtype)), **keywords)

    def take(form: str) -> None:
        source, extra, called = (number - 1) % n, {"arrays": library}, {}
        if form == "shapes":
            extra["shapes"] = SHAPES
        if form == "out":
            called["out"] = (None, tuple(place([np.zeros(s, dtype) for s in SHAPES])))
        done, data = cto.recv(True, source, **keywords, **extra, **called)
        assert done
        compare(host(data), inputs(source, dtype), None)

    for form in ("message", "shapes", "out"):
        actions = [give, lambda form=form: take(form)]
        for action in reversed(actions) if number % 2 else actions:
            action()


def compare(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], dtype: Any) -> None:
    """Bit for bit without a dtype, else within its tolerance."""
    for a, b in zip(actual, expected, strict=True):
        assert a.shape == b.shape
        assert_matches(a, b, 0 if dtype is None or np.dtype(dtype).kind in "iu" else None)


MOVED = (check_owned, check_letters)  # also of types in which nothing is added
CHECKS = (check_sums, *MOVED)
FLOAT_CHECKS = (check_megatron, check_adasum)


def copies(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [array.copy() for array in arrays]


def check_all(group: cto.ProcessGroup, place: Any = copies, host: Any = list) -> int:
    """Every operator for every type; how many checks there were."""
    count = 0
    for dtype in FIXED_SIZE:
        of_numbers = CHECKS if dtype in INTEGERS else CHECKS + FLOAT_CHECKS
        for check in of_numbers if dtype in NUMBERS else MOVED:
            check(group, dtype, place, host)
            count += 1
    return count
