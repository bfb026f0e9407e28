# SPDX-License-Identifier: MIT
"""Calls that go to PyTorch's own functions, as no kernel of this package computes them.

Each is counted by function and argument. If PyTorch refuses the call too, the error is of PyTorch's
type and an ArgumentError, with both messages. Here `ours` is a function of this package, `theirs`
PyTorch's of the same arguments; `arguments` are those by position, `named` those by name.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import ArgumentError, DtypeError, raise_if_from_handler, refuse, shown
from ..forks import Locked
from .ops import DOORS

HALVES = (torch.float16, torch.bfloat16)
FLOATS = frozenset((*HALVES, torch.float32, torch.float64))
_counts = Counter[str]()
_shared = Locked()
_NONE: Mapping[str, Any] = {}


class Unserved(NamedTuple):
    """An argument that no kernel takes: its name, a text of what kernels take, its value or a text.

    Made in compiled regions too, where a value is not yet a text.
    """

    argument: str
    expected: str
    got: object


DERIVATIVE = Unserved("derivative", "reverse mode outside of torch.func", "another")


class ArgumentRuntimeError(ArgumentError, RuntimeError):
    """An argument that PyTorch refuses by a RuntimeError."""


class ArgumentIndexError(ArgumentError, IndexError):
    """An argument that PyTorch refuses by an IndexError."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument that PyTorch refuses by a TypeError."""


# {type of PyTorch's error: type of ours that is raised in its place}.
_ERRORS: dict[type[Exception], type[ArgumentError]] = {
    RuntimeError: ArgumentRuntimeError,
    NotImplementedError: ArgumentRuntimeError,
    IndexError: ArgumentIndexError,
    TypeError: ArgumentTypeError,
    AttributeError: ArgumentTypeError,
    ValueError: ArgumentError,
}
_GRADIENTS = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)


def fallbacks(*, reset: bool = False) -> dict[str, int]:
    """Return how many calls went to PyTorch's functions, by "function: argument".

    A call in a compiled region counts once, when it is traced. reset: begin anew.
    """
    with _shared.lock:
        counts = dict(sorted(_counts.items()))
        if reset:
            _counts.clear()
    return counts


def _add(function: str, argument: str) -> None:
    with _shared.lock:
        _counts[f"{function}: {argument}"] += 1


_count: Callable[[str, str], None] = torch.compiler.assume_constant_result(_add)  # when traced


def differentiates() -> bool:
    """Return True inside torch.func's derivatives and forward mode, which kernels lack."""
    if forward_ad._current_level >= 0:
        return True
    if not torch._C._are_functorch_transforms_active():
        return False
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(interpreter.key() in _GRADIENTS for interpreter in stack)


def is_transformed() -> bool:
    """Return True inside torch.func's transforms and forward mode."""
    return forward_ad._current_level >= 0 or bool(torch._C._are_functorch_transforms_active())


def call_pytorch(
    function: str, reason: Unserved, theirs: Callable[..., Any], *arguments: Any, **named: Any
) -> Any:
    """Count a call that no kernel computes, and return theirs(*arguments, **named).

    function: the name of ours. reason: the argument for which no kernel computes it.
    """
    _count(function, reason.argument)
    if torch.compiler.is_compiling():
        return theirs(*arguments, **named)
    got = reason.got if isinstance(reason.got, str) else shown(reason.got)
    message = f"{function}: {reason.argument}: expected {reason.expected}, got {got}"
    return _call(message, theirs, arguments, named)


def or_pytorch(
    function: str, ours: Callable[..., Any], theirs: Callable[..., Any], *arguments: Any
) -> Any:
    """Call our function, and PyTorch's with the same arguments if ours refuses them."""
    try:
        return ours(*arguments)
    except (ArgumentError, DtypeError) as error:
        raise_if_from_handler(error)
        message = str(error)
        argument = (*message.split(": "), "")[1]  # as `refuse` names it
    except NotImplementedError as error:  # of a device, or a subclass of Tensor
        raise_if_from_handler(error)
        message, argument = str(error), "device"
    _count(function, argument)
    return _call(message, theirs, arguments, {})


def _call(message: str, theirs: Callable[..., Any], arguments: Any, named: Any) -> Any:
    """Call PyTorch's function; if it raises, raise an ArgumentError of that type.

    message: why no kernel takes the call; PyTorch's is appended.
    """
    try:
        return theirs(*arguments, **named)
    except tuple(_ERRORS) as error:
        raise_if_from_handler(error)
        kind, reason = _ERRORS.get(type(error)), str(error)
        if kind is None:  # out of memory, for one
            raise
    raise kind(f"{message}; PyTorch: {reason}")


def with_deprecated_form(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a linear_cross_entropy that also takes the arguments (hidden, weight, target, bias,
    ignore_index, reduction)."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Tensor:
        """Call the function with PyTorch's names, also from the deprecated form."""
        is_whole = len(arguments) > 1 or "linear_weight" in named or "weight" not in named
        if len(arguments) > 3 or "hidden" in named or "bias" in named or not is_whole:
            arguments, named = _in_pytorchs_form(arguments, named)
        return function(*arguments, **named)

    return call


def _in_pytorchs_form(
    arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (), and {PyTorch's name: argument} of a call in the deprecated form."""
    message = (
        "linear_cross_entropy(hidden, weight, target, bias, ignore_index, reduction) is deprecated:"
        " name arguments as torch.nn.functional.linear_cross_entropy does"
    )
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    old = ("hidden", "weight", "target", "bias", "ignore_index", "reduction")
    new = ("input", "linear_weight", "target", "linear_bias", "ignore_index", "reduction")
    names = dict(zip(old, new, strict=True))
    if len(arguments) > len(old):
        refuse("linear_cross_entropy", "arguments", "6 at most", f"{len(arguments)}")
    named = {names.get(name, name): value for name, value in named.items()}
    for name, value in zip(new, arguments, strict=False):
        if name in named:
            refuse("linear_cross_entropy", name, "one value", "two")
        named[name] = value
    return (), named


def door(
    function: str,
    theirs: Callable[..., Any],
    *,
    is_first: bool = False,
    name: str = "",
    find_unserved: Callable[..., Unserved | None] = lambda *_: None,
) -> Callable[..., Any]:
    """Return a function that calls an operator, or PyTorch's function where kernels refuse a call.

    function: our function's name, in counts and errors. theirs: PyTorch's, of the operator's
    arguments. is_first: return the first result only. name: of the operator, if it is another.
    find_unserved: returns an argument that kernels refuse, or None, for calls in compiled regions,
    where errors cannot be caught.
    """

    def call(ours: Callable[..., Any], *arguments: Any) -> Any:
        """Run a call that matches no recent one, by ours(*arguments) or PyTorch's function."""
        if torch.compiler.is_compiling():
            reason = unserved_tensor(*arguments) or find_unserved(*arguments)
            if reason is None:
                return ours(*arguments)
            return call_pytorch(function, reason, theirs, *arguments)
        if differentiates():
            return call_pytorch(function, DERIVATIVE, theirs, *arguments)
        return or_pytorch(function, ours, theirs, *arguments)

    return DOORS[name or function].falling_back(call, is_first=is_first)


def unserved_tensor(*arguments: Any) -> Unserved | None:
    """Return the layout or dtype that no kernel takes of the first tensor that has one, or None."""
    for value in arguments:
        if isinstance(value, Tensor):
            if value.layout is not torch.strided:
                return Unserved("layout", "dense tensors", str(value.layout))
            if (value.is_floating_point() or value.is_complex()) and value.dtype not in FLOATS:
                return Unserved(
                    "dtype", "floating-point numbers of 16 to 64 bits", str(value.dtype)
                )
    return None


def refuse_others(function: str, others: Mapping[str, Any] = _NONE, **tensors: Any) -> None:
    """Refuse arguments that are no tensors, before a function uses them; `others` may be None."""
    for argument, value in (*tensors.items(), *others.items()):
        if not isinstance(value, Tensor) and not (value is None and argument in others):
            refuse(function, argument, "a tensor", shown(value))


def records(x: Tensor) -> bool:
    """Return True if autograd records a call; vmap hides requires_grad."""
    if not torch.is_grad_enabled():
        return False
    is_in_vmap = torch._C._are_functorch_transforms_active
    return bool(x.requires_grad or (is_in_vmap() and torch._C._functorch.is_batchedtensor(x)))
