# SPDX-License-Identifier: MIT
"""Optimizers over a transformer's parameters, norms of gradients and clipping, and the whole step
of mixed-precision training.

PyTorch's foreach operators and its fused AdamW are the peers; of a whole step GradScaler's check
and unscaling, the clipping of clip_grad_norm_ and the fused step, one after the other. LAMB has
none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cupy

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, over
from .parameters import normals, parameters
from .peers import finite_check, norm, on_tensors, ready, torch

N = 2**24
RATE, SCALE, MOST = 1e-3, 1024.0, 1.0  # of learning, of the loss, and of the norm
ADAM = ("new_T", "new_moment_1", "new_moment_2", "new_weights")
LAMB = ("new_step", "new_weights", "new_moment_1", "new_moment_2")
COPIES = "new_mixed_precision_weights"


def _number(value: float) -> Any:
    return cupy.full(1, value, cupy.float32)


def _one(rng: Any) -> tuple[Any, ...]:
    """Weights, gradients and moments of one array."""
    w, g, m, v = normals(FLOAT32, *[(N,)] * 4)(rng)
    return w, g, m, cupy.abs(v)


def _mixed_one(rng: Any) -> tuple[Any, ...]:
    """With all that AdamOptimizer takes, as in mixed-precision training."""
    w, *others = _one(rng)
    numbers = w.astype(FLOAT16), _number(SCALE), _number(2 * SCALE)
    return _number(RATE), 3, w, *others, *numbers


def _model(rng: Any, grad: Any = FLOAT32, copies: bool = False) -> tuple[Any, ...]:
    """Cases of all parameters, in lists."""
    weights, gradients = parameters(rng, FLOAT32), parameters(rng, grad)
    moments = ([cupy.zeros_like(w) for w in weights] for _ in range(2))
    return weights, gradients, *moments, *([[w.astype(FLOAT16) for w in weights]] * copies)


def _adam_model(rng: Any, **kind: Any) -> tuple[Any, ...]:
    return RATE, 3, *_model(rng, **kind)


def _lamb_model(rng: Any, **kind: Any) -> tuple[Any, ...]:
    return None, None, None, RATE, 3, *_model(rng, **kind)


def _gradients(dtype: Any) -> Any:
    return lambda rng: (parameters(rng, dtype),)


# ---- bytes ---------------------------------------------------------------------------------------


def _copy_nbytes(_r: Any, _t: Any, w: Any, g: Any, *rest: Any) -> int:
    """Weights and moments read and written, gradients read, copies written."""
    return sum(24 * x.size for x in w) + sum(x.nbytes for x in (*g, *rest[-1]))


def _copy_nbytes_one(_r: Any, _t: Any, w: Any, g: Any, *_: Any) -> int:
    return 24 * w.size + 2 * g.nbytes + 2 * w.size


def _of_each(nbytes: int, place: int) -> Callable[..., int]:
    """So many for each element of the list at this place."""
    return lambda *inputs: nbytes * sum(w.size for w in inputs[place])


# ---- a whole step --------------------------------------------------------------------------------


def _whole_step(op: Any, r: Any, t: Any, *lists: Any) -> Callable[[], Any]:
    """Norm and check in one pass; unscaling, clipping and update in another."""
    norm_of = get_op("GradientNorm")()
    norm = norm_of(lists[1])
    scale, step = _number(SCALE), cupy.full(1, t, cupy.int64)

    def run() -> None:
        size, finite = norm_of(lists[1], out=norm)
        op(r, step, *lists, None, scale, size, finite, MOST, outputs=ADAM)

    return run


def _fused_adam(_r: Any, t: Any, *lists: Any, found_inf: Any = None) -> Callable[[], Any]:
    """PyTorch's step of lists of tensors, or of tensors."""
    weights, gradients, m, v = (x if isinstance(x, list) else [x] for x in lists[:4])
    steps = [torch.full((), float(t), device="cuda") for _ in weights]
    numbers = {"lr": RATE, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8}
    flags = {"amsgrad": False, "maximize": False, "found_inf": found_inf}
    step = partial(torch._fused_adamw_, weights, gradients, m, v, [], steps)
    return lambda: step(**numbers, **flags)


def _clip(gradients: list[Any]) -> None:
    """clip_grad_norm_, whose wait for the device it has not."""
    torch._foreach_mul_(gradients, (MOST / (norm(gradients) + 1e-6)).clamp(max=1.0))


def _torch_whole(r: Any, t: Any, *lists: Any) -> Callable[[], Any]:
    found_inf, check = finite_check(lists[1], 1 / SCALE)
    step = _fused_adam(r, t, *lists, found_inf=found_inf)

    def run() -> None:
        check()
        _clip(lists[1])
        step()

    return run


def _norm_and_check(gradients: list[Any]) -> Callable[[], Any]:
    """The norm, and the check."""
    _, check = finite_check(gradients)
    return lambda: (check(), norm(gradients))


FUSED = {"torch fused adamw": ready(_fused_adam)}
NORM, CLIP = ready(_norm_and_check), on_tensors(_clip)
ADD = on_tensors(lambda _, w, g: w.add_(g, alpha=-RATE))
FOREACH = on_tensors(lambda _, ws, gs: torch._foreach_add_(ws, gs, alpha=-RATE))
CASES = [
    Case(
        "SGDOptimizer",
        "f4",
        lambda rng: (_number(RATE), *normals(FLOAT32, (N,), (N,))(rng)),
        peers={"torch add_": ADD},
        outputs=("NW",),
    ),
    Case(
        "SGDOptimizerV2",
        "f4,model",
        lambda rng: (RATE, *_model(rng)[:2]),
        peers={"torch foreach_add_": FOREACH},
        eager=True,
    ),
    Case("SGDOptimizerV2", "f4,f2,model", lambda rng: (RATE, *_model(rng, FLOAT16)[:2])),
    *over(
        (FLOAT32, FLOAT16, BFLOAT16),
        "GradientNorm",
        _gradients,
        ",model",
        peers={"torch amp check, norm": NORM},
        eager=True,
    ),
    *over(
        (FLOAT32, FLOAT16),
        "InplaceClipGradNorm",
        _gradients,
        ",model",
        {"max_norm": MOST},
        {"torch clip": CLIP},
        nbytes=lambda gradients: 3 * sum(g.nbytes for g in gradients),  # read twice, written
        eager=True,
    ),
    Case(
        "AdamOptimizer",
        "f4",
        lambda rng: (_number(RATE), 3, *_one(rng)),
        peers=FUSED,
        outputs=ADAM,
    ),
    Case(
        "AdamOptimizer",
        "f4,mode1,clip,copy",
        _mixed_one,
        {"weight_decay_mode": 1, "lambda_": 0.01},
        FUSED,
        _copy_nbytes_one,
    ),
    Case("AdamWOptimizer", "f4,model", _adam_model, peers=FUSED, eager=True),
    Case("AdamOptimizerList", "f4,model", _adam_model, peers=FUSED, eager=True, outputs=ADAM),
    Case(
        "AdamOptimizerList",
        "f4,f2,copy,model",
        partial(_adam_model, grad=FLOAT16, copies=True),
        nbytes=_copy_nbytes,
        outputs=(*ADAM, COPIES),
    ),
    Case(
        "AdamOptimizerList",
        "f4,whole step,model",
        _adam_model,
        peers={"torch unscale, clip, fused adamw": ready(_torch_whole)},
        nbytes=_of_each(32, 2),  # 28 of the update, and the gradients read for their norm
        eager=True,
        outputs=ADAM,
        run=_whole_step,
    ),
    # Directions go through memory: 28 bytes for these and moments, 12 for the weights; in half
    # precision two less for the gradient and each way of the direction, two more for the copy.
    Case(
        "LambOptimizer",
        "f4,one",
        lambda rng: (
            True, _number(1), _number(0.5), RATE, 3, *([array] for array in _one(rng)),
        ),
        nbytes=_of_each(40, 5),
        outputs=LAMB,
    ),
    Case("LambOptimizer", "f4,model", _lamb_model, nbytes=_of_each(40, 5), outputs=LAMB),
    Case(
        "LambOptimizer",
        "f4,f2,copy,model",
        partial(_lamb_model, grad=FLOAT16, copies=True),
        nbytes=_of_each(36, 5),
        outputs=(*LAMB, COPIES),
    ),
]  # fmt: skip
