# SPDX-License-Identifier: MIT
"""How a call finds its launches: those of a recent call like it, autograd's node, the dispatcher.

A call looks like a recent one by one check of PyTorch's own, the one by which compiled code knows
its inputs: of types, dispatch keys (so of modes, transformations, traces, autocast), dtypes,
devices, shapes, strides, and which need gradients. It takes no tensor twice. All else is told apart
by its bytes, so that 1.0 is not 1. Where PyTorch has its check no more, all go the longer way.
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
from ...errors import pass_on, refuse, shown
from . import autograd
from .autograd import NAMESPACE, Operator, overload_of, refuse_forward_mode
from .launching import EVERY, FIRST, JOINED, Pick, Runner, compute, exact, infer, learn, pick

TAGS = (torch.Tag.pt2_compliant_tag,)
KEYS = ("CPU", "CUDA")
_MANY = 8  # ways in with the same numbers
_OFTEN = 8  # calls of the longer way for one that is noted
_NOTHING: tuple[Any, ...] = ()
_ABSENT = frozenset([(None,) * n for n in range(9)])
_TensorGuards = getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)
_all: list[Recent] = []


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
_is_compiling = torch.compiler.is_compiling
_n_functions = torch._C._len_torch_function_stack
_n_modes = torch._C._len_torch_dispatch_stack
_is_transformed = torch._C._are_functorch_transforms_active
_tracing_state = torch._C._get_tracing_state
_is_key_included = torch._C._dispatch_tls_is_dispatch_key_included
_BATCHED = torch._C._dispatch_key_parse("VmapMode")  # of autograd's `is_grads_batched`


class Way(NamedTuple):
    """How calls of one kind are known, and what they run."""

    is_like: Callable[..., bool]
    tensors: Pick
    absent: Pick | None  # what has to be None
    run: Runner


_Ways = dict[object, tuple[Way, ...]]


class Recent:
    """The recent kinds of calls of one operator.

    changing: the place of an argument that is no part of a kind.
    """

    def __init__(self, registered: Any, changing: int | None) -> None:
        kinds = [argument.type for argument in registered._schema.arguments]
        places = [i for i in range(len(kinds)) if i != changing]
        self._tensors = [i for i in places if _is_tensor(kinds[i])]  # or None
        self._others = pick([i for i in places if not _is_tensor(kinds[i])])
        self._n, self._n_missed = len(kinds), 0
        # By the other arguments; where gradients are not recorded, and where they are.
        self._ways: tuple[_Ways, _Ways] = {}, {}
        _all.append(self)

    def caller(
        self, longer: Callable[..., Any], draw: Callable[[Any], object] | None = None
    ) -> Callable[..., Any]:
        """Return a function that runs a call as a recent one like it, or calls `longer`.

        A call is like a recent one whose arguments that are no tensors have the same `exact` key,
        where `is_like` takes its tensors, and None stands in the same places.
        draw: in a call of all arguments but the last, `draw(arguments[0])` is the last one; where
        that is None, `longer` is called without it.
        """
        others, ways = self._others, self._ways
        n_modes, is_recording, is_compiling = _n_modes, torch.is_grad_enabled, _is_compiling
        as_bytes, exactly = marshal.dumps, EXACT
        nothing, all_absent = _NOTHING, _ABSENT

        def call(*arguments: Any) -> Any:
            if is_compiling() or forward_ad._current_level >= 0 or n_modes():
                return longer(*arguments)
            try:
                key: object = as_bytes(others(arguments), exactly)
            except ValueError:
                key = exact(others(arguments))
            except IndexError:  # arguments are left out
                return longer(*arguments)
            for is_like, tensors, absent, run in ways[is_recording()].get(key, nothing):
                given = tensors(arguments)
                if is_like(*given) and (absent is None or absent(arguments) in all_absent):
                    if draw is None:
                        return run(arguments, given)
                    drawn = draw(arguments[0])
                    return longer(*arguments) if drawn is None else run((*arguments, drawn), given)
            return longer(*arguments)

        return call

    def is_due(self) -> bool:
        """Return True if a call that goes the longer way is to be noted: one in eight is.

        Calls whose shapes are never the same do not pay for all.
        """
        self._n_missed += 1
        return self._n_missed % _OFTEN == 0

    def note(self, arguments: Sequence[Any], run: Runner) -> None:
        """Remember `run` as the way of calls whose arguments are like these."""
        others = exact(self._others(arguments)) if len(arguments) == self._n else None
        if others is None:
            return
        ways = self._ways[torch.is_grad_enabled()]
        known = ways.get(others, _NOTHING)
        places = [i for i in self._tensors if arguments[i] is not None]
        absent = [i for i in self._tensors if arguments[i] is None]
        tensors = pick(places)
        is_like = guard(tensors(arguments))
        if is_like is not None:
            way = Way(is_like, tensors, pick(absent) if absent else None, run)
            if len(ways) >= 8 * _MANY:
                ways.clear()
            ways[others] = (*known[1 - _MANY :], way)

    def forget(self) -> None:
        """Forget all recent calls."""
        for ways in self._ways:
            ways.clear()


def forget() -> None:
    """Forget the recent calls of all operators: tests let tensors run on another backend."""
    for recent in _all:
        recent.forget()


def guard(tensors: Sequence[Tensor]) -> Callable[..., bool] | None:
    """Return a function that is True for tensors like these; None where PyTorch has no guards."""
    if _TensorGuards is None or not tensors:
        return None
    shapes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
    found = _TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    is_like: Callable[..., bool] = found.check
    return is_like if is_like(*tensors) else None


class Door:
    """The shortest way to an operator: its launches; an autograd.Function around them; PyTorch's
    dispatcher where someone else wants to see the call.

    every: takes the arguments of the schema, by position. first: the same for the first result;
    without gradients the others are not computed.
    """

    def __init__(self, operator: Operator, registered: Any) -> None:
        self.operator, self.registered = operator, registered
        body = operator.direct or operator.body
        every, first = (
            _Inside(operator, body, registered, is_first=is_first) for is_first in (False, True)
        )
        self._every, self._first = every, first
        self.nodes = every.node, first.node  # what modes are told of
        self.every, self.first = (each.recent.caller(each.longer) for each in (every, first))
        if operator.some is not None:
            self._some = _Inside(operator, operator.some, registered)
            self._some_alone = self._some.recent.caller(self._some_longer)

    def __call__(self, *arguments: Any) -> Any:
        """Call as `every` does."""
        return self.every(*arguments)

    def drawing(
        self, draw: Callable[[Any], object], longer: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return `first` of all arguments but the last, which is `draw(arguments[0])`.

        longer: the way of calls like none before, or for which None is drawn; it draws itself.
        """
        return self._first.recent.caller(longer, draw)

    def first_unwatched(self, *arguments: Any) -> Any:
        """Call `first` without PyTorch's dispatcher, for arguments that are not `is_watched`."""
        return self._first(arguments)

    def some(self, *arguments: Any) -> Sequence[Tensor | None]:
        """Return the results that a mask, the last argument, names, and None for the others."""
        results, mask = self._some_alone(*arguments), arguments[-1]
        given: tuple[Tensor, ...] = results if isinstance(results, tuple) else (results,)
        if len(given) == len(mask):
            return given
        rest = iter(given)
        return [next(rest) if is_named else None for is_named in mask]

    def _some_longer(self, *arguments: Any) -> Any:
        """`some` where no recent call is like this one. With gradients, or where somebody
        watches, all results are computed, and None stands for those that the mask leaves out."""
        if not torch.is_grad_enabled() and not is_watched(arguments):
            return self._some(arguments)
        pairs = zip(self.every(*arguments), arguments[-1], strict=True)
        return tuple([result if is_named else None for result, is_named in pairs])


class _Inside:
    """The way of a call that nobody else sees: launches, or autograd's node around them.

    is_first: gives the first result alone; the others are computed where gradients are recorded.
    """

    def __init__(
        self,
        operator: Operator,
        body: Callable[..., Any],
        registered: Any,
        *,
        is_first: bool = False,
    ) -> None:
        self._operator, self._body, self._is_first = operator, body, is_first
        self._registered, self._defaults = registered, defaults_of(registered)
        self._which, self._which_recorded = (FIRST, JOINED) if is_first else (EVERY, EVERY)
        self._apply = autograd.general(operator, is_first=is_first)
        self.recent = Recent(registered, operator.changing)
        self.node: Callable[..., Any] = self.recent.caller(self._apply_to)  # through autograd's

    def __call__(self, arguments: Sequence[Any]) -> Any:
        is_due = self.recent.is_due()
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            results = self._tell(arguments) if _n_functions() else self.node(*arguments)
            if is_due:
                run = autograd.runner(
                    self._operator, self._learn, self._apply, self._tell, is_first=self._is_first
                )
                self.recent.note(arguments, run)
            return results
        if not is_due:
            return compute(self._body, arguments, self._which)
        results, run = learn(self._body, arguments, self._which, self._operator.changing)
        self.recent.note(arguments, run)
        return results

    def longer(self, *arguments: Any) -> Any:
        """Run a call that is like no recent one: by the dispatcher where somebody watches."""
        arguments += self._defaults[len(arguments) :]
        try:
            if not is_watched(arguments):
                return self(arguments)
            results = self._registered(*arguments)
            return results[0] if self._is_first else results
        except Exception as error:
            refuse_others(self._registered, arguments, error)
            raise

    def _apply_to(self, *arguments: Any) -> Any:
        """Through autograd's node, whose forward pass is `_compute` of the arguments."""
        return self._apply(*arguments, (self._compute, ()))

    def _compute(self, arguments: Sequence[Any], _: Any) -> Any:
        return compute(self._body, arguments, self._which_recorded)

    def _learn(self, arguments: Sequence[Any]) -> tuple[Any, Runner]:
        return learn(self._body, arguments, self._which_recorded, self._operator.changing)

    def _tell(self, arguments: Sequence[Any]) -> Any:
        """Call `node` by way of the function mode on top, as PyTorch's own functions in C++ do."""
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


def is_watched(arguments: Sequence[Any]) -> bool:
    """Return True if torch.compile, a subclass, a mode, a transform or a trace must see a call.

    So is the dispatcher where tensors have no data, or gradients come as a batch.
    """
    return (
        _is_compiling()
        or not KINDS.issuperset(map(type, arguments))
        or _n_modes() > 0
        or _is_transformed()
        or forward_ad._current_level >= 0
        or _tracing_state() is not None
        or getattr(arguments[0], "is_meta", False)
        or _is_key_included(_BATCHED)
    )


def refuse_others(registered: Any, arguments: Sequence[Any], error: Exception) -> None:
    """Raise an error that names an argument that is no dense tensor, or no list of integers.

    error: what the call with such an argument raised.
    """
    pass_on(error)
    for given, value in zip(registered._schema.arguments, arguments, strict=False):
        kind, expected = str(given.type), ""
        if _is_tensor(given.type) and not (value is None and kind.startswith("Optional")):
            if not isinstance(value, Tensor) or value.layout is not torch.strided:
                expected = "a dense tensor"
        elif kind == "List[int]" and not _are_integers(value):
            expected = "a list of integers"
        if expected:
            got = f"one of layout {value.layout}" if isinstance(value, Tensor) else shown(value)
            refuse(registered._schema.name, given.name, expected, got)


def _are_integers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(x, int | torch.SymInt) for x in value)


def defaults_of(overload: Any) -> tuple[Any, ...]:
    """Defaults of all arguments; the dispatcher leaves out what equals them."""
    return tuple([argument.default_value for argument in overload._schema.arguments])


# ---- what the dispatcher knows ------------------------------------------------------------------


def register(operators: Sequence[Operator]) -> dict[str, Door]:
    """The doors to all operators, by name; those that are known already stay as they are."""
    return {operator.name: _register(operator) for operator in operators}


def _register(operator: Operator) -> Door:
    """Names stay with the library: a module that is imported again defines nothing twice."""
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
    """Return the process's library, kept where a module that is imported again finds it."""
    namespace = getattr(torch.ops, NAMESPACE)
    if "library" not in vars(namespace):
        namespace.library = torch.library.Library(NAMESPACE, "FRAGMENT")
        namespace.library.names = set()
    return namespace.library


def _kernel(operator: Operator) -> Callable[..., Any]:
    """The kernel on a CPU and a GPU: a call that looks like a recent one goes to its launches."""
    overload, some = overload_of(operator.name), operator.some
    defaults, recent = defaults_of(overload), Recent(overload, operator.changing)
    # Numbers that change come as a list; what is written has another version then.
    is_noted = operator.changing is None and operator.writes is None

    def longer(*arguments: Any) -> Any:
        if forward_ad._current_level >= 0:
            refuse_forward_mode(operator.name)
        given = [tuple(value) if type(value) is list else value for value in arguments]
        # Of a mask that names all, results are those of the body.
        body = some if some is not None and all(given[-1]) else operator.body
        if not (is_noted and recent.is_due()):
            return compute(body, given)
        results, run = learn(body, given, EVERY)
        recent.note(arguments, run)
        return results

    call = recent.caller(longer) if is_noted else longer
    return lambda *arguments: call(*arguments, *defaults[len(arguments) :])


def _fake(operator: Operator) -> Callable[..., Any]:
    """Empty results, for tensors without data: without a function of its own, the body with
    `infer` in the place of launches. The dispatcher leaves out arguments that equal their
    defaults."""
    body = operator.fake or functools.partial(operator.body, infer)
    defaults = defaults_of(overload_of(operator.name))

    def fake(*arguments: Any) -> Any:
        return body(*arguments, *defaults[len(arguments) :])

    return fake
