# SPDX-License-Identifier: MIT
"""Operators that PyTorch's dispatcher knows, each made from one declaration.

The body of an operator takes how to run first: `launch` on a CPU or a GPU, `infer` where tensors
have no data. Its derivative is another operator, called the shortest way there is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...errors import refuse
from .autograd import NAMESPACE, Operator, derivative_of
from .dispatch import Door, Recent, defaults_of, tensors_of
from .launching import EVERY, compute, infer, learn

TAGS = (torch.Tag.pt2_compliant_tag,)
KEYS = ("CPU", "CUDA")


def register(operators: Sequence[Operator]) -> dict[str, Door]:
    """The doors to all operators, by name; those that are known already stay as they are."""
    return {operator.name: _register(operator) for operator in operators}


def _register(operator: Operator) -> Door:
    library, name = _library(), operator.name
    if name not in library.names:
        library.names.add(name)
        library.define(operator.schema, tags=TAGS)
        kernel = _kernel(operator)
        for key in KEYS:
            library.impl(name, kernel, key)
        qualified = f"{NAMESPACE}::{name}"
        torch.library.register_fake(qualified, _fake(operator), lib=library)
        if operator.writes is None:
            _register_autograd(operator, qualified, _Past(library, kernel))
        else:
            library.impl(name, _writing(operator), "Autograd")
    found = _overload(name)
    return Door(operator, found)


def _overload(name: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _library() -> Any:
    """The one of the process: it is kept where a module that is imported again finds it."""
    namespace = getattr(torch.ops, NAMESPACE)
    if "library" not in vars(namespace):
        namespace.library = torch.library.Library(NAMESPACE, "FRAGMENT")
        namespace.library.names = set()
    return namespace.library


class _Past:
    """In the place of a library: past what it registers for autograd a call that nobody records,
    and nothing else is to see, comes to the kernel in one step of the dispatcher's, not two."""

    def __init__(self, library: Any, kernel: Callable[..., Any]) -> None:
        self._library, self._kernel = library, kernel

    def impl(self, name: str, autograd: Callable[..., Any], key: str, **given: Any) -> None:
        kernel, is_recording = self._kernel, torch.is_grad_enabled
        needs_gradients, are_plain = torch._C._any_requires_grad, dict[int, bool]()

        def past(keyset: Any, *arguments: Any) -> Any:
            keys = keyset.raw_repr()
            if keys not in are_plain:
                are_plain[keys] = _is_plain(keyset)
            if are_plain[keys] and not (is_recording() and needs_gradients(*arguments)):
                return kernel(*arguments)
            return autograd(keyset, *arguments)

        self._library.impl(name, past, key, **given)


def _is_plain(keyset: Any) -> bool:
    """Return True if a CPU's or a GPU's kernel comes behind autograd."""
    behind = (keyset & torch._C._after_ADInplaceOrView_keyset).highestPriorityTypeId()
    return behind in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)


def _register_autograd(operator: Operator, qualified: str, library: Any) -> None:
    def keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        ctx.set_materialize_grads(False)
        if operator.keep is not None:
            operator.keep(ctx, inputs, output)
            if isinstance(output, tuple):
                ctx.mark_non_differentiable(*output[1:])

    n_arguments = len(defaults_of(_overload(operator.name)))

    def derivative(ctx: Any, *gradients: Any) -> Any:
        n_missing = n_arguments - len(ctx.needs_input_grad)  # those that equal their defaults
        ctx.needs_input_grad += (False,) * n_missing
        return derivative_of(operator, ctx, *gradients)

    torch.library.register_autograd(qualified, derivative, setup_context=keep, lib=library)


def _kernel(operator: Operator) -> Callable[..., Any]:
    """The kernel on a CPU and a GPU: a call that looks like a recent one goes to its launches."""
    overload, some = _overload(operator.name), operator.some
    defaults = defaults_of(overload)
    recent = Recent(len(defaults), tensors_of(overload, operator.changing), operator.changing)
    # Numbers that change come as a list; what is written has another version then.
    is_noted = operator.changing is None and operator.writes is None

    def kernel(*arguments: Any) -> Any:
        if forward_ad._current_level >= 0:
            refuse_forward_mode(operator.name)
        arguments += defaults[len(arguments) :]
        found = recent.find(arguments) if is_noted else None
        if found is not None:
            return found[0](arguments, found[1])
        given = [tuple(value) if type(value) is list else value for value in arguments]
        # Of a mask that names all, results are those of the body.
        body = some if some is not None and all(given[-1]) else operator.body
        if not (is_noted and recent.is_due()):
            return compute(body, given)
        results, run = learn(body, given, EVERY)
        recent.note(arguments, run)
        return results

    return kernel


def refuse_forward_mode(name: str) -> NoReturn:
    """A tangent would be lost."""
    expected = "reverse-mode differentiation"
    refuse(f"{NAMESPACE}::{name}", "derivative", expected, "forward mode (jvp), which it has not")


def _fake(operator: Operator) -> Callable[..., Any]:
    body = operator.fake or functools.partial(operator.body, infer)
    defaults = defaults_of(_overload(operator.name))

    def fake(*arguments: Any) -> Any:
        return body(*arguments, *defaults[len(arguments) :])

    return fake


def _is_traced() -> bool:
    """Return True if a call may be traced and not made; before PyTorch 2.13 modes alone tell."""
    n_modes: int = torch._C._len_torch_dispatch_stack()
    return torch.compiler.is_compiling() or n_modes > 0


def _writing(operator: Operator) -> Callable[..., Any]:
    """The Autograd kernel of an operator that writes: what it writes is data."""

    def autograd(*arguments: Any) -> Any:
        name, written = operator.name, arguments[operator.writes]  # type: ignore[index]
        if torch.is_grad_enabled() and isinstance(written, Tensor) and written.requires_grad:
            expected = "a tensor that requires no gradient, as what it holds is overwritten"
            refuse(f"{NAMESPACE}::{name}", f"argument {operator.writes}", expected, "one that does")
        with torch._C._AutoDispatchBelowAutograd():
            result = _overload(name)(*arguments)
        if _is_traced():  # the kernel, which does so, did not run
            torch.autograd.graph.increment_version(written)
        return result

    return autograd
