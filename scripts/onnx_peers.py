# SPDX-License-Identifier: MIT
"""The networks of scripts/graphs in PyTorch, which exported them, and what makes their graphs.

    python scripts/onnx_peers.py NAME

writes scripts/graphs/NAME.onnx.xz: the training graph without its parameters, whose shapes it says.
It takes the environment of tests/graphs/make.py.
"""

from __future__ import annotations

import io
import lzma
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

GRAPHS = Path(__file__).resolve().parent / "graphs"
ADAM_W = {"eps": 1e-6, "weight_decay": 0.01}


class Attention(nn.Module):
    """Products and a softmax, causal."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        scores = scores.masked_fill(~mask, -1e4)
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a feed-forward network, each after a norm and beside a sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Says the next token of each position: scores of (batch * length, tokens)."""

    def __init__(self, tokens: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.n_tokens, self.length = tokens, length
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.places(torch.arange(self.length, device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).view(-1, self.n_tokens)


class Residual(nn.Module):
    """Two convolutions beside their input."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(n_out), nn.BatchNorm2d(n_out)
        self.down: nn.Module | None = None
        if stride > 1 or n_in != n_out:
            conv = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.down = nn.Sequential(conv, nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        beside = x if self.down is None else self.down(x)
        return functional.relu(self.bn2(self.conv2(y)) + beside)


def resnet18() -> nn.Module:
    """For images of 224 x 224."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    n_in = 64
    for n_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(n_in, n_out, stride), Residual(n_out, n_out, 1)]
        n_in = n_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


@dataclass(frozen=True)
class Peer:
    """A network, and a batch for it and its labels; how many rows, where the caller chooses."""

    net: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Tensor, Tensor]]
    rows: int


PEERS = {
    "gpt": Peer(
        lambda: Gpt(50257, 512, 768, 12, 12),
        lambda n: (torch.randint(50257, (n, 512)), torch.randint(50257, (n * 512,))),
        8,
    ),
    "resnet": Peer(
        resnet18, lambda n: (torch.randn(n, 3, 224, 224), torch.randint(1000, (n,))), 64
    ),
}


def write_graph(name: str) -> None:
    """The training graph that generate_artifacts makes, compressed."""
    import onnx
    from onnxruntime.training import artifacts, onnxblock

    net, file = PEERS[name].net(), io.BytesIO()
    torch.onnx.export(
        net, (PEERS[name].batch(2)[0],), file, dynamo=False, opset_version=15,
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
        input_names=["x"], output_names=["scores"], dynamic_axes={"x": {0: "batch"}},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        artifacts.generate_artifacts(
            onnx.load_model_from_string(file.getvalue()),
            requires_grad=[n for n, _ in net.named_parameters()],
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=partial(onnxblock.optim.AdamW, **ADAM_W)(),
            artifact_directory=folder,
        )
        model: Any = onnx.load(Path(folder) / "training_model.onnx")
    del model.graph.value_info[:]
    (GRAPHS / f"{name}.onnx.xz").write_bytes(lzma.compress(model.SerializeToString(), preset=9))


if __name__ == "__main__":
    write_graph(sys.argv[1])
