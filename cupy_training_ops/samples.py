# SPDX-License-Identifier: MIT
"""Samples of calls: each family has its own in `samples.py`, which ends in its table SAMPLES."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

import numpy as np

from .dtypes import ELEMENT_TYPES, FLOATS, dtype_name

Generator = np.random.Generator
Shape = tuple[int, ...]

_DTYPE_NAMES = {element.name for element in ELEMENT_TYPES}

# Of sums of many products the tolerance is at least this, times the root of their number: so large
# are sums of numbers of size 1 and any sign, and what is left of them when they cancel has the
# rounding of what they were. Tensor cores, which multiply float16, bfloat16 and TF32, cut float32
# sums off instead of rounding them; TF32 has 11 bits of each factor.
# A chain of 420 products of deviation 1 in float32 was seen 2.8e-5 off, of some thousand elements.
ROOT_TOLERANCE = {"float64": 1e-14, "float32": 2e-6, "float16": 1e-4, "bfloat16": 1e-4}
# label, shape, offset; "large" fills several blocks and ends inside one
SHAPES: tuple[tuple[str, Shape, int], ...] = (
    ("ordinary", (16, 64), 0),
    ("odd", (3, 5, 7), 0),
    ("empty", (0, 4), 0),
    ("one", (1,), 0),
    ("scalar", (), 0),
    ("misaligned", (1003,), 1),
    ("large", (5, 4099), 0),
)
# Of families that work element by element: label, shape, offset, in one dtype an operator,
# beside special values in every dtype; "large" fills several blocks and ends inside one.
ELEMENTWISE_SHAPES: tuple[tuple[str, Shape, int], ...] = (
    ("ordinary", (16, 64), 0),
    ("odd", (3, 5, 7), 0),
    ("empty", (0, 4), 0),
    ("one", (1,), 0),
    ("misaligned", (3, 1003), 1),
    ("large", (5, 1640), 0),
)
# Of families that take lists: label, shapes, offset.
SHAPES_OF_LISTS: tuple[tuple[str, tuple[Shape, ...], int], ...] = (
    ("odd", ((3, 5, 7), (0, 3), (), (17,)), 0),
    ("empty", ((0,), (3, 0)), 0),
    ("one", ((),), 0),
    ("misaligned", ((1003,), (31, 3), (64,)), 1),
)


def rounding_of_sums(terms: Any, axes: Any, dtype: Any) -> Any:
    """Return tolerances of sums over `axes`: ROOT_TOLERANCE * sqrt(sum of terms^2).

    Rounding errors of n terms add up like a random walk. Sums are float64 for float64, else
    float32; the tolerance is 0 where terms are not finite.
    """
    tolerance = ROOT_TOLERANCE["float64" if dtype == np.float64 else "float32"]
    with np.errstate(all="ignore"):
        roots = np.sqrt(np.square(terms, dtype=np.float64).sum(axes))
    return tolerance * np.nan_to_num(roots, posinf=0.0)


@dataclass(frozen=True)
class Sample:
    """One call of an operator, to compare its results on GPU and CPU.

    label: words joined by "-", among them names of dtypes. make: makes the inputs. offset: elements
    by which inputs and outputs start after a 16-byte boundary; out_offset: of outputs, if another.
    terms: of the longest sum, on which tolerances depend. view: from a result in host memory to
    what is compared; None: its values. slack: from inputs to an additional tolerance of each of
    the first results.
    """

    op: str
    label: str
    make: Callable[[Generator], Sequence[Any]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    offset: int = 0
    out_offset: int | None = None
    terms: int = 1
    view: Callable[[Any], Any] | None = None
    slack: Callable[[Sequence[Any]], Sequence[Any]] | None = None

    def slacks(self, inputs: Sequence[Any], n: int) -> Iterator[Any]:
        """Yield for each of n results the slack that is added to its tolerance, 0.0 by default."""
        known = () if self.slack is None else self.slack(inputs)
        return islice(chain(known, repeat(0.0)), n)

    def comparable(self, result: Any) -> Any:
        """Return what is compared of a result in host memory."""
        return result if self.view is None else self.view(result)

    @property
    def offset_of_out(self) -> int:
        """Elements by which outputs start after a 16-byte boundary."""
        return self.offset if self.out_offset is None else self.out_offset

    @property
    def types(self) -> tuple[str, ...]:
        """The names of dtypes in its label."""
        return tuple(word for word in self.label.split("-") if word in _DTYPE_NAMES)

    @property
    def label_without_types(self) -> str:
        """The label without the names of dtypes."""
        return "-".join(word for word in self.label.split("-") if word not in _DTYPE_NAMES)

    @property
    def id(self) -> str:
        """A name for test ids and tables."""
        return f"{self.op}-{self.label}"


def elementwise_samples(
    names: Iterable[str],
    attributes: Mapping[str, Mapping[str, Any]],
    arrays: Callable[..., Sequence[Any]],
    special: Callable[..., Sequence[Any]],
) -> Iterator[Sample]:
    """Yield samples of each operator: ELEMENTWISE_SHAPES in one dtype, special values in every one.

    attributes: by name of the operator. arrays(rng, name, shape, dtype) and special(rng, name,
    dtype) return the inputs.
    """
    for number, name in enumerate(names):
        own = attributes.get(name, {})
        one = FLOATS[number % len(FLOATS)]
        for label, shape, offset in ELEMENTWISE_SHAPES:
            make = partial(arrays, name=name, shape=shape, dtype=one)
            yield Sample(name, f"{dtype_name(one)}-{label}", make, own, offset)
        for dtype in FLOATS:
            make = partial(special, name=name, dtype=dtype)
            yield Sample(name, f"{dtype_name(dtype)}-special", make, own)
