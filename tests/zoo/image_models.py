# SPDX-License-Identifier: MIT
"""Small models of images, volumes and signals; see `models.py`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f

from .parts import Of, convolutions, defined, images


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


MODELS = defined(globals())
