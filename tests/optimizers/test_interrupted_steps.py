# SPDX-License-Identifier: MIT
"""Steps that are interrupted at any line, or that another thread makes: states are whole, or are
refused until one is loaded."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from interrupts import at_each_line, at_random
from training import assert_same

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, ProviderError
from cupy_training_ops.optimizers.whole import Whole

SHAPES = ((33, 7), (130,), ())
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (cto.SGD, {}),
    "Adam": (cto.Adam, {"moment_dtype": "bfloat16"}),
    "AdamW": (cto.AdamW, {}),
    "AdamW in codes": (cto.AdamW, {"state": "8bit"}),
    "Lamb": (cto.Lamb, {}),
}
MOST_REFUSED = 0.1  # of a step's lines


class Loop:
    """An optimizer that may go back; in its steps counts are alike, or differ."""

    def __init__(self, run: Any, kind: str, seed: int, are_alike: bool) -> None:
        rng = np.random.default_rng(seed)
        make, options = KINDS[kind]
        self._run = run
        self.parameters = [run.place(np.asarray(rng.standard_normal(s), "f4")) for s in SHAPES]
        self.copies = [run.place(np.zeros(s, np.float16)) for s in SHAPES]
        gradients = [np.asarray(rng.standard_normal(s), "f4") for s in SHAPES]
        self.gradients = [run.place(g) for g in gradients]
        self.optimizer = make(self.parameters, 0.1, low_precision=self.copies, **options)
        self.optimizer.step([*self.gradients[:-1], None if not are_alike else self.gradients[-1]])
        self.before = self.state()
        self.step()
        self.after = self.state()
        self.refusals: set[object] = set()

    def step(self) -> None:
        self.optimizer.step(self.gradients, loss_scale=2.0, max_norm=0.5)

    def arrays(self) -> list[np.ndarray]:
        return [np.array(self._run.host(x)) for x in (*self.parameters, *self.copies)]

    def state(self) -> tuple[list[np.ndarray], dict[str, Any]]:
        return self.arrays(), self.optimizer.state_dict()

    def go_back(self) -> Loop:
        arrays, state = self.before
        for own, array in zip((*self.parameters, *self.copies), arrays, strict=True):
            own[...] = self._run.place(array)
        self.optimizer.load_state_dict(state)
        return self

    def check(self, place: object) -> None:
        """The state before, or after, or none."""
        try:
            arrays, state = self.state()
        except ProviderError as error:
            assert "interrupted while it wrote" in str(error)
            for call in (self.step, partial(self.optimizer.save, "never.npz")):
                with pytest.raises(ProviderError, match="interrupted while it wrote"):
                    call()
            self.refusals.add(place)
            self.go_back()
            self.step()
            assert_whole(self.state(), self.after, place)
            return
        expected = self.after if state["step" if "step" in state else "shapes"] == self.after[1][
            "step" if "step" in state else "shapes"
        ] and arrays[0].tobytes() == self.after[0][0].tobytes() else self.before
        assert_whole((arrays, state), expected, place)


def assert_whole(found: Any, expected: Any, place: object) -> None:
    """Bit for bit."""
    try:
        assert_same(found[0], expected[0])
        assert found[1].keys() == expected[1].keys()
        for key, value in expected[1].items():
            if not key.startswith("moment"):
                assert found[1][key] == value
                continue
            assert_same(list(found[1][key].values()), list(value.values()))
    except AssertionError as error:
        raise AssertionError(f"interrupted at {place}: neither before nor after") from error


@pytest.mark.parametrize("are_alike", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_at_any_line_leaves_a_whole_step(kind, are_alike, anywhere, seed) -> None:
    loop = Loop(anywhere, kind, seed, are_alike)
    lines = at_each_line(loop.go_back, lambda made: made.step(), lambda made, at: made.check(at))
    assert len(lines) > 100
    print(f"{len(loop.refusals)} of {len(lines)} lines are refused")
    assert len(loop.refusals) <= MOST_REFUSED * len(lines)
