# SPDX-License-Identifier: MIT
"""Calls of operators: repeat the launches of a recent call, or use autograd or the dispatcher.

Tensors are compared with those of recent calls by PyTorch's TensorGuards, as torch.compile does:
types, dispatch keys (so modes, transforms, traces, autocast), dtypes, devices, shapes, strides, and
which require gradients; a tensor that is passed twice never matches. Other arguments are compared
by their bytes, so 1.0 is not 1. If PyTorch has no TensorGuards, every call takes the slow path.
`registered` is an operator in torch.ops, which the dispatcher runs.
"""

from __future__ import annotations

import functools
import marshal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...call.keys import EXACT
from ...errors import raise_if_from_handler, refuse, shown
from ...log import LOG
from . import autograd
from .autograd import NAMESPACE, CustomOp, overload_of, refuse_forward_mode
from .launching import EVERY, FIRST, JOINED, Pick, Runner, compute, exact, infer, pick, trace

TAGS = (torch.Tag.pt2_compliant_tag,)
KEYS = ("CPU", "CUDA")
_MAX_ALIKE = 8  # recent calls that differ only in their tensors
_TRACE_EVERY = 8  # calls of the slow path, of which one is remembered
_NOTHING: tuple[Any, ...] = ()
_ABSENT = frozenset([(None,) * n for n in range(9)])  # (), (None,), ...: all of them are None
_TensorGuards = getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)
if _TensorGuards is None:
    LOG.info("fallback: every call is looked up anew: this PyTorch has no TensorGuards")
_all: list[RecentCalls] = []

# Of arguments that need no dispatcher: subclasses of Tensor may have a __torch_dispatch__.
PLAIN_TYPES = frozenset(
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


# Looked up once, as every call uses each.
_is_compiling = torch.compiler.is_compiling
_n_functions = torch._C._len_torch_function_stack
_n_modes = torch._C._len_torch_dispatch_stack
_is_transformed = torch._C._are_functorch_transforms_active
_tracing_state = torch._C._get_tracing_state
_is_key_included = torch._C._dispatch_tls_is_dispatch_key_included
_BATCHED = torch._C._dispatch_key_parse("VmapMode")  # of autograd's `is_grads_batched`


class RecentCall(NamedTuple):
    """A remembered call: when it matches another one, and what then runs."""

    is_like: Callable[..., bool]  # compares tensors
    tensors: Pick  # picks them from the arguments
    absent: Pick | None  # picks the arguments that have to be None
    run: Runner  # of (arguments, the tensors among them)


_CallsByKey = dict[object, tuple[RecentCall, ...]]


class RecentCalls:
    """A cache of one operator's calls.

    The schema of `registered` says which arguments are tensors. changing: index of an argument that
    is not compared, as a seed; None: all are.
    """

    def __init__(self, registered: Any, changing: int | None) -> None:
        kinds = [argument.type for argument in registered._schema.arguments]
        places = [i for i in range(len(kinds)) if i != changing]
        self._tensors = [i for i in places if _is_tensor(kinds[i])]  # or None
        self._others = pick([i for i in places if not _is_tensor(kinds[i])])
        self._n, self._n_fallbacks = len(kinds), 0
        # One without grad mode, one with: by the `exact` key of the arguments that are no tensors.
        self._calls: tuple[_CallsByKey, _CallsByKey] = {}, {}
        _all.append(self)

    def caller(
        self, fallback: Callable[..., Any], draw: Callable[[Any], object] | None = None
    ) -> Callable[..., Any]:
        """Return a function that runs a call as a recent one that matches it, or calls `fallback`.

        A call matches if its arguments other than tensors have the same `exact` key, `is_like` is
        True for its tensors, and the same arguments are None.
        draw: the function lacks the last argument, and appends `draw(arguments[0])`; if that is
        None, it calls `fallback` without it.
        """
        # Locals are read faster than globals: every call of an operator runs `call`.
        others, calls = self._others, self._calls
        n_modes, is_recording, is_compiling = _n_modes, torch.is_grad_enabled, _is_compiling
        as_bytes, exactly = marshal.dumps, EXACT
        nothing, all_absent = _NOTHING, _ABSENT

        def call(*arguments: Any) -> Any:
            """Run a call as the recent one that matches it, or by `fallback`."""
            if is_compiling() or forward_ad._current_level >= 0 or n_modes():
                return fallback(*arguments)
            try:
                key: object = as_bytes(others(arguments), exactly)
            except ValueError:
                key = exact(others(arguments))
            except IndexError:  # arguments are left out
                return fallback(*arguments)
            for is_like, tensors, absent, run in calls[is_recording()].get(key, nothing):
                picked = tensors(arguments)
                if is_like(*picked) and (absent is None or absent(arguments) in all_absent):
                    if draw is None:
                        return run(arguments, picked)
                    drawn = draw(arguments[0])
                    return (
                        fallback(*arguments) if drawn is None else run((*arguments, drawn), picked)
                    )
            return fallback(*arguments)

        return call

    def should_trace(self) -> bool:
        """Return True if a call of the slow path is to be remembered: one in eight is.

        Calls whose shapes never repeat would pay for nothing.
        """
        self._n_fallbacks += 1
        return self._n_fallbacks % _TRACE_EVERY == 0

    def note(self, arguments: Sequence[Any], run: Runner) -> None:
        """Remember `run` for calls that match these arguments."""
        others = exact(self._others(arguments)) if len(arguments) == self._n else None
        if others is None:
            return
        calls = self._calls[torch.is_grad_enabled()]
        known = calls.get(others, _NOTHING)
        places = [i for i in self._tensors if arguments[i] is not None]
        absent = [i for i in self._tensors if arguments[i] is None]
        tensors = pick(places)
        is_like = guard(tensors(arguments))
        if is_like is not None:
            recent_call = RecentCall(is_like, tensors, pick(absent) if absent else None, run)
            if len(calls) >= 8 * _MAX_ALIKE:
                calls.clear()
            calls[others] = (*known[1 - _MAX_ALIKE :], recent_call)  # in place of the oldest

    def forget(self) -> None:
        """Forget all recent calls."""
        for calls in self._calls:
            calls.clear()


def forget() -> None:
    """Forget the recent calls of all operators: tests let tensors run on another backend."""
    for recent in _all:
        recent.forget()


def guard(tensors: Sequence[Tensor]) -> Callable[..., bool] | None:
    """Return a function of as many tensors, True if types, dtypes, devices, shapes and strides are
    those of `tensors`; None if PyTorch has no guards, or there are no tensors."""
    if _TensorGuards is None or not tensors:
        return None
    shapes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
    guards = _TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    is_like: Callable[..., bool] = guards.check
    return is_like if is_like(*tensors) else None


class Door:
    """Entry point of an operator: calls its launches, an autograd.Function around them, or, if
    `needs_dispatcher`, PyTorch's dispatcher.

    operator: its definition. every: takes the schema's arguments by position; a backward pass may
    write over a loss's other results, as `registered` may not. first: returns the first result
    only; without gradients the others are not computed.
    """

    def __init__(self, operator: CustomOp, registered: Any) -> None:
        self.operator, self.registered = operator, registered
        body = operator.direct or operator.body
        every = _DirectCall(operator, body, registered)
        first = _DirectCall(operator, operator.first or body, registered, is_first=True)
        self._every, self._first = every, first
        self.nodes = every.node, first.node  # what a TorchFunctionMode gets as `func`
        self.every: Callable[..., Any]
        self.first: Callable[..., Any]
        self.every, self.first = (each.recent.caller(each.fallback) for each in (every, first))
        if operator.masked is not None:
            self._masked = _DirectCall(operator, operator.masked, registered)
            self._call_masked = self._masked.recent.caller(self._masked_fallback)

    def __call__(self, *arguments: Any) -> Any:
        """Call as `every` does."""
        return self.every(*arguments)

    def falling_back(
        self, fallback: Callable[..., Any], *, is_first: bool = False
    ) -> Callable[..., Any]:
        """Return `every`, or `first`, whose calls that match no recent one are
        `fallback(ours, *arguments)`, where `ours` runs such a call."""
        each = self._first if is_first else self._every
        ours = each.fallback

        def call(*arguments: Any) -> Any:
            return fallback(ours, *arguments)

        return each.recent.caller(call)

    def drawing(
        self, draw: Callable[[Any], object], fallback: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return `first` of all arguments but the last, which is `draw(arguments[0])`.

        fallback: called if no recent call matches, or None is drawn; it draws itself.
        """
        return self._first.recent.caller(fallback, draw)

    def first_direct(self, *arguments: Any) -> Any:
        """Call `first` without PyTorch's dispatcher, if `needs_dispatcher` is False for them."""
        return self._first.run_directly(arguments)

    def masked(self, *arguments: Any) -> Sequence[Tensor | None]:
        """Return all results, None in place of each where the last argument, a mask, is False."""
        results, mask = self._call_masked(*arguments), arguments[-1]
        computed: tuple[Tensor, ...] = results if isinstance(results, tuple) else (results,)
        if len(computed) == len(mask):
            return computed
        rest = iter(computed)
        return [next(rest) if is_selected else None for is_selected in mask]

    def _masked_fallback(self, *arguments: Any) -> Any:
        """Run `masked` if no recent call matches; in grad mode, or if the dispatcher is needed,
        all results are computed."""
        if not torch.is_grad_enabled() and not needs_dispatcher(arguments):
            return self._masked.run_directly(arguments)
        pairs = zip(self.every(*arguments), arguments[-1], strict=True)
        return tuple([result if is_selected else None for result, is_selected in pairs])


class _DirectCall:
    """A call past the dispatcher: launches, or an autograd.Function around them.

    body: body(run, *arguments) computes the results. is_first: return the first result only; the
    others are computed if gradients are recorded. recent: the cache of calls. node: runs a call
    through autograd.
    """

    def __init__(
        self,
        operator: CustomOp,
        body: Callable[..., Any],
        registered: Any,
        *,
        is_first: bool = False,
    ) -> None:
        self._operator, self._body, self._is_first = operator, body, is_first
        self._registered, self._defaults = registered, defaults_of(registered)
        self._which, self._which_recorded = (FIRST, JOINED) if is_first else (EVERY, EVERY)
        self._apply = autograd.general_apply(operator, is_first=is_first)
        self.recent = RecentCalls(registered, operator.changing)
        self.node: Callable[..., Any] = self.recent.caller(self._apply_to)  # through autograd

    def run_directly(self, arguments: Sequence[Any]) -> Any:
        """Run a call without the dispatcher; remember one of every _TRACE_EVERY."""
        is_traced = self.recent.should_trace()
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            results = (
                self._call_through_mode(arguments) if _n_functions() else self.node(*arguments)
            )
            if is_traced:
                run = autograd.runner(
                    self._operator,
                    self._trace,
                    self._apply,
                    self._call_through_mode,
                    is_first=self._is_first,
                )
                self.recent.note(arguments, run)
            return results
        if not is_traced:
            return compute(self._body, arguments, self._which)
        results, run = trace(self._body, arguments, self._which, self._operator.changing)
        self.recent.note(arguments, run)
        return results

    def fallback(self, *arguments: Any) -> Any:
        """Run a call that matches no recent one: directly, or by the dispatcher if it must see it.

        An error names the argument at fault, if one is known to be.
        """
        arguments += self._defaults[len(arguments) :]
        try:
            if not needs_dispatcher(arguments):
                return self.run_directly(arguments)
            results = self._registered(*arguments)
            return results[0] if self._is_first else results
        except Exception as error:
            name_bad_argument(self._registered, arguments, error)
            raise

    def _apply_to(self, *arguments: Any) -> Any:
        """Apply the Function for all calls, whose forward pass is `_compute`."""
        return self._apply(*arguments, (self._compute, ()))

    def _compute(self, arguments: Sequence[Any], _: Any) -> Any:
        return compute(self._body, arguments, self._which_recorded)

    def _trace(self, arguments: Sequence[Any]) -> tuple[Any, Runner]:
        return trace(self._body, arguments, self._which_recorded, self._operator.changing)

    def _call_through_mode(self, arguments: Sequence[Any]) -> Any:
        """Call `node` through the innermost TorchFunctionMode, as PyTorch's C++ functions do."""
        mode = torch.overrides._pop_mode()
        try:
            results = mode.__torch_function__(self.node, (), arguments, {})
        finally:
            torch.overrides._push_mode(mode)
        if results is NotImplemented:
            tensors = [x for x in arguments if isinstance(x, Tensor)]
            return torch.overrides.handle_torch_function(self.node, tensors, *arguments)
        return results


def _is_tensor(kind: Any) -> bool:
    return str(kind) in ("Tensor", "Optional[Tensor]")


def needs_dispatcher(arguments: Sequence[Any]) -> bool:
    """Return True if torch.compile, a subclass, a mode, a transform or a trace must see a call,
    tensors have no data, or gradients come as a batch (`is_grads_batched`)."""
    return (
        _is_compiling()
        or not PLAIN_TYPES.issuperset(map(type, arguments))
        or _n_modes() > 0
        or _is_transformed()
        or forward_ad._current_level >= 0
        or _tracing_state() is not None
        or getattr(arguments[0], "is_meta", False)
        or _is_key_included(_BATCHED)
    )


def name_bad_argument(registered: Any, arguments: Sequence[Any], error: Exception) -> None:
    """Raise an error that names an argument that is no dense tensor, or no list of integers.

    Return if all are as they should be: `error`, which the call raised, has another cause.
    """
    raise_if_from_handler(error)
    for argument, value in zip(registered._schema.arguments, arguments, strict=False):
        kind, expected = str(argument.type), ""
        if _is_tensor(argument.type) and not (value is None and kind.startswith("Optional")):
            if not isinstance(value, Tensor) or value.layout is not torch.strided:
                expected = "a dense tensor"
        elif kind == "List[int]" and not _are_integers(value):
            expected = "a list of integers"
        if expected:
            got = f"one of layout {value.layout}" if isinstance(value, Tensor) else shown(value)
            refuse(registered._schema.name, argument.name, expected, got)


def _are_integers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(x, int | torch.SymInt) for x in value)


def defaults_of(overload: Any) -> tuple[Any, ...]:
    """Return the defaults of all arguments, None without one; the dispatcher omits arguments that
    equal them."""
    return tuple([argument.default_value for argument in overload._schema.arguments])


# ---- registration with the dispatcher ------------------------------------------------------------


def register(operators: Sequence[CustomOp]) -> dict[str, Door]:
    """Register operators and return their doors by name."""
    return {operator.name: _register(operator) for operator in operators}


def _register(operator: CustomOp) -> Door:
    """Register an operator unless it is: this module may be imported again."""
    library, name = _library(), operator.name
    if name not in library.names:
        library.names.add(name)
        library.define(operator.schema, tags=TAGS)
        kernel = _kernel(operator)
        for key in KEYS:
            library.impl(name, kernel, key)
        torch.library.register_fake(f"{NAMESPACE}::{name}", _fake(operator), lib=library)
        autograd.register_autograd(operator, library, kernel)
    return Door(operator, overload_of(name))


def _library() -> Any:
    """Return the process's library, stored in torch.ops.cto to outlive this module."""
    namespace = getattr(torch.ops, NAMESPACE)
    if "library" not in vars(namespace):
        namespace.library = torch.library.Library(NAMESPACE, "FRAGMENT")
        namespace.library.names = set()
    return namespace.library


def _kernel(operator: CustomOp) -> Callable[..., Any]:
    """Return the operator's kernel for CPU and GPU, a function of its arguments: a call that
    matches a recent one repeats its launches."""
    overload, masked = overload_of(operator.name), operator.masked
    defaults, recent = defaults_of(overload), RecentCalls(overload, operator.changing)
    # Changing numbers come as a list; a tensor that is written has a new version.
    is_noted = operator.changing is None and operator.writes is None

    def fallback(*arguments: Any) -> Any:
        """Run a call that matches no recent one; remember one of every _TRACE_EVERY."""
        if forward_ad._current_level >= 0:
            refuse_forward_mode(operator.name)
        values = [tuple(value) if type(value) is list else value for value in arguments]
        # A masked body returns as many results as the schema has if the mask selects all.
        body = masked if masked is not None and all(values[-1]) else operator.body
        if not (is_noted and recent.should_trace()):
            return compute(body, values)
        results, run = trace(body, values, EVERY)
        recent.note(arguments, run)
        return results

    call = recent.caller(fallback) if is_noted else fallback
    return lambda *arguments: call(*arguments, *defaults[len(arguments) :])


def _fake(operator: CustomOp) -> Callable[..., Any]:
    """Return the kernel for tensors without data: `operator.fake`, or the body with `infer`."""
    body = operator.fake or functools.partial(operator.body, infer)
    defaults = defaults_of(overload_of(operator.name))

    def fake(*arguments: Any) -> Any:
        return body(*arguments, *defaults[len(arguments) :])

    return fake
