# SPDX-License-Identifier: MIT
"""Operators that PyTorch's dispatcher knows, each made from one declaration.

The body of an operator takes how to run first: `launch` on a CPU or a GPU, `infer` where tensors
have no data. Its derivative is another operator, called the shortest way there is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...errors import refuse
from .launching import infer, launch, launch_first
from .shortcuts import Shortcuts

NAMESPACE = "cto"
TAGS = (torch.Tag.pt2_compliant_tag,)
KEYS = ("CPU", "CUDA")
# Of arguments that nobody else wants to see: tensors of types that do nothing of their own.
KINDS = frozenset(
    (
        Tensor,
        torch.nn.Parameter,
        int,
        float,
        bool,
        str,
        tuple,
        list,
        torch.Size,
        torch.dtype,
        type(None),
    )
)


# Bound once: each is asked in every call.
_n_modes = torch._C._len_torch_dispatch_stack
_is_transformed = torch._C._are_functorch_transforms_active
_tracing_state = torch._C._get_tracing_state
_is_key_included = torch._C._dispatch_tls_is_dispatch_key_included
_BATCHED = torch._C._dispatch_key_parse("VmapMode")  # of autograd's `is_grads_batched`


@dataclass(frozen=True)
class Operator:
    """One operator of the namespace.

    keep: of arguments and results, what the derivative needs, and which results have none.
    derivative: gradients of all arguments, from those of the results. writes: the argument, by
    place, that the operator overwrites. direct: runs past the body where nobody
    else sees a call, of arguments and `is_first`.
    """

    schema: str
    body: Callable[..., Any]
    keep: Callable[[Any, Sequence[Any], Any], None] | None = None
    derivative: Callable[..., Any] | None = None
    fake: Callable[..., Any] | None = None  # where the body cannot run without data
    writes: int | None = None
    direct: Shortcuts | None = None

    @property
    def name(self) -> str:
        """Without its namespace."""
        return self.schema.partition("(")[0]


@dataclass(frozen=True)
class Door:
    """The shortest way to an operator: its launches; an autograd.Function around them; PyTorch's
    dispatcher where someone else wants to see the call."""

    operator: Operator
    registered: Any
    defaults: tuple[Any, ...]
    node: Any = field(init=False)
    _first_node: Any = field(init=False)  # of the first result alone: the others cost time
    _launched: Any = field(init=False)  # of arguments and `is_first`

    def __post_init__(self) -> None:
        launched = self.operator.direct or functools.partial(_launched, self.operator.body)
        object.__setattr__(self, "_launched", launched)
        object.__setattr__(self, "node", _node(self.operator, launched))
        object.__setattr__(self, "_first_node", _node(self.operator, launched, is_first=True))

    def __call__(self, *arguments: Any) -> Any:
        """The arguments of the schema, by position."""
        arguments += self.defaults[len(arguments) :]
        if is_watched(arguments):
            return self.registered(*arguments)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            return self._recorded(arguments)
        return self._launched(arguments)

    def first(self, *arguments: Any) -> Any:
        """The first result; without gradients the others are not computed."""
        if is_watched(arguments):
            return self.registered(*arguments)[0]
        return self.first_unwatched(*arguments)

    def first_unwatched(self, *arguments: Any) -> Any:
        """The same where nobody else is to see the call."""
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            if torch._C._len_torch_function_stack():
                return self._recorded(arguments)[0]
            return self._first_node(*arguments)
        return self._launched(arguments, True)

    def _recorded(self, arguments: Sequence[Any]) -> Any:
        """Through autograd's node, of which modes that look at functions are told."""
        if torch._C._len_torch_function_stack():
            tensors = [x for x in arguments if isinstance(x, Tensor)]
            return torch.overrides.handle_torch_function(self.node, tensors, *arguments)
        return self.node(*arguments)


def is_watched(arguments: Sequence[Any]) -> bool:
    """Whether torch.compile, a subclass, a mode, a transformation or a trace is to see a call.

    So is the dispatcher where tensors have no data, or gradients come as a batch.
    """
    return (
        torch.compiler.is_compiling()
        or not KINDS.issuperset(map(type, arguments))
        or _n_modes() > 0
        or _is_transformed()
        or forward_ad._current_level >= 0
        or _tracing_state() is not None
        or getattr(arguments[0], "is_meta", False)
        or _is_key_included(_BATCHED)
    )


def _launched(body: Callable[..., Any], arguments: Sequence[Any], is_first: bool = False) -> Any:
    return body(launch_first if is_first else launch, *arguments)


def _node(operator: Operator, launched: Any, *, is_first: bool = False) -> Any:
    """Autograd's node around the launches; what applies it."""
    n_others = operator.schema.rpartition("->")[2].count("Tensor") - 1
    missing = (None,) * n_others if is_first else ()

    class Node(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            results = launched(arguments)
            _keep(operator, ctx, arguments, results)
            return results[0] if is_first else results

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return _derivative(operator, ctx, *gradients, *missing)

    Node.__name__ = Node.__qualname__ = operator.name
    # Of the Python function above it, what is left is done by `is_watched`.
    return super(torch.autograd.Function, Node).apply


def _keep(operator: Operator, ctx: Any, arguments: Sequence[Any], results: Any) -> None:
    ctx.set_materialize_grads(False)
    if operator.keep is not None:
        operator.keep(ctx, arguments, results)


def _derivative(operator: Operator, ctx: Any, *gradients: Any) -> Any:
    if all(gradient is None for gradient in gradients):
        return (None,) * len(ctx.needs_input_grad)
    if operator.derivative is None:
        refuse_derivative(operator.name)
    return operator.derivative(ctx, *gradients)


def refuse_derivative(name: str) -> NoReturn:
    """An operator that is a gradient itself, or makes codes, has no derivative."""
    expected = "a result that is not differentiated (create_graph=False, detach())"
    refuse(f"{NAMESPACE}::{name}", "derivative", expected, "one that is: it has no derivative")


def register(operators: Sequence[Operator]) -> dict[str, Door]:
    """The doors to all operators, by name; those that are known already stay as they are."""
    return {operator.name: _registered(operator) for operator in operators}


def _registered(operator: Operator) -> Door:
    library, name = _library(), operator.name
    if name not in library.names:
        library.names.add(name)
        library.define(operator.schema, tags=TAGS)
        for key in KEYS:
            library.impl(name, _kernel(operator), key)
        qualified = f"{NAMESPACE}::{name}"
        torch.library.register_fake(qualified, _fake(operator), lib=library)
        if operator.writes is None:
            _register_autograd(operator, qualified, library)
        else:
            library.impl(name, _writing(operator), "Autograd")
    found = _overload(name)
    return Door(operator, found, _defaults(found))


def _overload(name: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _defaults(overload: Any) -> tuple[Any, ...]:
    """Of all arguments; the dispatcher leaves out what equals them."""
    return tuple([argument.default_value for argument in overload._schema.arguments])


def _library() -> Any:
    """The one of the process: it is kept where a module that is imported again finds it."""
    namespace = getattr(torch.ops, NAMESPACE)
    if "library" not in vars(namespace):
        namespace.library = torch.library.Library(NAMESPACE, "FRAGMENT")
        namespace.library.names = set()
    return namespace.library


def _register_autograd(operator: Operator, qualified: str, library: Any) -> None:
    def keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        _keep(operator, ctx, inputs, output)

    n_arguments = len(_defaults(_overload(operator.name)))

    def derivative(ctx: Any, *gradients: Any) -> Any:
        n_missing = n_arguments - len(ctx.needs_input_grad)  # those that equal their defaults
        ctx.needs_input_grad += (False,) * n_missing
        return _derivative(operator, ctx, *gradients)

    torch.library.register_autograd(qualified, derivative, setup_context=keep, lib=library)


def _kernel(operator: Operator) -> Callable[..., Any]:
    """What runs on a CPU and a GPU."""

    defaults = _defaults(_overload(operator.name))

    def kernel(*arguments: Any) -> Any:
        if forward_ad._current_level >= 0:
            refuse_forward_mode(operator.name)
        return operator.body(launch, *arguments, *defaults[len(arguments) :])

    return kernel


def refuse_forward_mode(name: str) -> NoReturn:
    """A tangent would be lost."""
    expected = "reverse-mode differentiation"
    refuse(f"{NAMESPACE}::{name}", "derivative", expected, "forward mode (jvp), which it has not")


def _fake(operator: Operator) -> Callable[..., Any]:
    body = operator.fake or functools.partial(operator.body, infer)
    defaults = _defaults(_overload(operator.name))

    def fake(*arguments: Any) -> Any:
        return body(*arguments, *defaults[len(arguments) :])

    return fake


def _is_traced() -> bool:
    """Whether a call may be seen and not made; before PyTorch 2.13 modes alone tell."""
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
