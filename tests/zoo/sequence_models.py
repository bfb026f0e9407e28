# SPDX-License-Identifier: MIT
"""Small models of sequences; see `models.py`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f

from .parts import ROWS, WIDTH, Of, defined, rows


def first_of(model: nn.Module) -> Of:
    return Of(lambda s, x: s.a(x)[0], a=model)


def lstm():
    return first_of(nn.LSTM(32, 64, batch_first=True)), torch.randn(16, 20, 32)


def gru():
    return first_of(nn.GRU(32, 64, batch_first=True)), torch.randn(16, 20, 32)


def elman():
    return first_of(nn.RNN(32, 64, nonlinearity="relu", batch_first=True)), torch.randn(16, 20, 32)


def lstm_by_hand():
    cell = nn.LSTMCell(WIDTH, WIDTH)

    def forward(s, x):
        state = None
        for _ in range(3):
            state = s.a(x, state)
        return state[0]

    return Of(forward, a=cell), rows()


def bag():
    table, last = nn.EmbeddingBag(100, WIDTH, mode="mean"), nn.Linear(WIDTH, 16)
    return Of(lambda s, x: s.b(s.a(x)), a=table, b=last), torch.randint(100, (ROWS, 6))


def tokens():
    table, last = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 16)
    return Of(lambda s, x: s.b(f.gelu(s.a(x))), a=table, b=last), torch.randint(100, (ROWS, 6))


def encoder_layer():
    layer = nn.TransformerEncoderLayer(
        WIDTH, 4, 256, 0.0, "gelu", batch_first=True, norm_first=True
    )
    return layer, torch.randn(4, 64, WIDTH)


def encoder_layer_norm_last():
    return nn.TransformerEncoderLayer(WIDTH, 4, 256, 0.0, batch_first=True), torch.randn(
        4, 64, WIDTH
    )


def decoder_layer():
    layer = nn.TransformerDecoderLayer(WIDTH, 4, 256, 0.0, "gelu", batch_first=True)
    first = nn.Linear(WIDTH, WIDTH)
    return Of(lambda s, x: s.a(s.b(x), x), a=layer, b=first), torch.randn(4, 64, WIDTH)


def attention_with_weights():
    layer, first = nn.MultiheadAttention(WIDTH, 4, batch_first=True), nn.Linear(WIDTH, WIDTH)

    def forward(s, x):
        y = s.b(x)
        return s.a(y, y, y)[0]

    return Of(forward, a=layer, b=first), torch.randn(4, 64, WIDTH)


def gated_dense():
    """Llama's feed-forward part."""
    parts = {name: nn.Linear(WIDTH, 2 * WIDTH) for name in "ab"}
    parts |= {"n": nn.RMSNorm(WIDTH), "c": nn.Linear(2 * WIDTH, WIDTH)}

    def forward(s, x):
        y = s.n(x)
        return x + s.c(f.silu(s.a(y)) * s.b(y))

    return nn.Sequential(Of(forward, **parts), nn.Linear(WIDTH, WIDTH)), rows()


def mixer():
    parts = {"a": nn.Linear(64, 64), "b": nn.Linear(WIDTH, WIDTH), "n": nn.LayerNorm(WIDTH)}

    def forward(s, x):
        x = x + f.gelu(s.a(s.n(x).mT)).mT
        return x + f.gelu(s.b(s.n(x)))

    return Of(forward, **parts), torch.randn(4, 64, WIDTH)


MODELS = defined(globals(), "first_of")
