# SPDX-License-Identifier: MIT
"""Functions and losses of what a layer makes, (256, 128) numbers: what gradients are made of.

Each takes the layer's result, and a generator for constants of its own; its sum is what is
differentiated. Where plain training is finite, training with codes has to be.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as f

from . import activations
from .parts import ROWS, WIDTH, constant, defined, labels

# ---- probabilities -------------------------------------------------------------------------------


def entropy(y, _):
    p = y.softmax(1)
    return -(p * p.log()).sum()


def focal(y, g):
    p = y.softmax(1).gather(1, labels(g)[:, None])
    return -((1 - p) ** 2 * p.log()).sum()


def kl(y, g):
    return f.kl_div(y.log_softmax(1), constant(g).softmax(1), reduction="sum")


def kl_reversed(y, g):
    p = y.softmax(1)
    return (p * (p.log() - constant(g).log_softmax(1))).sum()


def jensen_shannon(y, g):
    p, q = y.softmax(1), constant(g).softmax(1)
    m = ((p + q) / 2).log()
    return (p * (p.log() - m)).sum() + (q * (q.log() - m)).sum()


def cross_entropy(y, g):
    return f.cross_entropy(y, labels(g))


def smoothed_labels(y, g):
    return f.cross_entropy(y, labels(g), label_smoothing=0.1)


def binary_cross_entropy(y, g):
    return f.binary_cross_entropy(y.sigmoid(), (constant(g) > 0).float())


def binary_cross_entropy_of_scores(y, g):
    return f.binary_cross_entropy_with_logits(y, (constant(g) > 0).float())


def gaussian_nll(y, g):
    mean, spread = y.chunk(2, 1)
    return f.gaussian_nll_loss(mean, constant(g, ROWS, WIDTH // 2), f.softplus(spread) + 1e-3)


def poisson_nll(y, g):
    return f.poisson_nll_loss(y, constant(g).abs().round())


def student_t(y, g):
    z = (y - constant(g)) / 0.5
    return (2.5 * torch.log1p(z * z / 4)).sum()


def mixture_of_gaussians(y, g):
    weight, mean, spread = (y[:, :126].reshape(ROWS, 3, 42)).unbind(1)
    z = (constant(g, ROWS, 1) - mean) * (-spread).exp()
    return -torch.logsumexp(weight.log_softmax(1) - spread - z * z / 2, 1).sum()


def variational(y, g):
    mean, log_variance = y.chunk(2, 1)
    z = mean + (log_variance / 2).exp() * constant(g, ROWS, WIDTH // 2)
    return (z - 1).square().sum() - 0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()


def logsumexp_of_nothing(y, g):
    mask = constant(g) > 0
    return torch.logsumexp(y.masked_fill(mask, -math.inf), 1).sum()


def gumbel(y, g):
    noise = -torch.log(-torch.log(torch.rand(ROWS, WIDTH, generator=g)))
    return (((y + noise) / 0.5).softmax(1) * constant(g)).sum()


def sparsemax(y, g):
    z = y.sort(1, descending=True).values
    k = torch.arange(1, WIDTH + 1)
    support = (1 + k * z > z.cumsum(1)).sum(1, keepdim=True)
    tau = (z.cumsum(1).gather(1, support - 1) - 1) / support
    return (f.relu(y - tau) * constant(g)).sum()


def ctc(y, g):
    steps = y.view(32, 8, WIDTH).log_softmax(2)
    targets = torch.randint(1, WIDTH, (8, 10), generator=g)
    return f.ctc_loss(steps, targets, torch.full((8,), 32), torch.full((8,), 10))


# ---- division, roots, powers, logarithms ---------------------------------------------------------


def reciprocal(y, _):
    return (y / (y.abs() + 1e-3)).square().sum()


def rsqrt(y, _):
    return torch.rsqrt(y * y + 1e-2).sum()


def root(y, _):
    return torch.sqrt(y * y + 1e-6).sum()


def logarithm(y, _):
    return torch.log(y.abs() + 1e-3).sum()


def power(y, _):
    return (y.abs() + 0.1).pow(-2).sum()


def log1p(y, _):
    return torch.log1p(y.square()).sum()


def atan2(y, g):
    return (torch.atan2(y, y.roll(1, 1)) * constant(g)).sum()


def xlogy(y, _):
    return torch.xlogy(y.abs(), y.abs() + 1e-2).sum()


def logaddexp(y, g):
    return (torch.logaddexp(y, constant(g)) * constant(g)).sum()


def lgamma(y, _):
    return torch.lgamma(y.abs() + 0.05).sum()


def products(y, _):
    return (1 + 0.01 * y).cumprod(1).sum()


def norm_of_three(y, _):
    return y.norm(3, 1).sum()


def inverse(y, g):
    matrices = y.view(2, WIDTH, WIDTH) / 16 + 4 * torch.eye(WIDTH)
    return (torch.linalg.inv(matrices) * constant(g, 2, WIDTH, WIDTH)).sum()


def determinant(y, _):
    matrices = y.view(2, WIDTH, WIDTH) / 16
    return torch.linalg.slogdet(matrices @ matrices.mT + torch.eye(WIDTH)).logabsdet.sum()


def cholesky(y, _):
    half = y.view(2, WIDTH, WIDTH) / 16
    actual = torch.linalg.cholesky(half @ half.mT + torch.eye(WIDTH))
    return actual.diagonal(dim1=1, dim2=2).log().sum()


# ---- moments, distances --------------------------------------------------------------------------


def variance(y, _):
    return y.var(1).log().sum()


def variance_of_a_large_mean(y, _):
    return (y + 100).var(0).sum()


def deviation(y, _):
    return (1 / (y.std(0) + 1e-5)).sum()


def whitened(y, g):
    centred = y - y.mean(0)
    covariance = centred.mT @ centred / ROWS + torch.eye(WIDTH) / 10
    return (torch.linalg.solve(covariance, centred.mT) * constant(g, WIDTH, ROWS)).sum()


def cosine(y, g):
    return f.cosine_similarity(y, constant(g)).sum()


def contrastive(y, g):
    z = f.normalize(y)
    return f.cross_entropy(z @ z.roll(1, 0).mT / 0.1, labels(g, ROWS, ROWS))


def triplet(y, g):
    return f.triplet_margin_loss(y, y.roll(1, 0), constant(g))


def ranked(y, g):
    return f.margin_ranking_loss(y, y.roll(1, 1), constant(g).sign())


def multi_margin(y, g):
    return f.multi_margin_loss(y, labels(g))


def soft_margin(y, g):
    return f.soft_margin_loss(y, constant(g).sign())


def cosine_embedding(y, g):
    return f.cosine_embedding_loss(y, constant(g), torch.ones(ROWS))


def distances(y, g):
    return torch.cdist(y, constant(g)).sum()


def decorrelated(y, _):
    z = (y - y.mean(0)) / (y.std(0) + 1e-5)
    return ((z.mT @ z.roll(1, 0) / ROWS) - torch.eye(WIDTH)).square().sum()


def mean_squares(y, g):
    return f.mse_loss(y, constant(g))


def absolute(y, g):
    return f.l1_loss(y, constant(g))


def huber(y, g):
    return f.huber_loss(y, constant(g))


def log_cosh(y, g):
    return torch.log(torch.cosh(y - constant(g))).sum()


def dice(y, g):
    p, t = y.sigmoid(), (constant(g) > 0).float()
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def tversky(y, g):
    p, t = y.sigmoid(), (constant(g) > 0).float()
    hit = (p * t).sum(1)
    return (1 - hit / (hit + 0.3 * (p * (1 - t)).sum(1) + 0.7 * ((1 - p) * t).sum(1))).sum()


FUNCTIONS = defined(globals()) | activations.FUNCTIONS
