# SPDX-License-Identifier: MIT
"""Samples, example calls of all operators, and copies of their arrays in a library's memory.

In all functions `op` is an operator, or its class, by whose declaration arrays are told from
numbers.
"""

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
    """Return the samples of every operator by its name, those of `of_mixed_alignment` last."""
    modules = (importlib.import_module(f"{families.__name__}.{name}.samples") for name in FAMILIES)
    tables = {name: samples for module in modules for name, samples in module.SAMPLES.items()}
    return {name: (*samples, *of_mixed_alignment(samples)) for name, samples in tables.items()}


def sampled_operators() -> list[str]:
    """Return the operators that have samples: not Send and Recv, which need another rank."""
    return [name for name, samples in all_samples().items() if samples]


def tolerance(sample: Sample, op: Op, dtype: Dtype) -> float:
    """Return the tolerance of assert_matches for the sample's results in this dtype."""
    tf32 = bool(sample.attributes.get("allow_tf32"))
    return 0.0 if op.bitwise_exact else tolerance_of(dtype, sample.terms, tf32)


def of_mixed_alignment(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Yield for each kind of misaligned sample one with aligned outputs and one with aligned
    inputs; a kind: samples whose labels differ in types alone."""
    kinds: dict[str, Sample] = {}
    for sample in samples:
        if sample.offset:
            kinds.setdefault(sample.label_without_types, sample)
    for sample in kinds.values():
        for part, inputs, out in (("inputs", sample.offset, 0), ("out", 0, sample.offset)):
            label = f"{sample.label}-{part}-alone"
            yield replace(sample, label=label, offset=inputs, out_offset=out)


def placed_inputs(op: type[Op] | Op, inputs: Sequence[Any], offset: int, xp: Any) -> list[Any]:
    """Return copies of an operator's inputs by `place`; host inputs as they are."""
    return mapped_inputs(op, inputs, lambda array: place(array, offset, xp))


def mapped_inputs(
    op: type[Op] | Op, inputs: Sequence[Any], place: Callable[[Any], Any]
) -> list[Any]:
    """Return an operator's inputs, with place(array) of each device input, also in a list."""

    def place_input(value: Any) -> Any:
        return [place(item) for item in value] if isinstance(value, list) else place(value)

    pairs = zip(op.inputs, inputs, strict=False)
    return [value if item.memory == "host" else place_input(value) for item, value in pairs]


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Return a call's results as a tuple, of one array if it returned no tuple."""
    return results if isinstance(results, tuple) else (results,)


def flat(results: Any) -> list[Any]:
    """Return the arrays of a call's results as one list; results may hold tuples of arrays."""
    if not isinstance(results, tuple):
        return [results]
    return [array for item in results for array in flat(item)]


def mapped_outputs(
    op: type[Op] | Op, inputs: Sequence[Any], expected: Any, place: Callable[[Any], Any]
) -> tuple[Any, ...]:
    """Return `out=` for results like `expected`: place(array) of each on the device, else None.

    inputs: of the call: an output that aliases an input has its kind, array or number.
    """
    results = as_tuple(expected)
    if len(op.outputs) == 1 and op.outputs[0].variadic:
        return tuple(map(place, results))
    named = dict(zip((item.name for item in op.inputs), inputs, strict=False))

    def place_output(output: Output, value: Any) -> Any:
        """Return place(value), None for a host value; for a list (a tuple) of each array in it.

        An output whose memory is "either" is an array if the input that it aliases is one.
        """
        if isinstance(value, tuple):
            return tuple(None if array is None else place(array) for array in value)
        is_array = output.memory == "device" or isinstance(
            named.get(str(output.aliases)), np.ndarray
        )
        return place(value) if is_array and output.memory != "host" and value is not None else None

    return tuple(map(place_output, op.outputs, results))


def place(array: Any, offset: int, xp: Any = np) -> Any:
    """Copy a NumPy array to `xp`, NumPy or CuPy, `offset` elements off a 16-byte boundary.

    Dimensions are in the same order in memory. Other values are returned as they are.
    """
    if not isinstance(array, np.ndarray | np.generic):
        return array
    return as_it_lies(array, partial(_copy, offset=offset, xp=xp))


def as_it_lies(array: Any, make: Callable[[Any], Any]) -> Any:
    """Return make(array), called with the dimensions of a dense array in the order of memory.

    So `make`, which may copy to C order, keeps the order; the result has `array`'s axes. An array
    that is not dense is passed as it is.
    """
    order = sorted(range(array.ndim), key=lambda d: -array.strides[d])
    if array.flags.c_contiguous or not array.transpose(order).flags.c_contiguous:
        return make(array)
    return make(array.transpose(order)).transpose(np.argsort(order))


def _copy(array: Any, offset: int, xp: Any) -> Any:
    """Copy a NumPy array to `xp` in C order, `offset` elements off a 16-byte boundary."""
    target = blank(Spec(array.shape, array.dtype), offset, xp)
    if hasattr(target, "set"):  # CuPy's: an element that equals 0 would be assigned as +0
        target.set(np.asarray(array))
    else:
        target[...] = xp.asarray(array)
    return target


def blank(spec: Spec, offset: int, xp: Any = np) -> Any:
    """Allocate an array in `xp`, NumPy or CuPy, `offset` elements off a 16-byte boundary."""
    flat = xp.empty(spec.size + offset, spec.dtype)
    return flat[offset:].reshape(spec.shape)
