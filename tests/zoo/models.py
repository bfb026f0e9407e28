# SPDX-License-Identifier: MIT
"""Small models of many kinds: each makes a module and its input, for a seed that is set already."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint

from . import image_models, sequence_models
from .parts import ROWS, WIDTH, Of, defined, dense, images, rows

# ---- dense ---------------------------------------------------------------------------------------


def dense_relu():
    return dense(nn.ReLU), rows()


def dense_gelu():
    return dense(nn.GELU), rows()


def dense_silu():
    return dense(nn.SiLU), rows()


def dense_leaky():
    return dense(nn.LeakyReLU), rows()


def dense_tanh():
    return dense(nn.Tanh), rows()


def dense_prelu():
    return dense(nn.PReLU), rows()


def dense_batch_norm():
    return dense(nn.ReLU, norm=lambda: nn.BatchNorm1d(WIDTH)), rows()


def dense_layer_norm():
    return dense(nn.ReLU, norm=lambda: nn.LayerNorm(WIDTH)), rows()


def dense_rms_norm():
    return dense(nn.GELU, norm=lambda: nn.RMSNorm(WIDTH)), rows()


def dense_weight_norm():
    model = dense(nn.ReLU)
    for i in (0, 3):
        nn.utils.parametrizations.weight_norm(model[i])
    return model, rows()


def dense_spectral_norm():
    model = dense(nn.ReLU)
    nn.utils.parametrizations.spectral_norm(model[3])
    return model, rows()


def dense_dropout():
    return nn.Sequential(*dense(nn.ReLU), nn.Dropout(0.0)), rows()


def dense_in_place():
    return dense(lambda: nn.ReLU(inplace=True)), rows()


def large_mean_before_a_batch_norm():
    """What a layer with a large mean takes, into a norm that does not see means."""
    parts = {"a": nn.Linear(WIDTH, WIDTH), "b": nn.Linear(WIDTH, WIDTH)}
    return (
        Of(lambda s, x: s.n(s.b(s.a(x) + 100)), **parts, n=nn.BatchNorm1d(WIDTH)),
        rows(),
    )


def different_means_before_a_batch_norm():
    """Tiles deviate, features do not."""
    far = 100 * torch.randn(WIDTH)
    parts = {"a": nn.Linear(WIDTH, WIDTH), "b": nn.Linear(WIDTH, WIDTH)}
    return (
        Of(lambda s, x: s.n(s.b(s.a(x) + far) + s.a(x)), **parts, n=nn.BatchNorm1d(WIDTH)),
        rows(),
    )


def different_means_before_an_instance_norm():
    far = 100 * torch.randn(8, 1, 1)
    parts = {"a": nn.Conv2d(8, 8, 1), "b": nn.Conv2d(8, 8, 3, padding=1)}
    return (
        Of(lambda s, x: s.n(s.b(s.a(x) + far)), **parts, n=nn.InstanceNorm2d(8, affine=True)),
        images(),
    )


def large_mean_of_a_layer_norm():
    return Of(
        lambda s, x: s.n(s.a(x) + 100), a=nn.Linear(WIDTH, WIDTH), n=nn.LayerNorm(WIDTH)
    ), rows()


def one_large_feature():
    """What transformers have: a feature that dwarfs all others."""
    large = torch.ones(WIDTH)
    large[3] = 1000
    parts = {"a": nn.Linear(WIDTH, WIDTH), "n": nn.LayerNorm(WIDTH), "b": nn.Linear(WIDTH, 16)}
    return Of(lambda s, x: s.b(s.n(s.a(x) * large)), **parts), rows()


def residual():
    parts = {name: nn.Linear(WIDTH, WIDTH) for name in "abc"}

    def forward(s, x):
        x = x + f.relu(s.a(x))
        x = x + f.relu(s.b(x))
        return s.c(x)

    return Of(forward, **parts), rows()


def tied():
    return Of(
        lambda s, x: f.relu(s.a(f.relu(s.a(x)))) @ s.a.weight.t(), a=nn.Linear(128, 128)
    ), rows()


def highway():
    parts = {name: nn.Linear(WIDTH, WIDTH) for name in "ab"}

    def forward(s, x):
        for _ in range(2):
            gate = torch.sigmoid(s.a(x))
            x = gate * f.relu(s.b(x)) + (1 - gate) * x
        return x

    return Of(forward, **parts), rows()


def maxout():
    layer = nn.Linear(WIDTH, 4 * WIDTH)
    last = nn.Linear(WIDTH, 16)
    return Of(lambda s, x: s.b(s.a(x).view(ROWS, WIDTH, 4).amax(2)), a=layer, b=last), rows()


def modulated():
    parts = {"a": nn.Linear(WIDTH, WIDTH), "b": nn.Linear(WIDTH, 2 * WIDTH)}

    def forward(s, x):
        scale, shift = s.b(x).chunk(2, 1)
        return f.relu(s.a(x) * (1 + scale) + shift)

    return Of(forward, **parts), rows()


def weights_from_activations():
    parts = {"a": nn.Linear(WIDTH, 256), "b": nn.Linear(WIDTH, WIDTH)}

    def forward(s, x):
        made = s.a(x).view(ROWS, 2, WIDTH)
        return (s.b(x)[:, None] @ made.mT)[:, 0]

    return Of(forward, **parts), rows()


def bilinear():
    parts = {"a": nn.Linear(WIDTH, 64), "b": nn.Linear(WIDTH, 64), "c": nn.Bilinear(64, 64, 8)}
    return Of(lambda s, x: s.c(s.a(x), s.b(x)), **parts), rows()


def einsum():
    weight = nn.Parameter(torch.randn(4, WIDTH, 32) / 11)
    first = nn.Linear(WIDTH, WIDTH)
    return Of(
        lambda s, x: torch.einsum("bi,hio->bho", f.relu(s.a(x)), s.w), a=first, w=weight
    ), rows()


def mixture_of_experts():
    experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(s, x):
        weight, chosen = s.gate(x).softmax(1).topk(2, 1)
        made = torch.stack([f.relu(expert(x)) for expert in s.experts], 1)
        return (made.gather(1, chosen[..., None].expand(-1, -1, WIDTH)) * weight[..., None]).sum(1)

    return Of(forward, gate=nn.Linear(WIDTH, 3), experts=experts), rows()


def of_sets():
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 16)
    return Of(lambda s, x: s.b(f.relu(s.a(x)).view(8, 32, WIDTH).mean(1)), a=first, b=last), rows()


def of_a_graph():
    edges = torch.eye(ROWS).roll(1, 0) + torch.eye(ROWS)
    parts = {"a": nn.Linear(WIDTH, WIDTH), "b": nn.Linear(WIDTH, WIDTH)}
    return Of(lambda s, x: edges @ s.b(f.relu(edges @ s.a(x))), **parts), rows()


def equation():
    """Euler's steps of a differential equation."""
    parts = {"a": nn.Linear(WIDTH, WIDTH), "b": nn.Linear(WIDTH, WIDTH)}

    def forward(s, x):
        for _ in range(4):
            x = x + 0.1 * s.b(torch.tanh(s.a(x)))
        return x

    return Of(forward, **parts), rows()


# ---- beside torch functions ----------------------------------------------------------------------


class Square(torch.autograd.Function):
    """Of the caller's, whose gradient writes into what was saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return slope * x.clone().mul_(2)


def custom_function():
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 16)
    return Of(lambda s, x: s.b(Square.apply(s.a(x))), a=first, b=last), rows()


def checkpointed():
    parts = {"a": nn.Linear(WIDTH, WIDTH), "b": dense(nn.ReLU, 2)}
    return Of(lambda s, x: checkpoint(s.b, s.a(x), use_reentrant=False), **parts), rows()


def under_autocast():
    def forward(s, x):
        with torch.autocast("cpu", torch.bfloat16):
            return s.a(x).float()

    return Of(forward, a=dense(nn.GELU, norm=lambda: nn.LayerNorm(WIDTH))), rows()


MODELS = defined(globals(), "Square") | image_models.MODELS | sequence_models.MODELS
