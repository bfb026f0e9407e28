# SPDX-License-Identifier: MIT
"""Rules: from the gradients of a node's outputs to those of its inputs, as nodes.

    @gradient("Tanh")
    def tanh(site):
        (dy,), (y,) = site.dys, site.outputs
        return [dy * (1 - y * y)]

A rule returns a gradient for each input, None where there is none. Arithmetic with a Term adds
nodes to the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...dtypes import FLOAT32, Dtype, HostArray
from ...errors import ArgumentError, cut
from ..graph import Extent, Node
from ..models import onnx_package
from ..standard.table import HALVES
from .writer import Writer, lengths_of, zeros_of

MICROSOFT = "com.microsoft"
INT64, BOOL = np.dtype(np.int64), np.dtype(bool)

Rule = Callable[["Site"], "Sequence[Term | None]"]
RULES: dict[str, Rule] = {}
ZERO: set[str] = set()  # operators whose gradient is 0, so that none is made
UNDEFINED: dict[str, str] = {}  # operators without a gradient, and why
# Operators that are replaced by their bodies, ONNX's own definition by nodes, which have rules:
BY_BODY: set[str] = set()
# Operators that round to integers, and whose gradient passes straight through the rounding:
STRAIGHT: set[str] = set()


def gradient(*names: str) -> Callable[[Rule], Rule]:
    """Return a decorator that puts a rule into RULES under these operators' names."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


class Term:
    """The value `name` of the graph, for formulas: `x * y + 1` adds a Mul and an Add node.

    Numbers become constants of the Term's type.
    """

    __slots__ = ("_site", "name")

    def __init__(self, site: Site, name: str) -> None:
        self._site, self.name = site, name

    def __add__(self, other: Term | float) -> Term:
        return self._site.op("Add", self, self.beside(other))

    def __sub__(self, other: Term | float) -> Term:
        return self._site.op("Sub", self, self.beside(other))

    def __rsub__(self, other: float) -> Term:
        return self._site.op("Sub", self.beside(other), self)

    def __mul__(self, other: Term | float) -> Term:
        return self._site.op("Mul", self, self.beside(other))

    def __truediv__(self, other: Term | float) -> Term:
        return self._site.op("Div", self, self.beside(other))

    def __rtruediv__(self, other: float) -> Term:
        return self._site.op("Div", self.beside(other), self)

    def __neg__(self) -> Term:
        return self._site.op("Neg", self)

    __radd__, __rmul__ = __add__, __mul__

    def beside(self, other: Term | float) -> Term:
        """Return a Term as it is, a number as a constant of this one's type."""
        return other if isinstance(other, Term) else self._site.number(other, self)


Dim = tuple[Term, int]  # (value, axis): an extent, the value's along the axis


class Site:
    """A forward node whose rule runs, and methods by which the rule adds nodes.

    node       the forward node
    inputs     Terms, None of one that is left out
    outputs    Terms, None of one that is left out
    dys        gradients of the outputs; None where the loss does not depend on it
    wanted     for each input, True if its gradient is needed
    writer     the graph to which nodes are added
    """

    def __init__(
        self,
        writer: Writer,
        place: int,
        dys: Sequence[str],
        wanted: tuple[bool, ...],
    ) -> None:
        """Prepare; place: the node's index in writer.forward. dys: names, "" without a gradient."""
        self.writer, self._place, self.wanted = writer, place, wanted
        self.inputs = tuple(self._term(name) for name in self.node.inputs)
        self.dys = tuple(self._term(name) for name in dys)

    @property
    def node(self) -> Node:
        """The forward node."""
        return self.writer.forward[self._place]

    @property
    def _title(self) -> str:
        return self.node.name or self.node.outputs[0]

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Terms of the outputs that the node has; None of those that are left out."""
        return tuple(self._term(name) for name in self.node.outputs)

    @property
    def dy(self) -> Term:
        """The gradient of the first output; refused if another output has one as well."""
        for name, other in zip(self.node.outputs[1:], self.dys[1:], strict=False):
            if other is not None:
                raise ArgumentError(f"the gradient of its output {cut(name)!r} is not known")
        first: Term = self.dys[0]
        return first

    def _term(self, name: str) -> Any:
        return Term(self, name) if name else None

    # ---- making nodes ----------------------------------------------------------------------------

    def op(self, op_type: str, *inputs: Term | None, **options: Any) -> Term:
        """Add a node with one result, and return that.

        options: the node's attributes; `domain`; the result's type as `dtype`, or by a Term `like`
        of that type (by default the first input).
        """
        return self.ops(1, op_type, *inputs, **options)[0]

    def own(self, op_type: str, *inputs: Term | None, **options: Any) -> Term:
        """Add a node of the domain com.microsoft, ONNX Runtime's own operators; return its result.

        options: attributes, `dtype` and `like` as `op` takes them.
        """
        return self.op(op_type, *inputs, domain=MICROSOFT, **options)

    def owns(
        self, n_outputs: int, op_type: str, *inputs: Term | None, **options: Any
    ) -> tuple[Term, ...]:
        """Add a node of the domain com.microsoft, and return its n_outputs results.

        options: attributes, `dtype` and `like` as `op` takes them.
        """
        return self.ops(n_outputs, op_type, *inputs, domain=MICROSOFT, **options)

    def ops(
        self,
        n_outputs: int,
        op_type: str,
        *inputs: Term | None,
        domain: str = "",
        dtype: Dtype | None = None,
        like: Term | None = None,
        **attributes: Any,
    ) -> tuple[Term, ...]:
        """Add a node of this operator and domain, and return its n_outputs results.

        dtype: of all results; or `like`, a Term of that type; else the first input's.
        """
        if like is not None:
            dtype = self.writer.types.get(like.name)
        names = self.writer.add(
            op_type,
            [term.name if term else "" for term in inputs],
            f"{self._title}_Grad/{op_type}",
            n_outputs=n_outputs,
            domain=domain,
            dtype=dtype,
            attributes=attributes,
        )
        return tuple(Term(self, name) for name in names)

    def compare(self, op_type: str, a: Term, b: Term | float) -> Term:
        """Return the bools of a comparison such as "Less" of a with a value or number."""
        return self.op(op_type, a, a.beside(b), dtype=BOOL)

    def choose(self, condition: Term, a: Term | float, b: Term | float) -> Term:
        """Return a where the condition holds, else b; at least one of them is a Term."""
        like = a if isinstance(a, Term) else b
        assert isinstance(like, Term)
        dtype = self.writer.types.get(like.name)
        return self.op("Where", condition, like.beside(a), like.beside(b), dtype=dtype)

    def cast(self, x: Term, dtype: Dtype) -> Term:
        """Return x in another type; x itself if it is of that type."""
        if self.writer.types.get(x.name) == dtype:
            return x
        return self.op("Cast", x, to=onnx_type(dtype), dtype=dtype)

    def widened(self, x: Term) -> Term:
        """Return x in its `wide_type`."""
        return self.cast(x, wide_type(self.dtype(x)))

    def divide(self, dy: Term, divisor: Term) -> Term:
        """Return dy / divisor in the type of dy, divided in that of the divisor.

        The divisor is of `wide_type`, where it may be more than a half type can have.
        """
        return self.cast(self.cast(dy, self.dtype(divisor)) / divisor, self.dtype(dy))

    def constant(self, value: HostArray) -> Term:
        """Return an array as a constant of the graph."""
        return Term(self, self.writer.constant(f"{self._title}_Grad/constant", value))

    def ints(self, *values: int) -> Term:
        """Return an int64 constant of shape (len(values),)."""
        return self.constant(np.array(values, INT64))

    def number(self, value: float, like: Term) -> Term:
        """Return a constant scalar of another value's type."""
        return self.constant(np.array(value, self.dtype(like)))

    def shape(self, x: Term) -> Term:
        """Return x's shape as an int64 vector: a constant where the model declares it."""
        extents = self.extents(x)
        if extents is not None and all(isinstance(n, int) for n in extents):
            return self.ints(*extents)  # type: ignore[arg-type]
        return self.op("Shape", x, dtype=INT64)

    def reshape(self, value: Term, *dims: int | Dim) -> Term:
        """Return a value in another shape (see `dims`); 0 is an extent of 0, as of an empty one."""
        return self.op("Reshape", value, self.dims(*dims), allowzero=1)

    def reshape_like(self, value: Term, x: Term) -> Term:
        """Return a value in the shape of x."""
        return self.op("Reshape", value, self.shape(x), allowzero=1)

    def dims(self, *dims: int | Dim) -> Term:
        """Return an int64 vector of numbers, and of extents that are (value, axis).

        dims((x, 0), 2, 3): [len(x), 2, 3], a constant if the model declares len(x).
        """
        known = [dim if isinstance(dim, int) else self.extent(*dim) for dim in dims]
        if all(isinstance(n, int) for n in known):
            return self.ints(*known)  # type: ignore[arg-type]
        parts = [
            self.ints(n)
            if isinstance(n, int)
            else self.op("Gather", self.op("Shape", dim[0], dtype=INT64), self.ints(dim[1]))  # type: ignore[index]
            for n, dim in zip(known, dims, strict=True)
        ]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def zeros(self, x: Term) -> Term:
        """Return zeros of the shape and type of x; of a sequence, a sequence of them."""
        return Term(self, zeros_of(self.writer, x.name))

    def lengths(self, sequence: Term, axis: int) -> Term:
        """Return the lengths of a sequence's arrays along an axis: a sequence of int64 (1,)."""
        return Term(self, lengths_of(self.writer, sequence.name, axis))

    def share(self, dy: Term, x: Term, y: Term) -> Term:
        """Return dy / (x.size / y.size), the gradient of a mean of x that gives y.

        In half types the division is one of float32, since a size may be more than they can have.
        """
        dtype = self.dtype(dy)
        if dtype in HALVES:
            wide = self.share(self.cast(dy, FLOAT32), x, y)
            return self.cast(wide, dtype)
        sizes = [self.extents(each) for each in (x, y)]
        if all(n is not None and all(isinstance(m, int) for m in n) for n in sizes):
            n_x, n_y = (math.prod(n) for n in sizes)  # type: ignore[arg-type]
            return dy / (n_x / max(n_y, 1))
        counts = (self.cast(self.op("Size", each, dtype=INT64), dtype) for each in (x, y))
        return dy / self.op("Div", *counts)

    def count_up(self, n: Term) -> Term:
        """Return the int64 vector 0, 1, ..., n - 1; n: a scalar of int64."""
        zero, one = (self.constant(np.array(number, INT64)) for number in (0, 1))
        return self.op("Range", zero, n, one)

    def add_along(self, value: Term, places: Term, axis: int, n: Term) -> Term:
        """Return zeros with x[places[j]] += value[j] for all j, where [] is along `axis`.

        x has value's shape, but n along the axis. places: an int64 vector. n: a vector of one
        number.
        """
        shape = self.op("ScatterElements", self.shape(value), self.ints(axis), n, axis=0)
        return self.own("GatherGrad", shape, places, value, axis=axis, like=value)

    def extra_output(self, place: int, dtype: Dtype | None = None) -> Term:
        """Return output `place` of the forward node, which is added to it if it was left out.

        dtype: its type, if that is known.
        """
        node = self.node
        if place < len(node.outputs) and node.outputs[place]:
            return Term(self, node.outputs[place])
        name = self.writer.new_name(f"{node.outputs[0]}_{place}")
        if dtype is not None:
            self.writer.types[name] = dtype
        outputs = [*node.outputs, *[""] * (place + 1 - len(node.outputs))]
        outputs[place] = name
        self.replace_node(outputs=tuple(outputs))
        return Term(self, name)

    def name_node(self) -> None:
        """Give the forward node a name that no other node has."""
        names = [node.name for node in self.writer.forward]
        if not self.node.name or names.count(self.node.name) > 1:
            used = set(names)
            name = self.node.outputs[0]
            while name in used:
                name += "_"
            self.replace_node(name=name)

    def replace_node(self, **changes: Any) -> None:
        """Replace fields of the forward node."""
        self.writer.forward[self._place] = replace(self.node, **changes)

    def sum_to(self, value: Term, x: Term) -> Term:
        """Return a value of the first output's shape, summed to x's: the reverse of broadcasting"""
        return self.sum_from(value, self.extents(self.outputs[0]), x)

    def sum_from(self, value: Term, whole: Sequence[Extent] | None, x: Term) -> Term:
        """Return a value summed to x's shape: the reverse of broadcasting x.

        whole: the value's shape, None if unknown. Where it or x's is not known, nodes find the axes
        as the graph runs.
        """
        part = self.extents(x)
        axes = None if whole is None or part is None else _repeated(whole, part)
        if axes is None or whole is None or part is None:
            shape = self.op("Shape", x, dtype=INT64)
            shapes = shape, self.op("Shape", value, dtype=INT64)
            axes_of_x, _ = self.ops(2, "BroadcastGradientArgs", *shapes, domain=MICROSOFT)
            options = {"keepdims": 1, "noop_with_empty_axes": 1}
            summed = self.own("ReduceSumTraining", value, axes_of_x, **options)
            return self.op("Reshape", summed, shape)
        if not axes:
            return value
        n_front = len(whole) - len(part)
        if len(axes) == n_front:
            return self.op("ReduceSum", value, self.ints(*axes), keepdims=0)
        value = self.op("ReduceSum", value, self.ints(*axes), keepdims=1)
        return self.op("Squeeze", value, self.ints(*range(n_front))) if n_front else value

    # ---- what is known ---------------------------------------------------------------------------

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute of the forward node, or the default if it is left out."""
        return self.node.attributes.get(name, default)

    def dtype(self, x: Term) -> Dtype:
        """Return the type of a value; refused where the model does not say it."""
        dtype = self.writer.types.get(x.name)
        if dtype is None:
            raise ArgumentError(f"its gradient needs the type of {cut(x.name)!r}")
        return dtype

    def extents(self, x: Term) -> tuple[Extent, ...] | None:
        """Return the shape of a value as the model declares it (see Extent), None without one."""
        constant = self.writer.constants.get(x.name)
        return self.writer.graph.shapes.get(x.name) if constant is None else constant.shape

    def extent(self, x: Term, axis: int) -> Extent:
        """Return a value's extent along an axis: a number, a name, or None if it is not known."""
        extents = self.extents(x)
        return None if extents is None else extents[axis]

    def rank(self, x: Term) -> int:
        """Return the number of a value's dimensions; refused where the model does not say it."""
        extents = self.extents(x)
        if extents is None:
            raise ArgumentError(f"its gradient needs the rank of {cut(x.name)!r}")
        return len(extents)

    def known(self, x: Term, name: str) -> HostArray:
        """Return the array of a constant; refuse another value. name: the input's, for messages."""
        array = self.value(x)
        if array is None:
            raise ArgumentError(f"its gradient needs {name} as a constant, got {cut(x.name)!r}")
        return array

    def value(self, x: Term | None) -> HostArray | None:
        """Return the array of a constant; None of another value, or of a parameter."""
        if x is None or x.name in self.writer.parameters:
            return None
        return self.writer.constants.get(x.name)


def wide_type(dtype: Dtype) -> Dtype:
    """Return float32 for half types, in which sums and counts may overflow, else the type."""
    return FLOAT32 if dtype in HALVES else dtype


def onnx_type(dtype: Dtype) -> int:
    """Return ONNX's number of a type, as Cast's attribute `to` has it."""
    return int(onnx_package().helper.np_dtype_to_tensor_dtype(dtype))


def _repeated(whole: Sequence[Extent], part: Sequence[Extent]) -> tuple[int, ...] | None:
    """Return the axes of `whole` along which the shape `part` is broadcast; None if not known.

    (2, 3, "n"), (3, 1): (0, 2).
    """
    n_front = len(whole) - len(part)
    axes = list(range(n_front))
    for axis, (n, m) in enumerate(zip(whole[n_front:], part, strict=True), n_front):
        if m == 1 and n != 1:
            axes.append(axis)
        elif not isinstance(m, int) and (m is None or m != n):
            return None
    return tuple(axes)
