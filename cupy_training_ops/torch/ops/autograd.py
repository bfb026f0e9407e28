# SPDX-License-Identifier: MIT
"""Autograd's nodes around launches: a class for all calls of an operator, and one for each kind.

The class of a kind holds what other calls note in each node: which tensors are saved, and what else
is kept. Its nodes are given those tensors alone that need gradients. Both save the host's time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from ...errors import refuse
from .launching import Pick, Runner, exact, pick

NAMESPACE = "cto"
_Function: Any = torch.autograd.Function


@dataclass(frozen=True)
class Operator:
    """One operator of the namespace.

    keep: of arguments and results, what the derivative needs; only the first result has one.
    derivative: gradients of all arguments, from those of the results. writes: the argument, by
    place, that the operator overwrites. direct: a body for calls that nobody else sees. changing:
    the place of numbers that change from call to call. some: a body for the results alone that
    the last argument names, a mask.
    """

    schema: str
    body: Callable[..., Any]
    keep: Callable[[Any, Sequence[Any], Any], None] | None = None
    derivative: Callable[..., Any] | None = None
    fake: Callable[..., Any] | None = None  # where the body cannot run without data
    writes: int | None = None
    direct: Callable[..., Any] | None = None
    changing: int | None = None
    some: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """The operator's name without its namespace."""
        return self.schema.partition("(")[0]


def general(operator: Operator, *, is_first: bool) -> Callable[..., Any]:
    """Return a function that applies a node to (*arguments, (launches, their tensors)).

    is_first: it returns the first result alone.
    """
    n_others = _n_others(operator)
    missing = (None,) * n_others if is_first else ()
    keep, derivative = operator.keep, functools.partial(derivative_of, operator)
    marks, is_one = n_others and not is_first, n_others and is_first

    def forward(ctx: Any, *given: Any) -> Any:
        arguments, (launched, tensors) = given[:-1], given[-1]
        results = launched(arguments, tensors)
        ctx.materialize_grads = False
        if keep is not None:
            keep(ctx, arguments, results)
            if marks:
                ctx.mark_non_differentiable(*results[1:])
        return results[0] if is_one else results

    def backward(ctx: Any, *gradients: Any) -> Any:
        return *derivative(ctx, *gradients, *missing), None

    return _apply_of(_class(operator, forward, backward))


def runner(
    operator: Operator,
    learn: Callable[[Sequence[Any]], tuple[Any, Runner]],
    apply_general: Callable[..., Any],
    tell: Callable[[Sequence[Any]], Any],
    *,
    is_first: bool,
) -> Runner:
    """Return a function that runs calls of one kind through a node.

    The first call goes through the node of all kinds, `apply_general`, and learns its launches and
    what the node saves; the next ones go through a node for this kind. tell: runs a call where a
    function mode is on.
    """
    n_others = _n_others(operator)
    launched: Runner | None = None
    apply: Callable[..., Any] | None = None
    passed: Pick | None = None
    n_functions = torch._C._len_torch_function_stack

    def run(arguments: Sequence[Any], tensors: tuple[Tensor, ...]) -> Any:
        if n_functions():
            return tell(arguments)
        if apply is None:
            return apply_general(*arguments, (launched or learn_all, tensors))
        if passed is None:
            return apply((arguments, tensors), *tensors)
        return apply((arguments, tensors), *passed(tensors))

    def learn_all(arguments: Sequence[Any], tensors: tuple[Tensor, ...]) -> Any:
        nonlocal apply, launched, passed
        results, launched = learn(arguments)
        if operator.keep is not None and (is_first or not n_others):
            recipe = _recipe(operator, arguments, tensors, results)
            if recipe is not None:
                passed = recipe.passed
                apply = _of_kind(operator, launched, recipe, is_one=bool(n_others))
        return results

    return run


class _Recipe(NamedTuple):
    """The tensors and values that a node saves."""

    passed: Pick | None  # of the tensors: those that need gradients; None for all
    wanted: Pick  # of the gradients of all arguments: theirs
    saved: Pick | None  # of the tensors, results and a None; None for the tensors, and no more
    attributes: dict[str, Any]


class _Kept:
    """In the place of a node: what is kept in it."""

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved = tensors


def _recipe(
    operator: Operator, arguments: Sequence[Any], tensors: tuple[Tensor, ...], results: Any
) -> _Recipe | None:
    """Places of what the node of a call saves, for the other calls of its kind.

    None where it saves a tensor that is neither given nor a result, or a value that another call
    of this kind may have otherwise.
    """
    node: Any = _Kept()
    operator.keep(node, arguments, results)  # type: ignore[misc]
    attributes = vars(node)
    all_results = results if isinstance(results, tuple) else (results,)
    place_of = {id(x): place for place, x in enumerate((*tensors, *all_results, None))}
    saved = [place_of.get(id(x)) for x in attributes.pop("saved", ())]
    changed = () if operator.changing is None else (arguments[operator.changing],)
    if (
        None in saved
        or exact([*attributes.values()]) is None
        or any(value is other for value in attributes.values() for other in changed)
    ):
        return None
    needs = [isinstance(x, Tensor) and x.requires_grad for x in arguments]
    attributes["needs_input_grad"] = tuple(needs)
    in_need = [i for i, x in enumerate(tensors) if x.requires_grad]
    return _Recipe(
        None if len(in_need) == len(tensors) else pick(in_need),
        pick([i for i, is_needed in enumerate(needs) if is_needed]),
        None if saved == [*range(len(tensors))] else pick([i for i in saved if i is not None]),
        attributes,
    )


def _of_kind(
    operator: Operator, launched: Runner, recipe: _Recipe, *, is_one: bool
) -> Callable[..., Any]:
    """Return a function that applies a node to (arguments, tensors) and to what needs gradients.

    is_one: the operator has results behind the first, which the node gives to nobody.
    """
    saved, wanted = recipe.saved, recipe.wanted
    missing = (None,) * _n_others(operator)
    derivative = functools.partial(derivative_of, operator)

    def forward(ctx: Any, given: tuple[Any, tuple[Tensor, ...]], *_: Tensor) -> Any:
        arguments, tensors = given
        results = launched(arguments, tensors)
        ctx.materialize_grads = False
        if saved is None:
            ctx.to_save = tensors
        elif is_one:
            ctx.to_save = saved((*tensors, *results, None))
        else:
            ctx.to_save = saved((*tensors, results, None))
        return results[0] if is_one else results

    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, *wanted(derivative(ctx, *gradients, *missing))

    node = _class(operator, forward, backward)
    for name, value in recipe.attributes.items():
        setattr(node._backward_cls, name, value)  # read as those of the node itself
    return _apply_of(node)


def _n_others(operator: Operator) -> int:
    """Count the results behind the first."""
    return operator.schema.rpartition("->")[2].count("Tensor") - 1


def _class(operator: Operator, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Class of nodes, whose name stands in PyTorch's words and in policies of compression."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(_Function)(operator.name, (_Function,), methods)


def _apply_of(node: Any) -> Callable[..., Any]:
    """`apply` without the Python function above it: what is left of it is done by `is_watched`."""
    apply: Callable[..., Any] = super(_Function, node).apply
    return apply


def derivative_of(operator: Operator, ctx: Any, *gradients: Any) -> Any:
    """Gradients of all arguments, from those of the results; None for all where the first has
    none."""
    if operator.derivative is None:
        if any(gradient is not None for gradient in gradients):
            refuse_derivative(operator.name)
    elif gradients[0] is not None:  # the others have none
        return operator.derivative(ctx, *gradients)
    return (None,) * len(ctx.needs_input_grad)


def refuse_derivative(name: str) -> NoReturn:
    """Refuse to differentiate an operator that is a gradient itself, or makes codes."""
    expected = "a result that is not differentiated (create_graph=False, detach())"
    refuse(f"{NAMESPACE}::{name}", "derivative", expected, "one that is: it has no derivative")


def refuse_forward_mode(name: str) -> NoReturn:
    """Refuse forward mode, in which a tangent would be lost."""
    expected = "reverse-mode differentiation"
    refuse(f"{NAMESPACE}::{name}", "derivative", expected, "forward mode (jvp), which it has not")


# ---- what the dispatcher runs for autograd ------------------------------------------------------


def overload_of(name: str) -> Any:
    """The dispatcher's operator."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def register_autograd(operator: Operator, library: Any, kernel: Callable[..., Any]) -> None:
    """Register the derivative, or that what is written is data."""
    if operator.writes is not None:
        library.impl(operator.name, _writing(operator), "Autograd")
        return

    def keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        ctx.set_materialize_grads(False)
        if operator.keep is not None:
            operator.keep(ctx, inputs, output)
            if isinstance(output, tuple):
                ctx.mark_non_differentiable(*output[1:])

    n_arguments = len(overload_of(operator.name)._schema.arguments)

    def derivative(ctx: Any, *gradients: Any) -> Any:
        n_missing = n_arguments - len(ctx.needs_input_grad)  # those that equal their defaults
        ctx.needs_input_grad += (False,) * n_missing
        return derivative_of(operator, ctx, *gradients)

    torch.library.register_autograd(
        f"{NAMESPACE}::{operator.name}",
        derivative,
        setup_context=keep,
        lib=_Past(library, kernel),
    )


class _Past:
    """A library that registers for autograd a function which may go past autograd.

    A call that nobody records or watches comes to the kernel in one step of the dispatcher's, not
    two.
    """

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
            result = overload_of(name)(*arguments)
        if _is_traced():  # the kernel, which does so, did not run
            torch.autograd.graph.increment_version(written)
        return result

    return autograd
