# SPDX-License-Identifier: MIT
"""Functions of the caller's, registered by name, and what is run of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

from ..errors import ArgumentError, ProviderError, cut, pass_on, refuse, shown
from .tensors import TorchFunction

T = TypeVar("T")


Callee = Callable[..., Any]  # of the caller's: on what arrays it takes and gives nothing is known
Kept = tuple[Any, Any]  # what a forward returns, and what it keeps


class Function(Protocol):
    """A forward and a backward, of plain functions or of another library's class."""

    def forward(
        self,
        arguments: Sequence[object],
        tensors: Sequence[bool],
        grads: Sequence[bool],
        keeps: bool,
    ) -> Kept:
        """What the forward returns, and what is kept for a backward; None where nothing is.

        tensors: which arguments are arrays; grads: of which a gradient is wanted.
        """

    def backward(self, kept: Any, gradients: Sequence[object]) -> object:
        """What the backward returns: one result for each argument of the forward."""


class PlainFunction:
    """forward(ctx, *arguments) and backward(ctx, *gradients), on arrays as they are."""

    def __init__(self, forward: Callee, backward: Callee | None) -> None:
        self._forward = forward
        self._backward = backward

    def forward(
        self,
        arguments: Sequence[object],
        tensors: Sequence[bool],
        grads: Sequence[bool],
        keeps: bool,
    ) -> Kept:
        """The forward, with a context that takes any attribute."""
        context = SimpleNamespace(needs_input_grad=tuple(grads))
        returned = self._forward(context, *arguments)
        return returned, context if keeps and self._backward is not None else None

    def backward(self, kept: Any, gradients: Sequence[object]) -> object:
        """The backward."""
        assert self._backward is not None  # else nothing is kept
        return self._backward(kept, *gradients)


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
    """The function of a PythonOp; ArgumentError where none has the name."""
    return _found(op, name, _python_ops, "register_python_op")


def triton_op(op: str, name: str) -> Callee:
    """The same of a TritonOp."""
    return _found(op, name, _triton_ops, "register_triton_op")


def run(op: str, name: str, function: Callable[..., T], *given: object, **keywords: object) -> T:
    """What a caller's function returns; ProviderError with its name where it raises."""
    try:
        return function(*given, **keywords)
    except MemoryError:
        raise
    except Exception as error:  # of any kind
        pass_on(error)
        said = cut(f"{type(error).__name__}: {error}")
        raise ProviderError(f"{op}: {name} raised {said}") from error


def results(op: str, name: str, returned: object, n: int) -> tuple[Any, ...]:
    """What a caller's function returned as a tuple of n."""
    values = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    if len(values) != n:
        refuse(op, f"results of {name}", str(n), str(len(values)))
    return values


def _found(op: str, name: str, table: Mapping[str, T], register: str) -> T:
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
    """Who has such a class has imported PyTorch."""
    torch = sys.modules.get("torch")
    return (
        torch is not None and isinstance(value, type) and issubclass(value, torch.autograd.Function)
    )
