# SPDX-License-Identifier: MIT
"""Softmax, its logarithm and their gradients, along any axis in place of its strides.

Sums are accumulated in float32 (float64 for float64), in an order that follows from shapes and
alignment.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ...call.checks import from_front
from ...call.op import Op
from ...declare.schema import Input, Output, Spec, attribute, integer
from ...declare.type_rows import Types
from ...dtypes import FLOATS
from ...errors import refuse
from ...plan import VEC_NBYTES, Device, Launch, Plan, slots
from ...planning.lines import Kernels, Lines, Registers, division, register_nbytes


class _AlongAxis(Op):
    """Base of all: arrays of one shape and type, and a plan over the lines along `axis`."""

    types: ClassVar[Types] = {"T": FLOATS}
    kernels: ClassVar[Kernels]  # their names, by how lines are divided among threads
    axis = attribute(integer, -1, doc="from -rank to rank - 1")

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        """Return the spec of the output, that of the first of `inputs`; refuse other shapes."""
        first = inputs[0]
        from_front(self.name, self.axis, len(first.shape))
        for declared, spec in zip(self.inputs, inputs, strict=True):
            if spec.shape != first.shape:
                expected = f"shape {first.shape}, as {self.inputs[0].name}"
                refuse(self.name, declared.name, expected, f"shape {spec.shape}")
        return (Spec(first.shape, first.dtype),)

    def lines(self, x: Spec) -> Lines:
        """Return the lines to normalise: those along the axis."""
        return Lines.along(x.shape, self.axis % len(x.shape))

    def plan(self, device: Device, *specs: Spec) -> Plan:
        """Plan one launch over lines; specs: the inputs and the output."""
        t = specs[0].dtype
        nbytes = register_nbytes(device, t)
        n_read = len(specs) - 1
        registers = Registers(nbytes, n_read, t.itemsize, VEC_NBYTES // t.itemsize, n_read)
        aligned = all(spec.aligned for spec in specs)
        divided = division(self.lines(specs[0]), registers, aligned, self.kernels)
        binding = slots(T=t, NBYTES=nbytes)
        args = (*specs, *divided.args)
        return Plan((Launch(divided.kernel, divided.config, args, binding),))


class _FromAxisOn(_AlongAxis):
    """Base of operators before opset 13, where a row is everything from the axis on."""

    axis = attribute(
        integer, 1, doc="from -rank to rank - 1; a row is everything from this axis on"
    )

    def lines(self, x: Spec) -> Lines:
        """Return the rows to normalise."""
        axis = self.axis % len(x.shape)
        return Lines(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]), 1)


class _Softmax(_AlongAxis):
    """Base of the forwards: Y of X."""

    domain = "ai.onnx"
    since = 13
    inputs = (Input("X", "T", shape="any shape"),)
    outputs = (Output("Y", "T", may_alias=("X",), shape="shape of X"),)


class Softmax(_Softmax):
    """Softmax: Y = e^(X - max) / sum of e^(X - max) along the axis.

    A line of -inf alone, and one with inf or NaN, is NaN throughout.

    Source: ONNX Softmax-13.
    """

    kernels = Kernels(
        short_rows="softmax__short_rows",
        rows="softmax__rows",
        full_rows="softmax__full_rows",
        columns="softmax__columns",
    )


class LogSoftmax(_Softmax):
    """Logarithm of Softmax: Y = (X - max) - ln(sum of e^(X - max)) along the axis.

    The maximum is subtracted first, so that large elements lose no digits. A line of -inf alone,
    and one with inf or NaN, is NaN throughout.

    Source: ONNX LogSoftmax-13.
    """

    kernels = Kernels(
        short_rows="log_softmax__short_rows",
        rows="log_softmax__rows",
        full_rows="log_softmax__full_rows",
        columns="log_softmax__columns",
    )


DY = Input("dY", "T", shape="any shape")
Y = Input("Y", "T", shape="shape of dY", doc="the softmax")
LOG_Y = Input("X", "T", shape="shape of dY", doc="the logarithm of the softmax")
DX = Output("dX", "T", may_alias=("dY", "Y"), shape="shape of dY")
LOG_DX = Output("dX", "T", may_alias=("dY", "X"), shape="shape of dY")

GRADIENT = Kernels(
    short_rows="softmax__gradient_short_rows",
    rows="softmax__gradient_rows",
    columns="softmax__gradient_columns",
)
LOG_GRADIENT = Kernels(
    short_rows="softmax__log_gradient_short_rows",
    rows="softmax__log_gradient_rows",
    columns="softmax__log_gradient_columns",
)


class SoftmaxGrad_13(_AlongAxis):  # noqa: N801 - the registered name
    """Gradient of Softmax: dX = Y (dY - sum of Y dY along the axis).

    Y is used as it is: it need not sum to 1. NaN and infinities propagate along their line.

    Source: ONNX Softmax-13, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/softmax_grad.cc.
    """

    kernels = GRADIENT
    inputs = (DY, Y)
    outputs = (DX,)


class LogSoftmaxGrad_13(_AlongAxis):  # noqa: N801 - the registered name
    """Gradient of LogSoftmax: dX = dY - e^X (sum of dY along the axis).

    X is the output of LogSoftmax, and is used as it is. NaN and infinities propagate along their
    line.

    Source: ONNX LogSoftmax-13, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/softmax_grad.cc.
    """

    kernels = LOG_GRADIENT
    inputs = (DY, LOG_Y)
    outputs = (LOG_DX,)


class SoftmaxGrad(_FromAxisOn):
    """Gradient of Softmax before opset 13: dX = Y (dY - sum of Y dY over the row).

    Y is used as it is: it need not sum to 1. NaN and infinities propagate along their row.

    Source: ONNX Softmax-11, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/softmax_grad.cc.
    """

    kernels = GRADIENT
    inputs = (DY, Y)
    outputs = (DX,)


class LogSoftmaxGrad(_FromAxisOn):
    """Gradient of LogSoftmax before opset 13: dX = dY - e^X (sum of dY over the row).

    X is the output of LogSoftmax, and is used as it is. NaN and infinities propagate along their
    row.

    Source: ONNX LogSoftmax-11, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/softmax_grad.cc.
    """

    kernels = LOG_GRADIENT
    inputs = (DY, LOG_Y)
    outputs = (LOG_DX,)


OPS = {
    "LogSoftmax": LogSoftmax,
    "LogSoftmaxGrad": LogSoftmaxGrad,
    "LogSoftmaxGrad_13": LogSoftmaxGrad_13,
    "Softmax": Softmax,
    "SoftmaxGrad": SoftmaxGrad,
    "SoftmaxGrad_13": SoftmaxGrad_13,
}
