# SPDX-License-Identifier: MIT
"""Exported models trained on a GPU, beside the same on NumPy; captured steps beside eager."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto

from .test_exported_models import MODELS, exported, torch

pytestmark = pytest.mark.gpu
STEPS = 5


class Tagger(torch.nn.Module):
    """A class for each token, by an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(20, 8)
        self.both = torch.nn.LSTM(8, 12, batch_first=True, bidirectional=True)
        self.scores = torch.nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.both(self.tokens(x))[0]).transpose(1, 2)


def texts(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(0, 20, (3, 7)), rng.integers(0, 5, (3, 7))


ALL = {**MODELS, "tagger": (Tagger, texts)}


def trained(file: bytes, batches: list, xp, **options) -> tuple[list[float], dict]:
    """Losses and parameters of some steps."""
    session = cto.onnx.TrainingSession.from_model(
        file, loss="cross_entropy", xp=xp, clip_norm=1.0, **options
    )
    session.lr = 0.0078125
    losses = [float(session.step(*map(xp.asarray, batch))) for batch in batches]
    arrays = session.parameters.items()
    return losses, {n: a if xp is np else xp.asnumpy(a) for n, a in arrays}


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
@pytest.mark.parametrize("name", ALL)
def test_steps_on_a_gpu_are_those_of_numpy(name: str, optimizer: str, seed: int) -> None:
    import cupy

    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    make, batch = ALL[name]
    batches = [batch(rng) for _ in range(STEPS)]
    batches = [(x.astype(np.float32) if x.dtype.kind == "f" else x, y) for x, y in batches]
    model = make().float().train()
    file = exported(model, torch.tensor(batches[0][0]), 17, False)
    expected, arrays = trained(file, batches, np, optimizer=optimizer)
    losses, eager = trained(file, batches, cupy, optimizer=optimizer)
    np.testing.assert_allclose(losses, expected, rtol=2e-3)
    if optimizer == "SGD":  # Adam moves by the sign where a gradient is next to nothing
        for key, array in arrays.items():
            np.testing.assert_allclose(eager[key], array, rtol=0, atol=2e-3, err_msg=key)
    again, captured = trained(file, batches, cupy, optimizer=optimizer, graph=True)
    np.testing.assert_allclose(again, losses, rtol=1e-4)
    for key, array in eager.items():
        np.testing.assert_allclose(captured[key], array, rtol=0, atol=2e-3, err_msg=key)
