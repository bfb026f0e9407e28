# SPDX-License-Identifier: MIT
"""Operators on the bits of numbers.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

from ...dtypes import UINT8
from ...errors import DtypeError
from ..stored import graph_dtype, n_bits, of_codes, type_name
from .elementwise import refuse_mixed
from .table import Array, Function, Module, standard


def _bitwise(name: str) -> Function:
    def bitwise(xp: Module, x: Array, y: Array, out: Array = None) -> Array:
        refuse_mixed(x, y)
        return getattr(xp, name)(x, y, out=out)

    return bitwise


for _word in ("And", "Or", "Xor"):
    standard(f"Bitwise{_word}", since=18, overwrites=(0, 1))(_bitwise(f"bitwise_{_word.lower()}"))


@standard("BitShift", since=11, only={"direction": ("LEFT", "RIGHT")})
def bit_shift(xp: Module, x: Array, y: Array, *, direction: str) -> Array:
    """Return x << y or x >> y; where y is not below x's bits, 0, or -1 of a negative x >> y."""
    refuse_mixed(x, y)
    n = 8 * x.itemsize
    is_beyond = y >= n if y.dtype.kind == "u" else (y < 0) | (y >= n)
    nothing = x.dtype.type(0)
    if direction == "RIGHT" and x.dtype.kind == "i":
        return xp.right_shift(x, xp.where(is_beyond, x.dtype.type(n - 1), y))
    shift = xp.left_shift if direction == "LEFT" else xp.right_shift
    return xp.where(is_beyond, nothing, shift(x, xp.where(is_beyond, nothing, y)))


@standard("BitCast", since=26, view=True)
def bit_cast(xp: Module, x: Array, *, to: int) -> Array:
    """Return the bits of x as elements of ONNX's type `to`, of the same size."""
    dtype = graph_dtype(to)
    if n_bits(dtype) != n_bits(x.dtype):
        names = type_name(dtype), type_name(x.dtype)
        raise DtypeError(f"to: expected as many bits as {names[1]}, got {names[0]}")
    if n_bits(dtype) < 8:
        return of_codes(x.view(UINT8) & UINT8.type(2 ** n_bits(dtype) - 1), dtype)
    return x.view(dtype)
