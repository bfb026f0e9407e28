# SPDX-License-Identifier: MIT
"""Orders of dimensions in memory of dense arrays, which have no gaps between elements.

An order lists the dimensions from the largest stride to the smallest: of (n, c, h, w) it is
(0, 1, 2, 3) for a C-contiguous array and (0, 2, 3, 1) with channels last.

In all functions `op` is the operator's name, for messages, or its declaration; `info` the info of
an array, whose strides are None if it is C-contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..backend import Array, ArrayInfo, Backend
from ..declare.declaration import Declaration
from ..declare.schema import Shape, Spec
from ..errors import refuse
from . import checks

Order = tuple[int, ...]


def order(info: ArrayInfo) -> Order | None:
    """Return the order of an array's dimensions, or None if it is not dense."""
    if info.strides is None:
        return tuple(range(len(info.shape)))
    return order_of(info.shape, info.strides, info.dtype.itemsize)


def order_of(shape: Shape, strides: Shape, step: int) -> Order | None:
    """Return the order of dimensions with these strides, or None if they are not dense.

    step: the stride between neighbouring elements: 1, or an element's bytes.
    """
    dimensions = sorted(range(len(shape)), key=lambda d: -strides[d])
    expected = step
    for d in reversed(dimensions):
        if shape[d] != 1:
            if strides[d] != expected:
                return None
            expected *= shape[d]
    return tuple(dimensions)


def common(
    op: str, arrays: Sequence[tuple[str, ArrayInfo]], results: Sequence[Spec]
) -> Order | None:
    """Return the order of dimensions in memory, the largest stride first, that dense arrays of one
    shape share; None: all are C-contiguous.

    arrays: (name in messages, info). results: of another shape only if all are C-contiguous.
    """
    strided = next((name for name, info in arrays if info.strides is not None), None)
    if strided is None:
        return None
    like = arrays[0][1]
    if any(spec.shape != like.shape for spec in results):
        checks.contiguous(op, strided, False)
    check_alike(op, arrays)
    return order(like)


def check_alike(op: str, arrays: Sequence[tuple[str, ArrayInfo]]) -> None:
    """Refuse an array whose order differs from the first; arrays: (name in messages, info)."""
    for name, info in arrays[1:]:
        first, like = arrays[0]
        if _significant(info) != _significant(like):
            expected = f"the layout of {first}, whose dimensions lie in the order {order(like)}"
            refuse(op, name, expected, f"{order(info)}")


def own_order(op: str, name: str, info: ArrayInfo) -> Order | None:
    """Return the order of an array with its channels last, (0, 2, 3, 1); None: C-contiguous.

    Refuses others; dimension 1 is channels.
    """
    if info.strides is None:
        return None
    n = len(info.shape)
    last = (0, *range(2, n), 1)[:n]
    if _significant(info) != tuple(d for d in last if info.shape[d] != 1):
        checks.contiguous(op, name, False, "a C-contiguous array, or one with its channels last")
    return last


def check(op: Declaration, name: str, info: ArrayInfo, declared: str, any_layout: bool) -> None:
    """Refuse an array whose layout the declaration does not allow.

    name: in messages. declared: name of the declared input or output that it is, or is in a list
    of. any_layout: any dense array is allowed.
    """
    if declared in op.lies_as.inputs:  # its channels may be last
        own_order(op.name, name, info)
    elif any_layout:
        checks.contiguous(op.name, name, order(info) is not None, "a dense array")
    else:
        checks.contiguous(op.name, name, info.strides is None)


def of_results(
    op: Declaration, names: Iterable[str], inputs: Mapping[str, ArrayInfo | None]
) -> list[Order | None]:
    """Return for each name of a result the order in memory that it copies from an input, or None.

    inputs: info by name.
    """
    like = [inputs.get(op.lies_as.inputs.get(name, "")) for name in names]
    return [None if info is None else own_order(op.name, "", info) for info in like]


def _significant(info: ArrayInfo) -> Order:
    """Return the order without dimensions of extent 1, whose strides are arbitrary."""
    return tuple(d for d in order(info) or () if info.shape[d] != 1)


def maker(
    backend: Backend, spec: Spec, device: int, dimensions: Order | None
) -> Callable[[], Array]:
    """Return a function that allocates an array of this spec, its dimensions in memory in this
    order, from the largest stride to the smallest; None: C-contiguous.

    It allocates a C-contiguous array of the permuted shape, and returns a view of it.
    """
    if dimensions is None or len(dimensions) != len(spec.shape):
        return backend.maker(spec, device)
    shape = tuple(spec.shape[d] for d in dimensions)
    make = backend.maker(Spec(shape, spec.dtype), device)
    axes = sorted(range(len(dimensions)), key=dimensions.__getitem__)  # the inverse permutation
    return lambda: backend.permute(make(), axes)
