# SPDX-License-Identifier: MIT
"""Functions of the caller's, registered by name: plain ones, PyTorch's, launchers of Triton.

PyTorch is not imported here: who has one of its functions has imported it.

A forward gets `arguments`, and for each of them a bool: it is an array (`tensors`), a gradient of
it is wanted (`grads`). `keeps`: a backward may follow, for which it saves something. `op`: the
operator's name in messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeVar

from ..call.arguments import adopt
from ..call.backends import info
from ..call.interop import as_tensor, has_same_stream
from ..dtypes import Dtype, dtype_name
from ..errors import ArgumentError, ProviderError, cut, raise_if_from_handler, refuse, shown

T = TypeVar("T")
Callee = Callable[..., Any]  # a function of the caller's
Values = Sequence[object]
Bools = Sequence[bool]  # one for each argument
Forward = tuple[Any, Any]  # (results of a forward, what its backward needs or None)


class Function(Protocol):
    """A forward and a backward, of plain functions or of another library's class."""

    def forward(self, arguments: Values, tensors: Bools, grads: Bools, keeps: bool) -> Forward:
        """Return (the forward's results, what a backward needs of it or None).

        tensors: which arguments are arrays. grads: for which a gradient is wanted. keeps: whether a
        backward may follow.
        """

    def backward(self, saved: Any, gradients: Values) -> object:
        """Return the backward's results: for each argument of the forward a gradient or None.

        saved: the second item that `forward` returned. gradients: of the forward's results.
        """


class PlainFunction:
    """forward(ctx, *arguments) and backward(ctx, *gradients), on arrays as they are."""

    def __init__(self, forward: Callee, backward: Callee | None) -> None:
        self._forward = forward
        self._backward = backward

    def forward(self, arguments: Values, tensors: Bools, grads: Bools, keeps: bool) -> Forward:
        """Return (forward(context, *arguments), context, or None if there is no backward).

        The context takes any attribute, and has `needs_input_grad`, which is grads.
        """
        context = SimpleNamespace(needs_input_grad=tuple(grads))
        returned = self._forward(context, *arguments)
        return returned, context if keeps and self._backward is not None else None

    def backward(self, saved: Any, gradients: Values) -> object:
        """Return backward(context, *gradients); saved: the forward's context."""
        assert self._backward is not None  # else nothing is saved
        return self._backward(saved, *gradients)


class Graph(NamedTuple):
    """The arguments and outputs of a forward, between which PyTorch has an autograd graph."""

    arguments: tuple[Any, ...]  # tensors in place of arrays, other values as they are
    outputs: tuple[Any, ...]


class TorchFunction:
    """A subclass of torch.autograd.Function."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def forward(self, arguments: Values, tensors: Bools, grads: Bools, keeps: bool) -> Forward:
        """Call `apply` on tensors over the arrays' memory; return (results, Graph or None)."""
        torch = sys.modules["torch"]
        rows = zip(arguments, tensors, grads, strict=True)
        with torch.set_grad_enabled(keeps):
            values = tuple(
                as_tensor(value).requires_grad_(keeps and grad) if is_tensor else value
                for value, is_tensor, grad in rows
            )
            returned = self._function.apply(*values)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        has_graph = any(getattr(output, "requires_grad", False) for output in outputs)
        return returned, Graph(values, outputs) if has_graph else None

    def backward(self, saved: Graph, gradients: Sequence[object]) -> object:
        """Return for each argument of the forward its gradient, or None if it has none.

        gradients: of the outputs, None for zeros.
        """
        torch = sys.modules["torch"]
        pairs = zip(saved.outputs, gradients, strict=True)
        asked = [(output, g) for output, g in pairs if g is not None and output.requires_grad]
        wanted = [
            (i, tensor)
            for i, tensor in enumerate(saved.arguments)
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad
        ]
        result: list[object] = [None] * len(saved.arguments)
        if asked and wanted:
            results = torch.autograd.grad(
                [output for output, _ in asked],
                [tensor for _, tensor in wanted],
                [as_tensor(gradient) for _, gradient in asked],
                allow_unused=True,
            )
            for (i, _), gradient in zip(wanted, results, strict=True):
                result[i] = gradient
        return tuple(result)


# ---- registered functions ------------------------------------------------------------------------

_python_ops: dict[str, Function] = {}
_triton_ops: dict[str, Callee] = {}


def register_python_op(name: str, forward: Any, backward: Callee | None = None) -> None:
    """Give PythonOp and PythonOpGrad a function by name; a later one of the name replaces it.

    forward, backward: functions of a context and of arrays, NumPy's or CuPy's, that return an
    array or a tuple of arrays; or instead of both a subclass of torch.autograd.Function. The
    context takes any attribute, and has `needs_input_grad`, a bool for each argument.
    """
    _require_name("register_python_op", name)
    if _is_autograd_function(forward):
        if backward is not None:
            refuse("register_python_op", "backward", "None: the class has its own", shown(backward))
        _python_ops[name] = TorchFunction(forward)
        return
    _require_callable("register_python_op", "forward", forward)
    if backward is not None:
        _require_callable("register_python_op", "backward", backward)
    _python_ops[name] = PlainFunction(forward, backward)


def register_triton_op(name: str, function: Callable[..., object]) -> None:
    """Give TritonOp a function by name; a later one of the name replaces it.

    function: takes the operator's inputs by position and its undeclared attributes as keywords, and
    returns an array or a tuple of arrays. It may launch Triton kernels; see `triton_args`.
    """
    _require_name("register_triton_op", name)
    _require_callable("register_triton_op", "function", function)
    _triton_ops[name] = function


def python_op(op: str, name: str) -> Function:
    """Return the function registered for PythonOp by this name; ArgumentError if there is none."""
    return _look_up(op, name, _python_ops, "register_python_op")


def triton_op(op: str, name: str) -> Callee:
    """Return the function registered for TritonOp by this name; ArgumentError if there is none."""
    return _look_up(op, name, _triton_ops, "register_triton_op")


def run(
    op: str, name: str, function: Callable[..., T], *arguments: object, **keywords: object
) -> T:
    """Return function(*arguments, **keywords); ProviderError if it raises, with op and its name."""
    try:
        return function(*arguments, **keywords)
    except MemoryError:
        raise
    except Exception as error:  # of any kind
        raise_if_from_handler(error)
        words = cut(f"{type(error).__name__}: {error}")
        raise ProviderError(f"{op}: {name} raised {words}") from error


def results(op: str, name: str, returned: object, n: int) -> tuple[Any, ...]:
    """Return a caller's function's results, one or a sequence, as a tuple; refuse all but n."""
    values = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    if len(values) != n:
        refuse(op, f"results of {name}", str(n), str(len(values)))
    return values


def _look_up(op: str, name: str, table: Mapping[str, T], register: str) -> T:
    """Return the table's entry of this name; refuse another.

    register: for the message, the function that registers names.
    """
    try:
        return table[name]
    except KeyError:
        known = ", ".join(sorted(table)) or "none"
        expected = f"a name that {register} was given (there are: {known})"
        raise ArgumentError(
            f"{op}: func_name: expected {cut(expected)}, got {shown(name)}"
        ) from None


def _require_name(function: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        refuse(function, "name", "a text that is not empty", shown(name))


def _require_callable(function: str, argument: str, value: object) -> None:
    if not callable(value):
        refuse(function, argument, "a function", shown(value))


def _is_autograd_function(value: object) -> bool:
    """Return True for a subclass of torch.autograd.Function, whose owner has imported PyTorch."""
    torch = sys.modules.get("torch")
    return (
        torch is not None and isinstance(value, type) and issubclass(value, torch.autograd.Function)
    )


# ---- arrays for Triton ---------------------------------------------------------------------------


class TritonArray:
    """A CuPy array in the form in which Triton accepts kernel arguments: data_ptr() and dtype."""

    def __init__(self, array: Any, dtype: Dtype) -> None:
        self._array = array  # keeps its memory alive
        self.dtype = dtype_name(dtype)  # "float32"
        self.shape: tuple[int, ...] = array.shape
        # In elements.
        self._strides: tuple[int, ...] = tuple(n // dtype.itemsize for n in array.strides)

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        address: int = self._array.data.ptr
        return address

    def stride(self, axis: int) -> int:
        """Return the elements in memory from one index along an axis to the next."""
        return self._strides[axis]


def triton_args(*arrays: Any) -> tuple[TritonArray, ...]:
    """CuPy's arrays for a Triton kernel, over the same memory.

    Triton launches on PyTorch's current stream. In a function that TritonOp runs that is CuPy's
    too, if Triton was imported before the call; elsewhere a stream that differs is an error.
    """
    wrapped = []
    for i, value in enumerate(arrays):
        array = adopt("triton_args", f"arrays[{i}]", value)
        _, dtype, _, _, _, device = info(array)
        if device < 0:
            raise ProviderError(
                f"triton_args: arrays[{i}]: expected an array on a GPU, got NumPy's"
            )
        if not has_same_stream(device):
            raise ProviderError(
                "triton_args: expected PyTorch's current stream to be CuPy's, got another one "
                "(import triton before the operator is called)"
            )
        wrapped.append(TritonArray(array, dtype))
    return tuple(wrapped)
