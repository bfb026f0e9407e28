# SPDX-License-Identifier: MIT
"""The state of a training session: where it is, how calls change it whole or not at all, its file.

point = Point(step_count=7, is_reset=True)     between two steps
point = point._replace(is_begun=True)          as a step begins to write running statistics
point = Point(step_count=7, is_torn=True)      as the optimizer begins to write parameters
point = Point(step_count=8, is_reset=True)     with its last write
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import CodeType, FrameType
from typing import Any, Concatenate, NamedTuple, NoReturn, ParamSpec, TypeVar

import numpy as np

from ..codecs import container
from ..codecs.numpy_file import BinaryFile, NumpyArray, StrPath
from ..device.marks import Note
from ..dtypes import BFLOAT16
from ..errors import ArgumentError, ProviderError, cut, refuse, shown
from ..forks import Locked

P = ParamSpec("P")
S = TypeVar("S", bound="Transactional")
T = TypeVar("T")
FORMAT = container.Format("training session", version=1, longest_header=1 << 26)
MAX_STEP = 2**62
_RAW = np.dtype(np.uint16)  # of bfloat16 in a file


class Point(NamedTuple):
    """Where training is: one object, so that its fields change together.

    step_count: steps of the optimizer so far. is_reset: gradients begin anew in the next batch.
    is_begun: a forward and backward pass is under way; if it is stopped, its states have to be put
    back. is_torn: parameters are partly those of another step.
    """

    step_count: int = 0
    is_reset: bool = True
    is_begun: bool = False
    is_torn: bool = False


def exclusive(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Return the method under the session's lock: other threads wait for its end.

    Before it runs, states of a call that was stopped are put back. A call inside of another (from a
    signal handler) and, but for `load`, one on torn parameters raise ProviderError.
    """
    call = method.__name__

    @functools.wraps(method)
    def call_alone(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return method(self, ...) after the checks, with the session's lock."""
        with self.lock:
            if self._is_called and _is_below(sys._getframe(1), sys._getframe().f_code, self):
                raise ProviderError(
                    f"TrainingSession: {call}: expected no call inside of another, as in a "
                    f"signal's handler"
                )
            self._is_called = True  # also behind an exception: `_is_below` then sees no such call
            self._put_back()
            if self._point.is_torn and call != "load":
                raise ProviderError(
                    f"TrainingSession: {call}: parameters are partly those of another step, since "
                    f"one was stopped while they were written: load a state, or open a new session"
                )
            result = method(self, *args, **kwargs)
            self._is_called = False
            return result

    return call_alone


def _is_below(frame: FrameType | None, code: CodeType, session: Transactional) -> bool:
    """Return True if `frame` or one of its callers runs `code` for the session.

    A call that an exception stopped has no frame any more, and so does not count.
    """
    while frame is not None:
        if frame.f_code is code and frame.f_locals["self"] is session:
            return True
        frame = frame.f_back
    return False


class Transactional(Locked):
    """Base of a session whose `_point` says where training is; one call changes it at a time."""

    _point: Point
    _is_called = False

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a TrainingSession updates its arrays where they are and cannot be pickled or copied: "
            "open another one, which loads what this one saves"
        )

    @property
    def step_count(self) -> int:
        """How many steps the optimizer has made. May be set, to go on counting from there.

        Raises ArgumentError where it is no integer from 0 to 2^62.
        """
        return self._point.step_count

    @step_count.setter
    @exclusive
    def step_count(self, count: int) -> None:
        if type(count) is not int or not 0 <= count <= MAX_STEP:
            refuse(
                "TrainingSession", "step_count", "the number of steps that were made", shown(count)
            )
        self._point = self._point._replace(step_count=count)

    def _noting(self, point: Point) -> Note:
        """Return a function that sets `_point`, in C code, where no signal handler can run."""
        return partial(setattr, self, "_point", point)

    def _put_back(self) -> None:
        """Give states their values before a step that was stopped."""
        raise NotImplementedError


# ---- the file ------------------------------------------------------------------------------------


def write_state(
    file: StrPath | BinaryFile,
    arrays: Mapping[str, Any],
    numbers: Mapping[str, Any],
    sync: bool = True,
) -> None:
    """Write arrays and numbers by name to a file or an open one.

    The file's members are called 0, 1, ...; the arrays' names are in its header. sync: wait until
    it is on the disk.
    """
    stored = {str(i): _for_file(array) for i, array in enumerate(arrays.values())}
    container.write(file, FORMAT, {"names": list(arrays), **numbers}, stored, sync)


def read_state(
    file: StrPath | BinaryFile, arrays: Mapping[str, Any], numbers: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, NumpyArray]]:
    """Return the numbers and arrays (of NumPy) by name that `write_state` wrote.

    arrays, numbers: the session's own by name; refused if names, shapes or types are others.
    """
    with container.load(file, FORMAT) as opened:
        stored = _numbers(file, opened.header, list(arrays), numbers)
        members = {name: opened.member(str(i)) for i, name in enumerate(arrays)}
        for name, member in members.items():
            _check(file, name, member.header(), arrays[name])
        return stored, {name: m.read().view(arrays[name].dtype) for name, m in members.items()}


def _numbers(
    file: object, header: Mapping[str, Any], names: list[str], numbers: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a file's numbers from its header, of the types of `numbers`; refuse other names."""
    if header.get("names") != names:
        raise ArgumentError(f"{file}: expected the state of a session of the same artifacts")
    stored = {name: header.get(name) for name in numbers}
    for name, value in stored.items():
        fits = type(value) is type(numbers[name]) and math.isfinite(value)  # type: ignore[arg-type]
        if not fits or (isinstance(value, int) and value < 0):
            raise ArgumentError(f"{file}: {name}: got {shown(value)}")
    return stored


def _check(file: object, name: str, header: Any, array: Any) -> None:
    """Refuse a member of the file whose type or shape is not the array's."""
    expected = _RAW if array.dtype == BFLOAT16 else array.dtype
    if header.shape != array.shape or header.dtype != expected:
        raise ArgumentError(
            f"{file}: {cut(name)!r}: expected {array.dtype} of shape {array.shape}, "
            f"got {header.dtype} of shape {header.shape}"
        )


def _for_file(array: Any) -> NumpyArray:
    """Return an array on the host; one of bfloat16, which NumPy's files lack, as its uint16 bits"""
    on_host: NumpyArray = array if isinstance(array, np.ndarray) else array.get()
    return on_host.view(_RAW) if on_host.dtype == BFLOAT16 else on_host
