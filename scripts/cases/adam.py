# SPDX-License-Identifier: MIT
"""Adam over a transformer's parameters, and the whole step of mixed-precision training.

PyTorch's fused AdamW is the peer; of a whole step GradScaler's check and unscaling, the clipping of
clip_grad_norm_ and the fused step, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cupy

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOAT16, FLOAT32

from . import Case, as_torch
from .optimizer import RATE, N, torch_clip
from .parameters import normal, parameters

STATE = ("new_T", "new_moment_1", "new_moment_2", "new_weights")
COPIED = (*STATE, "new_mixed_precision_weights")
SCALE, MOST = 1024.0, 1.0  # of the loss, and of the norm


def _one(rng: Any) -> tuple[Any, ...]:
    """With all that AdamOptimizer takes, as in mixed-precision training."""
    w, g, m, v = (normal(rng, (N,), FLOAT32) for _ in range(4))
    numbers = (cupy.full(1, x, cupy.float32) for x in (SCALE, 2 * SCALE))
    rate, copy = cupy.full(1, RATE, cupy.float32), w.astype(FLOAT16)
    return rate, 3, w, g, m, cupy.abs(v), copy, *numbers


def _plain(rng: Any) -> tuple[Any, ...]:
    w, g, m, v = (normal(rng, (N,), FLOAT32) for _ in range(4))
    return cupy.full(1, RATE, cupy.float32), 3, w, g, m, cupy.abs(v)


def _model(rng: Any, grad: Any = FLOAT32, copies: bool = False) -> tuple[Any, ...]:
    weights, gradients = parameters(rng, FLOAT32), parameters(rng, grad)
    moments = ([cupy.zeros_like(w) for w in weights] for _ in range(2))
    mixed = ([w.astype(FLOAT16) for w in weights],) if copies else ()
    return RATE, 3, weights, gradients, *moments, *mixed


def _copied(_r: Any, _t: Any, w: Any, g: Any, *rest: Any) -> int:
    """Weights and moments read and written, gradients read, copies written."""
    return sum(24 * x.size for x in w) + sum(x.nbytes for x in (*g, *rest[-1]))


def _copied_one(_r: Any, _t: Any, w: Any, g: Any, *_: Any) -> int:
    return 24 * w.size + 2 * g.nbytes + 2 * w.size


def _whole(_r: Any, _t: Any, weights: list[Any], *_: Any) -> int:
    """28 bytes of the update, and the gradients read for their norm."""
    return 32 * sum(w.size for w in weights)


def _whole_step(op: Any, r: Any, t: Any, *lists: Any) -> Callable[[], Any]:
    """Norm and check in one pass; unscaling, clipping and update in another."""
    norm_of = get_op("GradientNorm")()
    found = norm_of(lists[1])
    scale, step = cupy.full(1, SCALE, cupy.float32), cupy.full(1, t, cupy.int64)

    def run() -> None:
        norm, finite = norm_of(lists[1], out=found)
        op(r, step, *lists, None, scale, norm, finite, MOST, outputs=STATE)

    return run


def _torch_adam(_r: Any, t: Any, *lists: Any, found_inf: Any = None) -> Callable[[], Any]:
    import torch

    weights, gradients, m, v = ([as_torch(x) for x in xs] for xs in lists[:4])
    steps = [torch.full((), float(t), device="cuda") for _ in weights]
    numbers = {"lr": RATE, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8}
    flags = {"amsgrad": False, "maximize": False, "found_inf": found_inf}
    step = partial(torch._fused_adamw_, weights, gradients, m, v, [], steps)
    return lambda: step(**numbers, **flags)


def _torch_adam_one(r: Any, t: Any, w: Any, g: Any, m: Any, v: Any, *_: Any) -> Callable[[], Any]:
    return _torch_adam(r, t, [w], [g], [m], [v])


def _torch_whole(r: Any, t: Any, *lists: Any) -> Callable[[], Any]:
    import torch

    gradients = [as_torch(g) for g in lists[1]]
    found, unscale = (torch.full((1,), x, device="cuda") for x in (0.0, 1 / SCALE))
    check = torch._amp_foreach_non_finite_check_and_unscale_
    step = _torch_adam(r, t, *lists, found_inf=found)

    def run() -> None:
        check(gradients, found, unscale)
        torch_clip(gradients, MOST)
        step()

    return run


FUSED = {"torch fused adamw": _torch_adam}
ONE = {"torch fused adamw": _torch_adam_one}

CASES = [
    Case("AdamOptimizer", "f4", _plain, peers=ONE, outputs=STATE),
    Case(
        "AdamOptimizer",
        "f4,mode1,clip,copy",
        _one,
        {"weight_decay_mode": 1, "lambda_": 0.01},
        ONE,
        _copied_one,
    ),
    Case("AdamWOptimizer", "f4,model", _model, peers=FUSED, eager=True),
    Case("AdamOptimizerList", "f4,model", _model, peers=FUSED, eager=True, outputs=STATE),
    Case(
        "AdamOptimizerList",
        "f4,f2,copy,model",
        partial(_model, grad=FLOAT16, copies=True),
        nbytes=_copied,
        outputs=COPIED,
    ),
    Case(
        "AdamOptimizerList",
        "f4,whole step,model",
        _model,
        peers={"torch unscale, clip, fused adamw": _torch_whole},
        nbytes=_whole,
        eager=True,
        outputs=STATE,
        run=_whole_step,
    ),
]
