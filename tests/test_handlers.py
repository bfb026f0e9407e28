# SPDX-License-Identifier: MIT
"""What a signal's handler raises inside of a call comes out of it as it is, of whatever class."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupts import apart, at_random, interrupted, lines_of

import cupy_training_ops as cto
from cupy_training_ops.errors import raise_if_from_handler


class PreemptedError(Exception):
    """Of a program's own."""


ERRORS = (PreemptedError, TypeError, ValueError, RuntimeError, TimeoutError)
THOROUGH = [pytest.param(error, marks=pytest.mark.thorough) for error in ERRORS[1:]]


def training() -> Callable[[], object]:
    pytest.importorskip("onnx")
    folder = Path(__file__).parent / "graphs" / "data" / "mse"
    session = cto.onnx.TrainingSession(folder)
    with np.load(folder / "answers.npz") as file:
        x, labels = file["x"][0], file["labels"][0]

    def train() -> None:
        session.lr = 0.5
        session.step(x, labels)

    return train


def calls() -> dict[str, Callable[[], Callable[[], object]]]:
    rng = np.random.default_rng()
    x = rng.standard_normal((4, 64)).astype(np.float32)
    optimizer = cto.AdamW([x.copy()], lr=0.1)
    stash = cto.ActivationStash("default")
    state = optimizer.state_dict()

    def put() -> None:
        with stash:
            stash.put("x", x)
            stash.get("x")

    def packed() -> None:
        stream = io.BytesIO()
        cto.compress(x, "msfp15_signed").save(stream)
        stream.seek(0)
        cto.Packed.load(stream).decompress()

    return {
        "relu_grad": lambda: lambda: cto.relu_grad(x, x),
        "layer_norm": lambda: lambda: cto.get_op("LayerNormalization")(axis=-1)(x, x[0]),
        "optimizer": lambda: lambda: optimizer.step([x]),
        "state": lambda: lambda: optimizer.load_state_dict(state),
        "stash": lambda: put,
        "packed": lambda: packed,
        "training": training,
    }


@pytest.mark.parametrize("name", calls())
@pytest.mark.parametrize("error", [PreemptedError, *THOROUGH])
def test_what_is_raised_at_any_line_comes_out(name: str, error: type[Exception]) -> None:
    call = calls()[name]()
    call()
    for line in lines_of(call):
        try:
            with interrupted(line, error) as raised:
                apart(call)
        except error as raised_error:
            came = type(raised_error), *raised_error.args
        else:
            came = (error, f"at {line}") if not raised else None  # it does not come there again
        assert came == (error, f"at {line}")


class Finalized:
    """Its finalizer takes a moment, in which Python swallows what a handler raises."""

    def __del__(self) -> None:
        for _ in range(2_000):
            pass


def test_signals_in_finalizers_are_not_reported(rng) -> None:
    at_random(lambda: None, lambda _: Finalized(), lambda *_: None, rng, 100)


@pytest.mark.parametrize(
    ("name", "error"),
    # NumPy asks by a TypeError whether it can walk over something, and takes a handler's for it.
    [(n, e) for n in ("training", "stash") for e in ERRORS if (n, e) != ("training", TypeError)],
)
def test_what_signals_raise_at_random_moments_comes_out(
    name: str, error: type[Exception], rng
) -> None:
    call = calls()[name]()
    at_random(lambda: None, lambda _: call(), lambda *_: None, rng, 100, error)


class Signalled:
    """A number while whose reading a signal comes, and one while which none does."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def __index__(self) -> int:
        if self.error is not None:
            raise self.error
        signal.raise_signal(signal.SIGUSR1)
        return 3


@pytest.mark.parametrize("error", ERRORS)
def test_what_a_value_raises_itself_is_named(error: type[Exception], monkeypatch) -> None:
    del monkeypatch
    with pytest.raises(cto.ArgumentError, match="num_outputs"):
        cto.get_op("WaitEvent")(num_outputs=Signalled(error("no")))

    def forgetful(number: int, frame: Any) -> None:
        del number, frame
        raise error("a signal")

    def once(*_: object) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise error("a signal")

    class Bound:
        def handle(self, number: int, frame: object) -> None:
            raise error(f"a signal{'' if frame else number}")

    for handler in (forgetful, once, Bound().handle):
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            with pytest.raises(error) as raised:
                cto.get_op("WaitEvent")(num_outputs=Signalled(None))
            assert (raised.type, raised.value.args) == (error, ("a signal",))
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_a_wrapper_that_takes_all_would_be_noticed(monkeypatch) -> None:
    """Planted: what comes in from outside is taken for the call's own."""
    monkeypatch.setattr("cupy_training_ops.onnx.steps.raise_if_from_handler", lambda _: None)
    with pytest.raises(cto.ArgumentError):
        test_what_is_raised_at_any_line_comes_out("training", PreemptedError)


def test_what_a_call_raises_is_its_own() -> None:
    for function in (lambda: int("x"), lambda: {}[1], lambda: np.zeros(3).reshape(2)):
        try:
            function()
        except Exception as error:
            raise_if_from_handler(error)


class InterruptedList(list):
    """A list while whose reading a signal comes."""

    def __iter__(self):
        signal.raise_signal(signal.SIGUSR1)
        return super().__iter__()


@pytest.mark.parametrize("error", [PreemptedError, RuntimeError, cto.ArgumentError])
@pytest.mark.parametrize("call", ["list", "node"])
def test_what_a_handler_raises_is_not_named(call: str, error: type[Exception], monkeypatch) -> None:
    """While a list of the caller's own class is read, or a node of a graph runs."""

    def interrupted_list() -> None:
        cto.concat_training(InterruptedList([np.ones(3, np.float32)]), axis=0)

    def interrupted_node() -> None:
        train = training()
        real = np.matmul

        def product(*arguments: Any, **options: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return real(*arguments, **options)

        monkeypatch.setattr(np, "matmul", product)
        train()

    def handler(number: int, frame: Any) -> None:
        raise error(f"a signal{'' if frame else number}")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(error, match=r"^a signal$"):
            interrupted_list() if call == "list" else interrupted_node()
    finally:
        signal.signal(signal.SIGUSR1, before)
