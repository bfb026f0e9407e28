# SPDX-License-Identifier: MIT
"""One change to one argument of a sample's call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
from foreign import Foreign

from cupy_training_ops import get_op
from cupy_training_ops.call.op import Op
from cupy_training_ops.dtypes import FLOATS
from cupy_training_ops.samples import Sample
from cupy_training_ops.testing.compare import poison
from cupy_training_ops.testing.samples import as_tuple, mapped_outputs, place, placed_inputs

from .pools import DTYPES, NUMBERS, ODD_DTYPES, anything, shown

Generator = np.random.Generator
Expected = Literal["", "the sample's results, or a refusal", "a refusal"]
SAME: Expected = "the sample's results, or a refusal"
REFUSED: Expected = "a refusal"
WAYS = ("class", "class", "class", "function", "keywords", "after", "bound")


@dataclass
class Call:
    """A call as it will be made, what was changed, and what is expected of it, if it is known."""

    sample: Sample
    op: type[Op]
    attributes: dict[str, Any]
    inputs: list[Any]
    way: str
    out: Any = None
    outputs: Any = None
    workspace: Any = None
    change: str = "nothing"
    expected: Expected = ""

    def __str__(self) -> str:
        return f"{self.sample.id}, by {self.way}: {self.change}"


def call_of(sample: Sample, rng: Generator) -> Call:
    """The sample's own call, its arrays new."""
    op = get_op(sample.op)
    values = sample.make(np.random.default_rng(0))
    inputs = placed_inputs(op, values, sample.offset, np)
    way = WAYS[rng.integers(len(WAYS))]
    return Call(sample, op, dict(sample.attributes), inputs, way)


def mutated(sample: Sample, rng: Generator) -> Call:
    """The sample's call with one change."""
    call = call_of(sample, rng)
    while call.change == "nothing":
        rng.choice(TARGETS, p=CHANCES)(call, rng)
    return call


# ---- arrays --------------------------------------------------------------------------------------


def of_shape(array: Any, shape: tuple[int, ...]) -> Any:
    return np.ones(shape, array.dtype)


def another_extent(array: Any, rng: Generator) -> Any:
    if not array.ndim:
        return of_shape(array, (1,))
    shape = list(array.shape)
    axis = rng.integers(len(shape))
    shape[axis] = max(0, shape[axis] + int(rng.choice([-1, 1, 7, -10_000])))
    return of_shape(array, tuple(shape))


def another_rank(array: Any, rng: Generator) -> Any:
    shapes = ((1, *array.shape), (*array.shape, 1), (-1,), (*[1] * 33, -1), (*[1] * 63, -1))
    return array.reshape(shapes[rng.integers(len(shapes))])


def huge(array: Any, rng: Generator) -> Any:
    """No element, and an extent that is the largest, or just beyond it."""
    most = min(2**59 - rng.integers(2), (2**63 - 1) // array.itemsize)
    return of_shape(array, ((0, most), (2**40, 0), (0, *[2**10] * 5), (0,))[rng.integers(4)])


def strided(array: Any, _: Generator) -> Any:
    return np.repeat(np.atleast_1d(array), 2, axis=-1)[..., ::2]


def strides(array: Any, rng: Generator) -> Any:
    backwards = array[tuple(slice(None, None, -1) for _ in array.shape)]
    column_major = np.asfortranarray(array)
    spread = np.broadcast_to(np.ones((), array.dtype), array.shape)
    return (strided(array, rng), backwards, column_major, spread)[rng.integers(4)]


def read_only(array: Any, _: Generator) -> Any:
    array.flags.writeable = False
    return array


def between_elements(array: Any, _: Generator) -> Any:
    """Off a boundary by a single byte."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    memory[1:] = np.frombuffer(array.tobytes(), np.uint8)
    return memory[1:].view(array.dtype).reshape(array.shape)


class Subclass(np.ndarray):
    """An array with a name of its own."""


def extreme(array: Any, rng: Generator) -> Any:
    if array.dtype in FLOATS:
        limits = ml_dtypes.finfo(array.dtype)
        values = [np.inf, -np.inf, np.nan, limits.max, limits.min, limits.smallest_subnormal, 0.0]
        array[...] = rng.choice(np.array(values).astype(array.dtype), array.shape)
    elif array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        array[...] = rng.choice(np.array([limits.min, limits.max, 0, 1], array.dtype), array.shape)
    return array


class ArrayChange(NamedTuple):
    """A change to an array, and what is expected of a call with it."""

    make: Callable[[Any, Generator], Any]
    expected: Expected = ""


ARRAY_CHANGES = {
    "another dtype": ArrayChange(lambda a, rng: np.ones(a.shape, rng.choice(DTYPES))),
    "an odd dtype": ArrayChange(
        lambda a, rng: np.zeros(a.shape, ODD_DTYPES[rng.integers(len(ODD_DTYPES))]), REFUSED
    ),
    "another extent": ArrayChange(another_extent),
    "another rank": ArrayChange(another_rank),
    "a huge extent": ArrayChange(huge),
    "strides": ArrayChange(strides, REFUSED),
    "read-only": ArrayChange(read_only, SAME),
    "misaligned": ArrayChange(lambda a, rng: place(a, int(rng.integers(1, 4))), SAME),
    "between elements": ArrayChange(between_elements, SAME),
    "foreign": ArrayChange(lambda a, _: Foreign(a), SAME),
    "a subclass": ArrayChange(lambda a, _: a.view(Subclass), SAME),
    "masked": ArrayChange(lambda a, _: np.ma.masked_array(a), REFUSED),
    "extreme values": ArrayChange(extreme),
    "one element": ArrayChange(lambda a, _: a.ravel()[0] if a.size else np.float32(0)),
    "its list": ArrayChange(lambda a, _: a.ravel()[:9].tolist(), REFUSED),
    "something else": ArrayChange(lambda _, rng: anything(rng)),
    "None": ArrayChange(lambda *_: None),
}


def change_array(name: str, array: Any, rng: Generator) -> tuple[Any, str, Expected]:
    """An array changed, in words, and what is expected."""
    kind = str(rng.choice(list(ARRAY_CHANGES)))
    make, expected = ARRAY_CHANGES[kind]
    made = make(array, rng)
    if kind == "strides" and made.flags.c_contiguous:  # of one element, or none
        expected = ""
    return made, f"{name}: {kind}: {shown(made)}", expected


# ---- host values ---------------------------------------------------------------------------------


def change_value(name: str, value: Any, rng: Generator) -> tuple[Any, str, Expected]:
    """A host value or an attribute replaced, or one of its numbers."""
    is_list = isinstance(value, list | tuple) and len(value)
    kind = rng.choice(["replaced", "one number", "shorter", "longer", "its array"])
    expected: Expected = ""
    if kind == "replaced" or not is_list:
        made = anything(rng)
    elif kind == "its array":
        made, expected = list(value), SAME
        if all(type(item) is int and abs(item) < 2**63 for item in value):
            made = np.array(value, rng.choice(["i8", "i8", "f8", ">i8"]))
            expected = SAME if made.dtype == np.int64 else ""
    else:
        items = list(value)
        place = rng.integers(len(items))
        items[place : place + (kind != "longer")] = [] if kind == "shorter" else [number(rng)]
        made = type(value)(items)
    return made, f"{name}: {kind}: {shown(made)}", expected


def number(rng: Generator) -> Any:
    return NUMBERS[rng.integers(len(NUMBERS))]


# ---- arguments -----------------------------------------------------------------------------------


def change_input(call: Call, rng: Generator) -> None:
    if not call.inputs:
        return
    place = int(rng.integers(len(call.inputs)))
    declared, value = call.op.inputs[place], call.inputs[place]
    if isinstance(value, list) and rng.random() < 0.7 and value:
        where, change = int(rng.integers(len(value))), change_value
        if declared.memory != "host" and value[where] is not None:
            change = change_array
        name = f"{declared.name}[{where}]"
        value[where], call.change, call.expected = change(name, value[where], rng)
        if declared.not_accessed and call.expected == REFUSED:  # as below
            call.expected = ""
    elif isinstance(value, np.ndarray) and declared.memory != "host":
        call.inputs[place], call.change, expected = change_array(declared.name, value, rng)
        # a host value may be what a device array may not, such as a list; and some take any layout
        lenient = declared.not_accessed or declared.memory == "either" or call.op.tiles == {}
        call.expected = "" if lenient and expected == REFUSED else expected
    elif isinstance(value, list) and declared.memory != "host":
        call.inputs[place], call.change = change_list(declared.name, value, rng)
    else:
        call.inputs[place], call.change, call.expected = change_value(declared.name, value, rng)


def change_list(name: str, value: list[Any], rng: Generator) -> tuple[Any, str]:
    made = (
        [], [None], tuple(value[:-1]), [*value, *value[-1:]], [value], iter(value), anything(rng),
        value[:1] * 40, {i: x for i, x in enumerate(value)}, *value[:1],
    )  # fmt: skip
    chosen = made[rng.integers(len(made))]
    return chosen, f"{name}: {shown(chosen)}"


def change_attribute(call: Call, rng: Generator) -> None:
    names = [attribute.name for attribute in call.op.attributes]
    if not names or rng.random() < 0.1:
        call.attributes["nonsense"] = 1
        call.change = "an unknown attribute"
        return
    name = str(rng.choice(names))
    if name in call.attributes and rng.random() < 0.1:
        del call.attributes[name]
        call.change = f"without {name}"
        return
    value = call.attributes.get(name, ())
    call.attributes[name], call.change, call.expected = change_value(name, value, rng)


def change_count(call: Call, rng: Generator) -> None:
    """Fewer inputs, more, two of them in each other's place, or the same array twice."""
    kind, last = rng.integers(4), len(call.inputs) - 1
    if kind == 0:
        del call.inputs[int(rng.integers(last + 1)) :]
        call.change = f"only {len(call.inputs)} inputs"
    elif kind == 1:
        call.inputs += [None] * int(rng.integers(1, 9))
        call.change = f"{len(call.inputs)} inputs"
    elif last > 0:
        i, j = map(int, rng.choice(last + 1, 2, replace=False))
        first, second = call.inputs[i], call.inputs[j]
        call.inputs[i], call.inputs[j] = second, first if kind == 2 else second
        call.change = f"inputs {i} and {j} {'swapped' if kind == 2 else 'the same'}"


def change_outputs(call: Call, rng: Generator) -> None:
    names = [output.name for output in call.op.outputs]
    first = names[0]
    odd = (np.ones(3), [np.ones(3)], (["a"],), (None,), (first, 1), 5, first)
    made = ((), (first,), names, ("Z",), (first, first), *odd)
    call.outputs = made[rng.integers(len(made))] if rng.random() < 0.7 else anything(rng)
    call.change = f"outputs={shown(call.outputs)}"


def change_workspace(call: Call, rng: Generator) -> None:
    scratch = np.zeros(int(rng.choice([0, 1, 256, 4096, 10**6])) + 16, np.uint8)
    scratch = scratch[-scratch.ctypes.data % 16 :]
    call.workspace, call.change = scratch, f"workspace of {scratch.size} bytes"
    if rng.random() < 0.7:
        call.workspace, call.change, _ = change_array("workspace", scratch, rng)


def change_out(call: Call, rng: Generator) -> None:
    """Outputs as they should be but for one; or the memory of an input; or no outputs at all."""
    given = blank_outputs(call)
    places = list(slots(given))
    shared = list(device_arrays(call))
    kind = rng.choice(["changed", "an input's", "of one", "something", "right"])
    call.change = f"out: {kind}"
    if kind == "changed" and places:
        outs, i = places[rng.integers(len(places))]
        outs[i], call.change, call.expected = change_array("an out", outs[i], rng)
    elif kind == "an input's" and places and shared:
        (outs, i), (values, where) = (some[rng.integers(len(some))] for some in (places, shared))
        start = int(rng.integers(2)) * outs[i].itemsize
        values[where], outs[i] = overlapping(values[where], outs[i], start)
        call.change = f"an out in memory of {shown(values[where])}, {start} bytes behind"
        overlaps = 0 < start < values[where].nbytes and outs[i].size
        call.expected = REFUSED if overlaps else SAME
    elif kind == "of one" and len(places) > 1:
        (first, i), (second, j) = places[:2]
        second[j] = first[i]
        call.expected = REFUSED if first[i].size else ""
    elif kind == "something":
        call.out = anything(rng)
        call.change = f"out={shown(call.out)}"
        return
    else:
        call.expected = SAME
    outs = tuple(tuple(out) if isinstance(out, list) else out for out in given)
    call.out = outs if len(outs) != 1 or rng.random() < 0.5 else outs[0]


def device_arrays(call: Call) -> Iterator[tuple[list[Any], int]]:
    """Where the inputs' arrays are whose elements count: a list, and a place in it."""
    for i, (declared, value) in enumerate(zip(call.op.inputs, call.inputs, strict=False)):
        if declared.memory != "host" and not declared.not_accessed:
            is_list = isinstance(value, list)
            values, places = (value, range(len(value))) if is_list else (call.inputs, [i])
            yield from ((values, p) for p in places if isinstance(values[p], np.ndarray))


def overlapping(array: Any, like: Any, start: int) -> tuple[Any, Any]:
    """The array in new memory, and one like the other so many bytes behind it there."""
    memory = np.zeros(max(array.nbytes, start + like.nbytes), np.uint8)
    first, second = memory[: array.nbytes], memory[start : start + like.nbytes]
    moved = first.view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved, second.view(like.dtype).reshape(like.shape)


TARGETS = [
    change_input, change_attribute, change_out, change_count, change_outputs, change_workspace,
]  # fmt: skip
CHANCES = (0.5, 0.2, 0.16, 0.06, 0.04, 0.04)


# ---- what a sample gives -------------------------------------------------------------------------

_EXPECTED: dict[str, tuple[Any, ...]] = {}


def expected_results(sample: Sample) -> tuple[Any, ...]:
    """The results of the sample itself, by the CPU provider."""
    if sample.id not in _EXPECTED:
        op = get_op(sample.op)(**sample.attributes)
        inputs = placed_inputs(op, sample.make(np.random.default_rng(0)), 0, np)
        _EXPECTED[sample.id] = as_tuple(op(*inputs))
    return _EXPECTED[sample.id]


def blank_like(array: Any) -> Any:
    return poison(np.empty(array.shape, array.dtype))


def blank_outputs(call: Call) -> list[Any]:
    """What `out=` takes for the sample's results, lists of arrays as lists."""
    expected = expected_results(call.sample)
    made = mapped_outputs(call.op, call.inputs, expected, blank_like)
    return [list(out) if isinstance(out, tuple) else out for out in made]


def slots(values: list[Any]) -> Iterator[tuple[list[Any], int]]:
    """Where arrays stand in a list and in the lists in it."""
    for i, value in enumerate(values):
        if isinstance(value, list):
            yield from slots(value)
        elif value is not None:
            yield values, i


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """Every array of NumPy's in nested arguments, also one that is lent."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from arrays_in(item)
    elif isinstance(value, Foreign):
        yield value.array
