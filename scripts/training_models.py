# SPDX-License-Identifier: MIT
"""Models written by hand, made data for them, and the panels of `memory_map.py`, which have both
and models of other packages; by themselves none drops anything out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
        """width: elements of a token, of all heads. drops: probability of dropout."""
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
        """depth: blocks. classes: tokens there are. length: tokens of a text, at most."""
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


class LlamaBlock(nn.Module):
    """Attention with rotated heads and a gated feed-forward part, each normalised first."""

    def __init__(self, width: int, n_heads: int, hidden: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.before_attention, self.before_dense = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        y = self.before_attention(x)
        query, key = (rotated(self._heads(part(y)), turn) for part in (self.query, self.key))
        heads = self._heads(self.value(y))
        y = functional.scaled_dot_product_attention(query, key, heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.before_dense(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """Turn pairs (x[..., i], x[..., i + half]) by angles that depend on the token's place.

    turn: cosines and sines, stacked to (2, length, half).
    """
    cos, sin = turn.to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Llama(nn.Module):
    """A decoder in the shape of Llama."""

    turn: Tensor

    def __init__(
        self, depth: int, width: int, n_heads: int, hidden: int, classes: int, length: int
    ) -> None:
        """hidden: width of the feed-forward part; others as GPT's."""
        super().__init__()
        self.tokens = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, n_heads, hidden) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, classes, bias=False)
        half = width // n_heads // 2
        angles = torch.arange(length)[:, None] * 1e4 ** -(torch.arange(half) / half)
        self.register_buffer("turn", torch.stack((angles.cos(), angles.sin())))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.turn)
        return self.head(self.norm(x)).flatten(0, 1)


def twice(n_in: int, n_out: int) -> nn.Sequential:
    """Two convolutions, each normalised and rectified."""
    layers: list[nn.Module] = []
    for n in (n_in, n_out):
        layers += [nn.Conv2d(n, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Maps are halved and doubled again, beside them shortcuts; a class for each pixel."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        """width: channels of the first map; each of `depth` halvings doubles them."""
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        pairs = list(itertools.pairwise(widths))
        self.first = twice(3, width)
        self.downs = nn.ModuleList(twice(a, b) for a, b in pairs)
        self.rises = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.ups = nn.ModuleList(twice(b, a) for a, b in reversed(pairs))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of (pixels of all images, classes) for images of (n, 3, height, width)."""
        x = self.first(x)
        beside = []
        for down in self.downs:
            beside.append(x)
            x = down(functional.max_pool2d(x, 2))
        for rise, up in zip(self.rises, self.ups, strict=True):
            x = up(torch.cat((rise(x), beside.pop()), 1))
        return self.head(x).permute(0, 2, 3, 1).flatten(0, 2)


# ---- data ---------------------------------------------------------------------------------------


def text(n: int, length: int, classes: int) -> Data:
    """Return a function from a seed to (tokens, next tokens, flat): n random texts that repeat."""

    def drawn(seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        result = torch.randint(classes, (n, length // 4), generator=generator).repeat(1, 4)
        return result, result.roll(-1, 1).flatten()

    return drawn


def images(n: int, side: int, classes: int) -> Data:
    """Return a function from a seed to (n images of noise, a random class for each)."""

    def drawn(seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 3, side, side, generator=generator)
        return x, torch.randint(classes, (n,), generator=generator)

    return drawn


def pixels(n: int, side: int, classes: int) -> Data:
    """Return a function from a seed to (n images of noise, a class for each pixel, flat).

    The class is the index of the pixel's largest colour, modulo classes.
    """

    def drawn(seed: int) -> tuple[Tensor, Tensor]:
        x, _ = images(n, side, classes)(seed)
        return x, x.argmax(1).flatten() % classes

    return drawn


# ---- panels -------------------------------------------------------------------------------------


class Panel(NamedTuple):
    """A model, what it is trained on, and how."""

    label: str
    make: Callable[[], nn.Module]
    data: Data  # from a seed to (inputs, targets)
    blocks: Callable[[Any], Sequence[nn.Module]]  # of a model, for checkpoints
    scores: Callable[[Any, Tensor], Tensor] = lambda model, x: model(x)  # rows, for cross entropy
    dtype: torch.dtype = torch.float32  # of the parameters; autocast where it is this one
    channels_last: bool = False


def gpt(tiny: bool, drops: float = 0.0) -> Panel:
    """Return a GPT written by hand; drops: probability of dropout."""
    depth, width, n_heads, classes, n, length = (
        (2, 32, 2, 64, 2, 32) if tiny else (12, 1024, 16, 32768, 8, 1024)
    )
    return Panel(
        f"GPT, {depth} x {width:,}, {n} x {length:,} tokens",
        lambda: GPT(depth, width, n_heads, classes, length, drops),
        text(n, length, classes),
        lambda model: model.blocks,
    )


def llama(tiny: bool, depth: int, length: int, dtype: torch.dtype) -> Panel:
    """Return a Llama written by hand, with float32 parameters for autocast, or all of bfloat16."""
    width, n_heads, hidden, classes = (32, 2, 64, 64) if tiny else (4096, 32, 11008, 32000)
    depth, length = (2, 32) if tiny else (depth, length)
    return Panel(
        f"Llama, {depth} x {width:,}, {length:,} tokens, {str(dtype).removeprefix('torch.')}",
        lambda: Llama(depth, width, n_heads, hidden, classes, length),
        text(1, length, classes),
        lambda model: model.blocks,
        dtype=dtype,
    )


def vit(tiny: bool, large: bool) -> Panel:
    """Return torchvision's vision transformer H/14 if large, else B/16."""
    from torchvision.models.vision_transformer import VisionTransformer

    name, n, patch, depth, n_heads, width = (
        ("H/14", 32, 14, 32, 16, 1280) if large else ("B/16", 64, 16, 12, 12, 768)
    )
    n, side, depth, width = (2, 2 * patch, 2, 2 * n_heads) if tiny else (n, 224, depth, width)

    def build() -> nn.Module:
        model = VisionTransformer(side, patch, depth, n_heads, width, 4 * width)
        nn.init.normal_(model.heads.head.weight, std=0.02)  # of zeros no other gradient is left
        return model

    return Panel(
        f"ViT-{name}, {n} x {side} x {side}",
        build,
        images(n, side, 1000),
        lambda model: model.encoder.layers,
    )


def resnet50(tiny: bool) -> Panel:
    """Return torchvision's ResNet-50."""
    from torchvision.models.resnet import Bottleneck, ResNet

    n, side, layers = (4, 32, [1, 1, 1, 1]) if tiny else (128, 224, [3, 4, 6, 3])
    return Panel(
        f"ResNet-50, {n} x {side} x {side}",
        lambda: ResNet(Bottleneck, layers),
        images(n, side, 1000),
        lambda model: [b for i in range(1, 5) for b in getattr(model, f"layer{i}")],
        channels_last=True,
    )


def convnext(tiny: bool) -> Panel:
    """Return torchvision's ConvNeXt-T, of which every layer is run."""
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    n, side, depths, width = (2, 32, (1, 1, 1, 1), 8) if tiny else (128, 224, (3, 3, 9, 3), 96)
    stages = [
        CNBlockConfig(width << i, width << (i + 1) if i < 3 else None, depth)
        for i, depth in enumerate(depths)
    ]
    return Panel(
        f"ConvNeXt-T, {n} x {side} x {side}",
        lambda: ConvNeXt(stages, stochastic_depth_prob=0.0),
        images(n, side, 1000),
        lambda model: [block for stage in model.features[1::2] for block in stage],
        channels_last=True,
    )


def unet(tiny: bool) -> Panel:
    """Return a U-Net written by hand."""
    n, side, width, depth, classes = (2, 32, 8, 2, 3) if tiny else (8, 512, 64, 4, 21)
    return Panel(
        f"U-Net, {n} x {side} x {side}",
        lambda: UNet(width, depth, classes),
        pixels(n, side, classes),
        lambda model: [model.first, *model.downs, *model.ups],
        channels_last=True,
    )


def bert(tiny: bool) -> Panel:
    """Return transformers' BERT-base, of which every token is predicted."""
    from transformers import BertConfig, BertForMaskedLM

    n, length = (2, 32) if tiny else (32, 512)
    sizes = (
        {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 64}
        if tiny
        else {}
    )
    config = BertConfig(**sizes, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return Panel(
        f"BERT-base, {n} x {length} tokens",
        lambda: BertForMaskedLM(config),
        text(n, length, config.vocab_size),
        lambda model: model.bert.encoder.layer,
        lambda model, tokens: model(input_ids=tokens).logits.flatten(0, 1),
    )


PANELS: dict[str, Callable[[bool], Panel]] = {
    "gpt": gpt,
    "llama": functools.partial(llama, depth=4, length=4096, dtype=torch.float32),
    "llama-long": functools.partial(llama, depth=4, length=16384, dtype=torch.float32),
    "llama-bf16": functools.partial(llama, depth=8, length=4096, dtype=torch.bfloat16),
    "llama-bf16-long": functools.partial(llama, depth=8, length=16384, dtype=torch.bfloat16),
    "vit-b": functools.partial(vit, large=False),
    "vit-h": functools.partial(vit, large=True),
    "resnet50": resnet50,
    "convnext": convnext,
    "unet": unet,
    "bert": bert,
}
