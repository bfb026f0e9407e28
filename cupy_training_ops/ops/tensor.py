# SPDX-License-Identifier: MIT
"""Tensor movement: views, joining, splitting, slicing, padding. Nothing is computed."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .. import arrays
from ..checks import Types, refuse
from ..contract import Attribute, Input, Output, Spec, integer, integers, optional, shape
from ..dtypes import FIXED_SIZE, INT64, to_dtype
from ..op import Op, slots
from ..runtime.plan import Config, Device, Launch, Plan, Pointers, Scratch, by_value, ceil_div

THREADS = 128
CHUNK_NBYTES = 16
LONG_RUN_NBYTES = 64  # from here on chunks of 16 bytes are written; shorter runs go word by word
LOADS = 4  # a thread has in flight
CAPACITIES = (16, 160)  # arrays that a launch knows by value: 4,000 bytes hold 164
DIMENSIONS = 64  # NumPy's most
WORD_TYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "uint4"}


@dataclass(frozen=True)
class Words:
    """How a launch divides its arrays: words of `nbytes`, `chunk` of them for each store."""

    nbytes: int
    chunk: int

    @property
    def slots(self) -> dict[str, str]:
        """The kernel's slots; a chunk of several words takes two loads."""
        chunks = LOADS if self.chunk == 1 else LOADS // 2
        words = {"T": WORD_TYPES[self.nbytes], "WORDS": str(self.chunk)}
        return words | {"CHUNKS": str(chunks), "THREADS": str(THREADS)}

    def count(self, nbytes: int) -> int:
        """Words of so many bytes."""
        return nbytes // self.nbytes

    def tiles(self, nbytes: int) -> int:
        """Blocks that write so many bytes, from wherever in a chunk they start."""
        per_block = int(self.slots["CHUNKS"]) * THREADS * self.chunk
        return ceil_div(self.count(nbytes) + self.chunk - 1, per_block)


def words_of(specs: Iterable[Spec], lengths: Iterable[int], run_nbytes: int) -> Words:
    """The widest words that divide all addresses and lengths (in elements) of a launch."""
    present = [spec for spec in specs if spec.size]
    itemsize = present[0].dtype.itemsize
    aligned = all(spec.aligned for spec in present)
    nbytes = math.gcd(CHUNK_NBYTES, *(n * itemsize for n in lengths)) if aligned else itemsize
    return Words(nbytes, CHUNK_NBYTES // nbytes if run_nbytes >= LONG_RUN_NBYTES else 1)


def capacity_for(n: int) -> int:
    """The smallest table that holds n arrays."""
    return next(capacity for capacity in CAPACITIES if n <= capacity)


def normalized_axis(op: str, axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if rank == 0:
        refuse(op, "axis", "arrays of at least one dimension", "a scalar")
    if not -rank <= axis < rank:
        refuse(op, "axis", f"an axis from {-rank} to {rank - 1}", str(axis))
    return axis % rank


class View(Op):
    """Consecutive pieces of one contiguous array under new shapes; nothing is copied.

    outputs[i] is input.ravel()[o_i : o_i + n_i].reshape(shapes[i]), n_i the product of shapes[i]
    and o_i the sum of the n before it. Every output shares the input's memory, always, and keeps it
    alive. () is a scalar of one element; a piece without elements is legal.

    input: T, any shape, contiguous, device. shapes: one list of any number of shapes, host; their
    sizes add up to the input's. outputs: a tuple, one T array a shape, device. T: every dtype of
    fixed size. Deterministic; launches nothing. Raises ArgumentError and DtypeError.
    Source: contract 1.1.
    """

    inputs = (
        Input("input", "T"),
        Input("shapes", "int64", memory="host", variadic=True, convert=shape),
    )
    outputs = (Output("outputs", "T", variadic=True),)
    types: ClassVar[Types] = {"T": FIXED_SIZE}

    def infer(self, x: Spec, shapes: tuple[tuple[int, ...], ...]) -> tuple[Any, ...]:
        sizes = list(map(math.prod, shapes))
        if sum(sizes) != x.size:
            total = " + ".join(map(str, sizes)) or "nothing"
            expected = f"sizes that add up to the input's {x.size} elements"
            refuse(self.name, "shapes", expected, f"{total} = {sum(sizes)} for {list(shapes)}")
        return (tuple(Spec(piece, x.dtype) for piece in shapes),)

    def views(self, x: Any, shapes: tuple[tuple[int, ...], ...]) -> tuple[Any, ...]:
        """The outputs."""
        view = arrays.BACKENDS[type(x)].view
        return tuple([view(x, start, piece) for start, piece in _placed(shapes)])


@functools.lru_cache(maxsize=256)
def _placed(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Every shape with the number of elements before it."""
    starts = itertools.accumulate(map(math.prod, shapes), initial=0)
    return tuple(zip(starts, shapes, strict=False))


class ConcatTraining(Op):
    """Arrays joined along an axis, and the length of each along it.

    concat_result = inputs[0], inputs[1], ... one after the other along `axis`; per_input_length[i]
    = inputs[i].shape[axis].

    inputs: one list of at least one T array, device; the same shape but for `axis`, along which a
    length may be 0. concat_result: T, device. per_input_length: int64, (number of inputs,), host, a
    new NumPy array, also when concat_result is empty. axis: from -rank to rank - 1. T: every dtype
    of fixed size. Deterministic, bit for bit. Above 160 inputs the launches use a workspace.
    Raises ArgumentError and DtypeError. Source: contract 1.2.
    """

    inputs = (Input("inputs", "T", variadic=True),)
    outputs = (Output("concat_result", "T"), Output("per_input_length", "int64", memory="host"))
    attributes = (Attribute("axis", integer),)
    types: ClassVar[Types] = {"T": FIXED_SIZE}
    axis: int

    def infer(self, xs: tuple[Spec, ...]) -> tuple[Any, ...]:
        if not xs:
            refuse(self.name, "inputs", "at least one array", "an empty list")
        axis = normalized_axis(self.name, self.axis, len(xs[0].shape))
        for i, x in enumerate(xs):
            if not _same_but_for(axis, x.shape, xs[0].shape):
                expected = f"shape {xs[0].shape} but for axis {axis}, like inputs[0]"
                refuse(self.name, f"inputs[{i}]", expected, f"shape {x.shape}")
        lengths = np.array([x.shape[axis] for x in xs], INT64)
        joined = (*xs[0].shape[:axis], int(lengths.sum()), *xs[0].shape[axis + 1 :])
        return Spec(joined, xs[0].dtype), lengths

    def plan(self, device: Device, xs: tuple[Spec, ...], y: Spec, lengths: Spec) -> Plan:
        n_rows = math.prod(y.shape[: self.axis % len(y.shape)])
        parts = [(f"inputs[{i}]", x.size // n_rows) for i, x in enumerate(xs) if x.size]
        widths = [width for _, width in parts]
        run_nbytes = y.nbytes // (n_rows * len(parts))
        words = words_of((*xs, y), widths, run_nbytes)
        starts = [words.count(s * y.dtype.itemsize) for s in _starts(widths)]
        names = [name for name, _ in parts]
        config = Config((words.tiles(y.nbytes),), (THREADS,))
        result = ("concat_result", n_rows, starts[-1], len(parts))
        if len(parts) <= CAPACITIES[-1]:
            table, capacity = _by_value(names, starts)
            launch = _launch(self.function_name, config, (*result, *table), words, capacity)
            return Plan((launch,))
        many = f"{self.function_name}__many"
        fill = self._fill(names, starts, words)
        launch = _launch(many, config, (*result, Scratch(0)), words)
        return Plan((*fill, launch), workspace_nbytes=16 * len(starts))

    def _fill(self, names: list[str], starts: list[int], words: Words) -> list[Launch]:
        """Launches that write the table of parts into the workspace."""
        symbol, most = f"{self.function_name}__table", CAPACITIES[-1]
        launches = []
        for first in range(0, len(names), most):
            some = names[first : first + most]
            table, capacity = _by_value(some, starts[first : first + most + 1])
            config = Config((1,), (capacity + 1,))
            arguments = (Scratch(0), first, len(some), *table)
            launches.append(_launch(symbol, config, arguments, words, capacity))
        return launches


def _same_but_for(axis: int, shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    rest = [(a, b) for i, (a, b) in enumerate(zip(shape, other, strict=False)) if i != axis]
    return len(shape) == len(other) and all(a == b for a, b in rest)


def _starts(widths: Iterable[int]) -> list[int]:
    """Where each part starts, and where the last one ends."""
    return list(itertools.accumulate(widths, initial=0))


def _by_value(names: Sequence[str], *columns: Sequence[int]) -> tuple[tuple[Any, Any], int]:
    """Addresses and starts (one more than addresses) as launch arguments, and their capacity."""
    capacity = capacity_for(len(names))
    padded = [np.pad(np.array(c, INT64), (0, capacity + 1 - len(c))) for c in columns]
    fields = {f"column{i}": column for i, column in enumerate(padded)}
    return (Pointers(tuple(names), capacity), by_value(**fields)), capacity


def _launch(
    symbol: str,
    config: Config,
    arguments: tuple[Any, ...],
    words: Words,
    capacity: int = CAPACITIES[0],
    **other_slots: str,
) -> Launch:
    binding = words.slots | {"CAPACITY": str(capacity)} | other_slots
    return Launch(symbol, config, arguments, binding)


class SplitTraining(Op):
    """An array taken apart along an axis: the inverse of ConcatTraining.

    outputs[i] is split[i] positions of `input` along `axis`, after those of the outputs before it.
    Without `split`, or with an empty one, `num_outputs` equal parts.

    input: T, at least one dimension, device. split: sizes of at least 0 that add up to the axis'
    length, host; part of a captured graph. outputs: a tuple of T arrays, device. axis: from -rank
    to rank - 1. T: every dtype of fixed size. Deterministic, bit for bit. Raises ArgumentError and
    DtypeError. Source: contract 1.3, where the graph says the number of outputs.
    """

    inputs = (
        Input("input", "T"),
        Input("split", "int64", memory="host", optional=True, convert=shape),
    )
    outputs = (Output("outputs", "T", variadic=True),)
    attributes = (Attribute("axis", integer, 0), Attribute("num_outputs", optional(integer), None))
    types: ClassVar[Types] = {"T": FIXED_SIZE}
    axis: int
    num_outputs: int | None

    def infer(self, x: Spec, split: tuple[int, ...] | None) -> tuple[Any, ...]:
        axis = normalized_axis(self.name, self.axis, len(x.shape))
        sizes = split or self._even(x.shape[axis])
        if sum(sizes) != x.shape[axis]:
            expected = f"sizes that add up to {x.shape[axis]}, the length of axis {axis}"
            refuse(self.name, "split", expected, f"{sizes}, in all {sum(sizes)}")
        if self.num_outputs not in (None, len(sizes)):
            refuse(self.name, "split", f"{self.num_outputs} sizes (num_outputs)", f"{sizes}")
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        return (tuple(Spec((*before, size, *after), x.dtype) for size in sizes),)

    def _even(self, length: int) -> tuple[int, ...]:
        n = self.num_outputs
        if n is None or n < 1:
            refuse(self.name, "num_outputs", "at least 1 where split is empty", str(n))
        if length % n:
            refuse(self.name, "split", f"a length that {n} outputs divide evenly", str(length))
        return (length // n,) * n

    def plan(self, device: Device, x: Spec, split: Any, outputs: tuple[Spec, ...]) -> Plan:
        n_rows = math.prod(x.shape[: self.axis % len(x.shape)])
        parts = [(f"outputs[{i}]", y.size // n_rows) for i, y in enumerate(outputs) if y.size]
        widths = [width for _, width in parts]
        words = words_of((x, *outputs), widths, x.nbytes // (n_rows * len(parts)))
        starts = [words.count(s * x.dtype.itemsize) for s in _starts(widths)]
        head = ("input", n_rows, starts[-1])
        launches = []
        for first in range(0, len(parts), CAPACITIES[-1]):
            names = [name for name, _ in parts[first : first + CAPACITIES[-1]]]
            columns = starts[first : first + len(names) + 1]
            row_nbytes = n_rows * words.nbytes
            pairs = itertools.pairwise(columns)
            tiles = _starts(words.tiles((b - a) * row_nbytes) for a, b in pairs)
            table, capacity = _by_value(names, columns, tiles)
            config = Config((tiles[-1],), (THREADS,))
            arguments = (*head, len(names), *table)
            launches.append(_launch(self.function_name, config, arguments, words, capacity))
        return Plan(tuple(launches))


class SliceGrad(Op):
    """The gradient of ONNX Slice: zeros, and dY at the positions that the slice took.

    dX = 0; dX[start_0 + j_0 step_0, ...] = dY[j_0, ...]. Starts, ends, axes and steps mean what
    they mean in ONNX Slice 13: negative starts and ends count from the end, both are clamped to the
    array, a negative step walks backwards, an axis that is not named is taken whole.

    dY: T, any shape of the slice's size, device. shape: that of dX, at least one dimension, host.
    starts, ends: host, one entry an axis. axes: host, 0, 1, ... by default. steps: host, not 0,
    ones by default. dX: T, `shape`, device. T: every dtype of fixed size. Host inputs are part of a
    captured graph. Deterministic, bit for bit. Raises ArgumentError, also for a dY of another size,
    and DtypeError. Source: contract 2.4.
    """

    inputs = (
        Input("dY", "T"),
        Input("shape", "int64", memory="host", convert=shape),
        Input("starts", "int64", memory="host", convert=integers),
        Input("ends", "int64", memory="host", convert=integers),
        Input("axes", "int64", memory="host", optional=True, convert=integers),
        Input("steps", "int64", memory="host", optional=True, convert=integers),
    )
    outputs = (Output("dX", "T"),)
    types: ClassVar[Types] = {"T": FIXED_SIZE}

    def infer(self, dy: Spec, shape: tuple[int, ...], *bounds: Any) -> tuple[Spec, ...]:
        taken = self._checked(shape, *bounds)
        size = math.prod(d.count for d in taken)
        if dy.size != size:
            expected = f"{size} elements, a slice of shape {tuple(d.count for d in taken)}"
            refuse(self.name, "dY", expected, f"{dy.size} of shape {dy.shape}")
        return (Spec(shape, dy.dtype),)

    def _checked(
        self, shape: tuple[int, ...], starts: Any, ends: Any, axes: Any = None, steps: Any = None
    ) -> list[SlicedAxis]:
        rank = len(shape)
        if rank == 0:
            refuse(self.name, "shape", "at least one dimension", "()")
        axes = tuple(range(len(starts))) if axes is None else axes
        steps = (1,) * len(starts) if steps is None else steps
        for name, values in (("ends", ends), ("axes", axes), ("steps", steps)):
            if len(values) != len(starts):
                refuse(self.name, name, f"{len(starts)} entries like starts", f"{values}")
        if any(not -rank <= a < rank for a in axes) or len({a % rank for a in axes}) < len(axes):
            expected = f"different axes from {-rank} to {rank - 1}"
            refuse(self.name, "axes", expected, f"{axes}")
        if 0 in steps:
            refuse(self.name, "steps", "steps other than 0", f"{steps}")
        return sliced_axes(shape, starts, ends, axes, steps)

    def plan(self, device: Device, dy: Spec, shape: tuple[int, ...], *rest: Any) -> Plan:
        *bounds, dx = rest
        *outer, inner = _merged(self._checked(shape, *bounds))
        itemsize = dx.dtype.itemsize
        if inner.step == 1:
            lengths, run = (inner.extent, inner.start, inner.count), inner.count * itemsize
        else:
            lengths, run = (1,), itemsize
        words = words_of((dy, dx), lengths, run)
        inner = inner.times(itemsize, words.nbytes)
        config = Config((words.tiles(dx.nbytes),), (THREADS,))
        table = np.zeros((DIMENSIONS, 4), INT64)
        for row, d in zip(table, outer, strict=False):
            row[:] = d.extent, d.start, d.step, d.count
        last = by_value(**{k: np.int64(v) for k, v in vars(inner).items()})
        sizes = (words.count(dy.nbytes), words.count(dx.nbytes), len(outer))
        arguments = ("dY", "dX", *sizes, by_value(at=table), last)
        return Plan((_launch(self.function_name, config, arguments, words, DIMENSIONS),))


@dataclass(frozen=True)
class SlicedAxis:
    """The positions start, start + step, ... of an axis, `count` of them."""

    extent: int
    start: int
    step: int
    count: int

    @property
    def whole(self) -> bool:
        """Whether the axis is taken as it is."""
        return self.count == self.extent and self.step == 1

    def times(self, n: int, divisor: int = 1) -> SlicedAxis:
        """The same in units of 1/n, or of divisor/n, of a position; the step is 1 or n is."""
        extent, start, count = (v * n // divisor for v in (self.extent, self.start, self.count))
        return SlicedAxis(extent, start, self.step, count)


def sliced_axes(
    shape: tuple[int, ...],
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> list[SlicedAxis]:
    """What a slice takes of every axis, by the rules of ONNX Slice 13."""
    taken = [SlicedAxis(extent, 0, 1, extent) for extent in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        extent = shape[axis]
        low, high = (0, extent) if step > 0 else (-1, extent - 1)
        first = max(0, min(start + extent if start < 0 else start, high))
        last = max(low, min(end + extent if end < 0 else end, high))
        count = max(0, ceil_div(last - first, step)) if extent else 0
        taken[axis] = SlicedAxis(extent, first, step, count)
    return taken


def _merged(taken: Sequence[SlicedAxis]) -> list[SlicedAxis]:
    """Fewer axes of the same meaning: one that is taken whole joins the contiguous one before it."""
    several = [axis for axis in taken if axis.extent != 1 or axis.count != 1]
    merged = several[:1] or list(taken[:1])
    for axis in several[1:]:
        before = merged[-1]
        if axis.whole and before.step == 1:
            merged[-1] = before.times(axis.extent)
        else:
            merged.append(axis)
    return merged


class _Rows(Op):
    """What packing and unpacking rows share."""

    types: ClassVar[Types] = {"T": FIXED_SIZE, "T_INDEX": (INT64, to_dtype("int32"))}

    def check_indices(self, indices: Spec) -> None:
        """Indices are a list."""
        if len(indices.shape) != 1:
            refuse(self.name, "indices", "rank 1", f"shape {indices.shape}")

    def rows(self, width: int, moved: tuple[Spec, ...], indices: Spec) -> tuple[Words, Any]:
        """Words of rows with so many elements, and the slot of the indices."""
        words = words_of(moved, (width,), width * moved[0].dtype.itemsize)
        return words, slots(INDEX=indices.dtype)


class FlattenAndUnpad(_Rows):
    """Selected rows of an array whose first two dimensions are one: the padding falls off.

    output[r] = input.reshape(M1 M2, ...)[indices[r]]; unflatten_dims = (M1, M2), what
    PadAndUnflatten takes to undo it. An index outside 0 .. M1 M2 - 1 gives a row of zeros (negative
    ones do not count from the end); duplicates are fine.

    input: T, (M1, M2, ...), device. indices: T_INDEX, (d1,), device. output: T, (d1, ...), device.
    unflatten_dims: int64, (2,), host, a new NumPy array. T: every dtype of fixed size; T_INDEX:
    int64, int32. Deterministic, bit for bit. Raises ArgumentError and DtypeError.
    Source: contract 1.5.
    """

    inputs = (Input("input", "T"), Input("indices", "T_INDEX"))
    outputs = (Output("output", "T"), Output("unflatten_dims", "int64", memory="host"))

    def infer(self, x: Spec, indices: Spec) -> tuple[Any, ...]:
        if len(x.shape) < 2:
            refuse(self.name, "input", "rank 2 or more", f"shape {x.shape}")
        self.check_indices(indices)
        return Spec((*indices.shape, *x.shape[2:]), x.dtype), np.array(x.shape[:2], INT64)

    def plan(self, device: Device, x: Spec, indices: Spec, y: Spec, dims: Spec) -> Plan:
        width = math.prod(y.shape[1:])
        words, index = self.rows(width, (y, x), indices)
        config = Config((words.tiles(y.nbytes),), (THREADS,))
        sizes = (math.prod(x.shape[:2]), indices.size, words.count(width * y.dtype.itemsize))
        arguments = ("input", "indices", "output", *sizes)
        return Plan((_launch(self.function_name, config, arguments, words, **index),))


class PadAndUnflatten(_Rows):
    """Rows back to their places in a zero-padded array: the inverse of FlattenAndUnpad.

    output = 0; output.reshape(M1 M2, ...)[indices[r]] = input[r]. An index outside 0 .. M1 M2 - 1 is
    skipped (negative ones do not count from the end); of rows with the same index the last counts.

    input: T, (d1, ...), device. indices: T_INDEX, (d1,), device. unflatten_dims: (M1, M2), host,
    part of a captured graph. output: T, (M1, M2, ...), device. T: every dtype of fixed size;
    T_INDEX: int64, int32. Uses a workspace of 8 M1 M2 bytes. Deterministic, bit for bit, duplicates
    included. Raises ArgumentError and DtypeError. Source: contract 1.4.
    """

    inputs = (
        Input("input", "T"),
        Input("indices", "T_INDEX"),
        Input("unflatten_dims", "int64", memory="host", convert=shape),
    )
    outputs = (Output("output", "T"),)

    def infer(self, x: Spec, indices: Spec, dims: tuple[int, ...]) -> tuple[Spec, ...]:
        self.check_indices(indices)
        if len(dims) != 2:
            refuse(self.name, "unflatten_dims", "two extents (M1, M2)", f"{dims}")
        if x.shape[:1] != indices.shape:
            expected = f"{indices.size} rows, one an index"
            refuse(self.name, "input", expected, f"shape {x.shape}")
        return (Spec((*dims, *x.shape[1:]), x.dtype),)

    def plan(self, device: Device, x: Spec, indices: Spec, dims: tuple[int, ...], y: Spec) -> Plan:
        n_rows = math.prod(dims)
        width = math.prod(x.shape[1:])
        words, index = self.rows(width, (y, x), indices)
        config = Config((words.tiles(y.nbytes),), (THREADS,))
        sizes = (indices.size, n_rows, words.count(width * y.dtype.itemsize))
        arguments = ("input", "indices", Scratch(0), "output", *sizes)
        launch = _launch(self.function_name, config, arguments, words, **index)
        find = self._find_last_rows(indices, n_rows, words, index)
        return Plan((*find, launch), workspace_nbytes=8 * n_rows)

    def _find_last_rows(
        self, indices: Spec, n_rows: int, words: Words, index: dict[str, str]
    ) -> list[Launch]:
        """The launch that notes for every row of the output the last row of the input, if any."""
        if not indices.size:
            return []
        symbol = f"{self.function_name}__last_rows"
        config = Config((ceil_div(indices.size, THREADS),), (THREADS,))
        arguments = ("indices", Scratch(0), indices.size, n_rows)
        return [_launch(symbol, config, arguments, words, **index)]


OPS = {
    "ConcatTraining": ConcatTraining,
    "FlattenAndUnpad": FlattenAndUnpad,
    "PadAndUnflatten": PadAndUnflatten,
    "SliceGrad": SliceGrad,
    "SplitTraining": SplitTraining,
    "View": View,
}
