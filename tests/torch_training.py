# SPDX-License-Identifier: MIT
"""A small model in training, with all that a loop has around an optimizer of PyTorch's protocol."""

from __future__ import annotations

import itertools
import pickle

import torch

from cupy_training_ops.torch import AdamW

N_STEPS = 200
SIZES = (8, 16, 4)
# A first step is lr g / (|g| + eps). Where it comes late, two models' g differ by some d already,
# and their steps by up to lr d / eps: with PyTorch's eps of 1e-8 as much as lr where g is about 0.
SMOOTH = {"eps": 1e-3}


def net(seed: int, device: str = "cpu") -> torch.nn.Module:
    """Two layers, smooth between: a slope that jumps makes a step of a last digit."""
    torch.manual_seed(seed)
    first, second = (torch.nn.Linear(*pair) for pair in itertools.pairwise(SIZES))
    return torch.nn.Sequential(first, torch.nn.Tanh(), second).to(device)


def backward(model, generator, scaler=None) -> None:
    """Gradients of a new batch."""
    device = next(model.parameters()).device
    x, y = (torch.randn(32, n, generator=generator).to(device) for n in (SIZES[0], SIZES[-1]))
    loss = (model(x) - y).square().mean()
    (loss if scaler is None else scaler.scale(loss)).backward()


def pair(seed, make=AdamW, other=torch.optim.AdamW, numbers=None, **options):
    """The same model twice, with two optimizers; groups without decay for vectors."""
    results = []
    for kind in (make, other):
        model = net(seed)
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() == 1]
        groups = [{"params": matrices}, {"params": vectors, **options}]
        results.append((model, kind(groups, **{"lr": 1e-2, **(numbers or {})})))
    return results


def steps(pairs, seed, n, missing=(), max_norm=None) -> None:
    """Steps of both; parameters at these places have no gradient."""
    for model, optimizer in pairs:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(n):
            optimizer.zero_grad()
            backward(model, generator)
            for i, p in enumerate(model.parameters()):
                if i in missing:
                    p.grad = None
            if max_norm is not None and type(optimizer).__module__.startswith("torch."):
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()


class Loop:
    """A model in training, with what a training loop has around the optimizer."""

    def __init__(self, make, seed, *, scales=False, max_norm=None, device="cpu") -> None:
        self.make, self.model, self.max_norm = make, net(seed, device), max_norm
        self.optimizer = self.made(self.model)
        self.scaler = torch.amp.GradScaler(device, 1024.0, growth_interval=20) if scales else None
        self.scheduler = self.scheduled()
        self.generator = torch.Generator().manual_seed(seed)

    def made(self, model):
        clips = {"max_norm": self.max_norm} if self.is_ours else {}
        return self.make(model.parameters(), lr=1e-3, **clips)

    def scheduled(self):
        """It writes betas, too."""
        return torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-2, total_steps=N_STEPS + 1)

    @property
    def is_ours(self) -> bool:
        return self.make is AdamW

    def step(self, is_bad=False) -> None:
        self.optimizer.zero_grad()
        backward(self.model, self.generator, self.scaler)
        if is_bad:
            self.model[0].weight.grad[0, 0] = float("inf")
        if self.max_norm is not None and not self.is_ours:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.scheduler.step()

    def reload(self) -> None:
        """From states, by new objects."""
        state, schedule = self.optimizer.state_dict(), self.scheduler.state_dict()
        saved = pickle.loads(pickle.dumps((state, schedule)))
        self.optimizer = self.made(self.model)
        self.scheduler = self.scheduled()
        self.scheduler.load_state_dict(saved[1])
        self.optimizer.load_state_dict(saved[0])


def difference(some, others) -> float:
    pairs = zip(some.parameters(), others.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def assert_close(some, others, most=1e-6) -> None:
    assert difference(some, others) < most  # NaN is not
