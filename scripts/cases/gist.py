# SPDX-License-Identifier: MIT
"""Gist codecs at 64 Mi elements; PyTorch's casts and CuPy's packbits as peers."""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy
import numpy as np

from cupy_training_ops.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, FLOATS, to_dtype
from cupy_training_ops.families.gist.operators import OPS

from . import Case, as_torch
from .activation import backward

N = 2**26
SHORT = {FLOAT32: "f4", FLOAT16: "f2", FLOAT64: "f8", BFLOAT16: "bf2", BOOL: "bool"}


def _normal(rng: Any, dtype: Any) -> Any:
    values = rng.standard_normal(N, dtype=cupy.float32)
    return values > 0 if dtype == BOOL else values.astype(dtype)


def _codes(rng: Any, dtype: Any, n: int) -> Any:
    if dtype == BOOL:
        return rng.random(n, dtype=cupy.float32) < 0.5
    if dtype == FLOAT16:
        return rng.standard_normal(n, dtype=cupy.float32).astype(dtype)
    return rng.integers(0, 256, n, dtype=cupy.uint8)


def _torch_greater(x: Any) -> Any:
    import torch

    tensor = as_torch(x)
    out = torch.empty_like(tensor, dtype=torch.bool)
    return lambda: torch.gt(tensor, 0, out=out)


def _torch_cast(x: Any, to: str, view: str = "") -> Any:
    """A cast into an existing tensor, from codes seen as dtype `view`."""
    import torch

    tensor = as_torch(x)
    if view:
        tensor = tensor.view(getattr(torch, view))
    out = torch.empty_like(tensor, dtype=getattr(torch, to))
    return lambda: out.copy_(tensor)


def _cupy_packbits(x: Any) -> Any:
    return lambda: cupy.packbits(x if x.dtype == BOOL else x > 0)


def _cupy_unpackbits(x: Any, to: Any) -> Any:
    if to == BOOL:
        return lambda: cupy.unpackbits(x).view(BOOL)
    return lambda: cupy.unpackbits(x).astype(to)


def _peers(name: str, dtype: Any) -> dict[str, Any]:
    codec = name.removeprefix("Gist").removesuffix("Encoder").removesuffix("Decoder")
    t = "bool" if dtype == BOOL else dtype.name
    return {
        "BinarizeEncoder": {"torch >": _torch_greater},
        "BinarizeDecoder": {"torch copy": partial(_torch_cast, to=t)},
        "Pack1Encoder": {"cupy packbits": _cupy_packbits},
        "Pack1Decoder": {"cupy unpackbits": partial(_cupy_unpackbits, to=dtype)},
        "Pack8Encoder": {"torch to e5m2": partial(_torch_cast, to="float8_e5m2")},
        "Pack8Decoder": {"torch from e5m2": partial(_torch_cast, to=t, view="float8_e5m2")},
        "Pack16Encoder": {"torch half": partial(_torch_cast, to="float16")},
        "Pack16Decoder": {"torch from half": partial(_torch_cast, to=t)},
    }.get(codec + name[-7:], {})


def _cases(name: str) -> list[Case]:
    cases = []
    for dtype in OPS[name].types["T"]:
        if "Encoder" in name:
            make, attributes = partial(_inputs, _normal, dtype), {}
        else:
            code = to_dtype(OPS[name].inputs[0].type)
            n = N // 8 if "Pack1D" in name else N
            make, attributes = partial(_inputs, _codes, code, n=n), {"to": dtype}
        cases.append(Case(name, SHORT[dtype], make, attributes, _peers(name, dtype)))
    return cases


def _inputs(maker: Any, dtype: Any, rng: Any, **size: Any) -> tuple[Any, ...]:
    return (maker(rng, dtype, **size),)


def _gradient(dtype: Any, rng: Any) -> tuple[Any, ...]:
    return _normal(rng, dtype), _codes(rng, np.dtype(np.uint8), N // 8)


def _threshold(dy: Any, _: Any) -> Any:
    """The gradient from the activation itself, as PyTorch keeps it."""
    return backward("threshold_backward", dy, dy[::-1].copy(), threshold=0)


def _torch_relu(x: Any) -> Any:
    """Which keeps its result whole for the gradient, not its bits."""
    import torch

    tensor = as_torch(x)
    return lambda: torch.relu(tensor)


def _kept(dtype: Any) -> Case:
    """What keeps signs."""
    make, name = partial(_inputs, _normal, dtype), "GistPackMsfp15Encoder"
    return Case(name, f"{SHORT[dtype]},signs", make, {"keep_sign": True})


CODECS = [name for name in OPS if "Encoder" in name or "Decoder" in name]
CASES = [case for name in CODECS for case in _cases(name)]
CASES += [_kept(dtype) for dtype in FLOATS]
CASES += [
    Case(
        "ReluGradFromBits",
        SHORT[dtype],
        partial(_gradient, dtype),
        {},
        {"torch threshold": _threshold},
    )
    for dtype in FLOATS
]
CASES += [
    Case("ReluWithBits", SHORT[t], partial(_inputs, _normal, t), {}, {"torch relu": _torch_relu})
    for t in FLOATS
]
