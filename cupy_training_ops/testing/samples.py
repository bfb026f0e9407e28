# SPDX-License-Identifier: MIT
"""All families' samples, and their arrays where a call takes them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from .. import families
from ..call.op import Op
from ..declare.schema import Output, Spec
from ..dtypes import Dtype
from ..registry import FAMILIES
from ..samples import Sample
from .compare import tolerance_of


@functools.cache
def all_samples() -> Mapping[str, tuple[Sample, ...]]:
    """Every family's samples by operator name, those of mixed alignment at the end."""
    modules = (importlib.import_module(f"{families.__name__}.{name}.samples") for name in FAMILIES)
    tables = {name: samples for module in modules for name, samples in module.SAMPLES.items()}
    return {name: (*samples, *of_mixed_alignment(samples)) for name, samples in tables.items()}


def sampled_operators() -> list[str]:
    """The operators that have samples: those whose calls can be made alone."""
    return [name for name, samples in all_samples().items() if samples]


def tolerance(sample: Sample, op: Op, dtype: Dtype) -> float:
    """The tolerance for its results in a dtype."""
    tf32 = bool(sample.attributes.get("allow_tf32"))
    return 0.0 if op.bitwise_exact else tolerance_of(dtype, sample.terms, tf32)


def of_mixed_alignment(samples: Sequence[Sample]) -> Iterator[Sample]:
    """For each kind of misaligned sample one with aligned outputs and one with aligned inputs."""
    kinds: dict[str, Sample] = {}
    for sample in samples:
        if sample.offset:
            kinds.setdefault(sample.label_without_types, sample)
    for sample in kinds.values():
        for part, inputs, out in (("inputs", sample.offset, 0), ("out", 0, sample.offset)):
            label = f"{sample.label}-{part}-alone"
            yield replace(sample, label=label, offset=inputs, out_offset=out)


def placed_inputs(op: type[Op] | Op, inputs: Sequence[Any], offset: int, xp: Any) -> list[Any]:
    """Copies of an operator's inputs, each in the memory it is declared in."""
    return mapped_inputs(op, inputs, lambda array: place(array, offset, xp))


def mapped_inputs(
    op: type[Op] | Op, inputs: Sequence[Any], place: Callable[[Any], Any]
) -> list[Any]:
    """An operator's inputs, `place` of each that is on the device; host inputs as they are."""

    def place_input(value: Any) -> Any:
        return [place(item) for item in value] if isinstance(value, list) else place(value)

    pairs = zip(op.inputs, inputs, strict=False)
    return [value if item.memory == "host" else place_input(value) for item, value in pairs]


def as_tuple(results: Any) -> tuple[Any, ...]:
    """A call's results as a tuple."""
    return results if isinstance(results, tuple) else (results,)


def flat(results: Any) -> list[Any]:
    """A call's results one by one, lists taken apart."""
    if not isinstance(results, tuple):
        return [results]
    return [array for item in results for array in flat(item)]


def mapped_outputs(
    op: type[Op] | Op, inputs: Sequence[Any], expected: Any, place: Callable[[Any], Any]
) -> tuple[Any, ...]:
    """The `out=` for results like these: `place` of each that is an array on the device."""
    results = as_tuple(expected)
    if len(op.outputs) == 1 and op.outputs[0].variadic:
        return tuple(map(place, results))
    given = dict(zip((item.name for item in op.inputs), inputs, strict=False))

    def place_output(output: Output, value: Any) -> Any:
        """An "either" output is an array where the input that it aliases is one; of a list all
        are."""
        if isinstance(value, tuple):
            return tuple(None if array is None else place(array) for array in value)
        is_array = output.memory == "device" or isinstance(
            given.get(str(output.aliases)), np.ndarray
        )
        return place(value) if is_array and output.memory != "host" and value is not None else None

    return tuple(map(place_output, op.outputs, results))


def place(array: Any, offset: int, xp: Any = np) -> Any:
    """A copy of a NumPy array in `xp`'s memory, `offset` elements off a 16-byte boundary."""
    if not isinstance(array, np.ndarray | np.generic):
        return array
    return as_it_lies(array, partial(_copy, offset=offset, xp=xp))


def as_it_lies(array: Any, make: Callable[[Any], Any]) -> Any:
    """`make` of a dense array whose dimensions are in the order that they have in memory."""
    order = sorted(range(array.ndim), key=lambda d: -array.strides[d])
    if array.flags.c_contiguous or not array.transpose(order).flags.c_contiguous:
        return make(array)
    return make(array.transpose(order)).transpose(np.argsort(order))


def _copy(array: Any, offset: int, xp: Any) -> Any:
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
