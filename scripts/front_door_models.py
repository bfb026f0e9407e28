# SPDX-License-Identifier: MIT
"""Models: a GPT written by hand, transformers' Llama, torchvision's
ResNet-50, and made data for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_models import ResNet, plainly

Data = tuple[Tensor, Tensor]
Head = tuple[Tensor, Tensor]  # what a last layer is given, and its weight


class Task(NamedTuple):
    """A model, what it is trained on, and its parts."""

    label: str
    make: Callable[[], nn.Module]
    data: Callable[[int], Data]  # of a seed
    blocks: Callable[[Any], Sequence[nn.Module]]
    scores: Callable[[Any, Tensor], Tensor]
    head: Callable[[Any, Tensor], Head] | None = None  # of a language model


class Block(nn.Module):
    """Attention and a feed-forward part, each normalised first, dropped out and added."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.before_attention, self.before_dense = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.n_heads, -1))
        heads = qkv.permute(2, 0, 3, 1, 4).unbind()
        y = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.drop(self.dense(self.before_dense(x)))


class GPT(nn.Module):
    """A decoder in the shape of GPT-2."""

    def __init__(self, depth: int, width: int, n_heads: int, classes: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(classes, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)

    def features(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.tokens(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.features(tokens)).flatten(0, 1)


def text(n: int, length: int, classes: int) -> Callable[[int], Data]:
    """Random tokens that repeat, each with the one that follows it."""

    def drawn(seed: int) -> Data:
        generator = torch.Generator().manual_seed(seed)
        found = torch.randint(classes, (n, length // 4), generator=generator).repeat(1, 4)
        return found, found.roll(-1, 1).flatten()

    return drawn


def images(n: int, side: int, classes: int) -> Callable[[int], Data]:
    """Noise, and a class for each."""

    def drawn(seed: int) -> Data:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 3, side, side, generator=generator)
        return x, torch.randint(classes, (n,), generator=generator)

    return drawn


def gpt(tiny: bool) -> Task:
    """Of 12 layers."""
    depth, width, n_heads, classes, n, length = (
        (2, 32, 2, 64, 2, 32) if tiny else (12, 1024, 16, 32768, 8, 1024)
    )
    return Task(
        f"GPT, {depth} layers, {width} wide, {n} x {length} tokens of {classes:,}",
        lambda: GPT(depth, width, n_heads, classes, length),
        text(n, length, classes),
        lambda model: model.blocks,
        lambda model, tokens: model(tokens),
        lambda model, tokens: (model.features(tokens), model.head.weight),
    )


def llama(tiny: bool) -> Task:
    """A small one of transformers', made here."""
    from transformers import LlamaConfig, LlamaForCausalLM

    depth, width, n_heads, classes, n, length = (
        (2, 32, 2, 64, 2, 32) if tiny else (12, 1024, 16, 32000, 8, 1024)
    )
    config = LlamaConfig(
        vocab_size=classes,
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=depth,
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads // 2,
        max_position_embeddings=length,
        use_cache=False,
    )
    return Task(
        f"transformers' Llama, {depth} layers, {width} wide, {n} x {length} tokens of {classes:,}",
        lambda: LlamaForCausalLM(config),
        text(n, length, classes),
        lambda model: model.model.layers,
        lambda model, tokens: model(input_ids=tokens).logits.flatten(0, 1),
        lambda model, tokens: (model.model(tokens).last_hidden_state, model.lm_head.weight),
    )


def resnet50(tiny: bool) -> Task:
    """torchvision's, or one of the same shape where that is missing; smaller where it is tiny."""
    classes, n, side = (10, 4, 32) if tiny else (1000, 128, 224)
    data = images(n, side, classes)
    try:
        from torchvision.models.resnet import Bottleneck
        from torchvision.models.resnet import ResNet as Theirs
    except ImportError:
        stages, width = ((1, 1), 8) if tiny else ((3, 4, 6, 3), 64)
        return Task(
            f"ResNet-50's shape (no torchvision), {n} x {side} x {side}",
            lambda: ResNet(stages, width, classes),
            data,
            lambda model: model.blocks,
            lambda model, x: model(x, plainly),
        )
    layers = [1, 1, 1, 1] if tiny else [3, 4, 6, 3]
    return Task(
        f"torchvision's ResNet-50, {n} x {side} x {side}",
        lambda: Theirs(Bottleneck, layers, num_classes=classes),
        data,
        lambda model: [b for i in range(1, 5) for b in getattr(model, f"layer{i}")],
        lambda model, x: model(x),
    )


TASKS: dict[str, Callable[[bool], Task]] = {"gpt": gpt, "llama": llama, "resnet50": resnet50}
