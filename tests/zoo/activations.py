# SPDX-License-Identifier: MIT
"""Activations and attention of what a layer makes; see `functions.py`."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as f

from .parts import ROWS, WIDTH, constant, defined

# ---- activations ---------------------------------------------------------------------------------


def gelu(y, g):
    return (f.gelu(y) * constant(g)).sum()


def gelu_by_tanh(y, g):
    return (f.gelu(y, approximate="tanh") * constant(g)).sum()


def silu(y, g):
    return (f.silu(y) * constant(g)).sum()


def leaky(y, g):
    return (f.leaky_relu(y, 0.1) * constant(g)).sum()


def relu(y, g):
    return (f.relu(y) * constant(g)).sum()


def relu6(y, g):
    return (f.relu6(y) * constant(g)).sum()


def mish(y, g):
    return (f.mish(y) * constant(g)).sum()


def softplus(y, g):
    return (f.softplus(y) * constant(g)).sum()


def elu(y, g):
    return (f.elu(y) * constant(g)).sum()


def hardswish(y, g):
    return (f.hardswish(y) * constant(g)).sum()


def softsign(y, g):
    return (f.softsign(y) * constant(g)).sum()


def tanh(y, g):
    return (torch.tanh(y) * constant(g)).sum()


def gated(y, g):
    return (f.glu(y, 1) * constant(g, ROWS, WIDTH // 2)).sum()


def sine(y, g):
    return (torch.sin(30 * y) * constant(g)).sum()


def error_function(y, g):
    return (torch.erf(y) * constant(g)).sum()


def squared_relu(y, g):
    return (f.relu(y).square() * constant(g)).sum()


def tiny_gelu(y, g):
    return (f.gelu(1e-9 * y) * constant(g)).sum() * 1e9


def huge_silu(y, g):
    return (f.silu(1e6 * y) * constant(g)).sum() * 1e-6


# ---- attention -----------------------------------------------------------------------------------


def heads(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value: three views of turned rows."""
    return tuple(y.roll(i, 0).view(4, 64, 4, 32).transpose(1, 2) for i in range(3))


def attention(y, g):
    return (f.scaled_dot_product_attention(*heads(y)) * constant(g, 4, 4, 64, 32)).sum()


def sharp_attention(y, g):
    q, k, v = heads(y)
    return (((20 * q @ k.mT).softmax(3) @ v) * constant(g, 4, 4, 64, 32)).sum()


def masked_attention(y, g):
    q, k, v = heads(y)
    mask = torch.ones(64, 64, dtype=torch.bool).tril()
    p = (q @ k.mT / 5).masked_fill(~mask, -math.inf).softmax(3)
    return ((p @ v) * constant(g, 4, 4, 64, 32)).sum()


def attention_with_large_keys(y, g):
    q, k, v = heads(y)
    actual = f.scaled_dot_product_attention(q, k + 100, v)
    return (actual * constant(g, 4, 4, 64, 32)).sum()


def linear_attention(y, g):
    q, k, v = heads(y)
    q, k = f.elu(q) + 1, f.elu(k) + 1
    actual = q @ (k.mT @ v) / (q @ k.sum(2, keepdim=True).mT)
    return (actual * constant(g, 4, 4, 64, 32)).sum()


def gated_product(y, g):
    half, gate = y.chunk(2, 1)
    return (half * torch.sigmoid(gate) * constant(g, ROWS, WIDTH // 2)).sum()


def gram(y, _):
    return ((y @ y.mT / WIDTH) ** 2).mean()


def gradient_penalty(y, g):
    z = y + 0 * constant(g)
    slope = torch.autograd.grad(f.softplus(z).square().sum(), z, create_graph=True)[0]
    return ((slope.norm(2, 1) - 1) ** 2).sum() + z.square().mean()


def selected(y, g):
    return (y.topk(16, 1).values.exp() * constant(g, ROWS, 16)).sum()


FUNCTIONS = defined(globals(), "heads")
