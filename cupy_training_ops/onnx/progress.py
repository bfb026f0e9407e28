# SPDX-License-Identifier: MIT
"""Where training is, and the calls that go on from there: one at a time, each whole."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from ..device.marks import Note
from ..errors import ProviderError
from ..forks import Locked

P = ParamSpec("P")
S = TypeVar("S", bound="Progressing")
T = TypeVar("T")


class Point(NamedTuple):
    """Where training is: one object, so that what belongs together changes at once.

    is_reset: gradients begin anew. is_begun: a step is under way, and what it changes of states is
    to be put back if it is not made. is_torn: parameters are partly those of another step.
    """

    step_count: int = 0
    is_reset: bool = True
    is_begun: bool = False
    is_torn: bool = False


class Progressing(Locked):
    """Something that goes from point to point, by one call at a time."""

    _point: Point
    _is_called = False

    @property
    def step_count(self) -> int:
        """How many steps of the optimizer were made."""
        return self._point.step_count

    def _noting(self, point: Point) -> Note:
        """What goes to a point, with no handler of a signal on the way."""
        return partial(setattr, self, "_point", point)

    def _put_back(self) -> None:
        """Give states that a step has changed the values from before, if it was stopped."""
        raise NotImplementedError


def alone(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], T]:
    """A call that other threads' calls wait for, and that has a whole state to begin with."""
    call = method.__name__

    @functools.wraps(method)
    def called(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.lock:
            if self._is_called and _is_below(sys._getframe(1), sys._getframe().f_code, self):
                raise ProviderError(
                    f"TrainingSession: {call}: expected no call inside of another, as in a "
                    f"signal's handler"
                )
            self._is_called = True
            self._put_back()
            if self._point.is_torn and call != "load":
                raise ProviderError(
                    f"TrainingSession: {call}: parameters are partly those of another step, since "
                    f"one was stopped while they were written: load a state, or open a new session"
                )
            found = method(self, *args, **kwargs)
            self._is_called = False
            return found

    return called


def _is_below(frame: FrameType | None, code: CodeType, session: Progressing) -> bool:
    """Whether a session's call is what a frame was called from; one that was stopped is not."""
    while frame is not None:
        if frame.f_code is code and frame.f_locals["self"] is session:
            return True
        frame = frame.f_back
    return False
