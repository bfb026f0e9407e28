# SPDX-License-Identifier: MIT
"""Scaling, division, quantisation and finiteness at 64 Mi elements; PyTorch as peer."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from cupy_training_ops.dtypes import FLOAT32, FLOATS

from . import SHORT, Case
from .parameters import normal, normals
from .peers import like, on_tensors, torch

ROWS, COLUMNS = 65_536, 1024
N = ROWS * COLUMNS
SCALES = {"scale_0": 0.5, "scale_1": 2.0}
# label of a broadcast B, its shape and that of A
DIVISIONS: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("", (ROWS, COLUMNS), (ROWS, COLUMNS)),
    (",row", (ROWS, COLUMNS), (COLUMNS,)),
    (",column", (ROWS, COLUMNS), (ROWS, 1)),
    (",scalar", (ROWS, COLUMNS), ()),
    (",channels", (256, 64, 64, 64), (64, 1, 1)),
)


def _div_grad(dy: Any, a: Any, b: Any) -> Any:
    da = dy / b
    return da, (-da * (a / b)).sum_to_size(b.shape)


def _fake_quant(x: Any, _scale: float, _zero: float, numbers: Any) -> Any:
    quantise = torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    return quantise(x, *numbers, 0, 255)


def _quant_numbers(_x: Any, scale: float, zero_point: float) -> Any:
    """Scale, zero point, and that it is on."""
    s, z = torch.tensor(scale, device="cuda"), torch.tensor(int(zero_point), device="cuda").int()
    return s, z, torch.ones((), device="cuda", dtype=torch.int64)


SCALE = on_tensors(lambda x, scale, out: torch.mul(x, scale, out=out), like)
BATCH_SCALE = on_tensors(
    lambda x, outs: [
        torch.mul(x, scale, out=out) for scale, out in zip(SCALES.values(), outs, strict=True)
    ],
    lambda x: [torch.empty_like(x) for _ in SCALES],
)
SUM = on_tensors(lambda x, y: (x * SCALES["scale_0"]).add_(y, alpha=SCALES["scale_1"]))


def _cases(dtype: Any) -> list[Case]:
    t = SHORT[dtype]

    def inputs(count: int, *then: Any) -> Any:
        return normals(dtype, *[(N,)] * count, then=then)

    def by_factor(rng: Any) -> tuple[Any, ...]:
        return normal(rng, (N,), dtype), cupy.full(1, -1, cupy.float32)

    def masked(rng: Any) -> tuple[Any, ...]:
        return normal(rng, (N,), dtype), rng.random(N, dtype=cupy.float32) < 0.8

    quant = {"torch": on_tensors(_fake_quant, _quant_numbers)} if dtype == FLOAT32 else {}
    product, finite = on_tensors(lambda x, y: x * y), on_tensors(lambda x: torch.isfinite(x))
    return [
        Case("Scale", t, inputs(1, 2.0), peers={"torch": SCALE}),
        Case("Scale", f"{t},down", inputs(1, 3.0), {"scale_down": True}),
        Case("ScaleInPlace", t, by_factor, {}, {"torch": on_tensors(lambda x, s: x.mul_(s))}),
        Case("BatchScale", t, inputs(1), SCALES, {"torch": BATCH_SCALE}),
        Case("ScaledSum", t, inputs(2), SCALES, {"torch": SUM}),
        Case("FakeQuant", t, inputs(1, 0.075, 128.0), peers=quant),
        Case("FakeQuantGrad", t, masked, peers={"torch": product}),
        Case("IsFinite", t, inputs(1), peers={"torch": finite}),
        *(
            Case(
                "DivGrad",
                t + label,
                normals(dtype, np.broadcast_shapes(a, b), a, b),
                peers={"torch": on_tensors(_div_grad)},
            )
            for label, a, b in DIVISIONS
        ),
    ]


CASES = [case for dtype in FLOATS for case in _cases(dtype)]
