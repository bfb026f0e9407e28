# SPDX-License-Identifier: MIT
"""Gradient bookkeeping at 64 Mi elements and over a transformer's parameters; PyTorch as peer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import SHORT, Case, over
from .parameters import normal, parameters
from .peers import on_tensors, torch

N = 2**26
TYPES = (FLOAT32, FLOAT16, BFLOAT16)
PAIRS = (
    (FLOAT32, FLOAT32), (FLOAT32, FLOAT16), (FLOAT16, FLOAT16), (FLOAT16, FLOAT32),
    (FLOAT32, BFLOAT16), (BFLOAT16, BFLOAT16), (BFLOAT16, FLOAT32),
)  # fmt: skip


def _sum_nbytes(old_sum: Any, value: Any) -> int:
    """Both read, the sum written in place."""
    return int(2 * old_sum.nbytes + value.nbytes)


def _accumulators(t: Any, value: Any) -> Iterator[Case]:
    def pair(rng: Any) -> tuple[Any, ...]:
        return normal(rng, (N,), t), normal(rng, (N,), value)

    def model(rng: Any) -> tuple[Any, ...]:
        return parameters(rng, t), parameters(rng, value)

    label, add = f"{SHORT[t]},{SHORT[value]}", {"torch add_": on_tensors(lambda x, y: x.add_(y))}
    for op in ("InPlaceAccumulator", "InPlaceAccumulatorV2"):
        yield Case(op, label, pair, peers=add, nbytes=_sum_nbytes)
    if FLOAT32 in (t, value):
        yield Case(
            "InPlaceAccumulatorList",
            f"{label},model",
            model,
            peers={"torch foreach_add_": on_tensors(lambda x, y: torch._foreach_add_(x, y))},
            nbytes=lambda sums, values: sum(map(_sum_nbytes, sums, values)),
            eager=True,
        )


def _scale_inputs(t: Any, of_model: bool = False) -> Any:
    return lambda rng: (
        cupy.full(1, 0.5, cupy.float32),
        parameters(rng, t) if of_model else [normal(rng, (N,), t)],
    )


def _torch_scale(to: str) -> Any:
    """Multiply by the scale, then cast; in one operator where the type stays."""

    def scale(s: Any, xs: list[Any]) -> Any:
        dtype = getattr(torch, to)
        if xs[0].dtype != dtype:
            return [(x * s.reshape(())).to(dtype) for x in xs]
        return torch._foreach_mul(xs, s.reshape(())) if len(xs) > 1 else xs[0] * s.reshape(())

    return on_tensors(scale)


CASES = [
    *(case for pair in PAIRS for case in _accumulators(*pair)),
    *(
        case
        for y in TYPES
        for case in over(
            TYPES,
            "MixedPrecisionScale",
            _scale_inputs,
            f"->{SHORT[y]}",
            {"to": y},
            {"torch mul, to": _torch_scale(y.name)},
        )
    ),
    *over(
        (FLOAT32, FLOAT16),
        "MixedPrecisionScale",
        lambda t: _scale_inputs(t, of_model=True),
        "->f2,model",
        {"to": FLOAT16},
        {"torch": _torch_scale("float16")},
        eager=True,
    ),
    *over(
        (FLOAT32, FLOAT16),
        "ZeroGradient",
        lambda t: lambda rng: (normal(rng, (N,), t), cupy.ones(1, cupy.float32)),
        peers={"torch zero_": on_tensors(lambda x, _: x.zero_())},
        nbytes=lambda gradient, _: int(gradient.nbytes),
    ),
]
