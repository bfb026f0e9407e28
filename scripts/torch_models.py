# SPDX-License-Identifier: MIT
"""The models of `train_torch.py`, written by hand, a ResNet and a transformer's decoder, and made
data for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

Run = Callable[[nn.Module, Tensor], Tensor]  # runs a block, with or without checkpointing


def plainly(block: nn.Module, x: Tensor) -> Tensor:
    """Run a block as it is."""
    return block(x)


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

    def forward(self, images: Tensor, run: Run) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.stem(images)), 3, 2, 1)
        for block in self.blocks:
            x = run(block, x)
        return self.head(x.mean((2, 3)))


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
        y = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.before_dense(x))))

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

    def forward(self, tokens: Tensor, run: Run) -> Tensor:
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = run(block, x)
        return self.head(self.norm(x)).flatten(0, 1)


class Model(NamedTuple):
    """A model, what it is trained on, and how."""

    label: str
    make: Callable[[], nn.Module]
    data: Callable[[torch.device], tuple[Tensor, Tensor]]
    autocast: bool


def images(n: int, side: int, classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Noise, and a class for each."""
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, side, side, generator=drawn)
    return x.to(device), torch.randint(classes, (n,), generator=drawn).to(device)


def text(n: int, length: int, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random tokens that repeat, each with the one that follows it."""
    drawn = torch.Generator().manual_seed(1)
    found = torch.randint(tokens, (n, length // 4), generator=drawn).repeat(1, 4)
    return found.to(device), found.roll(-1, 1).flatten().to(device)


def models(quick: bool) -> dict[str, Model]:
    """The three rows of the table, small ones where it has to be quick."""
    stages, width, batch, side, classes = (
        ((1, 1), 8, 8, 48, 10) if quick else ((3, 4, 6, 3), 64, 256, 224, 1000)
    )
    layers, wide, heads, tokens, rows, length = (
        (2, 64, 4, 128, 4, 128) if quick else (12, 1024, 16, 4096, 16, 1024)
    )
    resnet = functools.partial(ResNet, stages, width, classes)
    of_images = functools.partial(images, batch, side, classes)
    what = "ResNet, small" if quick else "ResNet-50-shaped, batch 256"
    return {
        "resnet-float32": Model(f"{what}, float32 (TF32)", resnet, of_images, False),
        "resnet-bfloat16": Model(f"{what}, bfloat16", resnet, of_images, True),
        "transformer": Model(
            f"{layers} layers, {wide} wide, {rows} x {length} tokens, bfloat16",
            functools.partial(Transformer, layers, wide, heads, tokens, length),
            functools.partial(text, rows, length, tokens),
            True,
        ),
    }
