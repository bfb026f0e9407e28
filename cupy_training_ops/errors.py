# SPDX-License-Identifier: MIT
"""The one family of errors; each message names operator, argument, what was expected, what came."""

from __future__ import annotations

import difflib
import functools
import inspect
import reprlib
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

MAX_TEXT = 300  # characters of what was expected, and of what came
MAX_HINT = 160  # characters about an unknown name; a few words may stand before them
MAX_BITS = 1024  # of an integer that is written out: float64's range
MAX_MESSAGE = 10_000  # characters of a message, whatever it quotes


class OpError(Exception):
    """Base of every error this package raises.

    Tracebacks do not show the error that was being handled as it was raised, such as a KeyError of
    a look-up. In messages, which may quote files and other processes, control characters are
    escaped, and the middle of a long text is left out.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(_lines(arg) if isinstance(arg, str) else arg for arg in args))
        self.__suppress_context__ = True


class ArgumentError(OpError, ValueError):
    """A wrong shape, layout, value, memory place, aliasing or number of arguments."""


class DtypeError(OpError, TypeError):
    """A dtype, or a combination of dtypes, that the operator does not have."""


class ProviderError(OpError, RuntimeError):
    """A request that cannot run here: no GPU, mixed providers, capture without a workspace."""


class GroupError(ProviderError):
    """A process group that cannot go on: it is closed, or a rank is gone or late."""


class CompileError(OpError, RuntimeError):
    """A kernel that did not compile; carries the compiler's log."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


def refuse(op: str, argument: str, expected: str, got: str) -> NoReturn:
    """Raise ArgumentError "op: argument: expected ..., got ...", for a wrong argument."""
    raise ArgumentError(f"{op}: {cut(argument)}: expected {cut(expected)}, got {cut(got)}")


def warn_deprecated(text: str) -> None:
    """Issue a DeprecationWarning, at the line outside of this package that called it."""
    depth, frame = 1, sys._getframe(0)
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] == __package__:
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, DeprecationWarning, stacklevel=depth)


def deprecated(since: str, gone: str, instead: str) -> Callable[[F], F]:
    """Return a decorator of functions and methods that will be removed; each call warns.

    since: the first version with the warning. gone: the first without the function, two minor
    versions later at the earliest (docs/compatibility.md). instead: what to write.

        @deprecated("0.3", "0.5", "new_name(x)")
        def old_name(x): ...
    """

    def decorate(function: F) -> F:
        """Return a function that warns and calls this one; its docstring says so too."""
        name = function.__qualname__
        text = f"{name}: deprecated since {since}, and gone in {gone}: write {instead}"

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            warn_deprecated(text)
            return function(*arguments, **named)

        doc = inspect.cleandoc(function.__doc__ or "")
        call.__doc__ = f"{doc}\n\nDeprecated since {since}, and gone in {gone}: write {instead}."
        return cast(F, call)

    return decorate


def raise_if_from_handler(error: BaseException) -> None:
    """Raise an error again if a signal handler raised it, as KeyboardInterrupt or a timeout's.

    For `except` blocks that convert errors: such a one is not the called function's. It is a
    handler's if in the traceback a frame outside of this package is a call with its outer frame as
    an argument, which handlers and tracing functions get, or runs the code of a handler.
    """
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        outer, inner = entry.tb_frame, entry.tb_next.tb_frame
        is_ours = str(inner.f_globals.get("__name__")).partition(".")[0] == __package__
        if not is_ours and (_was_given(inner, outer) or inner.f_code in _handlers()):
            raise error
        entry = entry.tb_next


def _was_given(frame: FrameType, value: object) -> bool:
    """Return True if a frame's function was called with `value`, as an argument or in *args."""
    code = frame.f_code
    n = code.co_argcount + code.co_kwonlyargcount
    n += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    values = map(frame.f_locals.get, code.co_varnames[:n])
    return any(v is value or (type(v) is tuple and any(x is value for x in v)) for v in values)


def _handlers() -> set[object]:
    """Return the code objects of all signal handlers that are functions, methods or callables."""
    handlers: set[Any] = {signal.getsignal(number) for number in signal.valid_signals()}
    functions = [getattr(h, "__func__", h) for h in handlers if callable(h)]
    return {getattr(f, "__code__", getattr(type(f).__call__, "__code__", None)) for f in functions}


def unknown(kind: str, name: object, known: Iterable[str], otherwise: str) -> str:
    """Return the message for an unknown name: "no operator 'X'; did you mean Y, Z?".

    kind: "operator". known: all names. otherwise: words instead of the question if none is alike.
    """
    text = f"no {kind} {shown(name)}"
    hints = ""
    for close in _close(name, known) if isinstance(name, str) else ():
        longer = f"{hints}, {close}" if hints else f"; did you mean {close}"
        hints = longer if len(text) + len(longer) < MAX_HINT else hints
    if hints:
        return f"{text}{hints}?"
    return f"{text}; {otherwise}" if len(text) + len(otherwise) < MAX_HINT else text


def shown(value: object) -> str:
    """Return a short text of one line for any value, for messages."""
    return printable(" ".join(_SHORT.repr(value).split()))


def cut(text: str) -> str:
    """Return a quoted text for messages: printable, and at most MAX_TEXT characters of it."""
    text = printable(text[: MAX_TEXT + 1])
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


def shorten(message: str) -> str:
    """Return a message without its middle if it is longer than MAX_MESSAGE."""
    half = MAX_MESSAGE // 2
    return message if len(message) <= 2 * half else f"{message[:half]} ... {message[-half:]}"


def printable(text: str) -> str:
    r"""Return the text with all that is not printable as escapes, such as \n and \x1b."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _lines(message: str) -> str:
    """Return a message shortened and printable, except for line ends."""
    return "\n".join(map(printable, shorten(message).split("\n")))


def _close(name: str, known: Iterable[str]) -> list[str]:
    """Return at most three known names like this one, the likest first.

    Case and underscores do not count.
    """
    wanted = _plain(name)[:MAX_HINT]

    def likeness(other: str) -> float:
        ratio = difflib.SequenceMatcher(None, wanted, _plain(other)).ratio()
        return max(ratio, 0.6) if wanted and wanted in _plain(other) else ratio

    ranked = sorted(known, key=likeness, reverse=True)
    return [other for other in ranked[:3] if likeness(other) >= 0.6]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


class _Short(reprlib.Repr):
    """A `repr` of at most 8 items of a sequence and 80 characters of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = 8
        self.maxstring = self.maxother = self.maxlong = 80

    def repr_int(self, x: int, level: int) -> str:
        """Return the digits, or the number of bits: Python refuses to write thousands of digits."""
        bits = x.bit_length()
        return f"an integer of {bits} bits" if bits > MAX_BITS else repr(x)


_SHORT = _Short()
