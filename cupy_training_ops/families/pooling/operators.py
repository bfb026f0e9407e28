# SPDX-License-Identifier: MIT
"""Pools along one to three axes, and their gradients.

Sums are accumulated in float32 (float64 for float64), in an order that follows from shapes alone,
and are rounded once. Every element of a gradient gathers from the windows that it is in: there are
no atomics.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ...call.op import Op
from ...declare import schema
from ...declare.schema import Input, Output, Shape, Spec, attribute, boolean, one_of, optional
from ...declare.type_rows import Types
from ...dtypes import FLOATS, INT64
from ...errors import refuse
from ...facts import WARP
from ...plan import Config, Device, Launch, Plan, by_value, ceil_div, slots
from ...planning.fast_division import divisor
from ..conv.extents import AUTO_PADS
from ..conv.operators import PADS, STRIDES, steps
from .facts import AXES, LONG, ROWS, RUN, THREADS, Geometry
from .plan_tiles import Tiling
from .windows import Windows, windows_of

WIDEST = 4  # columns of a thread's tile at most
WIDEST_OF_INDICES = 2  # where Indices are written, 16 bytes side by side

X = Input("X", "T", shape="shape (N, C, ...)", doc="one to three dimensions behind C")
Y = Output("Y", "T", shape="shape (N, C, ...)")
DY = Input("dY", "T", shape="shape (N, C, ...)", doc="the extents of Y")
DX = Output("dX", "T", shape="shape given by `shape`")
SHAPE = Input("shape", "int64", memory="host", convert=schema.shape, doc="the shape of X")
INCLUDE_PAD = attribute(boolean, False, doc="elements of the pads count, as zeros")
STORAGE_ORDER = attribute(
    one_of(0, 1), 0, doc="1: a plane's elements are numbered along its first axis first"
)


# The kernel for any windows, and the one compiled for some.
KERNELS = {
    "AveragePool": ("average_pool", "average_pool__tiles"),
    "AveragePoolGrad": ("average_pool_grad", "average_pool_grad__tiles"),
    "MaxPool": ("max_pool", "max_pool__tiles"),
    "MaxPoolGrad": ("max_pool_grad", "max_pool_grad__tiles"),
}


class _Pool(Op):
    """Base of pools and their gradients, whose windows follow from attributes."""

    domain = "ai.onnx"
    types: ClassVar[Types] = {"T": FLOATS}
    storage_order = 0
    count_include_pad: bool | None = None  # where nothing is counted
    is_gradient: ClassVar[bool] = False
    auto_pad = attribute(
        one_of(*AUTO_PADS),
        "NOTSET",
        doc="NOTSET takes pads, VALID none; SAME_UPPER has the odd one at the end, "
        "SAME_LOWER before",
    )
    ceil_mode = attribute(
        boolean, False, doc="a last window may reach beyond the pads, if it begins before them"
    )
    dilations = attribute(optional(steps), None, doc="for each axis; None: 1")
    kernel_shape = attribute(steps, doc="of a window")
    pads = PADS
    strides = STRIDES

    def windows(self, x: Shape) -> Windows:
        """Return the windows of an X of shape `x`."""
        lengths = self.kernel_shape, self.strides, self.dilations, self.pads
        return windows_of(self.name, x, *lengths, self.auto_pad, self.ceil_mode)

    def plan_windows(
        self,
        x: Spec,
        ys: tuple[Spec | None, ...],
        written: Spec,
        *arguments: object,
        widest: int = WIDEST,
    ) -> Plan:
        """Plan a kernel compiled for these windows if they can be tiled, else the general kernel.

        x: X, or its gradient. ys: arrays of Y's shape. written: the output whose elements the
        threads of the general kernel share out, several neighbours each. arguments: the kernel's
        first ones. widest: columns of a thread's tile at most.
        """
        windows, (general, compiled) = self.windows(x.shape), KERNELS[self.name]
        numbers_by_rows = windows.numbers(0)  # as the compiled kernel numbers a plane's elements
        if windows.numbers(self.storage_order) == numbers_by_rows:
            arrays = tuple(filter(None, ys))
            tiling = Tiling.of(windows, x, arrays, widest=widest, is_gradient=self.is_gradient)
            if tiling is not None:
                return tiling.plan(compiled, arguments, self.count_include_pad)
        # A thread makes `rows` neighbours along the axis before the last, `run` along the last.
        rows, run = (1, RUN) if self.is_gradient else (ROWS[written.dtype.itemsize], 1)
        if self.is_gradient:
            by_vectors = written.aligned and written.shape[-1] % RUN == 0
            arguments = (*arguments, by_vectors)
        planes, outer, inner = _axes(written.shape[2:])
        extents = (planes, ceil_div(outer, rows), ceil_div(inner, run))
        geometry = by_value(
            Geometry,
            image=_axes(windows.image),
            output=_axes(windows.output),
            kernel=_axes(tuple(axis.kernel for axis in windows.axes)),
            stride=_axes(tuple(axis.stride for axis in windows.axes)),
            dilation=_axes(tuple(axis.dilation for axis in windows.axes)),
            pad=_axes(tuple(axis.pad for axis in windows.axes), 0),
            padded=_axes(tuple(axis.pads_end for axis in windows.axes)),
            number=_axes(windows.numbers(self.storage_order)),
            written=np.array([divisor(extent) for extent in extents]),
        )
        n_threads = math.prod((*written.shape[:2], *extents))
        config = Config((ceil_div(n_threads, THREADS),), (THREADS,))
        arguments = (*arguments, n_threads, geometry)
        return Plan((Launch(general, config, arguments, slots(T=written.dtype)),))


def _axes(numbers: Shape, fill: int = 1) -> Shape:
    """Return AXES (3) numbers, with `fill` in front: (2, 5) is (1, 2, 5)."""
    return (fill,) * (AXES - len(numbers)) + numbers


class MaxPool(_Pool):
    """Largest elements: Y[n, c, o] = max over k of X[n, c, o s - p + k d], Indices say where.

    o, k, stride s, pad p and dilation d have a number for each axis; elements beside X do not
    count. Of equal ones it is the first, and the first NaN before all numbers. Indices count
    the elements of all of X: (n C + c) times those of a plane, and the number in the plane. A
    window beside X gives -infinity and the index -1.

    Source: ONNX MaxPool-22.
    """

    since = 12
    inputs = (X,)
    outputs = (Y, Output("Indices", "int64", shape="shape of Y"))
    storage_order = STORAGE_ORDER
    bitwise_exact = True

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        shape = self.windows(x.shape).y_shape
        return Spec(shape, x.dtype), Spec(shape, INT64)

    def plan(self, device: Device, x: Spec, y: Spec | None, indices: Spec | None) -> Plan:
        ys, written = (y, indices), Spec(self.windows(x.shape).y_shape, x.dtype)
        return self.plan_windows(x, ys, written, x, *ys, widest=WIDEST_OF_INDICES)


class AveragePool(_Pool):
    """Means of windows: Y[n, c, o] = sum over k of X[n, c, o s - p + k d] / count.

    Names are as in MaxPool. The count is of the window's elements in X; with count_include_pad also
    of those in the pads, but not of those that ceil_mode lets reach beyond them. A window of no
    element gives 0.

    Source: ONNX AveragePool-22.
    """

    since = 7
    inputs = (X,)
    outputs = (Y,)
    count_include_pad = INCLUDE_PAD

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(self.windows(x.shape).y_shape, x.dtype),)

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        return self.plan_windows(x, (y,), y, x, y, self.count_include_pad)


class _Gradient(_Pool):
    """Base of gradients, whose output is dX."""

    is_gradient = True

    def gradient_of(self, dy: Spec, x: Shape) -> tuple[Spec, ...]:
        """Return the spec of dX, of shape `x`; refuse a dY of another shape than Y."""
        shape = self.windows(x).y_shape
        if dy.shape != shape:
            refuse(self.name, "dY", f"shape {shape}, that of Y", f"shape {dy.shape}")
        return (Spec(x, dy.dtype),)


class MaxPoolGrad(_Gradient):
    """Gradient of MaxPool: dX[i] = sum of dY[o] over the windows o with Indices[o] = i.

    Attributes are those of the MaxPool; indices that are not of an element of their window count
    nowhere.

    Source: ONNX MaxPool-22, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cpu/nn/pool_gradient_op.cc.
    """

    since = 9
    inputs = (DY, Input("Indices", "int64", shape="shape of dY"), SHAPE)
    outputs = (DX,)
    storage_order = STORAGE_ORDER

    def infer(self, dy: Spec, indices: Spec, shape: Shape) -> tuple[Spec, ...]:
        """Return the spec of dX, of `shape`; refuse a dY or indices of another shape than Y."""
        if indices.shape != dy.shape:
            refuse(self.name, "Indices", f"shape {dy.shape}, like dY", f"shape {indices.shape}")
        return self.gradient_of(dy, shape)

    def plan(self, device: Device, dy: Spec, indices: Spec, shape: Shape, dx: Spec) -> Plan:
        return self.plan_windows(dx, (dy, indices), dx, dy, indices, dx)


class AveragePoolGrad(_Gradient):
    """Gradient of AveragePool: dX[i] = sum over the windows o that i is in of dY[o] / count[o].

    Attributes and counts are those of the AveragePool.

    Source: ONNX AveragePool-22, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cpu/nn/pool_gradient_op.cc.
    """

    since = 9
    inputs = (DY, SHAPE)
    outputs = (DX,)
    count_include_pad = INCLUDE_PAD

    def infer(self, dy: Spec, shape: Shape) -> tuple[Spec, ...]:
        return self.gradient_of(dy, shape)

    def plan(self, device: Device, dy: Spec, shape: Shape, dx: Spec) -> Plan:
        return self.plan_windows(dx, (dy,), dx, dy, dx, self.count_include_pad)


class GlobalAveragePool(Op):
    """Means of planes: Y[n, c] = sum over i of X[n, c, i] / count, Y of as many dimensions as X.

    Source: ONNX GlobalAveragePool-22.
    """

    domain = "ai.onnx"
    inputs = (Input("X", "T", shape="shape (N, C, ...)", doc="one dimension or more behind C"),)
    outputs = (Output("Y", "T", shape="shape (N, C, 1, ...)"),)
    types: ClassVar[Types] = {"T": FLOATS}

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        """Return the spec of Y, with an extent of 1 for each axis behind the channels."""
        if len(x.shape) < 3 or 0 in x.shape[2:]:
            expected = "batch, channels and one dimension or more, with elements"
            refuse(self.name, "X", expected, f"shape {x.shape}")
        return (Spec((*x.shape[:2], *(1,) * (len(x.shape) - 2)), x.dtype),)

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        """Plan one launch: a block sums a long plane, a warp a short one."""
        length = math.prod(x.shape[2:])
        is_long = length >= LONG
        symbol = "global_average_pool__block" if is_long else "global_average_pool__warp"
        planes = 1 if is_long else THREADS // WARP  # of a block
        config = Config((ceil_div(y.size, planes),), (THREADS,))
        return Plan((Launch(symbol, config, (x, y, y.size, length), slots(T=x.dtype)),))


OPS = {
    "AveragePool": AveragePool,
    "AveragePoolGrad": AveragePoolGrad,
    "GlobalAveragePool": GlobalAveragePool,
    "MaxPool": MaxPool,
    "MaxPoolGrad": MaxPoolGrad,
}
