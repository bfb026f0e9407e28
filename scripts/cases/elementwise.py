# SPDX-License-Identifier: MIT
"""Scaling, division, quantisation and finiteness at 64 Mi elements; PyTorch as peer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cupy
import numpy as np

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS

from . import Case, as_torch

ROWS, COLUMNS = 65_536, 1024
N = ROWS * COLUMNS
SHORT = {FLOAT32: "f4", FLOAT16: "f2", FLOAT64: "f8", BFLOAT16: "bf2"}
SCALES = {"scale_0": 0.5, "scale_1": 2.0}

# label of a broadcast B, its shape and that of A
DIVISIONS = (
    ("", (ROWS, COLUMNS), (ROWS, COLUMNS)),
    (",row", (ROWS, COLUMNS), (COLUMNS,)),
    (",column", (ROWS, COLUMNS), (ROWS, 1)),
    (",scalar", (ROWS, COLUMNS), ()),
    (",channels", (256, 64, 64, 64), (64, 1, 1)),
)


def _normal(rng: Any, dtype: Any, *shape: int) -> Any:
    return rng.standard_normal(shape, dtype=cupy.float32).astype(dtype)


def _arrays(rng: Any, dtype: Any, count: int, hosts: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    return (*(_normal(rng, dtype, N) for _ in range(count)), *hosts)


def _masked(rng: Any, dtype: Any) -> tuple[Any, ...]:
    return _normal(rng, dtype, N), rng.random(N, dtype=cupy.float32) < 0.8


def _by_factor(rng: Any, dtype: Any) -> tuple[Any, ...]:
    return _normal(rng, dtype, N), cupy.full(1, -1, cupy.float32)


def _division(rng: Any, dtype: Any, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Any, ...]:
    shapes = (np.broadcast_shapes(a, b), a, b)
    return tuple(_normal(rng, dtype, *shape) for shape in shapes)


def _torch_scale(x: Any, scale: float) -> Callable[[], Any]:
    import torch

    tensor = as_torch(x)
    out = torch.empty_like(tensor)
    return lambda: torch.mul(tensor, scale, out=out)


def _torch_mul_(x: Any, factor: Any) -> Callable[[], Any]:
    tensor, number = as_torch(x), as_torch(factor)
    return lambda: tensor.mul_(number)


def _torch_batch_scale(x: Any) -> Callable[[], Any]:
    import torch

    tensor = as_torch(x)
    outs = [torch.empty_like(tensor) for _ in SCALES]
    pairs = tuple(zip(SCALES.values(), outs, strict=True))
    return lambda: [torch.mul(tensor, scale, out=out) for scale, out in pairs]


def _torch_scaled_sum(x: Any, y: Any) -> Callable[[], Any]:
    a, b = as_torch(x), as_torch(y)
    return lambda: (a * SCALES["scale_0"]).add_(b, alpha=SCALES["scale_1"])


def _torch_div_grad(dy: Any, a: Any, b: Any) -> Callable[[], Any]:
    t_dy, t_a, t_b = map(as_torch, (dy, a, b))

    def gradient() -> Any:
        da = t_dy / t_b
        db = -da * (t_a / t_b)
        return da, db.sum_to_size(t_b.shape)

    return gradient


def _torch_fake_quant(x: Any, scale: float, zero_point: float) -> Callable[[], Any]:
    import torch

    tensor, number = as_torch(x), int(zero_point)
    s, z = torch.tensor(scale, device="cuda"), torch.tensor(number, device="cuda").int()
    on = torch.ones((), device="cuda", dtype=torch.int64)
    quantise = torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    return lambda: quantise(tensor, s, z, on, 0, 255)


def _torch_fake_quant_grad(dy: Any, mask: Any) -> Callable[[], Any]:
    import torch

    t_dy, t_mask = as_torch(dy), as_torch(mask.view("uint8")).view(torch.bool)
    return lambda: t_dy * t_mask


def _torch_is_finite(x: Any) -> Callable[[], Any]:
    import torch

    tensor = as_torch(x)
    return lambda: torch.isfinite(tensor)


def _cases(dtype: Any) -> list[Case]:
    t = SHORT[dtype]

    def inputs(count: int, *hosts: Any) -> Any:
        return partial(_arrays, dtype=dtype, count=count, hosts=hosts)

    quant = {"torch": _torch_fake_quant} if dtype == FLOAT32 else {}
    return [
        Case("Scale", t, inputs(1, 2.0), peers={"torch": _torch_scale}),
        Case("Scale", f"{t},down", inputs(1, 3.0), {"scale_down": True}),
        Case("ScaleInPlace", t, partial(_by_factor, dtype=dtype), peers={"torch": _torch_mul_}),
        Case("BatchScale", t, inputs(1), SCALES, {"torch": _torch_batch_scale}),
        Case("ScaledSum", t, inputs(2), SCALES, {"torch": _torch_scaled_sum}),
        Case("FakeQuant", t, inputs(1, 0.075, 128.0), peers=quant),
        Case(
            "FakeQuantGrad",
            t,
            partial(_masked, dtype=dtype),
            peers={"torch": _torch_fake_quant_grad},
        ),
        Case("IsFinite", t, inputs(1), peers={"torch": _torch_is_finite}),
        *(
            Case(
                "DivGrad",
                t + label,
                partial(_division, dtype=dtype, a=a, b=b),
                peers={"torch": _torch_div_grad},
            )
            for label, a, b in DIVISIONS
        ),
    ]


CASES = [case for dtype in FLOATS for case in _cases(dtype)]
