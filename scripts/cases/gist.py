# SPDX-License-Identifier: MIT
"""Codecs at 64 Mi elements; PyTorch's casts and CuPy's packbits as peers.

FP10, 4-bit indices and scaled 8-bit floats have no other library; PyTorch's cast to FP8 without a
scale stands beside those with. Of sparse codes, half of them zero, bytes are those of the code, not
its room; of the encoder that measures its error array and codes: the sample is read twice.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import cupy
import numpy as np

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import BOOL, FLOAT16, FLOAT32, FLOATS, UINT8, to_dtype
from cupy_training_ops.families.gist.operators import OPS
from cupy_training_ops.families.gist_narrow.operators import OPS as NARROW
from cupy_training_ops.families.gist_sparse.operators import OPS as SPARSE

from . import SHORT, Case, over
from .activation import backward
from .parameters import normal, normals
from .peers import cast, on_tensors, torch

N = 2**26


def _numbers(rng: Any, dtype: Any) -> Any:
    return normal(rng, (N,), FLOAT32) > 0 if dtype == BOOL else normal(rng, (N,), dtype)


def _codes(rng: Any, dtype: Any, n: int) -> Any:
    if dtype == BOOL:
        return rng.random(n, dtype=cupy.float32) < 0.5
    return normal(rng, (n,), dtype) if dtype == FLOAT16 else rng.integers(0, 256, n, cupy.uint8)


def _peers(name: str, dtype: Any) -> dict[str, Any]:
    t = "bool" if dtype == BOOL else dtype.name

    def packbits(x: Any) -> Any:
        return lambda: cupy.packbits(x if x.dtype == BOOL else x > 0)

    def unpackbits(x: Any) -> Any:
        if dtype == BOOL:
            return lambda: cupy.unpackbits(x).view(BOOL)
        return lambda: cupy.unpackbits(x).astype(dtype)

    greater = on_tensors(
        lambda x, out: torch.gt(x, 0, out=out), lambda x: torch.empty_like(x, dtype=torch.bool)
    )
    return {
        "GistBinarizeEncoder": {"torch >": greater},
        "GistBinarizeDecoder": {"torch copy": cast(t)},
        "GistPack1Encoder": {"cupy packbits": packbits},
        "GistPack1Decoder": {"cupy unpackbits": unpackbits},
        "GistPack8Encoder": {"torch to e5m2": cast("float8_e5m2")},
        "GistPack8Decoder": {"torch from e5m2": cast(t, view="float8_e5m2")},
        "GistPack16Encoder": {"torch half": cast("float16")},
        "GistPack16Decoder": {"torch from half": cast(t)},
        "GistBlockE4m3Encoder": {"torch to e4m3, no scale": cast("float8_e4m3fn")},
        "GistBlockE5m2Encoder": {"torch to e5m2, no scale": cast("float8_e5m2")},
    }.get(name, {})


def _plain(name: str) -> list[Case]:
    """A codec whose codes can be drawn."""
    cases = []
    for dtype in OPS[name].types["T"]:
        make, attributes = lambda rng, t=dtype: (_numbers(rng, t),), {}
        if "Decoder" in name:
            code, n = to_dtype(OPS[name].inputs[0].type), N // 8 if "Pack1D" in name else N
            make = lambda rng, t=code, n=n: (_codes(rng, t, n),)  # noqa: E731
            attributes = {"to": dtype}
        cases.append(Case(name, SHORT[dtype], make, attributes, _peers(name, dtype)))
    return cases


def _encode(name: str, x: Any) -> Any:
    return get_op(name.replace("Decoder", "Encoder"))()(x)


def _decoder_attributes(name: str, dtype: Any) -> dict[str, Any]:
    """Attributes: a code alone says neither."""
    return {} if "Encoder" in name else {"to": dtype, "shape": (N,)}


# ---- narrow --------------------------------------------------------------------------------------


def _narrow_inputs(name: str, dtype: Any, rng: Any) -> tuple[Any, ...]:
    """Numbers, or for a decoder the codes of some."""
    if "Index4" in name:
        x = rng.integers(0, 16, N, dtype=cupy.uint8).astype(dtype)
    else:
        x = normal(rng, (N,), dtype)
    return (x if "Encoder" in name else _encode(name, x),)


def _narrow(name: str, dtype: Any) -> Case:
    make = partial(_narrow_inputs, name, dtype)
    return Case(name, SHORT[dtype], make, _decoder_attributes(name, dtype), _peers(name, dtype))


INDICES = tuple(map(np.dtype, ("u1", "i2", "i4", "i8")))  # one of each size

# ---- sparse --------------------------------------------------------------------------------------


def _sparse_inputs(name: str, dtype: Any, zeros: float, rng: Any) -> tuple[Any, ...]:
    """Numbers, or for a decoder their code."""
    x = normal(rng, (N,), FLOAT32) * 8
    x[rng.random(N, dtype=cupy.float32) < zeros] = 0
    x = (x != 0 if dtype == UINT8 else x).astype(dtype)
    if "Encoder" in name:
        return (x,)
    code = _encode(name, x)
    return (code[: _length(code)].copy(),)


def _length(code: Any) -> int:
    return int(code[:8].get().view(np.int64)[0])


def _sparse_nbytes(name: str, dtype: Any, *inputs: Any) -> int:
    """An array and its code, each moved once."""
    if "Encoder" in name:
        return int(inputs[0].nbytes) + _length(get_op(name)()(inputs[0]))
    return int(inputs[0].nbytes) + N * dtype.itemsize


def _sparse(name: str, dtype: Any, zeros: float = 0.5, label: str = "") -> Case:
    return Case(
        name,
        SHORT[dtype] + label,
        partial(_sparse_inputs, name, dtype, zeros),
        _decoder_attributes(name, dtype),
        nbytes=partial(_sparse_nbytes, name, dtype),
    )


def _sparse_cases(name: str) -> list[Case]:
    """With half of zeros; of a network's late layers; and without any."""
    dtypes = (*FLOATS, UINT8) if name in ("GistSparseEncoder", "GistSparseDecoder") else FLOATS
    shares = {",90%": 0.9, ",none": 0.0}
    others = [_sparse(name, FLOATS[0], zeros, label) for label, zeros in shares.items()]
    return [_sparse(name, dtype) for dtype in dtypes] + others


# ---- guarded -------------------------------------------------------------------------------------

GUARDED = "GistGuardedMsfp15Encoder"
# What a layer norm of 768, 4,096 and 8,192 features centres, a linear layer's features, and the
# channels of images of 56 x 56, 14 x 14 and 7 x 7.
GROUPINGS = {
    "rows 768": (1, N // 768, 768),
    "rows 4096": (1, N // 4096, 4096),
    "rows 8192": (1, N // 8192, 8192),
    "features 768": (N // 768, 768, 1),
    "features 8192": (N // 8192, 8192, 1),
    "channels 56x56": (256, 83, 3136),
    "channels 14x14": (256, 1024, 196),
    "channels 7x7": (256, 2048, 49),
}


def _whole(dtype: Any, n: int = N) -> Any:
    return normals(dtype, (n,))


def _threshold(dy: Any, _: Any) -> Any:
    """The gradient from the activation itself, as PyTorch keeps it."""
    return backward("threshold_backward", dy, dy[::-1].copy(), threshold=0)


RELU = on_tensors(lambda x: torch.relu(x))  # which keeps its result for the gradient, not its bits
SIGNS = {"keep_sign": True}
CASES = [
    *(case for name in OPS if name.endswith(("Encoder", "Decoder")) for case in _plain(name)),
    *over(FLOATS, "GistPackMsfp15Encoder", _whole, ",signs", SIGNS),
    *over(
        FLOATS,
        "ReluGradFromBits",
        lambda t: lambda rng: (normal(rng, (N,), t), _codes(rng, UINT8, N // 8)),
        peers={"torch threshold": _threshold},
    ),
    *over(FLOATS, "ReluWithBits", _whole, peers={"torch relu": RELU}),
    *(_narrow(name, t) for name in NARROW for t in (INDICES if "Index4" in name else FLOATS)),
    *(case for name in SPARSE for case in _sparse_cases(name)),
    *(
        replace(_sparse("GistSparseMsfp15Encoder", t, label=",signs"), attributes=SIGNS)
        for t in FLOATS
    ),
    *over(FLOATS, GUARDED, _whole, attributes={"grouping": None}),
    *(
        case
        for label, grouping in GROUPINGS.items()
        for case in over(
            (FLOAT32, FLOAT16),
            GUARDED,
            partial(_whole, n=math.prod(grouping)),
            f",{label}",
            {"grouping": grouping},
        )
    ),
]
