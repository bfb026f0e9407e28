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
        """Put the object in order for a forked child, in which this is called first of all."""
        raise NotImplementedError


_living: weakref.WeakSet[InChild] = weakref.WeakSet()


def _renew_all() -> None:
    for each in list(_living):
        each.renew()


os.register_at_fork(after_in_child=_renew_all)


class Locked(InChild):
    """Base of objects that threads share, with a reentrant `lock`.

    In a forked child the lock is free, unless the very thread that has it forked the child.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def renew(self) -> None:
        """Replace the lock if another thread of the parent has it, and `recover`."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self.lock = threading.RLock()
            self.recover()

    def recover(self) -> None:
        """Put in order what the thread that had the lock left unfinished; here nothing."""


class computed_once(Generic[T]):  # noqa: N801 - read as `property` is
    """A property that is computed once; `functools.cached_property` of Python 3.11 has a lock."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, _: type | None = None) -> T:
        """Compute the value and store it in the instance, where it hides this descriptor."""
        value = vars(instance)[self._name] = self._function(instance)
        return value
