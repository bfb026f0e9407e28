# SPDX-License-Identifier: MIT
"""Locks in a forked child, which has one thread: nobody would release what another thread held."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class InChild:
    """Base of objects that change in a forked child."""

    def __init__(self) -> None:
        _living.add(self)

    def renew(self) -> None:
        """Called in the child, before anything else there runs."""
        raise NotImplementedError


_living: weakref.WeakSet[InChild] = weakref.WeakSet()


def _renew_all() -> None:
    for each in list(_living):
        each.renew()


os.register_at_fork(after_in_child=_renew_all)


class Locked(InChild):
    """Base of objects that threads share: one has `lock`, which it may take again.

    A forked child finds the lock free, unless it was forked by the very thread that holds it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def renew(self) -> None:
        """Another lock in place of one that a thread of the parent holds."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self.lock = threading.RLock()
            self.recover()

    def recover(self) -> None:
        """Put in order, in the child, what that thread was at."""


class computed_once(Generic[T]):  # noqa: N801 - read as `property` is
    """A property that is computed once; `functools.cached_property` of Python 3.11 has a lock."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, _: type | None = None) -> T:
        """Compute; the value hides this from then on."""
        value = vars(instance)[self._name] = self._function(instance)
        return value
