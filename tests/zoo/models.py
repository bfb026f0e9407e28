# SPDX-License-Identifier: MIT
"""Small models of many kinds: each makes a module and its input, for a seed that is set already."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.utils.checkpoint import checkpoint

ROWS, WIDTH = 256, 128


class Of(nn.Module):
    """A function of parts, as a module."""

    def __init__(self, function, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def rows(n: int = ROWS, width: int = WIDTH) -> Tensor:
    return torch.randn(n, width)


def images(n: int = 8, channels: int = 8, side: int = 24) -> Tensor:
    return torch.randn(n, channels, side, side)


def dense(act, n: int = 3, norm=lambda: nn.Identity()) -> nn.Sequential:
    parts = [part for _ in range(n) for part in (nn.Linear(WIDTH, WIDTH), norm(), act())]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 16))


def convolutions(act, norm, n: int = 3, width: int = 16) -> nn.Sequential:
    """Convolutions, each normalised."""
    parts = []
    for i in range(n):
        parts += [nn.Conv2d(8 if i == 0 else width, width, 3, padding=1), norm(width), act()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 16))


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


# ---- images --------------------------------------------------------------------------------------


def image_batch_norm():
    return convolutions(nn.ReLU, nn.BatchNorm2d), images()


def image_batch_norm_last():
    model = convolutions(nn.ReLU, nn.BatchNorm2d).to(memory_format=torch.channels_last)
    return model, images().to(memory_format=torch.channels_last)


def image_group_norm():
    return convolutions(nn.SiLU, lambda width: nn.GroupNorm(4, width)), images()


def image_instance_norm():
    return convolutions(nn.LeakyReLU, lambda n: nn.InstanceNorm2d(n, affine=True)), images()


def image_plain():
    return convolutions(nn.ReLU, lambda _: nn.Identity()), images()


def image_relu6():
    return convolutions(nn.ReLU6, nn.BatchNorm2d), images()


def image_pooled():
    parts = (nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU())
    return nn.Sequential(*parts, nn.AvgPool2d(2), nn.Flatten(), nn.LazyLinear(16)), images()


def image_depthwise():
    parts = (nn.Conv2d(8, 32, 1), nn.BatchNorm2d(32), nn.Hardswish())
    more = (nn.Conv2d(32, 32, 3, groups=32), nn.BatchNorm2d(32), nn.Hardswish())
    return nn.Sequential(*parts, *more, nn.Conv2d(32, 8, 1)), images()


def image_transposed():
    parts = (nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.ConvTranspose2d(16, 8, 3, 2), nn.Tanh())
    return nn.Sequential(*parts), images(side=33)


def image_shuffled():
    return nn.Sequential(
        nn.Conv2d(8, 32, 3), nn.PixelShuffle(2), nn.ReLU(), nn.Conv2d(8, 3, 3)
    ), images()


def image_squeezed():
    parts = {"a": nn.Conv2d(8, 16, 3), "b": nn.Linear(16, 4), "c": nn.Linear(4, 16)}

    def forward(s, x):
        y = f.relu(s.a(x))
        return y * torch.sigmoid(s.c(f.relu(s.b(y.mean((2, 3))))))[..., None, None]

    return Of(forward, **parts), images()


def image_response_norm():
    return nn.Sequential(
        nn.Conv2d(8, 16, 3), nn.LocalResponseNorm(4), nn.Conv2d(16, 8, 3)
    ), images()


def image_sampled():
    """Where to look is learnt."""
    parts = {"a": nn.Conv2d(8, 8, 3, padding=1), "b": nn.Conv2d(8, 2, 3, padding=1)}

    def forward(s, x):
        at = torch.tanh(s.b(x)).permute(0, 2, 3, 1)
        return f.grid_sample(s.a(x), at, align_corners=False)

    return Of(forward, **parts), images()


def image_enlarged():
    parts = (nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Upsample(scale_factor=2, mode="bilinear"))
    return nn.Sequential(*parts, nn.Conv2d(16, 4, 3)), images()


def volumes():
    parts = (nn.Conv3d(2, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.Conv3d(8, 4, 3))
    return nn.Sequential(*parts), torch.randn(2, 2, 16, 16, 16)


def signals():
    parts = (nn.Conv1d(4, 32, 5), nn.BatchNorm1d(32), nn.GELU(), nn.Conv1d(32, 8, 5, dilation=2))
    return nn.Sequential(*parts), torch.randn(8, 4, 256)


# ---- sequences -----------------------------------------------------------------------------------


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


MODELS = {
    name: function
    for name, function in globals().items()
    if callable(function)
    and getattr(function, "__module__", "") == __name__
    and name not in ("Of", "Square", "rows", "images", "dense", "convolutions", "first_of")
}
