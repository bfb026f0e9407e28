# SPDX-License-Identifier: MIT
"""How launches run: the order of threads and blocks, and the time limit."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

THREAD_ORDERS = ("forward", "reverse", "random")
BLOCK_ORDERS = ("forward", "reverse")


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of the launches in one context; the time limit is processor time."""

    threads: str = "forward"
    blocks: str = "forward"
    seed: int = 0
    time_limit_seconds: float = 20.0


_current = ContextVar("emulator_launch_settings", default=LaunchSettings())  # noqa: B039


def current_settings() -> LaunchSettings:
    """The settings that a launch made now would use."""
    return _current.get()


@contextmanager
def thread_order(threads: str, *, seed: int = 0, blocks: str = "forward") -> Iterator[None]:
    """Run the launches of the `with` block in this order; `seed` matters for "random" only."""
    _check_member("thread order", threads, THREAD_ORDERS)
    _check_member("block order", blocks, BLOCK_ORDERS)
    with _changed(threads=threads, seed=seed, blocks=blocks):
        yield


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End a launch of the `with` block with an error after this much processor time."""
    with _changed(time_limit_seconds=seconds):
        yield


@contextmanager
def _changed(**changes: object) -> Iterator[None]:
    token = _current.set(replace(_current.get(), **changes))  # type: ignore[arg-type]
    try:
        yield
    finally:
        _current.reset(token)


def _check_member(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} must be one of {', '.join(allowed)}, not {value!r}")
