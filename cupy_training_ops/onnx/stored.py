# SPDX-License-Identifier: MIT
"""Types that graphs store numbers in, but compute nothing in: floats of 8 and 4 bits, integers of 4
and 2 bits. Only NumPy's arrays can have them, by ml_dtypes: a byte for each element."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..dtypes import FLOAT32, FLOAT64, Dtype, HostArray, dtype_name, element_type, to_dtype
from ..errors import ArgumentError


class StoredType(NamedTuple):
    """One type as ONNX and NumPy have it; in a file, 8 / n_bits elements share a byte."""

    name: str
    dtype: Dtype
    onnx: int  # TensorProto.DataType
    n_bits: int


STORED_TYPES = (
    StoredType("float8e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn), 17, 8),
    StoredType("float8e4m3fnuz", np.dtype(ml_dtypes.float8_e4m3fnuz), 18, 8),
    StoredType("float8e5m2", np.dtype(ml_dtypes.float8_e5m2), 19, 8),
    StoredType("float8e5m2fnuz", np.dtype(ml_dtypes.float8_e5m2fnuz), 20, 8),
    StoredType("uint4", np.dtype(ml_dtypes.uint4), 21, 4),
    StoredType("int4", np.dtype(ml_dtypes.int4), 22, 4),
    StoredType("float4e2m1", np.dtype(ml_dtypes.float4_e2m1fn), 23, 4),
    StoredType("float8e8m0", np.dtype(ml_dtypes.float8_e8m0fnu), 24, 8),
    StoredType("uint2", np.dtype(ml_dtypes.uint2), 25, 2),
    StoredType("int2", np.dtype(ml_dtypes.int2), 26, 2),
)
BY_DTYPE = {row.dtype: row for row in STORED_TYPES}
POWERS = STORED_TYPES[7].dtype  # float8e8m0: powers of two from 2^-127 to 2^127, and NaN
SATURATED = tuple(row.dtype for row in STORED_TYPES[:4])  # may saturate as numbers are converted
_BY_NUMBER = {row.onnx: row for row in STORED_TYPES}
_BY_NAME = {row.name: row for row in STORED_TYPES}
_NAN_OF_POWERS = 255


def graph_dtype(value: Any) -> Dtype:
    """Return the dtype of ONNX's number or name, of a type that is computed or of those here."""
    row = _BY_NUMBER.get(value) or _BY_NAME.get(value)
    return row.dtype if row else to_dtype(value)


def type_name(dtype: Dtype) -> str:
    """Return ONNX's name of a dtype, such as "float8e4m3fn"."""
    return BY_DTYPE[dtype].name if dtype in BY_DTYPE else element_type(dtype).name


def n_bits(dtype: Dtype) -> int:
    """Return the bits of an element, in a file."""
    return BY_DTYPE[dtype].n_bits if dtype in BY_DTYPE else 8 * dtype.itemsize


def nbytes_of(dtype: Dtype, n: int) -> int:
    """Return the bytes of n elements in a file."""
    return -(-n * n_bits(dtype) // 8)


def unpack(data: HostArray, dtype: Dtype, n: int) -> HostArray:
    """Return n elements from a file's bytes (uint8), where the first of a byte has its low bits."""
    bits = n_bits(dtype)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)  # of 4 bits: [0, 4]
    codes = (data[:, None] >> shifts & np.uint8(2**bits - 1)).reshape(-1)[:n]
    return of_codes(codes, dtype)


def of_codes(codes: HostArray, dtype: Dtype) -> HostArray:
    """Return elements of a stored type by their bits, the low ones of each uint8."""
    return codes.astype(dtype) if "int" in BY_DTYPE[dtype].name else codes.view(dtype)


def convert(xp: Any, x: Any, dtype: Dtype, *, saturate: bool = True, round_mode: str = "up") -> Any:
    """Return x in another dtype, with the attributes of ONNX's Cast.

    saturate: 8-bit floats become the largest number where x is beyond it, else infinity or NaN.
    round_mode: of float8e8m0, "up", "down" or "nearest".
    """
    if dtype not in BY_DTYPE and x.dtype not in BY_DTYPE:
        return x.astype(dtype, copy=False)
    if xp is not np:
        name = dtype_name(dtype if dtype in BY_DTYPE else x.dtype)
        raise ArgumentError(f"elements of {name} are on the host alone")
    if x.dtype == dtype:
        return x
    if dtype in SATURATED or dtype == POWERS:
        is_wide = x.dtype == FLOAT64 or x.dtype.kind in "iu"
        x = x.astype(FLOAT64 if is_wide else FLOAT32, copy=False)
    if dtype in SATURATED and saturate:
        most = float(ml_dtypes.finfo(dtype).max)
        x = np.clip(x, -most, most)
    if dtype == POWERS:
        return _to_powers(x, saturate, round_mode)
    return (_to_odd(x) if x.dtype == FLOAT64 else x).astype(dtype)


def _to_odd(x: HostArray) -> HostArray:
    """Return float64 as float32, rounded to odd: towards 0, with the last bit set if inexact.

    ml_dtypes converts by float32; a number rounded to odd there is then rounded as if once.
    """
    y = x.astype(FLOAT32)
    y = np.where(np.abs(y) > np.abs(x), np.nextafter(y, FLOAT32.type(0)), y)
    bits = y.view(np.uint32)
    bits |= np.isfinite(x) & (y != x)
    return y


def _to_powers(x: HostArray, saturate: bool, round_mode: str) -> HostArray:
    """Return numbers as float8e8m0: powers of two, whose code is the exponent + 127; NaN is 255.

    round_mode: "up" to the next power above, "down" or "nearest". Negative numbers become NaN.
    """
    share, exponent = np.frexp(x)  # x = share 2^exponent, 1/2 <= share < 1
    # True: 2^exponent, False: 2^(exponent - 1).
    above = {"up": share > 0.5, "down": share > 1, "nearest": share >= 0.75}
    if round_mode not in above:
        raise ArgumentError(f"round_mode: expected one of {sorted(above)}, got {round_mode!r}")
    code = exponent - 1 + above[round_mode] + 127
    code = np.where(x == 0, -1, code)
    if saturate:
        code = np.where(np.isposinf(x), _NAN_OF_POWERS - 1, np.clip(code, 0, _NAN_OF_POWERS - 1))
    is_number = (x >= 0) & (code >= 0) & (code < _NAN_OF_POWERS) & (saturate | np.isfinite(x))
    codes = np.where(is_number, code, _NAN_OF_POWERS).astype(np.uint8)
    return codes.view(POWERS)
