# SPDX-License-Identifier: MIT
"""Sparse codes at 64 Mi elements, half of them zero; bytes are those of the code, not its room."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import cupy
import numpy as np

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOATS, UINT8, dtype_name
from cupy_training_ops.families.gist_sparse.operators import OPS

from . import Case

N = 2**26
SHORT = {"float32": "f4", "float16": "f2", "float64": "f8", "bfloat16": "bf2", "uint8": "u1"}
# Shares of zeros beside the half: a network's late layers, and what is kept as it is.
SHARES = {"90%": 0.9, "none": 0.0}


def _numbers(dtype: Any, zeros: float, rng: Any) -> Any:
    values = rng.standard_normal(N, dtype=cupy.float32) * 8
    values[rng.random(N, dtype=cupy.float32) < zeros] = 0
    if dtype == UINT8:
        return (values != 0).astype(dtype)
    return values.astype(dtype)


def _inputs(name: str, dtype: Any, zeros: float, rng: Any) -> tuple[Any, ...]:
    """Numbers, or for a decoder their code."""
    x = _numbers(dtype, zeros, rng)
    if "Encoder" in name:
        return (x,)
    code = get_op(name.replace("Decoder", "Encoder"))()(x)
    return (code[: _length(code)].copy(),)


def _length(code: Any) -> int:
    return int(code[:8].get().view(np.int64)[0])


def _nbytes(name: str, dtype: Any, *inputs: Any) -> int:
    """An array and its code, each moved once."""
    if "Encoder" in name:
        return int(inputs[0].nbytes) + _length(get_op(name)()(inputs[0]))
    return int(inputs[0].nbytes) + N * dtype.itemsize


def _case(name: str, dtype: Any, zeros: float, label: str) -> Case:
    return Case(
        name,
        label,
        partial(_inputs, name, dtype, zeros),
        {} if "Encoder" in name else {"to": dtype, "shape": (N,)},
        nbytes=partial(_nbytes, name, dtype),
    )


def _kept(dtype: Any) -> Case:
    """What keeps signs."""
    case = _case("GistSparseMsfp15Encoder", dtype, 0.5, f"{SHORT[dtype_name(dtype)]},signs")
    return replace(case, attributes={"keep_sign": True})


def _cases(name: str) -> list[Case]:
    dtypes = (*FLOATS, UINT8) if name in ("GistSparseEncoder", "GistSparseDecoder") else FLOATS
    half = [_case(name, dtype, 0.5, SHORT[dtype_name(dtype)]) for dtype in dtypes]
    others = [_case(name, FLOATS[0], zeros, f"f4,{label}") for label, zeros in SHARES.items()]
    return half + others


CASES = [case for name in OPS for case in _cases(name)]
CASES += [_kept(dtype) for dtype in FLOATS]
