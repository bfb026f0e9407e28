# SPDX-License-Identifier: MIT
"""Networks in the shapes that people train, small enough for two cores, and their losses."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from .measured import Step, stepped

SCRIPTS = Path(__file__).parents[2] / "scripts"


def scores(
    model: nn.Module,
    x: Tensor,
    classes: int,
    dtype: torch.dtype | None = None,
    target: Tensor | None = None,
) -> Step:
    """The gradients of a cross-entropy, under autocast to a dtype; classes are random ones."""
    if target is None:
        target = torch.randint(classes, (len(x) if x.is_floating_point() else x.numel(),))

    def loss() -> Tensor:
        with torch.autocast("cpu", dtype or torch.bfloat16, dtype is not None):
            made = model(x)
        return f.cross_entropy(made.float(), target)

    return stepped(model, loss)


def multilayer(seed: int, depth: int, kaiming: bool, dtype: torch.dtype | None = None) -> Step:
    """Layers with ReLU between, which learn the largest of ten linear functions."""
    torch.manual_seed(seed)
    widths = [16, *[512] * (depth - 1), 10]
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    if kaiming:
        for layer in layers:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    parts = [part for layer in layers for part in (layer, nn.ReLU())][:-1]
    x = torch.randn(256, 16)
    return scores(nn.Sequential(*parts), x, 10, dtype, (x @ torch.randn(16, 10)).argmax(1))


class Plain(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        stride = 1 if n_in == n_out else 2
        self.a = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n_out) for _ in range(2))
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.b(f.relu(self.norms[0](self.a(x)))))
        if self.stride > 1:
            x = f.pad(f.avg_pool2d(x, 2), (0, 0, 0, 0, 0, x.shape[1]))
        return f.relu(x + y)


def resnet13(seed: int, dtype: torch.dtype | None = None) -> Step:
    """A first convolution, and six blocks of two."""
    torch.manual_seed(seed)
    widths = [(16, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64)]
    first = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    model = nn.Sequential(*first, *(Plain(*each) for each in widths), *last)
    return scores(model, torch.randn(16, 3, 32, 32), 10, dtype)


def scripts_models():
    """The module `training_models` of the scripts."""
    if str(SCRIPTS) not in sys.path:
        sys.path.insert(0, str(SCRIPTS))
    import training_models

    return training_models


def resnet50(seed: int, dtype: torch.dtype | None = None, width: int = 16, side: int = 64) -> Step:
    """All 53 convolutions of ResNet-50, in a quarter of their widths."""
    torch.manual_seed(seed)
    model = scripts_models().ResNet((3, 4, 6, 3), width, 10)
    return scores(model, torch.randn(32, 3, side, side), 10, dtype)


class Layer(nn.Module):
    """Attention and a feed-forward part, each normalised first and added to its input."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.before_attention, self.before_dense = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before_attention(x)
        heads = [self._heads(part(y)) for part in (self.query, self.key, self.value)]
        y = f.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(f.gelu(self.up(self.before_dense(x))))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)


class Transformer(nn.Module):
    """A decoder that predicts each token from those before it."""

    def __init__(self, n_layers: int, width: int, n_heads: int, tokens: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Layer(width, n_heads) for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


def transformer(
    seed: int, n_layers: int = 4, width: int = 128, dtype: torch.dtype | None = None
) -> Step:
    """A decoder that predicts the next of random tokens."""
    torch.manual_seed(seed)
    model = Transformer(n_layers, width, 4, 64, 64)
    return scores(model, torch.randint(64, (8, 64)), 64, dtype)


class Block(nn.Module):
    """Two convolutions, each after group norm and SiLU, beside a shortcut."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, n) for n in (n_in, n_out))
        self.a, self.b = (nn.Conv2d(n, n_out, 3, padding=1) for n in (n_in, n_out))
        self.shortcut = nn.Conv2d(n_in, n_out, 1) if n_in != n_out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(f.silu(self.norms[0](x)))
        return self.shortcut(x) + self.b(f.silu(self.norms[1](y)))


class UNet(nn.Module):
    """Down, through and up, with what is passed across."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down = nn.ModuleList([Block(width, width), Block(width, 2 * width)])
        self.through = Block(2 * width, 2 * width)
        self.up = nn.ModuleList([Block(4 * width, width), Block(2 * width, width)])
        self.norm = nn.GroupNorm(4, width)

    def forward(self, x: Tensor) -> Tensor:
        x, across = self.first(x), []
        for block in self.down:
            x = block(x)
            across.append(x)
            x = f.avg_pool2d(x, 2)
        x = self.through(x)
        for block in self.up:
            x = f.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, across.pop()], 1))
        return self.last(f.silu(self.norm(x)))


def unet(seed: int) -> Step:
    """It finds the noise in an image."""
    torch.manual_seed(seed)
    model, x, noise = UNet(), torch.randn(8, 3, 32, 32), torch.randn(8, 3, 32, 32)
    return stepped(model, lambda: (model(x + noise) - noise).square().mean())
