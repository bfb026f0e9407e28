# SPDX-License-Identifier: MIT
"""Objects that are in one `with` statement at a time, however that is left."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any


class Leaving:
    """In place of a method `__exit__`, which an exception may stop before its first line.

    A `with` statement gets a new function from here, and holds it until it is left: the object is
    entered as long as that lives. What calls the method of the class, as ExitStack does, is
    believed to have left when that was called.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Callable[..., None]:
        if instance is None:
            return self._function
        leave = partial(self._function, instance)
        instance.statement = weakref.ref(leave)
        return leave
