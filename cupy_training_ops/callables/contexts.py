# SPDX-License-Identifier: MIT
"""Contexts, which forwards save for backwards, by handles: numbers that a graph can hold."""

from __future__ import annotations

import itertools
import weakref
from typing import NamedTuple

from ..backend import ArrayInfo
from ..declare.schema import integer, single
from ..errors import ArgumentError, refuse, shown
from ..forks import Locked
from .functions import Function

NO_CONTEXT = 0  # the handle of a forward that keeps nothing

_handles = itertools.count(1)
_shared = Locked()


class Context(NamedTuple):
    """One forward of a caller's function, for its backward."""

    name: str  # by which the function is registered
    function: Function
    saved: object  # what the forward saved, for function.backward
    outputs: tuple[ArrayInfo, ...]  # dtypes and shapes that gradients must have


class Contexts:
    """The contexts of one operator's forwards, by handle; they end with it, or one by one."""

    def __init__(self) -> None:
        self._by_handle: dict[int, Context] = {}

    def __len__(self) -> int:
        return len(self._by_handle)

    def keep(self, handle: int, context: Context) -> None:
        """Add a context by its handle, a new one or one that `take` returned."""
        with _shared.lock:
            self._by_handle[handle] = context
            _owners[handle] = self


# By handle, the operator's contexts that have it.
_owners: weakref.WeakValueDictionary[int, Contexts] = weakref.WeakValueDictionary()
UNOWNED = Contexts()  # of calls whose operator nobody holds


def new_handle() -> int:
    """Return a handle that no other context of this process has: 1, 2, ..."""
    return next(_handles)


def take(op: str, argument: str, handle: int) -> tuple[Contexts, Context]:
    """Remove a context; return (the operator's contexts that it was in, the context).

    op, argument: names for the error if there is no such handle.
    """
    with _shared.lock:
        owner = _owners.pop(handle, None)
        if owner is not None:
            return owner, owner._by_handle.pop(handle)
    if handle == NO_CONTEXT:
        refuse(op, argument, "the context of a PythonOp with training_mode=1", "0, which is none")
    refuse(op, argument, "a context that has not ended, nor its PythonOp", shown(handle))


def release_context(context: object) -> None:
    """Free what a PythonOp keeps for a backward that will not come.

    context: the handle that the PythonOp gave, an integer or an array of one. One that has ended,
    or never was, is an error.
    """
    try:
        handle = integer(single(context))
    except ArgumentError as error:
        raise ArgumentError(f"release_context: context: {error}") from None
    take("release_context", "context", handle)


def count() -> int:
    """Return how many contexts there are in this process."""
    return len(_owners)
