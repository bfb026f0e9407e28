# SPDX-License-Identifier: MIT
"""The networks, in PyTorch, whose training graphs are in data/, and their inputs.

None has a parameter whose gradient is 0 but for rounding (a bias before BatchNorm, a key's bias):
Adam would make a step of it all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

STEPS = 10


@dataclass(frozen=True)
class Case:
    """A network, one step's inputs and labels, and how it is trained."""

    net: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    loss: str = "CrossEntropyLoss"
    optimizer: str = "AdamW"
    clip: float | None = None  # the gradients' largest norm together
    frozen: tuple[str, ...] = ()
    opset: int = 17  # 15 where a LayerNormalization is to be fused: upstream cannot derive 17's
    scores: bool = False  # an output beside the loss
    # PyTorch's where upstream's CPU has no kernel, or one that is wrong; None: nothing to compare.
    answers: str | None = "onnxruntime"


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.relu(self.norm(self.conv(x)))


class Attention(nn.Module):
    """Products and a softmax, as exporters write it; a mask where it is causal."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        if self.causal:
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            scores = scores.masked_fill(~mask, -1e4)
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """Attention and a feed-forward network, each after a norm and beside a sum."""

    def __init__(self, width: int, norm: type[nn.Module], activation: nn.Module, causal: bool):
        super().__init__()
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attention = Attention(width, 2, causal)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.activation(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Classifies sequences of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.blocks = nn.ModuleList(Block(8, nn.LayerNorm, nn.GELU(), False) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Gpt(nn.Module):
    """Says the next token of each position: scores of (batch * length, tokens)."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(13, 8), nn.Embedding(6, 8)
        self.blocks = nn.ModuleList(Block(8, RMSNorm, nn.SiLU(), True) for _ in range(2 - tied))
        self.norm, self.head = RMSNorm(8), nn.Linear(8, 13, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.places(torch.arange(6))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).view(-1, 13)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4)
    )


def cnn_max() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
        nn.MaxPool2d(2),
        *(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        nn.MaxPool2d(3, stride=2, padding=1),
        *(nn.Flatten(), nn.Linear(24, 4)),
    )


def cnn_average() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4)),
        *(nn.LeakyReLU(0.1), nn.AvgPool2d(2, stride=1)),
        *(nn.Conv2d(4, 8, 3, groups=2, bias=False), nn.BatchNorm2d(8), nn.Sigmoid()),
        nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        *(nn.Flatten(), nn.Linear(32, 4)),
    )


def cnn_global() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), Residual(6)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)),
    )


def conv_transpose() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1), nn.Tanh()),
        nn.ConvTranspose2d(4, 3, 2, stride=2),
    )


def mse() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.Sigmoid(), nn.Linear(12, 3))


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 3))


def frozen() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2))


def digits() -> nn.Module:
    """Of the example: images of 8 x 8."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )


def _classes(shape: tuple[int, ...], classes: int, *inner: int) -> Callable[[], tuple]:
    """Inputs of numbers, and for each (and each inner element) a class."""
    return lambda: (torch.randn(shape), torch.randint(classes, (shape[0], *inner)))


def _numbers(shape: tuple[int, ...], outputs: int) -> Callable[[], tuple]:
    return lambda: (torch.randn(shape), torch.randn(shape[0], outputs))


def _tokens() -> tuple[Tensor, Tensor]:
    drawn = torch.randint(13, (2, 7))
    return drawn[:, :-1], drawn[:, 1:].reshape(-1)


def _yes_or_no() -> tuple[Tensor, Tensor]:
    return torch.randn(7, 6), torch.randint(2, (7, 2)).float()


CASES = {
    "mlp": Case(mlp, _classes((6, 8), 4), scores=True),
    "cnn_max": Case(cnn_max, _classes((4, 1, 10, 10), 4)),
    "cnn_average": Case(cnn_average, _classes((4, 2, 11, 11), 4), answers="pytorch"),
    "cnn_global": Case(cnn_global, _classes((3, 2, 7, 7), 3)),
    "transformer": Case(Transformer, _classes((3, 4, 5), 3), opset=15),
    "gpt": Case(Gpt, _tokens, opset=15),
    "conv_transpose": Case(conv_transpose, _classes((2, 2, 4, 4), 3, 8, 8), answers="pytorch"),
    "mse": Case(mse, _numbers((5, 6), 3), loss="MSELoss", optimizer="SGD"),
    "dropout": Case(dropout, _classes((6, 8), 3), answers=None),
    "tied": Case(lambda: Gpt(tied=True), _tokens, opset=15, clip=0.5),
    "frozen": Case(
        frozen, _yes_or_no, loss="BCEWithLogitsLoss", frozen=("0.weight", "0.bias", "2.bias")
    ),
}
EXAMPLE = Case(digits, _classes((4, 1, 8, 8), 10), scores=True)
