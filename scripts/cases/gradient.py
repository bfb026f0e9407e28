# SPDX-License-Identifier: MIT
"""Gradient bookkeeping at 64 Mi elements and over a transformer's parameters; PyTorch as peer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import cupy

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32

from . import Case, as_torch
from .parameters import normal, parameters

N = 2**26
SHORT = {FLOAT32: "f4", FLOAT16: "f2", BFLOAT16: "bf2"}
PAIRS = (
    (FLOAT32, FLOAT32), (FLOAT32, FLOAT16), (FLOAT16, FLOAT16), (FLOAT16, FLOAT32),
    (FLOAT32, BFLOAT16), (BFLOAT16, BFLOAT16), (BFLOAT16, FLOAT32),
)  # fmt: skip


def _pair(rng: Any, t: Any, value: Any) -> tuple[Any, ...]:
    return normal(rng, (N,), t), normal(rng, (N,), value)


def _model_pair(rng: Any, t: Any, value: Any) -> tuple[Any, ...]:
    return parameters(rng, t), parameters(rng, value)


def _gradient(rng: Any, t: Any) -> tuple[Any, ...]:
    return normal(rng, (N,), t), cupy.ones(1, cupy.float32)


def _scaled(rng: Any, t: Any) -> tuple[Any, ...]:
    return cupy.full(1, 0.5, cupy.float32), [normal(rng, (N,), t)]


def _model_scaled(rng: Any, t: Any) -> tuple[Any, ...]:
    return cupy.full(1, 0.5, cupy.float32), parameters(rng, t)


def _moved(old_sum: Any, value: Any) -> int:
    """Both read, the sum written in place."""
    return int(2 * old_sum.nbytes + value.nbytes)


def _model_moved(old_sums: list[Any], values: list[Any]) -> int:
    return sum(map(_moved, old_sums, values))


def _written(gradient: Any, _signal: Any) -> int:
    return int(gradient.nbytes)


def _torch_add(old_sum: Any, value: Any) -> Any:
    sum_, added = as_torch(old_sum), as_torch(value)
    return lambda: sum_.add_(added)


def _torch_foreach_add(old_sums: list[Any], values: list[Any]) -> Any:
    import torch

    sums, added = ([as_torch(x) for x in xs] for xs in (old_sums, values))
    return lambda: torch._foreach_add_(sums, added)


def _torch_zero(gradient: Any, _signal: Any) -> Any:
    tensor = as_torch(gradient)
    return lambda: tensor.zero_()


def _torch_scale(s: Any, xs: list[Any], to: str) -> Any:
    """Multiply by the scale, then cast; in one operator where the type stays."""
    import torch

    scale, tensors, dtype = as_torch(s), [as_torch(x) for x in xs], getattr(torch, to)
    if tensors[0].dtype == dtype and len(tensors) > 1:
        return lambda: torch._foreach_mul(tensors, scale.reshape(()))
    if tensors[0].dtype == dtype:
        return lambda: tensors[0] * scale.reshape(())
    return lambda: [(x * scale.reshape(())).to(dtype) for x in tensors]


def _accumulators() -> Iterator[Case]:
    for t, value in PAIRS:
        label = f"{SHORT[t]},{SHORT[value]}"
        pair, model = (partial(maker, t=t, value=value) for maker in (_pair, _model_pair))
        add, foreach = {"torch add_": _torch_add}, {"torch foreach_add_": _torch_foreach_add}
        yield Case("InPlaceAccumulator", label, pair, peers=add, nbytes=_moved)
        yield Case("InPlaceAccumulatorV2", label, pair, peers=add, nbytes=_moved)
        if FLOAT32 in (t, value):
            listed = f"{label},model"
            yield Case("InPlaceAccumulatorList", listed, model, {}, foreach, _model_moved, True)


def _scales() -> Iterator[Case]:
    for x in SHORT:
        for y in SHORT:
            label, attributes = f"{SHORT[x]}->{SHORT[y]}", {"to": y}
            peers = {"torch mul, to": partial(_torch_scale, to=y.name)}
            yield Case("MixedPrecisionScale", label, partial(_scaled, t=x), attributes, peers)
    for x, y in ((FLOAT32, FLOAT16), (FLOAT16, FLOAT16)):
        label, peers = f"{SHORT[x]}->{SHORT[y]},model", {"torch": partial(_torch_scale, to=y.name)}
        make = partial(_model_scaled, t=x)
        yield Case("MixedPrecisionScale", label, make, {"to": y}, peers, eager=True)


def _zeros() -> Iterator[Case]:
    peers = {"torch zero_": _torch_zero}
    for t in (FLOAT32, FLOAT16):
        make = partial(_gradient, t=t)
        yield Case("ZeroGradient", SHORT[t], make, peers=peers, nbytes=_written)


CASES = [
    *_accumulators(),
    *_scales(),
    *_zeros(),
]
