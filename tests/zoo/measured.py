# SPDX-License-Identifier: MIT
"""How far gradients with codes are from plain ones, and what was kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import cupy_training_ops as cto

from .functions import FUNCTIONS
from .models import MODELS
from .parts import ROWS, WIDTH

Step = Callable[[Any], list[Tensor]]  # gradients of a step in a context


class Found(NamedTuple):
    """Relative errors, and the report."""

    whole: float  # of all gradients as one vector
    each: list[float]  # of each parameter
    is_finite: bool
    is_equal: bool
    report: dict[str, Any]


def of_function(name: str, seed: int, is_deep: bool = False) -> Step:
    """One layer, or two with a ReLU between, and a function of what it makes."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, WIDTH, generator=g)
    weights = [
        torch.nn.Parameter(torch.randn(WIDTH, WIDTH, generator=g) * WIDTH**-0.5)
        for _ in range(1 + is_deep)
    ]

    def step(context: Any) -> list[Tensor]:
        with context:
            y = x @ weights[0]
            if is_deep:
                y = 1.4 * torch.relu(y) @ weights[1]
            total = FUNCTIONS[name](y, torch.Generator().manual_seed(seed))
        return list(torch.autograd.grad(total, weights))

    return step


def of_model(name: str, seed: int) -> Step:
    """A model, and the sum of what it makes with random weights."""
    torch.manual_seed(seed)
    model, x = MODELS[name]()
    weight = torch.randn_like(model(x).detach())
    return stepped(model, lambda: (model(x) * weight).sum())


def stepped(model: torch.nn.Module, loss: Callable[[], Tensor]) -> Step:
    """The gradients of a model's parameters; each step begins with the same buffers, which some
    models change, as those of spectral norm."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]

    def step(context: Any) -> list[Tensor]:
        torch.manual_seed(0)  # of dropout
        with torch.no_grad():
            for buffer, start in buffers:
                buffer.copy_(start)
        with context:
            total = loss()
        return list(torch.autograd.grad(total, parameters))

    return step


def compared(step: Step, policy: object = "default") -> Found:
    """A step plainly and with codes."""
    kept = cto.torch.compressed_activations(policy)
    return difference(step(contextlib.nullcontext()), step(kept), kept.report())


def difference(plain: list[Tensor], coded: list[Tensor], report: dict[str, Any]) -> Found:
    """Of two lists of gradients."""
    pairs = [
        (a.double().flatten(), b.double().flatten()) for a, b in zip(plain, coded, strict=True)
    ]
    whole = relative(torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs]))
    return Found(
        whole,
        [relative(a, b) for a, b in pairs],
        all(bool(b.isfinite().all()) for a, b in pairs if a.isfinite().all()),
        all(torch.equal(a, b) for a, b in zip(plain, coded, strict=True)),
        report,
    )


def relative(a: Tensor, b: Tensor) -> float:
    """|b - a| / |a|, as float64."""
    return float((b - a).norm() / a.norm()) if bool(a.any()) else float((b - a).norm())


def saved_bytes(report: dict[str, Any]) -> tuple[int, int]:
    """Bytes of activations without and with codes; parameters are there anyway."""
    passed = sum(n for reason, n in report["passed"].items() if reason != "parameter")
    return report["before"] + passed, report["after"] + passed
