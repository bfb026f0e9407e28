# SPDX-License-Identifier: MIT
"""Element-wise operators over CuPy's arrays, 16 bytes at a time.

CuPy's own kernels take an element at a time, which is two fifths of what the memory of a large GPU
gives. Here an operand has the result's shape, or is repeated along its first dimensions (a bias, a
mask, a number); all are without gaps. What is not so is left to CuPy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...dtypes import FLOAT16, FLOAT32, FLOAT64

Array = Any
TYPES = {FLOAT16: "float16", FLOAT32: "float32", FLOAT64: "float64"}
BOOL = "bool"
NBYTES = 16
LEAST = 1 << 14  # elements; for fewer it makes no difference
MOST = 1 << 33  # for more, places have no room in 32 bits

EXPRESSIONS: Mapping[str, str] = {
    "add": "a + b",
    "subtract": "a - b",
    "multiply": "a * b",
    "divide": "a / b",
    "relu": "a < T(0) ? T(0) : a",  # a NaN stays
    "where": "a ? b : c",
}


def compute(name: str, operands: Sequence[Array], out: Array = None) -> Array | None:
    """The result of one of EXPRESSIONS; None where the operands are other ones than these kernels
    take."""
    dtype = operands[-1].dtype
    if dtype not in TYPES:
        return None
    shape = max((x.shape for x in operands), key=math.prod)
    size, n = math.prod(shape), NBYTES // dtype.itemsize
    if max(x.ndim for x in operands) > len(shape):
        return None
    if not LEAST <= size < MOST or (out is not None and not _fits(out, shape, dtype)):
        return None
    forms = [_form(x, dtype, shape, n, name == "where" and i == 0) for i, x in enumerate(operands)]
    if None in forms:
        return None
    import cupy

    if out is None:
        out = cupy.empty(shape, dtype)
    kernel = _kernel(name, TYPES[dtype], tuple(forms))
    return kernel(*operands, *[x.size for x in operands], size, out, size=-(-size // n))


def _fits(out: Array, shape: tuple[int, ...], dtype: Any) -> bool:
    is_same = out.shape == shape and out.dtype == dtype and out.flags.c_contiguous
    return bool(is_same and out.data.ptr % NBYTES == 0)


def _form(x: Array, dtype: Any, shape: tuple[int, ...], n: int, is_mask: bool) -> str | None:
    """Say "whole", "repeated" or "one" of an operand; None where it is none of them."""
    if x.dtype != (BOOL if is_mask else dtype) or not x.flags.c_contiguous:
        return None
    if x.size == 1:
        return "one"
    if x.data.ptr % (n * x.itemsize):
        return None
    if x.shape == shape:
        return "whole"
    own = x.shape[_leading_ones(x.shape) :]
    return "repeated" if own == shape[len(shape) - len(own) :] and x.size % n == 0 else None


def _leading_ones(shape: tuple[int, ...]) -> int:
    return next((i for i, extent in enumerate(shape) if extent != 1), len(shape))


_PLACES = {"whole": "i", "repeated": "(unsigned)i % (unsigned)(n_{0} / N)", "one": "0"}
_RESTS = {"whole": "j", "repeated": "j % n_{0}", "one": "0"}


@functools.cache
def _kernel(name: str, dtype: str, forms: tuple[str, ...]) -> Any:
    """A thread loads a vector of each operand; the last one what is left behind all vectors."""
    import cupy

    names = "abc"[: len(forms)]
    types = [BOOL if name == "where" and i == 0 else dtype for i in range(len(forms))]
    parameters = [f"raw {kind} {x}_" for kind, x in zip(types, names, strict=True)]
    parameters += [f"int64 n_{x}" for x in names] + ["int64 count"]
    loads, picks, rests = "", "", ""
    for x, kind, form in zip(names, types, forms, strict=True):
        value = "const bool" if kind == BOOL else "const T"
        if form == "one":
            picks += f"{value} {x} = {x}_[0]; "
        else:
            place = _PLACES[form].format(x)
            pack = "Pack<bool, N>" if kind == BOOL else "Pack<T, N>"
            loads += f"const {pack} v_{x} = reinterpret_cast<const {pack}*>(&{x}_[0])[{place}];\n"
            picks += f"{value} {x} = v_{x}.at[k]; "
        rests += f"{value} {x} = {x}_[{_RESTS[form].format(x)}]; "
    body = f"""
        typedef {_c_type(dtype)} T;
        const int N = {NBYTES} / sizeof(T);
        if (i < count / N) {{
            {loads}
            Pack<T, N> v_y;
            #pragma unroll
            for (int k = 0; k < N; ++k) {{ {picks} v_y.at[k] = {EXPRESSIONS[name]}; }}
            reinterpret_cast<Pack<T, N>*>(&y_[0])[i] = v_y;
        }} else {{
            for (long long j = count / N * N; j < count; ++j) {{
                {rests} y_[j] = {EXPRESSIONS[name]};
            }}
        }}"""
    return cupy.ElementwiseKernel(
        ", ".join(parameters), f"raw {dtype} y_", body, f"cto_{name}", preamble=_PREAMBLE
    )


_PREAMBLE = """
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack { T at[N]; };
"""


def _c_type(dtype: str) -> str:
    return {"float64": "double", "float32": "float"}.get(dtype, dtype)
