# SPDX-License-Identifier: MIT
"""The example on the CPU provider: it learns, and one seed gives one curve."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from digits import train_digits
from training import OPTIMIZERS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_digits_are_learnt(name) -> None:
    losses, _ = train_digits.train(np, name, 30, seed=1, graph=False)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1


def test_a_seed_gives_a_curve() -> None:
    curves = [train_digits.train(np, "AdamW", 5, seed, False)[0] for seed in (1, 1, 2)]
    assert curves[0] == curves[1] != curves[2]


def test_gradients_are_those_of_the_loss() -> None:
    training = train_digits.Training(np, "SGD", 1, seed=4)
    training.prepare(0)
    training.lr[...] = 0  # what follows is at the same place
    training.step()
    layer = training.layers[0]
    place = np.unravel_index(np.argmax(np.abs(layer.d_weight)), layer.d_weight.shape)
    expected, start, losses = layer.d_weight[place], layer.weight[place], []
    for shift in (1e-2, -1e-2):
        layer.weight[place] = start + shift
        training.step()
        losses.append(float(training.loss))
    assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(expected, rel=0.02)


def test_the_example_as_a_script(monkeypatch, capsys) -> None:
    command = ["train_digits.py", "--optimizer", "Lamb", "--steps", "2", "--provider", "cpu"]
    monkeypatch.setattr(sys, "argv", command)
    train_digits.main()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("Lamb: loss 2.")
    assert second.startswith("a step: ")


def test_a_graph_needs_a_gpu(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["train_digits.py", "--graph", "--provider", "cpu"])
    with pytest.raises(SystemExit) as ended:
        train_digits.main()
    assert ended.value.code == 2
    assert "expected a GPU and CuPy" in capsys.readouterr().err
