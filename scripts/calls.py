# SPDX-License-Identifier: MIT
"""Calls to time: a case's inputs, in sets enough to pass the cache, and outputs to write into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cupy
from timing import rotations

SEED = 20_26


def input_sets(case: Any, op: Any) -> tuple[list[Any], int]:
    """Inputs for calls in turn, and the bytes that one call must move."""
    rng = cupy.random.default_rng(SEED)
    first = case.make(rng)
    results = as_tuple(op(*first, outputs=case.outputs))
    nbytes = case.nbytes(*first) if case.nbytes else moved_nbytes(first, results)
    return [first, *(case.make(rng) for _ in range(rotations(nbytes) - 1))], nbytes


def call(case: Any, op: Any, inputs: Any) -> Callable[[], Any]:
    """A call into outputs of its own; views and host outputs are new each time."""
    if case.run is not None:
        return case.run(op, *inputs)
    given = {id(array.data.mem) for array in flat(inputs)}
    results = as_tuple(op(*inputs, outputs=case.outputs))
    found = tuple(own(result, given) for result in results)
    out = found if any(True for _ in flat(found)) else None
    return lambda: op(*inputs, out=out, outputs=case.outputs)


def own(result: Any, given: set[int]) -> Any:
    """A result, or a list of them, as `out=` takes it: None for what is no memory of its own."""
    if isinstance(result, tuple):
        return tuple(own(item, given) for item in result)
    return None if is_shared(result, given) else result


def is_shared(result: Any, given: set[int]) -> bool:
    """Whether a result is no array on the device, or in the memory of an input."""
    return not isinstance(result, cupy.ndarray) or id(result.data.mem) in given


def as_tuple(result: Any) -> tuple[Any, ...]:
    """One output or several, as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def moved_nbytes(inputs: Any, results: tuple[Any, ...]) -> int:
    """Every array read or written once."""
    return sum(array.nbytes for array in flat([*inputs, *results]))


def flat(values: Any) -> Iterator[Any]:
    """The CuPy arrays among values, lists taken apart."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from flat(value)
        elif isinstance(value, cupy.ndarray):
            yield value
