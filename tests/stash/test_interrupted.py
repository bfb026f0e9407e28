# SPDX-License-Identifier: MIT
"""Steps over a stash that are interrupted once at each line: the next one is as any other."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from interrupts import at_each_line, at_random

import cupy_training_ops as cto
from cupy_training_ops.activations.stash import ExitMethod

OTHERS = [
    pytest.param({name: True}, marks=pytest.mark.thorough) for name in ("check", "keep_buffers")
]


class Steps:
    """A loop over a stash: what it gives back, and what its report says."""

    def __init__(self, rng: np.random.Generator, **options: Any) -> None:
        self.stash = cto.ActivationStash("default", **options)
        shape = 4, 6, 16
        self.arrays = {
            "value": rng.standard_normal(shape).astype(np.float32),
            "sign": rng.standard_normal(shape).astype(np.float32),
            "linear": rng.standard_normal(shape).astype(np.float32),
            "smooth": rng.standard_normal(shape).astype(np.float32),
            "product": rng.standard_normal(shape).astype(np.float32),
            "index": rng.integers(0, 9, shape).astype(np.uint8),
        }
        self.wanted = self.step(), self.stash.report()

    def step(self) -> dict[str, bytes]:
        with self.stash as stash:
            for need, array in self.arrays.items():
                stash.put(need, array.copy(), need)
            return {need: stash.get(need).tobytes() for need in reversed(self.arrays)}

    def check(self, _: Steps, place: Any) -> None:
        with pytest.raises(cto.ArgumentError, match="inside of `with`"):
            self.stash.put("value", self.arrays["value"])
        assert (self.step(), self.stash.report()) == self.wanted, place


@pytest.mark.parametrize("options", [{}, *OTHERS])
def test_a_step_interrupted_at_any_line_closes_the_stash(options, rng) -> None:
    steps = Steps(rng, **options)
    at_each_line(lambda: steps, Steps.step, steps.check)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a finalizer
@pytest.mark.thorough
def test_two_thousand_signals_close_it(rng) -> None:
    steps = Steps(rng)
    assert at_random(lambda: steps, Steps.step, steps.check, rng, 2000) > 200


def test_it_is_closed_while_the_exception_is_handled(rng, monkeypatch) -> None:
    steps = Steps(rng)

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(steps.stash, "_release", stopped)
        with pytest.raises(KeyboardInterrupt) as raised, steps.stash:
            pass
    assert raised.tb is not None  # and the frames that it holds
    steps.check(steps, "behind it")


def test_one_inside_of_another_is_refused_again_and_again(rng) -> None:
    steps = Steps(rng)
    with steps.stash as stash:
        stash.put("value", steps.arrays["value"], "value")
        for _ in range(3):
            with pytest.raises(cto.ArgumentError, match="one `with` at a time"), stash:
                pass
        assert stash.get("value").shape == (4, 6, 16)
    with contextlib.ExitStack() as stack:
        stack.enter_context(steps.stash)
        with pytest.raises(cto.ArgumentError, match="one `with` at a time"):
            stack.enter_context(steps.stash)
    steps.check(steps, "behind them")


def test_it_is_entered_again_and_again_without_a_statement_of_its_own(rng) -> None:
    """By calls, and by the statement of a subclass that has its own `__exit__`."""

    class Own(cto.ActivationStash):
        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)

    x = rng.standard_normal((4, 8)).astype(np.float32)
    called, own = cto.ActivationStash("lossless"), Own("lossless")
    for _ in range(3):
        called.__enter__()
        called.put("x", x.copy())
        np.testing.assert_array_equal(called.get("x"), x)
        called.__exit__(None, None, None)
        with own:
            own.put("x", x.copy())
            with pytest.raises(cto.ArgumentError, match="one `with` at a time"), own:
                pass
            np.testing.assert_array_equal(own.get("x"), x)
        for stash in (called, own):
            with pytest.raises(cto.ArgumentError, match="inside of `with`"):
                stash.put("x", x)


def test_a_plain_exit_would_be_noticed(rng, monkeypatch) -> None:
    """Planted: who was stopped in front of the first line of `__exit__` has not left."""
    steps = Steps(rng)
    monkeypatch.setattr(ExitMethod, "__get__", lambda self, it, _: self._function.__get__(it))
    with pytest.raises(cto.ArgumentError, match="one `with` at a time"):
        at_each_line(lambda: steps, Steps.step, lambda *_: steps.step())
