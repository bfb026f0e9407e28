# SPDX-License-Identifier: MIT
"""FP10, 4-bit indices and scaled 8-bit floats at 64 Mi elements.

No other library has these codecs; PyTorch's cast to FP8 without a scale stands beside those with.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cupy
import numpy as np

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOATS, dtype_name
from cupy_training_ops.families.gist_narrow.operators import OPS

from . import Case, as_torch

N = 2**26
SHORT = {"float32": "f4", "float16": "f2", "float64": "f8", "bfloat16": "bf2"}
SHORT |= {"uint8": "u1", "int16": "i2", "int32": "i4", "int64": "i8"}
INDICES = tuple(map(np.dtype, ("u1", "i2", "i4", "i8")))  # one of each size


def _numbers(name: str, dtype: Any, rng: Any) -> Any:
    if "Index4" in name:
        return rng.integers(0, 16, N, dtype=cupy.uint8).astype(dtype)
    return rng.standard_normal(N, dtype=cupy.float32).astype(dtype)


def _inputs(name: str, dtype: Any, rng: Any) -> tuple[Any, ...]:
    """Numbers, or for a decoder the codes of some."""
    x = _numbers(name, dtype, rng)
    return (x,) if "Encoder" in name else (get_op(name.replace("Decoder", "Encoder"))()(x),)


def _torch_fp8(x: Any, to: str) -> Any:
    import torch

    tensor = as_torch(x)
    out = torch.empty_like(tensor, dtype=getattr(torch, to))
    return lambda: out.copy_(tensor)


def _peers(name: str) -> dict[str, Any]:
    return {
        "GistBlockE4m3Encoder": {
            "torch to e4m3, no scale": partial(_torch_fp8, to="float8_e4m3fn")
        },
        "GistBlockE5m2Encoder": {"torch to e5m2, no scale": partial(_torch_fp8, to="float8_e5m2")},
    }.get(name, {})


def _cases(name: str) -> list[Case]:
    return [
        Case(
            name,
            SHORT[dtype_name(dtype)],
            partial(_inputs, name, dtype),
            {} if "Encoder" in name else {"to": dtype, "shape": (N,)},
            _peers(name),
        )
        for dtype in (INDICES if "Index4" in name else FLOATS)
    ]


CASES = [case for name in OPS for case in _cases(name)]
