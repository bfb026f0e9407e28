# SPDX-License-Identifier: MIT
"""The one table of element types: NumPy dtype, CUDA C type, accumulator, ONNX type number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from .errors import DtypeError, cut, raise_if_from_handler, shown

Dtype = np.dtype[Any]
HostArray = NDArray[Any]  # an array of NumPy's, whatever its elements are


class ElementType(NamedTuple):
    """One element type as Python, CUDA and ONNX spell it."""

    name: str  # in messages and arguments: "float16"
    dtype: Dtype
    c_type: str  # in kernels: "__half"
    accumulator: str  # C type that it is computed and summed in, as core/types.cuh has it
    onnx: int  # TensorProto.DataType


BOOL = np.dtype(np.bool_)
UINT8 = np.dtype(np.uint8)
INT64 = np.dtype(np.int64)
FLOAT16 = np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
FLOATS = (FLOAT32, FLOAT16, FLOAT64, BFLOAT16)
INTEGERS = tuple(map(np.dtype, ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")))

ELEMENT_TYPES = (
    ElementType("bool", BOOL, "bool", "bool", 9),
    ElementType("uint8", UINT8, "u8", "u32", 2),
    ElementType("int8", np.dtype(np.int8), "i8", "u32", 3),
    ElementType("uint16", np.dtype(np.uint16), "u16", "u32", 4),
    ElementType("int16", np.dtype(np.int16), "i16", "u32", 5),
    ElementType("uint32", np.dtype(np.uint32), "u32", "u32", 12),
    ElementType("int32", np.dtype(np.int32), "i32", "u32", 6),
    ElementType("uint64", np.dtype(np.uint64), "u64", "u64", 13),
    ElementType("int64", INT64, "i64", "u64", 7),
    ElementType("float16", FLOAT16, "__half", "float", 10),
    ElementType("bfloat16", BFLOAT16, "__nv_bfloat16", "float", 16),
    ElementType("float32", FLOAT32, "float", "float", 1),
    ElementType("float64", FLOAT64, "double", "double", 11),
    ElementType("complex64", np.dtype(np.complex64), "float2", "float2", 14),
    ElementType("complex128", np.dtype(np.complex128), "double2", "double2", 15),
)
FIXED_SIZE = tuple(element.dtype for element in ELEMENT_TYPES)

_BY_DTYPE: dict[Dtype | None, ElementType] = {element.dtype: element for element in ELEMENT_TYPES}
_BY_NAME = {element.name: element for element in ELEMENT_TYPES}
_BY_ONNX = {element.onnx: element for element in ELEMENT_TYPES}


def element_type(dtype: DTypeLike) -> ElementType:
    """Return the ElementType of a NumPy dtype, or of anything that np.dtype accepts."""
    row = _BY_DTYPE.get(np.dtype(dtype))
    if row is None:
        raise DtypeError(f"no element type for dtype {dtype}; known: {', '.join(_BY_NAME)}")
    return row


def to_dtype(value: object) -> Dtype:
    """A dtype, a NumPy scalar type, a name such as "bfloat16", or an ONNX type number.

    Returns the np.dtype; DtypeError for other values, and for dtypes that are not in the table.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        row = _BY_ONNX.get(int(value))
    elif isinstance(value, str):
        row = _BY_NAME.get(value)
    else:
        row = _BY_DTYPE.get(_numpy_dtype(value))
    if row is None:
        raise DtypeError(
            f"expected a dtype, its name or its ONNX type number, got {shown(value)}; "
            f"known: {', '.join(f'{row.name} ({row.onnx})' for row in ELEMENT_TYPES)}"
        )
    return row.dtype


def dtype_name(dtype: DTypeLike) -> str:
    """Return the name of a dtype in messages and files: "float16"; NumPy's if there is no row."""
    row = _BY_DTYPE.get(np.dtype(dtype))
    return row.name if row else cut(str(np.dtype(dtype)))


def dtype_names(dtypes: Iterable[DTypeLike]) -> str:
    """Return the names of dtypes for a message: "float16, float32"."""
    return ", ".join(map(dtype_name, dtypes))


def _numpy_dtype(value: Any) -> Dtype | None:
    """Return the dtype of a dtype or a scalar type; None for other values.

    np.dtype itself would accept more: of an array it returns the dtype.
    """
    if not isinstance(value, np.dtype | type):
        return None
    try:
        return np.dtype(value)
    except (TypeError, ValueError) as error:
        raise_if_from_handler(error)
        return None
