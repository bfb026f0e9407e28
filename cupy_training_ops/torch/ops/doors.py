# SPDX-License-Identifier: MIT
"""Doors: the shortest way to an operator there is, for who calls it and for its derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...errors import pass_on, refuse, shown
from . import nodes
from .launching import launch, launch_first
from .nodes import Operator
from .recent import Found, Recent, Run
from .shortcuts import EVERY, FIRST, JOINED, Shortcuts

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


class Door:
    """The shortest way to an operator: its launches; an autograd.Function around them; PyTorch's
    dispatcher where someone else wants to see the call.

    every: takes the arguments of the schema, by position. first: the same for the first result;
    without gradients the others are not computed. wanted: for the results that a mask names, the
    last argument, with None in the places of the others.
    """

    def __init__(self, operator: Operator, registered: Any) -> None:
        self.operator, self.registered = operator, registered
        self.defaults = defaults_of(registered)
        body = operator.direct or functools.partial(launched, operator.body)
        self._every = _Inside(operator, body, registered)
        # Of the first result alone: the others cost time.
        self._first = _Inside(operator, body, registered, is_first=True)
        self.nodes = self._every.node, self._first.node  # what modes are told of
        self.every = self._every.recent.caller(self._every_longer)
        self.first = self._first.recent.caller(self._first_longer)
        if operator.wanted is None:
            self.wanted = self._wanted_of_every
        else:
            self._wanted = _Inside(operator, operator.wanted, registered)
            self.wanted = _shortest_of_mask(self._wanted.recent.find, self._wanted_longer)

    def __call__(self, *arguments: Any) -> Any:
        """As `every`."""
        return self.every(*arguments)

    def drawing(
        self, draw: Callable[[Any], object], longer: Callable[..., Any]
    ) -> Callable[..., Any]:
        """`first` of all arguments but the last, which is drawn; the longer way draws itself, and
        is also that of calls for which None is drawn."""
        return self._first.recent.caller(longer, draw)

    def first_unwatched(self, *arguments: Any) -> Any:
        """The same as `first` where nobody else is to see the call."""
        return self._first(arguments)

    def _every_longer(self, *arguments: Any) -> Any:
        arguments += self.defaults[len(arguments) :]
        try:
            if is_watched(arguments):
                return self.registered(*arguments)
            return self._every(arguments)
        except Exception as error:
            refuse_others(self.registered, arguments, error)
            raise

    def _first_longer(self, *arguments: Any) -> Any:
        try:
            if is_watched(arguments):
                return self.registered(*arguments)[0]
            return self._first(arguments)
        except Exception as error:
            refuse_others(self.registered, arguments, error)
            raise

    def _wanted_longer(self, *arguments: Any) -> Any:
        if torch.is_grad_enabled() or is_watched(arguments):
            return self._wanted_of_every(*arguments)
        return self._wanted(arguments)

    def _wanted_of_every(self, *arguments: Any) -> Sequence[Tensor | None]:
        pairs = zip(self.every(*arguments), arguments[-1], strict=True)
        return tuple([result if wanted else None for result, wanted in pairs])


def _shortest_of_mask(
    find: Callable[[Sequence[Any]], Found | None], longer: Callable[..., Any]
) -> Callable[..., Sequence[Tensor | None]]:
    """A function that runs a call as a recent one like it, or the longer way; results in order."""
    is_compiling = torch.compiler.is_compiling

    def call(*arguments: Any) -> Sequence[Tensor | None]:
        found = None if is_compiling() else find(arguments)
        if found is None:
            return _in_places(longer(*arguments), arguments[-1])
        run, tensors = found
        return _in_places(run(arguments, tensors), arguments[-1])

    return call


def _in_places(results: Any, mask: Sequence[bool]) -> Sequence[Tensor | None]:
    """The results that a mask names in their places, None in those of the others."""
    given: tuple[Tensor, ...] = results if isinstance(results, tuple) else (results,)
    if len(given) == len(mask):
        return given
    rest = iter(given)
    return [next(rest) if wanted else None for wanted in mask]


class _Inside:
    """The way of a call that nobody else sees: launches, or autograd's node."""

    def __init__(
        self, operator: Operator, launched: Any, registered: Any, *, is_first: bool = False
    ) -> None:
        self._launched, self._is_first = launched, is_first
        self._operator = operator
        self._apply = nodes.general(operator, is_first=is_first)
        self._changing = changing = launched.changing if isinstance(launched, Shortcuts) else None
        n = len(registered._schema.arguments)
        self.recent = Recent(n, tensors_of(registered, changing), changing)

    def __call__(self, arguments: Sequence[Any]) -> Any:
        is_recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)
        if not is_recorded:
            results = self._launched(arguments, FIRST if self._is_first else EVERY)
        elif not _n_functions():
            results = self.node(*arguments)
        else:
            results = self._told(arguments)
        self.recent.note(arguments, functools.partial(self._run, arguments, is_recorded))
        return results

    def node(self, *arguments: Any) -> Any:
        """Through autograd's node."""
        found = self.recent.find(arguments)
        if found is None:
            return self._apply(*arguments, (self._all, ()))
        run, tensors = found
        return run(arguments, tensors)

    def _told(self, arguments: Sequence[Any]) -> Any:
        """The same, where the mode that looks at functions is told, as by PyTorch's own in C++."""
        mode = torch.overrides._pop_mode()
        try:
            results = mode.__torch_function__(self.node, (), arguments, {})
        finally:
            torch.overrides._push_mode(mode)
        if results is NotImplemented:
            tensors = [x for x in arguments if isinstance(x, Tensor)]
            return torch.overrides.handle_torch_function(self.node, tensors, *arguments)
        return results

    def _all(self, arguments: Sequence[Any], _: Any) -> Any:
        return self._launched(arguments, JOINED if self._is_first else EVERY)

    def _run(self, arguments: Sequence[Any], is_recorded: bool) -> Run:
        """The function that calls like this one run."""
        of_first = JOINED if is_recorded else FIRST  # others are for `keep` alone
        run = straight(self._launched, arguments, of_first if self._is_first else EVERY)
        if not is_recorded:
            return run
        kind = nodes.Kind(run, self._changing)
        return nodes.runner(self._operator, kind, self._apply, self._told, is_first=self._is_first)


def straight(longer: Any, arguments: Sequence[Any], which: int) -> Run:
    """The launches of calls like this one, or what runs it anyway."""
    found = longer.straight(arguments, which) if isinstance(longer, Shortcuts) else None
    if found is not None:
        return found
    return lambda arguments, _: longer(arguments, which)


def tensors_of(registered: Any, changing: int | None) -> list[int]:
    """The places of arguments that are tensors or None, but for one that may be none of them."""
    schema = registered._schema.arguments
    return [i for i, given in enumerate(schema) if i != changing and _is_tensor(given.type)]


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
    """Say which argument is no dense tensor, or no row of integers, behind what came of it."""
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


def launched(body: Callable[..., Any], arguments: Sequence[Any], which: int = EVERY) -> Any:
    return body(launch_first if which == FIRST else launch, *arguments)


def defaults_of(overload: Any) -> tuple[Any, ...]:
    """Defaults of all arguments; the dispatcher leaves out what equals them."""
    return tuple([argument.default_value for argument in overload._schema.arguments])
