# SPDX-License-Identifier: MIT
"""A step in two halves: a generator that yields its outputs and is sent their gradients."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from ..backend import ArrayInfo
from ..call.arguments import adopt
from ..call.backends import info
from ..call.interop import as_tensor, is_tensor
from ..declare.schema import Spec
from ..dtypes import dtype_name
from ..errors import DtypeError, ProviderError, refuse, shown
from ..forks import Locked

Running = Generator[Any, Any, Any]
Function = Callable[..., Running]
State = Literal["new", "forward", "done"]

_NAME = "SplitStep"
_running = threading.local()


class Yielded(NamedTuple):
    """The result of a YieldOp, which the function that a SplitStep runs has to yield."""

    run: object  # the generator in which it was made
    outputs: tuple[Any, ...]  # arrays
    differentiable: tuple[Any, ...]  # those of them that have a gradient
    full_shape: tuple[bool, ...]  # of each of these: its gradient may be no scalar


def current_run(op: str) -> object:
    """Return the generator that this thread runs in a SplitStep; ProviderError if in none.

    op: name for the message.
    """
    runs = getattr(_running, "runs", None)
    if not runs:
        raise ProviderError(
            f"{op}: expected a call inside a generator function that {_NAME} runs, got one outside"
        )
    return runs[-1]


class _Turn(Locked):
    """The lock of a SplitStep's function, which a thread cannot take again inside of it."""

    is_taken = False  # the lock alone would let the same thread in again

    def recover(self) -> None:
        """Reset `is_taken` in a forked child, which has no thread that runs the function."""
        self.is_taken = False


class SplitStep:
    """Runs a training step in two halves, which another framework may call.

    function: a generator function. It yields the result of one YieldOp, is sent a tuple of
    gradients, and what it returns is the result of the step:

        def step(x, w):
            (d,) = yield YieldOp(full_shape_outputs=[0])([x @ w])
            return x.T @ d

    Each `run_forward` begins anew; one that sees no backward is given up. Of several threads one
    at a time may run the function.
    """

    def __init__(self, function: Function) -> None:
        if not callable(function):
            refuse(_NAME, "function", "a generator function", shown(function))
        self._function = function
        self._called = getattr(function, "__qualname__", type(function).__name__)  # in messages
        self._turn = _Turn()
        self._state: State = "new"
        self._generator: Running | None = None  # of a forward that waits for its backward
        self._yielded: Yielded | None = None  # by that forward

    def run_forward(self, *inputs: object) -> tuple[Any, ...]:
        """Call the function with these inputs, up to its YieldOp; return the arrays it yields."""
        with self._alone():
            self._end("new")
            generator = self._function(*inputs)
            if not isinstance(generator, Generator):
                refuse(_NAME, self._called, "a generator function", _kind(generator))
            yields, value = self._resume(generator, None)
            if not yields:
                refuse(_NAME, self._called, "one YieldOp", "a function that returned before it")
            if not isinstance(value, Yielded) or value.run is not generator:
                self._close(generator)
                refuse(_NAME, self._called, "to yield its YieldOp's result", _kind(value))
            self._state, self._generator, self._yielded = "forward", generator, value
            return value.outputs

    def run_backward(self, *gradients: object) -> Any:
        """Send the function its gradients, run the rest, and return its result.

        gradients: one for each output that has one, of its dtype and in its place. For None it is
        zeros: of the output's shape where YieldOp's `full_shape_outputs` has it, else a scalar.
        Where the shape need not be full a scalar may be given too.
        """
        with self._alone():
            if self._generator is None or self._yielded is None:
                got = "a second backward" if self._state == "done" else "a backward before it"
                raise ProviderError(f"{_NAME}: {self._called}: expected a forward, got {got}")
            sent = _gradients(self._yielded, gradients)
            generator, self._generator, self._yielded = self._generator, None, None
            self._state = "done"
            yields, value = self._resume(generator, sent)
            if yields:
                self._close(generator)
                refuse(_NAME, self._called, "one YieldOp", "a function that yields once more")
            return value

    def _end(self, state: State) -> None:
        """Close a function that waits for its gradients, if there is one, and set the state."""
        generator, self._generator, self._yielded = self._generator, None, None
        self._state = state
        if generator is not None:
            self._close(generator)

    def _resume(
        self, generator: Generator[object, object, object], sent: object
    ) -> tuple[bool, object]:
        """Send the generator a value; return (True, what it yields) or (False, its result)."""
        with self._inside(generator):
            try:
                return True, generator.send(sent)
            except StopIteration as end:
                return False, end.value

    def _close(self, generator: Running) -> None:
        with self._inside(generator):
            generator.close()

    @contextlib.contextmanager
    def _inside(self, run: object) -> Iterator[None]:
        """Make `run` the running function of YieldOp; add its name to errors."""
        runs = _running.__dict__.setdefault("runs", [])
        runs.append(run)
        try:
            yield
        except Exception as error:
            error.add_note(f"in {self._called}, which {_NAME} runs")
            raise
        finally:
            runs.pop()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Raise ProviderError if another thread, or the function itself, is in a call."""
        turn = self._turn
        if turn.is_taken or not turn.lock.acquire(blocking=False):
            raise ProviderError(f"{_NAME}: {self._called}: it is running already")
        turn.is_taken = True
        try:
            yield
        finally:
            turn.is_taken = False
            turn.lock.release()


def _gradients(yielded: Yielded, gradients: Sequence[object]) -> tuple[object, ...]:
    """Return the gradients to send to the function: one for each differentiable output.

    yielded: the outputs. gradients: the caller's. Zeros in place of None; refuses those that do not
    fit the outputs.
    """
    outputs = yielded.differentiable
    if len(gradients) != len(outputs):
        refuse(_NAME, "gradients", f"{len(outputs)}, one for each output", str(len(gradients)))
    rows = zip(outputs, yielded.full_shape, gradients, strict=True)
    return tuple(
        _zeros(output, full) if gradient is None else _check(i, output, full, gradient)
        for i, (output, full, gradient) in enumerate(rows)
    )


def _check(i: int, output: object, full: bool, gradient: object) -> object:
    """Return gradients[i]; refuse another dtype, device or shape than the output's.

    If its shape need not be `full`, it may be a scalar.
    """
    name, wanted = f"gradients[{i}]", _info(f"outputs[{i}]", output)
    actual = _info(name, gradient)
    if actual.dtype != wanted.dtype:
        expected, got = dtype_name(wanted.dtype), dtype_name(actual.dtype)
        raise DtypeError(f"{_NAME}: {name}: expected dtype {expected}, got {got}")
    if actual.shape != wanted.shape and (full or actual.shape):
        expected = f"shape {wanted.shape}" if full else f"shape {wanted.shape} or ()"
        refuse(_NAME, name, expected, f"shape {actual.shape}")
    if actual.place != wanted.place:
        refuse(_NAME, name, f"an array on {wanted.place}", f"one on {actual.place}")
    return gradient


def _zeros(output: object, full: bool) -> object:
    """Return zeros as the gradient of an output: of its shape if `full`, else a scalar.

    It has the output's array library, dtype and device.
    """
    like = _info("outputs", output)
    backend, shape = like.backend, like.shape if full else ()
    if backend.capturing(like.device):
        raise ProviderError(f"{_NAME}: gradients: a backward under graph capture needs all of them")
    spec = Spec(shape, like.dtype)
    zeros: Any = backend.empty(spec, like.device)
    if spec.size:
        zeros = backend.zeros(spec.nbytes, like.device)
        zeros = zeros.view(spec.dtype).reshape(shape)
    return as_tensor(zeros) if is_tensor(output) else zeros


def _info(name: str, array: object) -> ArrayInfo:
    """Return the properties of an array of any library; name: for messages."""
    return ArrayInfo(*info(adopt(_NAME, name, array)))


def _kind(value: object) -> str:
    return "nothing" if value is None else f"one of {type(value).__name__}"
