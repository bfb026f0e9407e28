# SPDX-License-Identifier: MIT
"""Losses of language models and of images, with and without log-probabilities; PyTorch as peer."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import SHORT, Case, liger, over
from .parameters import integers, normal
from .peers import on_tensors, torch

ROWS, CLASSES, VOCABULARY = 8192, 32_768, 131_072
IMAGES = (16, 64, 128, 128)
IGNORED = 3
MEAN, NONE = 1, -100  # as PyTorch writes them: the reduction, and that no label is ignored


def _scores(dtype: Any, n_classes: int) -> Any:
    return lambda rng: (
        normal(rng, (ROWS, n_classes), dtype),
        integers(rng, n_classes, (ROWS,)),
    )


def _images(rng: Any) -> tuple[Any, ...]:
    labels = integers(rng, IMAGES[1], (IMAGES[0], *IMAGES[2:]))
    weights = cupy.abs(normal(rng, IMAGES[1:2], FLOAT32))
    return normal(rng, IMAGES, FLOAT32), labels, weights, IGNORED


def _log_prob(rng: Any, dtype: Any) -> tuple[Any, ...]:
    """Log-probabilities near those of equal classes; dY is 1."""
    log_prob, labels = _scores(dtype, CLASSES)(rng)
    log_prob -= log_prob.dtype.type(10.4)
    return cupy.ones((), dtype), log_prob, labels


# ---- peers: functions of tensors, so that they compile to one graph ------------------------------


def _torch_loss(x: Any, y: Any, w: Any = None, ignore: int = NONE, out: str = "") -> Any:
    """Loss and log-probabilities."""
    log_prob = torch.log_softmax(x, 1, dtype=getattr(torch, out) if out else x.dtype)
    return torch.nn.functional.nll_loss(log_prob, y, w, ignore_index=ignore), log_prob


def _torch_gradient(slope: Any, x: Any, y: Any, count: Any) -> Any:
    """Gradient as autograd makes it, by two calls."""
    of_x = torch.ops.aten.nll_loss_backward(slope, x, y, None, MEAN, NONE, count)
    return torch._log_softmax_backward_data(of_x, x, 1, x.dtype)


def _torch_both(x: Any, y: Any, one: Any) -> Any:
    """Forward and backward."""
    log_prob = torch.log_softmax(x, 1)
    loss, count = torch.ops.aten.nll_loss_forward(log_prob, y, None, MEAN, NONE)
    return loss, _torch_gradient(one, log_prob, y, count)


def _over_scores(op: Any, scores: Any, labels: Any) -> Any:
    """The call that leaves the gradient where the scores were."""
    loss = cupy.empty((), scores.dtype)
    return lambda: op(scores, labels, out=(loss, scores))


def _probabilities(dtype: Any) -> Any:
    def made(rng: Any) -> tuple[Any, ...]:
        scores, target = (normal(rng, (ROWS, CLASSES), dtype) for _ in range(2))
        target = cupy.exp(target.astype(FLOAT32))
        target /= target.sum(1, keepdims=True)
        return scores, target.astype(dtype)

    return made


def _torch_dense(x: Any, t: Any, label_smoothing: float = 0.0) -> Any:
    """Loss and its gradient by PyTorch's formula, as autograd makes it."""
    log_prob = torch.log_softmax(x, 1)
    smoothed = (1 - label_smoothing) * t + label_smoothing / x.shape[1]
    loss = -(log_prob * smoothed).sum() / x.shape[0]
    return loss, torch._log_softmax_backward_data(-smoothed / x.shape[0], log_prob, 1, x.dtype)


def _over_dense_scores(op: Any, scores: Any, target: Any) -> Any:
    """The call that leaves the gradient where the scores were."""
    loss = cupy.empty((), scores.dtype)
    outputs = ("output", "d_scores")
    return lambda: op(scores, target, out=(loss, scores, None), outputs=outputs)


LOSS, GRADIENT = "SoftmaxCrossEntropyLossInternal", "SoftmaxCrossEntropyLossInternalGrad"
ALONE = on_tensors(lambda x, y: torch.nn.functional.cross_entropy(x, y))
WHOLE = on_tensors(_torch_gradient, lambda slope, *_: torch.full_like(slope, float(ROWS)))
BOTH = on_tensors(_torch_both, lambda x, _: torch.ones((), dtype=x.dtype, device=x.device))
FORWARD = partial(_scores, n_classes=CLASSES)

CASES = [
    *over((FLOAT32, FLOAT16), LOSS, FORWARD, peers={"torch": on_tensors(_torch_loss)}),
    *over(
        (FLOAT16,),
        LOSS,
        FORWARD,
        ",to f4",
        {"output_type": "float32"},
        {"torch": on_tensors(partial(_torch_loss, out="float32"))},
    ),
    *(
        case
        for op in ("SoftmaxCrossEntropyLossGrad", GRADIENT)
        for case in over(
            (FLOAT32, FLOAT16), op, lambda t: partial(_log_prob, dtype=t), peers={"torch": WHOLE}
        )
    ),
    *over(
        (FLOAT16, BFLOAT16),
        LOSS,
        partial(_scores, n_classes=VOCABULARY),
        ",loss alone",
        peers={"torch": ALONE},
        outputs=("output",),
    ),
    *(
        Case(
            "CrossEntropyLossAndGrad",
            f"{SHORT[t]},over its scores{f',{n}' if n != VOCABULARY else ''}",
            _scores(t, n),
            peers={"torch": BOTH, "Liger": liger.cross_entropy},
            nbytes=lambda scores, _: int(2 * scores.nbytes),  # read again from the cache
            run=_over_scores,
        )
        for t, n in ((BFLOAT16, VOCABULARY), (BFLOAT16, 32_000), (FLOAT32, 32_000))
    ),
    *(
        Case(
            "DenseCrossEntropyLossAndGrad",
            f"{SHORT[t]},over its scores{extra}",
            _probabilities(t),
            attributes,
            peers={"torch": on_tensors(partial(_torch_dense, **attributes))},
            nbytes=lambda scores, target, *_: int(2 * scores.nbytes + target.nbytes),
            run=_over_dense_scores,
        )
        for t in (BFLOAT16, FLOAT32)
        for extra, attributes in (("", {}), (",smoothed", {"label_smoothing": 0.1}))
    ),
    Case(
        "MeasuredCrossEntropyLossAndGrad",
        "f2b,32,000 classes",
        _scores(BFLOAT16, 32_000),
        peers={"torch": BOTH},
        nbytes=lambda scores, _: int(2 * scores.nbytes),
    ),
    Case(LOSS, "f4,weights,ignore,4d", _images, {}, {"torch": on_tensors(_torch_loss)}),
]
