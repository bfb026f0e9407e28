# SPDX-License-Identifier: MIT
"""Sample inputs of every operator, by the family's name; each module ends in its table SAMPLES."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

import numpy as np

from ...dtypes import ELEMENT_TYPES, FLOATS, Dtype, dtype_name
from ...frame.op import Op
from ...registry import FAMILIES
from ...schema import Output, Spec
from ..compare import tolerance_of

Generator = np.random.Generator
Shape = tuple[int, ...]

_DTYPE_NAMES = {element.name for element in ELEMENT_TYPES}

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


@dataclass(frozen=True)
class Sample:
    """One call: a label, attributes, and what makes the inputs from a random generator.

    `offset` is by how many elements inputs and outputs start off a 16-byte boundary; `out_offset`
    by how many outputs do, where it is not the same. `terms` are those of its longest sum.
    `view` gives what of a result on the host is compared, where it is not its values. `slack`
    gives, for inputs, what the first results may be off for reasons that no tolerance knows.
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
        """By how much each of n results may be off beside its tolerance."""
        known = () if self.slack is None else self.slack(inputs)
        return islice(chain(known, repeat(0.0)), n)

    def compared(self, result: Any) -> Any:
        """What of a result on the host is compared."""
        return result if self.view is None else self.view(result)

    def tolerance(self, op: Op, dtype: Dtype) -> float:
        """What its results in a dtype are compared with."""
        tf32 = bool(self.attributes.get("allow_tf32"))
        return 0.0 if op.bitwise_exact else tolerance_of(dtype, self.terms, tf32)

    @property
    def offset_of_out(self) -> int:
        """By how many elements outputs start off a 16-byte boundary."""
        return self.offset if self.out_offset is None else self.out_offset

    @property
    def types(self) -> tuple[str, ...]:
        """The names of dtypes in its label."""
        return tuple(word for word in self.label.split("-") if word in _DTYPE_NAMES)

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
    """Each operator's ELEMENTWISE_SHAPES in one dtype, special values in every dtype.

    arrays(rng, name, shape, dtype) and special(rng, name, dtype) make the inputs.
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


def all_samples() -> dict[str, tuple[Sample, ...]]:
    """Every family's samples by operator name, those of mixed alignment at the end."""
    modules = (importlib.import_module(f"{__name__}.{family}") for family in FAMILIES)
    tables = {name: samples for module in modules for name, samples in module.SAMPLES.items()}
    return {name: (*samples, *of_mixed_alignment(samples)) for name, samples in tables.items()}


def sampled() -> list[str]:
    """The operators that have samples: those whose calls can be made alone."""
    return [name for name, samples in all_samples().items() if samples]


def of_mixed_alignment(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Of each kind of misaligned sample one with aligned outputs and one with aligned inputs."""
    kinds: dict[str, Sample] = {}
    for sample in samples:
        if sample.offset:
            kinds.setdefault(_without_dtypes(sample.label), sample)
    for sample in kinds.values():
        for part, inputs, out in (("inputs", sample.offset, 0), ("out", 0, sample.offset)):
            label = f"{sample.label}-{part}-alone"
            yield replace(sample, label=label, offset=inputs, out_offset=out)


def _without_dtypes(label: str) -> str:
    return "-".join(word for word in label.split("-") if word not in _DTYPE_NAMES)


def placed_inputs(op: type[Op] | Op, inputs: Sequence[Any], offset: int, xp: Any) -> list[Any]:
    """Copies of an operator's inputs, each in the memory it is declared in."""
    return mapped_inputs(op, inputs, lambda array: placed(array, offset, xp))


def mapped_inputs(
    op: type[Op] | Op, inputs: Sequence[Any], place: Callable[[Any], Any]
) -> list[Any]:
    """An operator's inputs, `place` of each that is on the device; host inputs as they are."""

    def mapped(value: Any) -> Any:
        return [place(item) for item in value] if isinstance(value, list) else place(value)

    pairs = zip(op.inputs, inputs, strict=False)
    return [value if item.memory == "host" else mapped(value) for item, value in pairs]


def as_tuple(results: Any) -> tuple[Any, ...]:
    """What a call returned, as a tuple."""
    return results if isinstance(results, tuple) else (results,)


def flat(results: Any) -> list[Any]:
    """What a call returned, one by one, lists taken apart."""
    if not isinstance(results, tuple):
        return [results]
    return [array for item in results for array in flat(item)]


def mapped_outputs(
    op: type[Op] | Op, inputs: Sequence[Any], expected: Any, place: Callable[[Any], Any]
) -> tuple[Any, ...]:
    """What `out=` takes for results like these: `place` of each that is an array on the device."""
    results = as_tuple(expected)
    if len(op.outputs) == 1 and op.outputs[0].variadic:
        return tuple(map(place, results))
    given = dict(zip((item.name for item in op.inputs), inputs, strict=False))

    def mapped(output: Output, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(None if array is None else place(array) for array in value)
        is_array = output.memory == "device" or isinstance(
            given.get(str(output.aliases)), np.ndarray
        )
        return place(value) if is_array and output.memory != "host" and value is not None else None

    return tuple(map(mapped, op.outputs, results))


def placed(array: Any, offset: int, xp: Any = np) -> Any:
    """A copy of a NumPy array in `xp`'s memory, `offset` elements off a 16-byte boundary."""
    if not isinstance(array, np.ndarray | np.generic):
        return array
    target = blank(Spec(array.shape, array.dtype), offset, xp)
    if hasattr(target, "set"):  # CuPy's: an element that equals 0 would be assigned as +0
        target.set(np.asarray(array))
    else:
        target[...] = xp.asarray(array)
    return target


def blank(spec: Spec, offset: int, xp: Any = np) -> Any:
    """An unwritten array in `xp`'s memory, `offset` elements off a 16-byte boundary."""
    flat = xp.empty(spec.size + offset, spec.dtype)
    return flat[offset:].reshape(spec.shape)
