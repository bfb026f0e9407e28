# SPDX-License-Identifier: MIT
"""Exported models whose captured steps are played without a GPU, beside the same on NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from .boxes import CapturedDevice, state  # noqa: E402
from .test_any_model_on_gpu import ALL  # noqa: E402
from .test_exported_models import exported  # noqa: E402
from .test_played_captures import is_captured, opened  # noqa: E402, F401

STEPS = 5


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("name", ALL)
def test_steps_of_exported_models_are_captured(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    make, batch = ALL[name]
    batches = [batch(rng) for _ in range(STEPS)]
    batches = [(x.astype(np.float32) if x.dtype.kind == "f" else x, y) for x, y in batches]
    file = exported(make().float().train(), torch.tensor(batches[0][0]), 17, False)
    played, plain = (
        cto.onnx.TrainingSession.from_model(
            file, loss="cross_entropy", clip_norm=1.0, seed=3, **options
        )
        for options in ({"xp": CapturedDevice(), "graph": True}, {})
    )
    for x, labels in batches:
        assert float(played.step(x, labels).inside) == float(plain.step(x, labels))
    assert state(played) == state(plain)
    assert is_captured(played)
