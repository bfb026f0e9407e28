# SPDX-License-Identifier: MIT
"""Models written by hand, a ResNet and a decoder, and made data for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Data = Callable[[int], tuple[Tensor, Tensor]]  # of a seed


def convolution(n_in: int, n_out: int, extent: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, and batch normalisation."""
    filters = nn.Conv2d(n_in, n_out, extent, stride, extent // 2, bias=False)
    return nn.Sequential(filters, nn.BatchNorm2d(n_out))


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        n_out = 4 * width
        self.narrow = convolution(n_in, width, 1)
        self.spatial = convolution(width, width, 3, stride)
        self.wide = convolution(width, n_out, 1)
        changes = n_in != n_out or stride != 1
        self.shortcut = convolution(n_in, n_out, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.narrow(x))
        y = functional.relu(self.spatial(y))
        return functional.relu(self.wide(y) + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of bottlenecks; (3, 4, 6, 3) of width 64 are ResNet-50."""

    def __init__(self, stages: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.stem = convolution(3, width, 7, 2)
        blocks, n_in = [], width
        for number, depth in enumerate(stages):
            for i in range(depth):
                stride = 2 if number and i == 0 else 1
                blocks.append(Bottleneck(n_in, width << number, stride))
                n_in = 4 * (width << number)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(n_in, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.stem(images)), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """Attention and a feed-forward part, each normalised first, dropped out and added."""

    def __init__(self, width: int, n_heads: int, drops: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.before_attention, self.before_dense = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(drops)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.n_heads, -1))
        heads = qkv.permute(2, 0, 3, 1, 4).unbind()
        y = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.drop(self.dense(self.before_dense(x)))


class GPT(nn.Module):
    """A decoder in the shape of GPT-2, which drops out a share of what is added."""

    def __init__(
        self, depth: int, width: int, n_heads: int, classes: int, length: int, drops: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(classes, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(drops)
        self.blocks = nn.ModuleList(Block(width, n_heads, drops) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.tokens(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


def text(n: int, length: int, classes: int) -> Data:
    """Random tokens that repeat, each with the one that follows it."""

    def drawn(seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        found = torch.randint(classes, (n, length // 4), generator=generator).repeat(1, 4)
        return found, found.roll(-1, 1).flatten()

    return drawn


def images(n: int, side: int, classes: int) -> Data:
    """Noise, and a class for each."""

    def drawn(seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 3, side, side, generator=generator)
        return x, torch.randint(classes, (n,), generator=generator)

    return drawn
