# SPDX-License-Identifier: MIT
"""Python functions inside a step: autograd functions with their gradients, and Triton kernels.

A function is registered under a name. It gets the caller's arrays themselves, PyTorch's own
functions get tensors over the same memory, and the arrays that it returns are the results.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from ...backend import ArrayInfo, Backend
from ...call.arguments import adopt
from ...call.backends import BACKENDS, CPU, info
from ...call.view_ops import DelegatingOp
from ...callables import contexts, functions
from ...callables.contexts import NO_CONTEXT, UNOWNED, Context, Contexts
from ...declare.schema import (
    Inferred,
    Input,
    Open,
    Output,
    Spec,
    attribute,
    boolean,
    count,
    integer,
    integers,
    optional,
    reals,
    single,
)
from ...declare.type_rows import Types
from ...dtypes import FIXED_SIZE, INT64, Dtype, dtype_name, to_dtype
from ...errors import ArgumentError, DtypeError, refuse, shown
from ..control.operators import arrays

T = TypeVar("T")
Specs = tuple[Spec | None, ...]
Arrays = tuple[Any, ...]
WHAT_IT_RETURNS = "what the function returns"
SHARED = "in an input's memory where `tensor_reuse_map` says so"
TENSOR, CONSTANT = "d", "c"
KINDS = ("bool", "int", "float")  # of constants that attributes hold


def convention(value: object) -> str:
    """A text with a letter for each argument or result: d of an array, c of anything else.

    Return `value` as such, or refuse it; documents show the first line.
    """
    if not isinstance(value, str) or not set(value) <= {TENSOR, CONSTANT}:
        raise ArgumentError(f"expected a text of the letters d and c, got {shown(value)}")
    return value


def no_graph(value: object) -> str:
    """An empty text: graphs are not compiled here.

    Return `value` as such, or refuse it; documents show the first line.
    """
    if value not in ("", b""):
        raise ArgumentError(
            "expected nothing, got an ONNX graph, which is not compiled here: write its Triton "
            "kernel, and register a function that launches it (func_name)"
        )
    return ""


def text(value: object) -> str:
    """A text.

    Return `value` as such, or refuse it; documents show the first line.
    """
    if not isinstance(value, str):
        raise ArgumentError(f"expected a text, got {shown(value)}")
    return value


def dtypes(value: object) -> tuple[Dtype, ...]:
    """Dtypes, their names or their ONNX type numbers.

    Return `value` as such, or refuse it; documents show the first line.
    """
    if not isinstance(value, list | tuple | np.ndarray):
        raise ArgumentError(f"expected a list of dtypes, got {shown(value)}")
    return tuple(map(to_dtype, value))


def booleans(value: object) -> tuple[bool, ...]:
    """Bools (0 or 1 in ONNX).

    Return `value` as such, or refuse it; documents show the first line.
    """
    if not isinstance(value, list | tuple | np.ndarray):
        raise ArgumentError(f"expected a list of bools, got {shown(value)}")
    return tuple(map(boolean, value.tolist() if isinstance(value, np.ndarray) else value))


def nothing(value: object) -> tuple[int, ...]:
    """Nothing: an empty list.

    Return `value` as such, or refuse it; documents show the first line.
    """
    if not isinstance(value, list | tuple) or value:
        raise ArgumentError(
            f"expected none, got {shown(value)}: addresses of Python objects mean nothing in "
            f"another process, and keep nothing alive (register a function that has the object)"
        )
    return ()


def handle(value: object) -> int:
    """A context: the integer that a PythonOp gave.

    Return `value` as such, or refuse it; documents show the first line.
    """
    return integer(single(value))


TENSOR_TYPES = attribute(optional(dtypes), None, doc="None: not checked")
TENSOR_RANKS = attribute(optional(integers), None, doc="None: not checked")
RESULT_TYPES = attribute(dtypes, doc="one for each output")
REUSE = attribute(
    optional(integers),
    None,
    doc="for each output, the context too, the input whose memory it is, or -1",
)
SAFE_RUN = attribute(boolean, True, doc="has no effect: every call is checked")
COMMENT = attribute(text, "", doc="has no effect")
POSITIONS = attribute(integers, (), doc="of arguments")
BEGINS = attribute(integers, (), doc="where each begins")


class _Delegating(DelegatingOp):
    """Base of operators that run the function registered as `func_name`, which errors call
    `callee`."""

    runs_functions = True
    provider = "NumPy and CuPy arrays alike: the function computes, on their current stream."
    types: ClassVar[Types] = {"T": FIXED_SIZE}
    func_name: str

    def __init__(self, **attributes: object) -> None:
        super().__init__(**attributes)
        vars(self).update(callee=repr(self.func_name))

    def require(self, name: str, values: Sequence[object] | None, n: int, of: str) -> None:
        """Refuse attribute `name` if `values` has other than n entries, one for each `of`."""
        if values is not None and len(values) != n:
            refuse(self.name, name, f"{n} entries, one for each {of}", str(len(values)))

    def run(self, function: Callable[..., T], *args: object, **keywords: object) -> T:
        """Return function(*args, **keywords); errors of it name operator and function."""
        return functions.run(self.name, self.callee, function, *args, **keywords)

    def results(self, returned: object, n: int) -> tuple[Any, ...]:
        """Return what the function returned as a tuple of n values, or refuse it."""
        return functions.results(self.name, self.callee, returned, n)


class _PythonOp(_Delegating):
    """Base of PythonOp and its gradient: arrays and their declared types and ranks."""

    func_name = attribute(text, doc="the name at register_python_op")
    input_tensor_types = TENSOR_TYPES
    input_tensor_ranks = TENSOR_RANKS
    output_tensor_types = RESULT_TYPES
    output_tensor_ranks = TENSOR_RANKS
    tensor_reuse_map = REUSE

    def __init__(self, **attributes: object) -> None:
        """Check that a function is registered, and that lists fit the number of outputs."""
        super().__init__(**attributes)
        functions.python_op(self.name, self.func_name)
        n = len(self.output_tensor_types)
        if not n:
            refuse(self.name, "output_tensor_types", "at least one", "none")
        self.require("output_tensor_ranks", self.output_tensor_ranks, n, "output")

    def check_inputs(self, specs: Specs) -> None:
        """Refuse arrays whose dtypes or ranks differ from the declared ones."""
        types = self.input_tensor_types or (None,) * len(specs)
        ranks = self.input_tensor_ranks or (None,) * len(specs)
        self.require("inputs", specs, len(types), "of input_tensor_types")
        self.require("inputs", specs, len(ranks), "of input_tensor_ranks")
        for i, (spec, dtype, rank) in enumerate(zip(specs, types, ranks, strict=True)):
            if spec is not None and dtype is not None:
                self.require_dtype(f"inputs[{i}]", dtype, spec.dtype)
            if spec is not None and rank not in (None, len(spec.shape)):
                refuse(self.name, f"inputs[{i}]", f"rank {rank}", f"rank {len(spec.shape)}")

    def require_dtype(self, argument: str, expected: Dtype, got: Dtype) -> None:
        """Refuse an array whose dtype `got` is not `expected`."""
        if expected != got:
            names = f"expected dtype {dtype_name(expected)}, got {dtype_name(got)}"
            raise DtypeError(f"{self.name}: {argument}: {names}")

    def open_outputs(self, optional: bool) -> tuple[Open, ...]:
        """Return an Open for each output: its declared dtype and rank, of unknown shape.

        optional: the function may return None for it.
        """
        types = self.output_tensor_types
        ranks = self.output_tensor_ranks or (None,) * len(types)
        return tuple(Open(t, rank, optional) for t, rank in zip(types, ranks, strict=True))

    def adopt_outputs(self, values: Sequence[Any], inputs: Arrays, reused: Sequence[int]) -> Arrays:
        """Return the function's results, `values`, as arrays; refuse one of other memory than due.

        reused[i]: the place among `inputs` of the array whose memory output i has, or -1.
        """
        outputs = []
        for i, (value, place) in enumerate(zip(values, reused, strict=True)):
            name = f"outputs[{i}] of {self.callee}"
            array: Any = adopt(self.name, name, value)
            source = inputs[place] if place >= 0 else None
            both = source is not None and array is not None
            if both and array.size and _address(array) != _address(source):
                refuse(self.name, name, f"the memory of inputs[{place}]", "other memory")
            outputs.append(array)
        return tuple(outputs)


def _address(array: Any) -> int:
    """Return the address of an array's first element."""
    return BACKENDS[type(array)].pointers([array])[0]


class PythonOp(_PythonOp):
    """Runs a Python function as a step's forward: outputs = forward(context, inputs, constants).

    `input_convention` has a letter for each argument: d takes the next of `inputs`, c a constant by
    its place. Of a torch.autograd.Function it is what `apply` returns. With `training_mode` the
    function's context waits for PythonOpGrad under the number `context`, until that has run,
    `release_context` frees it or the operator is gone; in the function form, which keeps its
    operators, until one of the first two. It is 0 where no context waits.

    Source: ONNX Runtime,
    orttraining/orttraining/training_ops/cuda/torch/torch_custom_function_kernel.cc.
    """

    inputs = (arrays("inputs", "at least one, one for each letter d"),)
    outputs = (
        Output("context", "int64", memory="host", shape="shape (1,)"),
        Output(
            "outputs",
            "T",
            variadic=True,
            shape=WHAT_IT_RETURNS,
            doc=SHARED,
        ),
    )
    input_convention = attribute(convention)
    input_requires_grads = attribute(optional(integers), None, doc="1 for each argument with one")
    input_tensor_types = TENSOR_TYPES
    input_tensor_ranks = TENSOR_RANKS
    input_bool_scalars = attribute(booleans, ())
    input_bool_scalar_positions = POSITIONS
    input_bool_tuples = attribute(booleans, (), doc="one after the other")
    input_bool_tuple_positions = POSITIONS
    input_bool_tuple_begins = BEGINS
    input_int_scalars = attribute(integers, ())
    input_int_scalar_positions = POSITIONS
    input_int_tuples = attribute(integers, (), doc="one after the other")
    input_int_tuple_positions = POSITIONS
    input_int_tuple_begins = BEGINS
    input_float_scalars = attribute(reals, ())
    input_float_scalar_positions = POSITIONS
    input_float_tuples = attribute(reals, (), doc="one after the other")
    input_float_tuple_positions = POSITIONS
    input_float_tuple_begins = BEGINS
    input_pointer_scalars = attribute(nothing, (), doc="refused")
    input_pointer_scalar_positions = attribute(nothing, (), doc="refused")
    output_tensor_types = RESULT_TYPES
    output_tensor_ranks = TENSOR_RANKS
    tensor_reuse_map = REUSE
    bw_tensor_reuse_map = attribute(optional(integers), None, doc="PythonOpGrad has its own")
    training_mode = attribute(boolean, False, doc="whether a backward may follow")
    safe_run_mode = SAFE_RUN
    comment = COMMENT
    contexts: Contexts  # what forwards saved, by number
    constants: Mapping[int, object]  # the constant arguments, by place

    def __init__(self, **attributes: object) -> None:
        """Check that attributes fit each other; collect the constants by their places."""
        super().__init__(**attributes)
        letters, n = self.input_convention, len(self.output_tensor_types)
        values = constants(self.name, letters, self.attribute_values)
        n_arrays = letters.count(TENSOR)
        self.require("input_requires_grads", self.input_requires_grads, len(letters), "argument")
        self.require("input_tensor_types", self.input_tensor_types, n_arrays, "letter d")
        self.require("input_tensor_ranks", self.input_tensor_ranks, n_arrays, "letter d")
        self.require("tensor_reuse_map", self.tensor_reuse_map, n + 1, "output and the context")
        require_places(self.name, self.tensor_reuse_map, n_arrays)
        vars(self).update(contexts=Contexts(), constants=MappingProxyType(values))

    @classmethod
    def shared(cls, **attributes: object) -> Self:
        """Return the instance that the function form shares; it owns no contexts."""
        op = super().shared(**attributes)
        vars(op).update(contexts=UNOWNED)
        return op

    def infer(self, inputs: Specs) -> tuple[Inferred, ...]:
        """Check the arrays; return the spec of the context, and an Open for each output."""
        if not inputs:
            refuse(self.name, "inputs", "at least one array", "none")
        self.require("inputs", inputs, self.input_convention.count(TENSOR), "letter d")
        self.check_inputs(inputs)
        return Spec((1,), INT64), self.open_outputs(optional=False)

    @contextlib.contextmanager
    def delegation(self, inputs: Arrays) -> Iterator[object]:
        """Run the forward, yield (context, outputs); keep what it saved once they are accepted.

        context: an array of one number, by which PythonOpGrad finds what was saved.
        """
        function = functions.python_op(self.name, self.func_name)
        letters, arrays = self.input_convention, iter(inputs)
        arguments = [
            next(arrays) if a == TENSOR else self.constants[i] for i, a in enumerate(letters)
        ]
        grads = self.input_requires_grads or (0,) * len(letters)
        tensors = [letter == TENSOR for letter in letters]
        returned, saved = self.run(
            function.forward, arguments, tensors, list(map(bool, grads)), self.training_mode
        )
        values = self.results(returned, len(self.output_tensor_types))
        outputs = self.adopt_outputs(
            values, inputs, (self.tensor_reuse_map or (-1,) * (len(values) + 1))[1:]
        )  # the first entry is that of the context
        number = NO_CONTEXT if saved is None else contexts.new_handle()
        yield np.array([number], INT64), outputs
        if saved is not None:
            infos = tuple(ArrayInfo(*info(array)) for array in outputs)
            self.contexts.keep(number, Context(self.func_name, function, saved, infos))


class PythonOpGrad(_PythonOp):
    """Runs the backward of a PythonOp: outputs = backward(context, inputs), with the context's end.

    inputs are the gradients of the forward's outputs, of the same types and shapes (or scalars);
    None stands for one that is not there. Of what the function returns, one result for each letter
    of `output_convention`, c is dropped, as is d where `output_tensor_requires_grads` is 0. A
    context ends with the backward that succeeds; where one is refused, or raises, it stays.

    Source: ONNX Runtime,
    orttraining/orttraining/training_ops/cuda/torch/torch_custom_function_kernel.cc.
    """

    needs = "the context of a PythonOp"
    inputs = (
        Input("context", "int64", memory="host", convert=handle, static=False),
        arrays("inputs", "one for each output of the forward", holes=True),
    )
    outputs = (
        Output("outputs", "T", variadic=True, shape=f"{WHAT_IT_RETURNS}, or None", doc=SHARED),
    )
    input_tensor_types = TENSOR_TYPES
    input_tensor_ranks = TENSOR_RANKS
    output_convention = attribute(convention)
    output_tensor_types = RESULT_TYPES
    output_tensor_ranks = TENSOR_RANKS
    output_tensor_requires_grads = attribute(booleans, doc="one for each output")
    tensor_reuse_map = attribute(
        optional(integers),
        None,
        doc="for each output the input whose memory it is, the context being 0, or -1",
    )
    safe_run_mode = SAFE_RUN
    comment = COMMENT

    def __init__(self, **attributes: object) -> None:
        """Check that the lists of attributes have an entry for each output."""
        super().__init__(**attributes)
        n = len(self.output_tensor_types)
        if self.output_convention.count(TENSOR) != n:
            refuse(self.name, "output_convention", f"{n} letters d", repr(self.output_convention))
        flags = self.output_tensor_requires_grads
        self.require("output_tensor_requires_grads", flags, n, "output")
        self.require("tensor_reuse_map", self.tensor_reuse_map, n, "output")

    def infer(self, context: object, gradients: Specs) -> tuple[Inferred, ...]:
        """Check gradients; return an Open for each wanted output, None for the others."""
        self.check_inputs(gradients)
        for place in self.tensor_reuse_map or ():  # 0 is the context, i + 1 gradient i
            if place != -1 and not 1 <= place <= len(gradients):
                refuse(self.name, "tensor_reuse_map", f"-1 or 1 to {len(gradients)}", str(place))
        pairs = zip(
            self.open_outputs(optional=True), self.output_tensor_requires_grads, strict=True
        )
        return (tuple(known if wanted else None for known, wanted in pairs),)

    @contextlib.contextmanager
    def delegation(self, number: int, gradients: Arrays) -> Iterator[object]:
        """Take context `number`, run the backward, yield the outputs; put it back if one fails."""
        owner, context = contexts.take(self.name, "context", number)
        try:
            self._check(context, gradients)
            returned = self.run(context.function.backward, context.saved, gradients)
            yield self._outputs(self.results(returned, len(self.output_convention)), gradients)
        except BaseException:
            owner.keep(number, context)
            raise

    def _outputs(self, values: Arrays, gradients: Arrays) -> Arrays:
        """Return those of the results, `values`, with the letter d as arrays."""
        pairs = zip(values, self.output_convention, strict=True)
        arrays = [value for value, letter in pairs if letter == TENSOR]
        reused = self.tensor_reuse_map or (-1,) * len(arrays)
        return self.adopt_outputs(arrays, (None, *gradients), reused)

    def _check(self, context: Context, gradients: Arrays) -> None:
        """Refuse gradients that are not those of the forward's outputs."""
        if context.name != self.func_name:
            refuse(self.name, "context", f"one of {self.callee}", f"one of {context.name!r}")
        self.require("inputs", gradients, len(context.outputs), "output of the forward")
        for i, (gradient, output) in enumerate(zip(gradients, context.outputs, strict=True)):
            if gradient is None:
                continue
            name, actual = f"inputs[{i}]", ArrayInfo(*info(gradient))
            self.require_dtype(name, output.dtype, actual.dtype)
            if actual.shape not in (output.shape, ()):
                refuse(self.name, name, f"shape {output.shape} or ()", f"shape {actual.shape}")
            if actual.place != output.place:
                refuse(self.name, name, f"an array on {output.place}", f"one on {actual.place}")


class TritonOp(_Delegating):
    """Runs a registered function that may launch Triton kernels: outputs = function(inputs).

    Attributes that are not declared are its keywords. `triton_args` makes arguments for Triton of
    CuPy's arrays; a function without Triton is called all the same.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/triton/triton_op.cc.
    """

    takes_keywords = True
    inputs = (arrays("inputs", "any number"),)
    outputs = (Output("outputs", "T", variadic=True, shape=WHAT_IT_RETURNS, doc="in any memory"),)
    func_name = attribute(text, "", doc="the name at register_triton_op; required")
    onnx_key = attribute(integer, 0, doc="has no effect")
    onnx_string = attribute(no_graph, "", doc="refused")
    num_outputs = attribute(count, 1)
    keywords: Mapping[str, object]

    def __init__(self, **attributes: object) -> None:
        """Set declared attributes; all others become keywords of the function."""
        declared = {item.name for item in self.attributes}
        super().__init__(**{k: v for k, v in attributes.items() if k in declared})
        functions.triton_op(self.name, self.func_name)
        more = {k: v for k, v in attributes.items() if k not in declared}
        vars(self).update(keywords=MappingProxyType(more))

    @classmethod
    def shared(cls, **attributes: object) -> Self:
        """Return one instance for equal attributes; a new one for lists and arrays, which the
        caller or the function may change."""
        if any(isinstance(value, list | np.ndarray) for value in attributes.values()):
            return cls.to_share(**attributes)
        return super().shared(**attributes)

    @property
    def attribute_values(self) -> dict[str, object]:
        """Return the attributes, and the function's keywords."""
        return super().attribute_values | dict(self.keywords)

    def placement(self) -> tuple[Backend, int]:
        """Return the CPU: where calls without inputs count as placed."""
        return CPU, CPU.current_device()

    def infer(self, inputs: Specs) -> tuple[Inferred, ...]:
        return ((Open(),) * self.num_outputs,)

    def delegate(self, inputs: Arrays) -> object:
        """Return the function's results for these inputs."""
        function = functions.triton_op(self.name, self.func_name)
        returned = self.run(function, *inputs, **self.keywords)
        return self.results(returned, self.num_outputs)


# ---- constants among the arguments ---------------------------------------------------------------


def constants(op: str, letters: str, attributes: Mapping[str, object]) -> dict[int, object]:
    """Return the constant arguments by their places; refuse attributes that contradict.

    op: the operator's name, for errors. letters: the convention, d or c for each argument.
    attributes: those of PythonOp: input_{kind}_scalars and so on.
    """
    by_place: dict[int, object] = {}
    for name, place, value in _with_places(op, attributes):
        if not 0 <= place < len(letters) or letters[place] != CONSTANT:
            refuse(op, name, f"places of the letter c in {letters!r}", str(place))
        if place in by_place:
            refuse(op, name, "each place once", f"{place} once more")
        by_place[place] = value
    if len(by_place) != letters.count(CONSTANT):
        expected = f"a letter c for each of {len(by_place)} constants"
        refuse(op, "input_convention", expected, repr(letters))
    return by_place


def _with_places(op: str, attributes: Mapping[str, Any]) -> Iterator[tuple[str, int, object]]:
    """Yield (attribute that has the place, place, value) of each constant; op: for errors."""
    for kind in KINDS:
        scalars = attributes[f"input_{kind}_scalars"]
        yield from _pairs(op, f"input_{kind}_scalar_positions", attributes, scalars)
        tuples = _tuples(op, kind, attributes)
        yield from _pairs(op, f"input_{kind}_tuple_positions", attributes, tuples)


def _pairs(
    op: str, name: str, attributes: Mapping[str, Any], values: Sequence[object]
) -> Iterator[tuple[str, int, object]]:
    """Return (name, place, value) of each of `values`; attributes[name] has the places."""
    places = attributes[name]
    if len(places) != len(values):
        refuse(op, name, f"{len(values)} places, one for each value", str(len(places)))
    return ((name, place, value) for place, value in zip(places, values, strict=True))


def _tuples(op: str, kind: str, attributes: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Return the tuples of a kind ("int", "float", "bool"), which the attributes have joined.

    Begins (0, 2) and values (a, b, c) give [(a, b), (c,)]. op: the operator's name, for errors.
    """
    name, values = f"input_{kind}_tuple_begins", attributes[f"input_{kind}_tuples"]
    begins: tuple[int, ...] = attributes[name]
    if not begins and not values:
        return []
    if begins[:1] != (0,) or list(begins) != sorted(begins) or begins[-1] > len(values):
        refuse(op, name, f"numbers that rise from 0 to at most {len(values)}", shown(begins))
    return [values[a:b] for a, b in itertools.pairwise((*begins, len(values)))]


def require_places(op: str, reused: tuple[int, ...] | None, n: int) -> None:
    """Refuse `reused` unless it is (-1, then for each output one of n input places or -1)."""
    if reused is not None and (reused[0] != -1 or not set(reused) <= set(range(-1, n))):
        expected = f"-1 for the context, and -1 or a place below {n} for each output"
        refuse(op, "tensor_reuse_map", expected, shown(reused))


OPS = {
    "PythonOp": PythonOp,
    "PythonOpGrad": PythonOpGrad,
    "TritonOp": TritonOp,
}
