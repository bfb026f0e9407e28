# SPDX-License-Identifier: MIT
"""Gradients of RNN, GRU and LSTM beside finite differences, PyTorch, and in trained models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .one_operator import check_gradients

T, N, D, H = 4, 3, 2, 3
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DIRECTIONS = ("forward", "reverse", "bidirectional")


def layer_inputs(
    kind: str, rng: np.random.Generator, *, direction: str = "forward", layout: int = 0
) -> list[Any]:
    """All inputs, sequence_lens left out."""
    n, g = (2 if direction == "bidirectional" else 1), GATES[kind]
    shapes = [(T, N, D), (n, g * H, D), (n, g * H, H), (n, 2 * g * H), None, (n, N, H)]
    shapes += [(n, N, H), (n, 3 * H)] if kind == "LSTM" else []
    arrays = [None if shape is None else rng.standard_normal(shape) for shape in shapes]
    for place in (0, 5, 6) if layout else ():
        if place < len(arrays):
            arrays[place] = arrays[place].swapaxes(0, 1).copy()
    return arrays


def check(kind: str, inputs: list[Any], rng: np.random.Generator, **options: Any) -> Any:
    options = {"hidden_size": H, "n_outputs": 3 if kind == "LSTM" else 2, **options}
    return check_gradients(kind, inputs, rng, **options)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("lengths", [None, (4, 1, 2)])
def test_gradients_in_all_directions(kind, direction, lengths, rng) -> None:
    inputs = layer_inputs(kind, rng, direction=direction)
    inputs[4] = None if lengths is None else np.array(lengths, np.int32)
    check(kind, inputs, rng, direction=direction)
