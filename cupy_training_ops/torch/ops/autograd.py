# SPDX-License-Identifier: MIT
"""autograd.Functions around launches: one for all calls of an operator, one for each kind.

Calls of one kind, which `RecentCalls` matches with each other, save the same things: so their
Function has the places of saved tensors, and the other attributes of `ctx`, as constants; its
inputs are only the tensors that require gradients. Both save time on the host.
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
# Attribute of a node's context: the caller has all results, so that a derivative may not write to
# those that it saved.
KEEPS_RESULTS = "keeps_results"


@dataclass(frozen=True)
class CustomOp:
    """Definition of a PyTorch operator in the namespace `cto`.

    schema: as of torch.library, "relu(Tensor input) -> (Tensor output, Tensor bits)".
    body(run, *arguments): computes the results; run: `launch` or `infer`. save(ctx, arguments,
    results): saves what the derivative needs. derivative(ctx, *gradients of the results): returns
    those of all arguments; only the first result is differentiable. fake(*arguments): makes results
    without data. writes: index of the argument that is overwritten. direct: replaces `body` in
    calls past the dispatcher. first: replaces it in those of `Door.first`, and may write arguments.
    changing: index of an argument whose numbers differ from call to call. masked: a body that
    computes only the results that its last argument, a mask of bools, selects.
    """

    schema: str
    body: Callable[..., Any]
    save: Callable[[Any, Sequence[Any], Any], None] | None = None
    derivative: Callable[..., Any] | None = None
    fake: Callable[..., Any] | None = None  # where the body cannot run without data
    writes: int | None = None
    direct: Callable[..., Any] | None = None
    first: Callable[..., Any] | None = None
    changing: int | None = None
    masked: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """The operator's name without its namespace."""
        return self.schema.partition("(")[0]


def masked_op(schema: str, gradients: Callable[..., Any]) -> CustomOp:
    """Return an operator of gradients, an empty tensor for each that its mask does not select.

    gradients: a body whose first argument after its Run is the result's gradient, and the last the
    mask; it returns what `of_mask` does.
    """

    def body(run: Any, dy: Tensor, *others: Any) -> tuple[Tensor, ...]:
        gradient = gradients(run, dy, *others)
        results = iter(gradient if isinstance(gradient, tuple) else (gradient,))
        return tuple([next(results) if wanted else dy.new_empty(0) for wanted in others[-1]])

    return CustomOp(schema, body, masked=gradients)


def general_apply(operator: CustomOp, *, is_first: bool) -> Callable[..., Any]:
    """Return `apply` of the Function for all calls: apply(*arguments, (run, tensors)).

    run(arguments, tensors): computes the results. is_first: `apply` returns only the first.
    """
    n_others = _n_others(operator)
    missing = (None,) * n_others if is_first else ()  # gradients of results that are not returned
    save, derivative = operator.save, functools.partial(derivative_of, operator)
    # marks: results after the first are returned, not differentiable. is_one: they are left out.
    marks, is_one = n_others and not is_first, n_others and is_first

    def forward(ctx: Any, *inputs: Any) -> Any:
        """Compute the results, and save what the derivative needs; inputs: those of `apply`."""
        arguments, (launched, tensors) = inputs[:-1], inputs[-1]
        results = launched(arguments, tensors)
        ctx.materialize_grads = False
        if save is not None:
            save(ctx, arguments, results)
            if marks:
                ctx.mark_non_differentiable(*results[1:])
        return results[0] if is_one else results

    def backward(ctx: Any, *gradients: Any) -> Any:
        return *derivative(ctx, *gradients, *missing), None

    return _apply_of(_class(operator, forward, backward))


def runner(
    operator: CustomOp,
    trace: Callable[[Sequence[Any]], tuple[Any, Runner]],
    apply_general: Callable[..., Any],
    call_through_mode: Callable[[Sequence[Any]], Any],
    *,
    is_first: bool,
) -> Runner:
    """Return a function of (arguments, their tensors) that runs calls of one kind with gradients.

    The first call goes through `apply_general`, of `general_apply`, and records its launches by
    `trace` and what the node saves; the next ones use a Function made from that.
    call_through_mode(arguments): runs a call under a TorchFunctionMode. is_first: return the first
    result only.
    """
    n_others = _n_others(operator)
    launched: Runner | None = None
    apply: Callable[..., Any] | None = None  # of the Function that `record_first` makes
    differentiable: Pick | None = None
    n_functions = torch._C._len_torch_function_stack

    def run(arguments: Sequence[Any], tensors: tuple[Tensor, ...]) -> Any:
        """Run a call by the Function of its kind, or before that is made, by the general one."""
        if n_functions():
            return call_through_mode(arguments)
        if apply is None:
            return apply_general(*arguments, (launched or record_first, tensors))
        if differentiable is None:
            return apply((arguments, tensors), *tensors)
        return apply((arguments, tensors), *differentiable(tensors))

    def record_first(arguments: Sequence[Any], tensors: tuple[Tensor, ...]) -> Any:
        """Compute the results of the first call; set `launched` and `apply` for the next ones."""
        nonlocal apply, launched, differentiable
        results, launched = trace(arguments)
        if operator.save is not None and (is_first or not n_others):
            recipe = _recipe(operator, arguments, tensors, results)
            if recipe is not None:
                differentiable = recipe.differentiable
                apply = _specific_apply(operator, launched, recipe, is_one=bool(n_others))
        return results

    return run


class _Recipe(NamedTuple):
    """The tensors and values that a node saves, by places; a Pick selects from a sequence."""

    differentiable: Pick | None  # picks the tensors that require gradients; None: all do
    wanted: Pick  # picks their gradients from those of all arguments
    saved: Pick | None  # picks from (*tensors, *results, None); None: exactly the tensors
    attributes: dict[str, Any]  # others of ctx, by name


class _RecordingContext:
    """Stands for `ctx` and records what an operator saves in it: tensors in `saved`, others as
    attributes."""

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved = tensors


def _recipe(
    operator: CustomOp, arguments: Sequence[Any], tensors: tuple[Tensor, ...], results: Any
) -> _Recipe | None:
    """Record what a call saves, for other calls of its kind.

    arguments: all of the schema's. tensors: those that are tensors, in order, without None and the
    one at operator.changing. results: what the call returned. None if it saves a tensor that is
    neither an argument nor a result, or a value that may differ in another call of this kind.
    """
    ctx: Any = _RecordingContext()
    operator.save(ctx, arguments, results)  # type: ignore[misc]
    attributes = vars(ctx)
    all_results = results if isinstance(results, tuple) else (results,)
    place_of = {id(x): place for place, x in enumerate((*tensors, *all_results, None))}
    saved = [place_of.get(id(x)) for x in attributes.pop("saved", ())]
    # A value that differs from call to call must not become a constant.
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


def _specific_apply(
    operator: CustomOp, launched: Runner, recipe: _Recipe, *, is_one: bool
) -> Callable[..., Any]:
    """Return `apply` of a Function of ((arguments, tensors), *tensors that require gradients).

    recipe: what it saves, by places. launched(arguments, tensors): computes the results. is_one:
    there are several, of which only the first is returned.
    """
    saved, wanted = recipe.saved, recipe.wanted
    missing = (None,) * _n_others(operator)
    derivative = functools.partial(derivative_of, operator)

    def forward(ctx: Any, call: tuple[Any, tuple[Tensor, ...]], *_: Tensor) -> Any:
        """Launch a call, (arguments, tensors), and save the tensors that the recipe selects."""
        arguments, tensors = call
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


def _n_others(operator: CustomOp) -> int:
    """Count the results after the first."""
    return operator.schema.rpartition("->")[2].count("Tensor") - 1


def _class(operator: CustomOp, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Make an autograd.Function; its name is shown by PyTorch's messages, and read by policies of
    compressed activations."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(_Function)(operator.name, (_Function,), methods)


def _apply_of(node: Any) -> Callable[..., Any]:
    """Function.apply in C++, without its Python wrapper; `needs_dispatcher` checks the rest."""
    apply: Callable[..., Any] = super(_Function, node).apply
    return apply


def derivative_of(operator: CustomOp, ctx: Any, *gradients: Any) -> Any:
    """Return gradients of all arguments from those of the results; all None if the first's is."""
    if operator.derivative is None:
        if any(gradient is not None for gradient in gradients):
            refuse_derivative(operator.name)
    elif gradients[0] is not None:
        return operator.derivative(ctx, *gradients)
    return (None,) * len(ctx.needs_input_grad)


def refuse_derivative(name: str) -> NoReturn:
    """Refuse to differentiate an operator that computes a gradient or codes."""
    expected = "a result that is not differentiated (create_graph=False, detach())"
    refuse(f"{NAMESPACE}::{name}", "derivative", expected, "one that is: it has no derivative")


def refuse_forward_mode(name: str) -> NoReturn:
    """Refuse forward mode, in which a tangent would be lost."""
    expected = "reverse-mode differentiation"
    refuse(f"{NAMESPACE}::{name}", "derivative", expected, "forward mode (jvp), which it has not")


# ---- registration with the dispatcher ------------------------------------------------------------


def overload_of(name: str) -> Any:
    """Return torch.ops.cto.<name>.default."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def register_autograd(operator: CustomOp, library: Any, kernel: Callable[..., Any]) -> None:
    """Register the derivative; of an operator that writes, a check that no gradient is lost.

    kernel(*arguments): the operator's kernel for CPU and GPU, in the same library.
    """
    if operator.writes is not None:
        library.impl(operator.name, _writing(operator), "Autograd")
        return

    def save(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        """Save for `derivative`, as `operator.save` does; `output`: the results."""
        ctx.set_materialize_grads(False)
        setattr(ctx, KEEPS_RESULTS, True)
        if operator.save is not None:
            operator.save(ctx, inputs, output)
            if isinstance(output, tuple):
                ctx.mark_non_differentiable(*output[1:])

    n_arguments = len(overload_of(operator.name)._schema.arguments)

    def derivative(ctx: Any, *gradients: Any) -> Any:
        """Return gradients of all arguments from those of the results."""
        # The dispatcher leaves out arguments that equal their defaults.
        n_missing = n_arguments - len(ctx.needs_input_grad)
        ctx.needs_input_grad += (False,) * n_missing
        return derivative_of(operator, ctx, *gradients)

    torch.library.register_autograd(
        f"{NAMESPACE}::{operator.name}",
        derivative,
        setup_context=save,
        lib=_BypassingLibrary(library, kernel),
    )


class _BypassingLibrary:
    """A library whose Autograd kernel calls the backend's kernel itself if no gradient is needed.

    That saves a second pass through the dispatcher.
    """

    def __init__(self, library: Any, kernel: Callable[..., Any]) -> None:
        self._library, self._kernel = library, kernel

    def impl(self, name: str, autograd: Callable[..., Any], key: str, **options: Any) -> None:
        """Register `autograd`, the kernel that torch.library made for an operator, behind the
        bypass; key: the dispatch key, "Autograd"."""
        kernel, is_recording = self._kernel, torch.is_grad_enabled
        needs_gradients, are_plain = torch._C._any_requires_grad, dict[int, bool]()

        def bypass(keyset: Any, *arguments: Any) -> Any:
            """Call the backend's kernel if it is next in the dispatcher's `keyset` and no gradient
            is needed, else `autograd`."""
            keys = keyset.raw_repr()
            if keys not in are_plain:
                are_plain[keys] = _is_plain(keyset)
            if are_plain[keys] and not (is_recording() and needs_gradients(*arguments)):
                return kernel(*arguments)
            return autograd(keyset, *arguments)

        self._library.impl(name, bypass, key, **options)


def _is_plain(keyset: Any) -> bool:
    """Return True if the kernel after autograd is the CPU's or the GPU's."""
    following = (keyset & torch._C._after_ADInplaceOrView_keyset).highestPriorityTypeId()
    return following in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)


def _is_traced() -> bool:
    """Return True if a call may only be traced; before PyTorch 2.13 only modes show it."""
    n_modes: int = torch._C._len_torch_dispatch_stack()
    return torch.compiler.is_compiling() or n_modes > 0


def _writing(operator: CustomOp) -> Callable[..., Any]:
    """Return the Autograd kernel of an operator that writes: it refuses to lose a gradient."""

    def autograd(*arguments: Any) -> Any:
        """Run the operator, whose argument `written` must not require a gradient."""
        name, written = operator.name, arguments[operator.writes]  # type: ignore[index]
        if torch.is_grad_enabled() and isinstance(written, Tensor) and written.requires_grad:
            expected = "a tensor that requires no gradient, as what it holds is overwritten"
            refuse(f"{NAMESPACE}::{name}", f"argument {operator.writes}", expected, "one that does")
        with torch._C._AutoDispatchBelowAutograd():
            result = overload_of(name)(*arguments)
        if _is_traced():  # the kernel, which raises the version, did not run
            torch.autograd.graph.increment_version(written)
        return result

    return autograd
