# SPDX-License-Identifier: MIT
"""Training sessions whose calls are interrupted, and the states that they may be in then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from interrupts import Line, at_each_line

import cupy_training_ops as cto
from cupy_training_ops.onnx import training

DATA = Path(__file__).parent / "data"
GRAPHS = sorted(path.name for path in DATA.iterdir())
NORMALISED = ("cnn_average", "cnn_global", "cnn_max")  # with running statistics
MOST_REFUSED = 0.1  # of a step's lines
EACH = 8  # so many interrupts the call is made again


class Trained:
    """A session behind two steps, to which it can go back, and the calls that are interrupted.

    statistics: running ones are `constants` of the graph, `parameters` of the checkpoint, or `fed`.
    added: gradients of a batch were accumulated before. call: `step`, `accumulate` or `apply`.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        monkeypatch: Any,
        call: str = "step",
        *,
        xp: Any = np,
        statistics: str = "constants",
        added: bool = False,
        **options: Any,
    ) -> None:
        if statistics != "constants":
            folder, arrays = with_inputs(name, folder)
            if statistics == "parameters":
                in_checkpoint(arrays, monkeypatch)
        else:
            folder, arrays = DATA / name, {}
        self.session = cto.onnx.TrainingSession(folder, xp, seed=3, **options)
        self.fed = {n: a.copy() for n, a in arrays.items() if statistics == "fed"}
        with np.load(DATA / name / "answers.npz") as file:
            self.x, self.labels = file["x"], file["labels"]
        self.name = call
        for i in range(2):
            self.session.step(self.x[i], self.labels[i], **self.fed)
        if added or call == "apply":
            self.session.accumulate(self.x[2], self.labels[2], **self.fed)
        self.start = {n: a.copy() for n, a in self.arrays().items()}
        self.point = self.session._point
        self.before = self.state()
        self.call()
        self.after = self.state()
        self.back()
        self.anew = self.before._replace(is_reset=True)
        self.outcomes: Counter[str] = Counter()

    def arrays(self) -> dict[str, np.ndarray]:
        return {**self.session._state_arrays(), **{f"fed/{n}": a for n, a in self.fed.items()}}

    def state(self) -> State:
        """All bits; gradients where they count."""
        numbers = self.session._numbers()
        arrays = {n: a.tobytes() for n, a in self.arrays().items()}
        return State(arrays, numbers["step"], numbers["is_reset"], numbers["lr"])

    def back(self) -> Trained:
        for name, array in self.arrays().items():
            array[...] = self.start[name]
        self.session._point = self.point
        return self

    def call(self, *, labels: Any = None) -> None:
        if self.name == "apply":
            self.session.apply()
        else:
            labels = self.labels[3] if labels is None else labels
            getattr(self.session, self.name)(self.x[3], labels, **self.fed)

    def check(self, _: Trained, place: Any) -> None:
        """Before or behind the call, and as usable as then."""
        state = self.state()
        if self.session._point.is_torn:
            self.outcomes["torn"] += 1
            return
        if state == self.before:
            self.outcomes["before"] += 1
            if self.outcomes["before"] % EACH == 0:
                self.call()
                assert self.state() == self.after, place
        elif not self.point.is_reset and state == self.anew:
            self.outcomes["anew"] += 1
        else:
            assert state == self.after, place
            self.outcomes["after"] += 1

    def at_each_line(self, call: Callable[[Any], object] = lambda self: self.call()) -> list[Line]:
        lines = at_each_line(self.back, call, self.check)
        assert self.outcomes["torn"] <= MOST_REFUSED * len(lines)
        assert {"before", "after"} <= self.outcomes.keys()
        return lines


class State:
    """Bits of arrays, and numbers; two are equal if gradients are, where they count."""

    def __init__(self, arrays: Mapping[str, bytes], step: int, is_reset: bool, lr: float) -> None:
        self.arrays, self.step, self.is_reset, self.lr = arrays, step, is_reset, lr

    def _replace(self, is_reset: bool) -> State:
        return State(self.arrays, self.step, is_reset, self.lr)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self._compared() == other._compared()

    def _compared(self) -> object:
        counted = {
            name: bits
            for name, bits in self.arrays.items()
            if not (self.is_reset and name.startswith("gradient/"))
        }
        return counted, self.step, self.is_reset, self.lr


def with_inputs(name: str, folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The artifacts of a graph whose running statistics are inputs, and their values."""
    folder.mkdir(exist_ok=True)
    model = onnx.load(DATA / name / "training_model.onnx")
    arrays = {}
    for tensor in list(model.graph.initializer):
        if "running" in tensor.name:
            arrays[tensor.name] = onnx.numpy_helper.to_array(tensor).copy()
            model.graph.initializer.remove(tensor)
            item = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(item)
    onnx.save(model, folder / "training_model.onnx")
    for file in ("checkpoint", "optimizer_model.onnx"):
        (folder / file).write_bytes((DATA / name / file).read_bytes())
    return folder, arrays


def in_checkpoint(arrays: Mapping[str, np.ndarray], monkeypatch: Any) -> None:
    """Checkpoints that are read have these arrays, too."""
    real = training.read_checkpoint

    def read(path: Path) -> Any:
        actual = real(path)
        return replace(actual, frozen={**actual.frozen, **arrays})

    monkeypatch.setattr(training, "read_checkpoint", read)
