# SPDX-License-Identifier: MIT
"""Gradient descent, norms of gradients and clipping; PyTorch's foreach operators as peers."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, as_torch
from .parameters import normal, parameters

N = 2**24
SHORT = {FLOAT32: "f4", FLOAT16: "f2", BFLOAT16: "bf2"}
RATE = 1e-3


def _one(rng: Any) -> tuple[Any, ...]:
    return cupy.full(1, RATE, cupy.float32), *(normal(rng, (N,), FLOAT32) for _ in range(2))


def _model(rng: Any, grad: Any) -> tuple[Any, ...]:
    return RATE, parameters(rng, FLOAT32), parameters(rng, grad)


def _gradients(rng: Any, grad: Any) -> tuple[Any, ...]:
    return (parameters(rng, grad),)


def _clipped(gradients: list[Any]) -> int:
    """Read for the norm, then read and written."""
    return 3 * sum(g.nbytes for g in gradients)


def _torch_step(_eta: Any, w: Any, g: Any) -> Any:
    weights, gradients = as_torch(w), as_torch(g)
    return lambda: weights.add_(gradients, alpha=-RATE)


def _torch_foreach(_lr: float, weights: list[Any], gradients: list[Any]) -> Any:
    import torch

    ws, gs = ([as_torch(x) for x in xs] for xs in (weights, gradients))
    return lambda: torch._foreach_add_(ws, gs, alpha=-RATE)


def torch_norm(gradients: list[Any]) -> Any:
    """The norm of all gradients."""
    import torch

    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def _torch_norm_and_check(gradients: list[Any]) -> Any:
    """The norm, and mixed-precision training's check, which also scales (by one) in place."""
    import torch

    gs = [as_torch(g) for g in gradients]
    found, scale = (torch.full((1,), v, device="cuda") for v in (0.0, 1.0))
    check = torch._amp_foreach_non_finite_check_and_unscale_
    return lambda: (check(gs, found, scale), torch_norm(gs))


def torch_clip(gradients: list[Any], most: float) -> None:
    """clip_grad_norm_, whose wait for the device it has not."""
    import torch

    factor = (most / (torch_norm(gradients) + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, factor)


def _torch_clip(gradients: list[Any]) -> Any:
    gs = [as_torch(g) for g in gradients]
    return lambda: torch_clip(gs, 1.0)


CASES = [
    Case("SGDOptimizer", "f4", _one, peers={"torch add_": _torch_step}, outputs=("NW",)),
    Case(
        "SGDOptimizerV2",
        "f4,model",
        partial(_model, grad=FLOAT32),
        peers={"torch foreach_add_": _torch_foreach},
        eager=True,
    ),
    Case("SGDOptimizerV2", "f4,f2,model", partial(_model, grad=FLOAT16)),
    *(
        Case(
            "GradientNorm",
            f"{SHORT[t]},model",
            partial(_gradients, grad=t),
            peers={"torch amp check, norm": _torch_norm_and_check},
            eager=True,
        )
        for t in (FLOAT32, FLOAT16, BFLOAT16)
    ),
    *(
        Case(
            "InplaceClipGradNorm",
            f"{SHORT[t]},model",
            partial(_gradients, grad=t),
            {"max_norm": 1.0},
            {"torch clip": _torch_clip},
            _clipped,
            eager=True,
        )
        for t in (FLOAT32, FLOAT16)
    ),
]
