# SPDX-License-Identifier: MIT
"""What functions and models of the zoo are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

ROWS, WIDTH = 256, 128


def defined(names: Mapping[str, Any], *helpers: str) -> dict[str, Callable[..., Any]]:
    """The functions of a module, by its globals, without its helpers."""
    own = names["__name__"]
    return {
        name: item
        for name, item in names.items()
        if callable(item) and getattr(item, "__module__", "") == own and name not in helpers
    }


def constant(generator: torch.Generator, *shape: int) -> Tensor:
    """Normal numbers that no gradient is asked of."""
    return torch.randn(shape or (ROWS, WIDTH), generator=generator)


def labels(generator: torch.Generator, n: int = ROWS, classes: int = WIDTH) -> Tensor:
    """A class a row."""
    return torch.randint(classes, (n,), generator=generator)


class Of(nn.Module):
    """A function of parts, as a module."""

    def __init__(self, function, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def rows(n: int = ROWS, width: int = WIDTH) -> Tensor:
    return torch.randn(n, width)


def images(n: int = 8, channels: int = 8, side: int = 24) -> Tensor:
    return torch.randn(n, channels, side, side)


def dense(act, n: int = 3, norm=lambda: nn.Identity()) -> nn.Sequential:
    parts = [part for _ in range(n) for part in (nn.Linear(WIDTH, WIDTH), norm(), act())]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 16))


def convolutions(act, norm, n: int = 3, width: int = 16) -> nn.Sequential:
    """Convolutions, each normalised."""
    parts = []
    for i in range(n):
        parts += [nn.Conv2d(8 if i == 0 else width, width, 3, padding=1), norm(width), act()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 16))
