# SPDX-License-Identifier: MIT
"""Calls that look like a recent one, by one check of PyTorch's own, and go straight to what it ran.

The check is the one by which compiled code knows its inputs: of types, dispatch keys (so of modes,
transformations, traces, autocast), dtypes, devices, shapes, strides, and which need gradients. It
takes no tensor twice. All else is told apart by its bytes, so that 1.0 is not 1. Where PyTorch has
its check no more, all calls go the longer way.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ...call.keys import EXACT, exact_key, is_plain

Pick = Callable[[Sequence[Any]], tuple[Any, ...]]
Run = Callable[[Sequence[Any], tuple[Tensor, ...]], Any]  # of arguments, and of their tensors
Found = tuple[Run, tuple[Tensor, ...]]

_MANY = 8  # ways in with the same numbers
_OFTEN = 8  # calls of the longer way for one that is noted
_NOTHING: tuple[Any, ...] = ()
_ABSENT = frozenset([(None,) * n for n in range(9)])
_TensorGuards = getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)
_all: list[Recent] = []


class Way(NamedTuple):
    """How calls of one kind are known, and what they run."""

    is_like: Callable[..., bool]
    tensors: Pick
    absent: Pick | None  # what has to be None
    run: Run


_Ways = dict[object, tuple[Way, ...]]


class Recent:
    """The recent kinds of calls of one operator.

    tensors: the places of arguments that are tensors, or None. changing: the place of one that is
    no part of a kind. find: what runs a call, which nobody else wants to see, and its tensors.
    """

    def __init__(self, n: int, tensors: Sequence[int], changing: int | None = None) -> None:
        self._tensors = tensors
        self._others = pick([i for i in range(n) if i not in tensors and i != changing])
        self._n, self._n_missed = n, 0
        # By the other arguments; where gradients are not recorded, and where they are.
        self._ways: tuple[_Ways, _Ways] = {}, {}
        self.find = _finder(self._others, self._ways)
        _all.append(self)

    def caller(
        self, longer: Callable[..., Any], draw: Callable[[Any], object] | None = None
    ) -> Callable[..., Any]:
        """A function that runs a call as a recent one like it, or the longer way.

        draw: gives the argument behind the last, of the first one; or None: then the longer way.
        It is `find` once more, since a function between took a tenth of a call's time.
        """
        others, ways, find = self._others, self._ways, self.find
        n_modes, is_recording = torch._C._len_torch_dispatch_stack, torch.is_grad_enabled
        is_compiling, as_bytes, exactly = torch.compiler.is_compiling, marshal.dumps, EXACT
        nothing, all_absent = _NOTHING, _ABSENT

        def call(*arguments: Any) -> Any:
            if is_compiling() or forward_ad._current_level >= 0 or n_modes():
                return longer(*arguments)
            try:
                key = as_bytes(others(arguments), exactly)
            except (ValueError, IndexError):
                found = find(arguments) if draw is None else None
                return longer(*arguments) if found is None else found[0](arguments, found[1])
            for is_like, tensors, absent, run in ways[is_recording()].get(key, nothing):
                given = tensors(arguments)
                if is_like(*given) and (absent is None or absent(arguments) in all_absent):
                    if draw is None:
                        return run(arguments, given)
                    drawn = draw(arguments[0])
                    return longer(*arguments) if drawn is None else run((*arguments, drawn), given)
            return longer(*arguments)

        return call

    def note(self, arguments: Sequence[Any], run: Callable[[], Run]) -> None:
        """That such a call went the longer way: the next ones run this.

        Few are noted, so that calls whose shapes are never the same do not pay for it.
        """
        self._n_missed += 1
        if self._n_missed % _OFTEN or len(arguments) != self._n:
            return
        others = exact(self._others(arguments))
        if others is None:
            return
        ways = self._ways[torch.is_grad_enabled()]
        known = ways.get(others, _NOTHING)
        places = [i for i in self._tensors if arguments[i] is not None]
        absent = [i for i in self._tensors if arguments[i] is None]
        tensors = pick(places)
        is_like = guard(tensors(arguments))
        if is_like is not None:
            way = Way(is_like, tensors, pick(absent) if absent else None, run())
            if len(ways) >= 8 * _MANY:
                ways.clear()
            ways[others] = (*known[1 - _MANY :], way)

    def forget(self) -> None:
        """All of them."""
        for ways in self._ways:
            ways.clear()


def _finder(others: Pick, ways: tuple[_Ways, _Ways]) -> Callable[[Sequence[Any]], Found | None]:
    """A function that finds a way; one of its own, since every call runs it."""
    n_modes, is_recording = torch._C._len_torch_dispatch_stack, torch.is_grad_enabled
    as_bytes, exactly, nothing, all_absent = marshal.dumps, EXACT, _NOTHING, _ABSENT

    def find(arguments: Sequence[Any]) -> Found | None:
        if forward_ad._current_level >= 0 or n_modes():
            return None
        try:
            known = ways[is_recording()].get(as_bytes(others(arguments), exactly), nothing)
        except ValueError:
            known = ways[is_recording()].get(exact(others(arguments)), nothing)
        except IndexError:  # arguments are left out
            return None
        for is_like, tensors, absent, run in known:
            given = tensors(arguments)
            if is_like(*given) and (absent is None or absent(arguments) in all_absent):
                return run, given
        return None

    return find


def exact(values: Sequence[Any]) -> object:
    """A key of these values that no others have; None where they may change, or are unknown.

    A shape of PyTorch's is a tuple.
    """
    plain = [tuple(value) if type(value) is torch.Size else value for value in values]
    theirs = [value if type(value) is torch.dtype else None for value in plain]
    if any(theirs):
        plain = [None if type(value) is torch.dtype else value for value in plain]
    if not all(map(is_plain, plain)):
        return None
    key = exact_key(tuple(plain))
    return (key, *theirs) if any(theirs) else key


def forget() -> None:
    """All ways of all operators, where tensors are to run on another backend: in tests."""
    for recent in _all:
        recent.forget()


def guard(tensors: Sequence[Tensor]) -> Callable[..., bool] | None:
    """A function that returns True if other arguments are like these."""
    if _TensorGuards is None or not tensors:
        return None
    shapes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
    found = _TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    is_like: Callable[..., bool] = found.check
    return is_like if is_like(*tensors) else None


def pick(places: Sequence[int]) -> Pick:
    """A function that takes a tuple of the items at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    start = places[0] if places else 0
    return itemgetter(slice(start, start + len(places)))
