# SPDX-License-Identifier: MIT
"""Tensor movement: views, joining, splitting.

Nothing is computed: elements are copied bit for bit, or not at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from ...call.checks import from_front
from ...call.op import Op
from ...call.view_ops import ViewOp
from ...declare.facts import Struct
from ...declare.schema import (
    Inferred,
    Input,
    Output,
    Shape,
    Spec,
    attribute,
    count,
    integer,
    lengths,
    optional,
    shape,
)
from ...declare.type_rows import Types
from ...dtypes import FIXED_SIZE, INT64, HostArray
from ...errors import refuse
from ...plan import Config, Device, Launch, Plan, Pointers, Scratch, ScratchMemory, by_value
from ...planning.copy_runs import LONG_RUN_NBYTES, Words, words_of
from ...planning.fast_division import divisor, divisor_fields
from .facts import CAPACITY, THREADS, Part, PartStarts, Split

CAPACITIES = (CAPACITY, 120, 240)  # arrays that a launch knows by value, in at most 4,000 bytes
EVEN_CAPACITY = 480  # the same where widths need not be known
MAX_SPLIT = 120  # outputs of a launch, which knows more of each
MANY_SPLIT = 2 * MAX_SPLIT  # from which on one launch and its table beat several


class View(ViewOp):
    """Pieces of one array: outputs[i] = input.ravel()[o_i : o_i + n_i].reshape(shapes[i]).

        input    | n_0 elements | n_1 | n_2 ...
        starts   o_0 = 0        o_1   o_2

    n_i is the product of shapes[i], and o_i the sum of the n before it. Nothing is copied: every
    output shares the input's memory and keeps it alive. () is a scalar of one element; a piece may
    have no elements.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/tensor/view.cc.
    """

    inputs = (
        Input("input", "T", shape="any shape"),
        Input(
            "shapes",
            "int64",
            memory="host",
            variadic=True,
            convert=shape,
            doc="any number of them; their sizes add up to that of input",
        ),
    )
    outputs = (Output("outputs", "T", variadic=True, shape="shapes given by `shapes`"),)
    types: ClassVar[Types] = {"T": FIXED_SIZE}
    bitwise_exact = True

    def infer(self, x: Spec, shapes: tuple[Shape, ...]) -> tuple[tuple[Spec, ...]]:
        """Return the specs of the pieces; refuse shapes that do not add up to the input."""
        sizes = list(map(math.prod, shapes))
        if sum(sizes) != x.size:
            total = " + ".join(map(str, sizes)) or "nothing"
            expected = f"sizes that add up to the input's {x.size} elements"
            refuse(self.name, "shapes", expected, f"{total} = {sum(sizes)} for {list(shapes)}")
        return (tuple(Spec(piece, x.dtype) for piece in shapes),)


class ConcatTraining(Op):
    """Arrays joined along an axis: concat_result = inputs[0], inputs[1], ... one after the other.

    per_input_length[i] = inputs[i].shape[axis]; it is written also where concat_result is empty.

    Memory: a workspace above 240 inputs.

    Source: ONNX Concat-13;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/tensor/concat.cc.
    """

    inputs = (
        Input(
            "inputs",
            "T",
            variadic=True,
            shape="one shape but for the length along `axis`, which may be 0",
            doc="at least one array",
        ),
    )
    outputs = (
        Output("concat_result", "T", shape="that shape with all lengths added up"),
        Output("per_input_length", "int64", memory="host", shape="shape (number of inputs,)"),
    )
    axis = attribute(integer, doc="from -rank to rank - 1")
    types: ClassVar[Types] = {"T": FIXED_SIZE}
    bitwise_exact = True

    def infer(self, xs: tuple[Spec, ...]) -> tuple[Inferred, ...]:
        """Return the spec of the arrays xs joined, and their lengths along the axis as int64."""
        if not xs:
            refuse(self.name, "inputs", "at least one array", "an empty list")
        axis = from_front(self.name, self.axis, len(xs[0].shape))
        for i, x in enumerate(xs):
            if not _same_but_for(axis, x.shape, xs[0].shape):
                expected = f"shape {xs[0].shape} but for axis {axis}, like inputs[0]"
                refuse(self.name, f"inputs[{i}]", expected, f"shape {x.shape}")
        lengths = [x.shape[axis] for x in xs]
        joined = (*xs[0].shape[:axis], sum(lengths), *xs[0].shape[axis + 1 :])
        return Spec(joined, xs[0].dtype), np.array(lengths, INT64)

    def plan(self, device: Device, xs: tuple[Spec, ...], y: Spec, lengths: Spec) -> Plan:
        """Plan a launch that joins xs to y in words; arguments or a table say where parts start.

        y is seen as n_rows rows; a part is an input with elements, `widths` of them in a row, and
        `starts` are words of a row. A table is in scratch memory, for more parts than arguments
        hold.
        """
        n_rows = math.prod(y.shape[: self.axis % len(y.shape)])
        parts = [x for x in xs if x.size]
        widths = [x.size // n_rows for x in parts]
        run_nbytes = y.nbytes // (n_rows * len(parts))
        words = words_of((*xs, y), widths, run_nbytes)
        starts = [words.count(s * y.dtype.itemsize) for s in _starts(widths)]
        config = Config((words.tiles(y.nbytes),), (THREADS,))
        result = (y, n_rows, divisor(starts[-1]), len(parts))
        if len(parts) <= CAPACITIES[-1]:
            table, capacity = _by_value(PartStarts, parts, at=starts)
            launch = _launch("concat_training", config, (*result, *table), words, capacity)
            return Plan((launch,))
        if words.chunk > 1 or run_nbytes < LONG_RUN_NBYTES:
            symbol = "concat_training__many"
            return _by_table(symbol, result[:3], config, parts, starts, words)
        head = (y, n_rows, starts[-1], _even(n_rows * starts[-1], parts))
        return _by_table("concat_training__words", head, config, parts, starts, words)


def _same_but_for(axis: int, shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return True if two shapes are equal but for one axis."""
    rest = [(a, b) for i, (a, b) in enumerate(zip(shape, other, strict=False)) if i != axis]
    return len(shape) == len(other) and all(a == b for a, b in rest)


def _starts(widths: Iterable[int]) -> list[int]:
    """Return where each part starts, and where the last one ends: [3, 2] gives [0, 3, 5]."""
    return list(itertools.accumulate(widths, initial=0))


def _even(n: int, parts: Sequence[Spec]) -> np.void:
    """Return a Divisor by n / len(parts), with which kernels guess the part that a word is in."""
    return divisor(max(1, n // len(parts)))


def _by_table(
    symbol: str,
    head: tuple[object, ...],
    config: Config,
    parts: Sequence[Spec],
    starts: list[int],
    words: Words,
) -> Plan:
    """Plan launches that write the table of parts to scratch memory, and `symbol`, which reads it.

    head: the kernel's first arguments; behind them are the number of parts and the table. config:
    its grid and block. parts: the arrays. starts: words of a row at which parts start, and where
    the last one ends. words: size of the words that are copied.
    """
    scratch = ScratchMemory()
    table = scratch.take(len(starts), Part.of().dtype)
    fill = _even_fill if len(set(map(int, np.diff(starts)))) == 1 else _fill
    launch = _launch(symbol, config, (*head, len(parts), table), words)
    return scratch.plan(*fill(table, parts, starts, words), launch)


def _fill(
    table: Scratch, parts: Sequence[Spec], starts: list[int], words: Words
) -> Iterator[Launch]:
    """Yield launches that write table[i] = (address of parts[i], starts[i]).

    Each has as many parts as its arguments hold; a last entry has the end of the last part. starts:
    words of a row; words: their size.
    """
    most = CAPACITIES[-1]
    for first in range(0, len(parts), most):
        batch = parts[first : first + most]
        values, capacity = _by_value(PartStarts, batch, at=starts[first : first + most + 1])
        config = Config((1,), (capacity + 1,))
        arguments = (table, first, len(batch), *values)
        yield _launch("tensor__table", config, arguments, words, capacity)


def _even_fill(
    table: Scratch, parts: Sequence[Spec], starts: list[int], words: Words
) -> Iterator[Launch]:
    """Yield launches that write table[i] = (address of parts[i], i * starts[1]).

    starts: as many multiples of starts[1] as there are parts, and one more. words: size of the
    words that starts count.
    """
    config = Config((1,), (EVEN_CAPACITY + 1,))
    for first in range(0, len(parts), EVEN_CAPACITY):
        batch = tuple(parts[first : first + EVEN_CAPACITY])
        arguments = (table, first, len(batch), starts[1], Pointers(batch, EVEN_CAPACITY))
        yield _launch("tensor__even_table", config, arguments, words, EVEN_CAPACITY)


def _by_value(
    struct: Struct, arrays: Sequence[Spec], **columns: Sequence[int] | HostArray
) -> tuple[tuple[Pointers, np.void], int]:
    """Return ((addresses of arrays, struct of `columns`), capacity), arguments of a launch.

    A column has an entry for each array and one more; zeros fill it up to capacity + 1 entries.
    """
    capacity = next(most for most in CAPACITIES if len(arrays) <= most)
    padded = {name: np.pad(c, (0, capacity + 1 - len(c))) for name, c in columns.items()}
    return (Pointers(tuple(arrays), capacity), by_value(struct.of(capacity), **padded)), capacity


def _launch(
    symbol: str,
    config: Config,
    arguments: tuple[object, ...],
    words: Words,
    capacity: int = CAPACITIES[0],
) -> Launch:
    """Plan a launch of the kernel `symbol` that copies words, with grid and block of `config`.

    words: their size. capacity: arrays that its arguments have room for.
    """
    return Launch(symbol, config, arguments, words.slots | {"CAPACITY": str(capacity)})


class SplitTraining(Op):
    """An array split along an axis: outputs[i] = the next split[i] positions of `input`.

    It undoes ConcatTraining. Where `split` is left out or empty there are `num_outputs` equal
    parts; ONNX Runtime takes their number from the graph.

    Source: ONNX Split-18;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/tensor/split.cc.
    """

    inputs = (
        Input("input", "T", shape="rank 1 or more"),
        Input(
            "split",
            "int64",
            memory="host",
            optional=True,
            convert=lengths,
            doc="they add up to that of the axis",
        ),
    )
    outputs = (Output("outputs", "T", variadic=True, shape="split[i] long along `axis`"),)
    axis = attribute(integer, 0, doc="from -rank to rank - 1")
    num_outputs = attribute(optional(count), None, doc="required where split is left out")
    types: ClassVar[Types] = {"T": FIXED_SIZE}
    bitwise_exact = True

    def infer(self, x: Spec, split: Shape | None) -> tuple[tuple[Spec, ...]]:
        """Return the specs of the parts."""
        axis = from_front(self.name, self.axis, len(x.shape))
        sizes = split or self._even(x.shape[axis])
        if sum(sizes) != x.shape[axis]:
            expected = f"sizes that add up to {x.shape[axis]}, the length of axis {axis}"
            refuse(self.name, "split", expected, f"{sizes}, in all {sum(sizes)}")
        if self.num_outputs not in (None, len(sizes)):
            refuse(self.name, "split", f"{self.num_outputs} sizes (num_outputs)", f"{sizes}")
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        return (tuple(Spec((*before, size, *after), x.dtype) for size in sizes),)

    def _even(self, length: int) -> tuple[int, ...]:
        """Return `num_outputs` equal sizes that add up to `length`, or refuse."""
        n = self.num_outputs
        if n is None:
            refuse(self.name, "num_outputs", "at least 1 where split is empty", "None")
        if length % n:
            refuse(self.name, "split", f"a length that {n} outputs divide evenly", str(length))
        return (length // n,) * n

    def plan(self, device: Device, x: Spec, split: Shape | None, outputs: tuple[Spec, ...]) -> Plan:
        """Plan launches for MAX_SPLIT outputs each, or one with a table for very many narrow ones.

        x is seen as n_rows rows; a part is an output with elements, `widths` of them in a row.
        `starts` are words of a row, `tiles` blocks.
        """
        n_rows = math.prod(x.shape[: self.axis % len(x.shape)])
        parts = [y for y in outputs if y.size]
        widths = [y.size // n_rows for y in parts]
        words = words_of((x, *outputs), widths, x.nbytes // (n_rows * len(parts)))
        starts = [words.count(s * x.dtype.itemsize) for s in _starts(widths)]
        head = (x, n_rows, starts[-1])
        if words.chunk == 1 and len(parts) >= MANY_SPLIT:
            symbol, even = "split_training__words", _even(n_rows * starts[-1], parts)
            config = Config((words.tiles(x.nbytes),), (THREADS,))
            return _by_table(symbol, (*head, even), config, parts, starts, words)
        launches = []
        for first in range(0, len(parts), MAX_SPLIT):
            batch = parts[first : first + MAX_SPLIT]
            columns = starts[first : first + len(batch) + 1]
            row_nbytes = n_rows * words.nbytes
            widths = [b - a for a, b in itertools.pairwise(columns)]
            tiles = _starts(words.tiles(width * row_nbytes) for width in widths)
            # With these kernels divide by a part's width (core/fast_division.cuh).
            multipliers = np.array([divisor_fields(width)[1] for width in widths], np.uint64)
            table, capacity = _by_value(
                Split, batch, column=columns, tile=tiles, multiplier=multipliers
            )
            config = Config((tiles[-1],), (THREADS,))
            arguments = (*head, len(batch), *table)
            launches.append(_launch("split_training", config, arguments, words, capacity))
        return Plan(tuple(launches))


OPS = {
    "ConcatTraining": ConcatTraining,
    "SplitTraining": SplitTraining,
    "View": View,
}
