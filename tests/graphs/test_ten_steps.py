# SPDX-License-Identifier: MIT
"""Ten steps of each graph in data/ against onnxruntime's, or PyTorch's: see make.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import Run

import cupy_training_ops as cto

DATA = Path(__file__).parent / "data"
GRAPHS = sorted(path.name for path in DATA.iterdir())
COMPARED = [name for name in GRAPHS if name != "dropout"]  # its numbers are random
EMULATED = ("cnn_average", "cnn_max", "transformer")  # one by default: g++ takes seconds for each
LOSSES, OTHERS = 1e-6, 1e-5


def answers_of(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / name / "answers.npz") as file:
        return dict(file)


def assert_close(actual: Any, expected: np.ndarray, most: float, what: str) -> None:
    """Within a part of the largest element."""
    actual = np.asarray(actual)
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    distance = np.abs(actual.astype(np.float64) - expected).max()
    assert distance <= most * np.abs(expected).max(), f"{what}: off by {distance}"


def assert_arrays_close(actual: Mapping[str, Any], answers: dict, kind: str, i: int) -> None:
    names = {key.removeprefix(f"{kind}/") for key in answers if key.startswith(f"{kind}/")}
    assert names
    for name in names:
        assert_close(actual[name], answers[f"{kind}/{name}"][i], OTHERS, f"{kind} {name}, step {i}")


def assert_agrees(name: str, run: Run, n_steps: int = 10) -> None:
    answers = answers_of(name)
    session = cto.onnx.TrainingSession(DATA / name, run.xp)
    for i in range(n_steps):
        session.lr = answers["rates"][i]
        loss = session.accumulate(run.place(answers["x"][i]), run.place(answers["labels"][i]))
        assert_close(run.host(loss), answers["losses"][i], LOSSES, f"loss of step {i}")
        host = {n: run.host(g) for n, g in session.gradients.items()}
        assert_arrays_close(host, answers, "gradients", i)
        session.apply()
        host = {n: run.host(p) for n, p in session.parameters.items()}
        assert_arrays_close(host, answers, "parameters", i)
    # Of running statistics PyTorch has the unbiased variance, and upstream no eval model.
    if "eval" in answers and n_steps == 10 and not name.startswith("cnn"):
        loss = session.eval(run.place(answers["x"][-1]), run.place(answers["labels"][-1]))
        assert_close(run.host(loss), answers["eval"], OTHERS, "the eval model's loss")


@pytest.mark.parametrize("name", COMPARED)
def test_numpy_agrees(name: str, seed: int) -> None:
    with Run("cpu", seed) as run:
        assert_agrees(name, run)


def test_one_emulated_agrees(run: Run, seed: int) -> None:
    assert_agrees(EMULATED[seed % len(EMULATED)], run, n_steps=2)


@pytest.mark.thorough
@pytest.mark.parametrize("name", EMULATED)
def test_emulated_agrees(name: str, run: Run) -> None:
    assert_agrees(name, run)


@pytest.mark.gpu
@pytest.mark.parametrize("name", COMPARED)
def test_a_gpu_agrees(name: str, seed: int) -> None:
    with Run("cuda", seed) as run:
        assert_agrees(name, run)


@pytest.mark.parametrize("name", GRAPHS)
def test_losses_of_the_same_batch_fall(name: str) -> None:
    """Dropout's too: its masks are other ones in each step."""
    answers = answers_of(name)
    session = cto.onnx.TrainingSession(DATA / name, seed=3)
    session.lr = 0.02
    losses = [float(session.step(answers["x"][0], answers["labels"][0])) for _ in range(40)]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


def test_the_data_is_small() -> None:
    files = [path for path in DATA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_000_000
    assert len(files) == 5 * len(GRAPHS)
