# SPDX-License-Identifier: MIT
"""Losses of language models and of images, with and without log-probabilities; PyTorch as peer."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, as_torch, liger
from .parameters import normal

SHORT = {FLOAT32: "f4", FLOAT16: "f2", BFLOAT16: "bf2"}
ROWS, CLASSES, VOCABULARY = 8192, 32_768, 131_072
IMAGES = (16, 64, 128, 128)
IGNORED = 3
MEAN, NONE = 1, -100  # as PyTorch writes them: the reduction, and that no label is ignored

Inputs = tuple[Any, ...]


def _labels(rng: Any, n_classes: int, shape: tuple[int, ...]) -> Any:
    """See `_indices` of the gather cases: a generator's kernels were seen to overlap others'."""
    cupy.cuda.Device().synchronize()
    labels = rng.integers(0, n_classes, shape, dtype=cupy.int64)
    cupy.cuda.Device().synchronize()
    return labels


def _scores(rng: Any, n_classes: int, dtype: Any) -> Inputs:
    return normal(rng, (ROWS, n_classes), dtype), _labels(rng, n_classes, (ROWS,))


def _images(rng: Any) -> Inputs:
    labels = _labels(rng, IMAGES[1], (IMAGES[0], *IMAGES[2:]))
    weights = cupy.abs(normal(rng, IMAGES[1:2], FLOAT32))
    return normal(rng, IMAGES, FLOAT32), labels, weights, IGNORED


def _log_prob(rng: Any, dtype: Any) -> Inputs:
    """Log-probabilities near those of equal classes; dY is 1."""
    log_prob, labels = normal(rng, (ROWS, CLASSES), dtype), _labels(rng, CLASSES, (ROWS,))
    log_prob -= log_prob.dtype.type(10.4)
    return cupy.ones((), dtype), log_prob, labels


# ---- peers: functions of tensors, so that they compile to one graph ------------------------------


def _torch_loss(
    scores: Any, labels: Any, weights: Any = None, ignore: int = NONE, out: str = ""
) -> Any:
    """Loss and log-probabilities."""
    import torch

    x, y, w = as_torch(scores), as_torch(labels), None if weights is None else as_torch(weights)
    t = getattr(torch, out) if out else x.dtype

    def loss() -> Any:
        log_prob = torch.log_softmax(x, 1, dtype=t)
        of_labels = torch.nn.functional.nll_loss(log_prob, y, w, ignore_index=ignore)
        return of_labels, log_prob

    return loss


def _torch_alone(scores: Any, labels: Any) -> Any:
    import torch

    x, y = as_torch(scores), as_torch(labels)
    return lambda: torch.nn.functional.cross_entropy(x, y)


def _torch_gradient(dy: Any, log_prob: Any, labels: Any) -> Any:
    """What autograd calls, in turn."""
    import torch

    slope, x, y = as_torch(dy), as_torch(log_prob), as_torch(labels)
    count = torch.full((), float(ROWS), dtype=x.dtype, device=x.device)

    def gradient() -> Any:
        of_x = torch.ops.aten.nll_loss_backward(slope, x, y, None, MEAN, NONE, count)
        return torch._log_softmax_backward_data(of_x, x, 1, x.dtype)

    return gradient


def _torch_both(scores: Any, labels: Any) -> Any:
    """Forward and backward."""
    import torch

    x, y = as_torch(scores), as_torch(labels)
    one = torch.ones((), dtype=x.dtype, device=x.device)

    def both() -> Any:
        log_prob = torch.log_softmax(x, 1)
        loss, count = torch.ops.aten.nll_loss_forward(log_prob, y, None, MEAN, NONE)
        of_x = torch.ops.aten.nll_loss_backward(one, log_prob, y, None, MEAN, NONE, count)
        return loss, torch._log_softmax_backward_data(of_x, log_prob, 1, x.dtype)

    return both


def _over_scores(op: Any, scores: Any, labels: Any) -> Any:
    """The call that leaves the gradient where the scores were."""
    loss = cupy.empty((), scores.dtype)
    return lambda: op(scores, labels, out=(loss, scores))


def _read_and_written(scores: Any, *_inputs: Any) -> int:
    """The scores once each way: the second reading is from the cache."""
    return int(2 * scores.nbytes)


LOSS, GRADIENT = "SoftmaxCrossEntropyLossInternal", "SoftmaxCrossEntropyLossInternalGrad"
TYPES = ((FLOAT32, ""), (FLOAT16, ""), (FLOAT16, "float32"))

CASES = [
    *(
        Case(
            LOSS,
            f"{SHORT[t]}{',to f4' if out else ''}",
            partial(_scores, n_classes=CLASSES, dtype=t),
            {"output_type": out} if out else {},
            {"torch": partial(_torch_loss, out=out)},
        )
        for t, out in TYPES
    ),
    *(
        Case(op, SHORT[t], partial(_log_prob, dtype=t), {}, {"torch": _torch_gradient})
        for op in ("SoftmaxCrossEntropyLossGrad", GRADIENT)
        for t in (FLOAT32, FLOAT16)
    ),
    *(
        Case(
            LOSS,
            f"{SHORT[t]},loss alone",
            partial(_scores, n_classes=VOCABULARY, dtype=t),
            peers={"torch": _torch_alone},
            outputs=("output",),
        )
        for t in (FLOAT16, BFLOAT16)
    ),
    *(
        Case(
            "CrossEntropyLossAndGrad",
            f"{SHORT[t]},over its scores{f',{n}' if n != VOCABULARY else ''}",
            partial(_scores, n_classes=n, dtype=t),
            peers={"torch": _torch_both, "Liger": liger.cross_entropy},
            nbytes=_read_and_written,
            run=_over_scores,
        )
        for t, n in ((BFLOAT16, VOCABULARY), (BFLOAT16, 32_000), (FLOAT32, 32_000))
    ),
    Case(LOSS, "f4,weights,ignore,4d", _images, {}, {"torch": _torch_loss}),
]
