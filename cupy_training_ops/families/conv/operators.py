# SPDX-License-Identifier: MIT
"""Convolutions along one to three axes, transposed ones, and the gradients of both.

Sums are kept in float32 (float64 for float64), in an order that follows from shapes, alignment and
the GPU, and are rounded once.
"""

from __future__ import annotations

from typing import ClassVar

from ...call.op import Op
from ...declare.schema import (
    Input,
    LiesAs,
    Output,
    Shape,
    Spec,
    attribute,
    boolean,
    integer,
    integers,
    one_of,
    optional,
)
from ...declare.type_rows import Types
from ...dtypes import FLOATS
from ...errors import ArgumentError, refuse, shown
from ...plan import Device, Plan
from .extents import AUTO_PADS, Attributes, Convolution
from .plan import plan_wanted
from .plan_launches import Wanted, bias_gradient

MAX_STEP = 2**31  # so that places in padded arrays fit 64 bits


def steps(value: object) -> Shape:
    """Return an attribute's integers; refuse numbers below 1 or from 2^31."""
    return _at_least(integers(value), 1)


def margins(value: object) -> Shape:
    """Return an attribute's integers; refuse numbers below 0 or from 2^31."""
    return _at_least(integers(value), 0)


def groups(value: object) -> int:
    """Return an attribute's integer; refuse numbers below 1 or from 2^31."""
    return _at_least((integer(value),), 1)[0]


def _at_least(numbers: Shape, least: int) -> Shape:
    """Return the numbers; refuse one below `least` or from 2^31 on."""
    if not all(least <= n < MAX_STEP for n in numbers):
        raise ArgumentError(f"expected at least {least} and less than 2^31, got {shown(numbers)}")
    return numbers


PADS = attribute(
    optional(margins), None, doc="at the beginning of all axes, then at the end; None: 0"
)
STRIDES = attribute(optional(steps), None, doc="for each axis; None: 1")
# Each of these may have its channels last in memory; a result lies as an input does.
LIES_AS = LiesAs({"X": "X", "W": "W", "dY": "dY", "Y": "X", "dX": "X", "dW": "W"})
ALLOW_TF32 = attribute(
    boolean, False, doc="float32 may be multiplied with 11 bits of each factor, on tensor cores"
)
TF32X3 = attribute(
    boolean,
    False,
    doc="float32 may be multiplied by three products of TF32, on tensor cores from 8.0 on: an "
    "error of 2^-21 at most for factors from 2^-103 to 3.4e38; not beside allow_tf32",
)
LAYOUT = "C-contiguous, or with the channels last in memory"
X = Input("X", "T", shape="shape (N, C, ...)", doc=f"one to three dimensions behind C; {LAYOUT}")
W = Input("W", "T", shape="shape (M, C / group, ...)", doc=LAYOUT)
TRANSPOSED_W = Input("W", "T", shape="shape (C, M / group, ...)", doc=LAYOUT)
B = Input("B", "T", optional=True, shape="shape (M,)")
Y = Output("Y", "T", shape="shape (N, M, ...), layout of X")
DY = Input("dY", "T", shape="shape (N, M, ...)", doc=f"the extents of Y; {LAYOUT}")
GRADIENTS = (
    Output("dX", "T", shape="shape and layout of X"),
    Output("dW", "T", shape="shape and layout of W"),
    Output("dB", "T", shape="shape (M,)", doc="the sum of dY"),
)


class _Convolution(Op):
    """A convolution or a gradient: attributes, and shapes that follow from them."""

    types: ClassVar[Types] = {"T": FLOATS}
    is_transposed: ClassVar[bool] = False  # ConvTranspose or its gradient
    auto_pad = attribute(
        one_of(*AUTO_PADS),
        "NOTSET",
        doc="NOTSET takes pads, VALID none; SAME_UPPER has the odd one at the end, "
        "SAME_LOWER before",
    )
    dilations = attribute(optional(steps), None, doc="for each axis; None: 1")
    group = attribute(groups, 1, doc="parts of the channels that have filters of their own")
    kernel_shape = attribute(optional(steps), None, doc="has to be W's")
    pads = PADS
    strides = STRIDES
    allow_tf32 = ALLOW_TF32
    tf32x3 = TF32X3
    lies_as: ClassVar[LiesAs] = LIES_AS

    def __init__(self, **attributes: object) -> None:
        super().__init__(**attributes)
        if self.allow_tf32 and self.tf32x3:
            refuse(self.name, "tf32x3", "False beside allow_tf32=True", "True")

    @property
    def tf32(self) -> int:
        """Return how many products of TF32 are computed for each of float32: 1, 3, or 0 (exact)."""
        return 3 if self.tf32x3 else int(self.allow_tf32)

    def convolution(self, x: Spec, w: Spec) -> Convolution:
        """Return the ordinary convolution of this operator's X and W (x, w).

        Of a transposed one it is the convolution whose data gradient it is.
        """
        attributes = Attributes.of(self.name, self.attribute_values)
        if self.is_transposed:
            return attributes.transposed_convolution(x.shape, w.shape)
        return attributes.convolution(x.shape, w.shape)

    def result(self, convolution: Convolution) -> Shape:
        """Return the shape of this operator's Y: of a transposed one, that of the other's X."""
        return convolution.x_shape if self.is_transposed else convolution.y_shape


class _Transposed(_Convolution):
    """Base of ConvTranspose and its gradient: attributes that Conv has not."""

    is_transposed = True
    output_padding = attribute(optional(margins), None, doc="more elements at the end; None: none")
    output_shape = attribute(optional(margins), None, doc="extents of Y, from which pads follow")
    pads = PADS
    strides = STRIDES
    allow_tf32 = ALLOW_TF32
    tf32x3 = TF32X3


class _Forward(_Convolution):
    """Base of Conv and ConvTranspose."""

    domain = "ai.onnx"
    since = 11
    outputs = (Y,)

    def infer(self, x: Spec, w: Spec, b: Spec | None) -> tuple[Spec]:
        """Return the spec of Y; refuse an X, W or B that do not fit each other."""
        shape = self.result(self.convolution(x, w))
        if b is not None and b.shape != shape[1:2]:
            refuse(self.name, "B", f"shape {shape[1:2]}", f"shape {b.shape}")
        return (Spec(shape, x.dtype),)

    def plan(self, device: Device, x: Spec, w: Spec, b: Spec | None, y: Spec) -> Plan:
        wanted = Wanted(x, x, w, y, b, is_gradient=self.is_transposed)
        return plan_wanted(device, self.convolution(x, w), wanted, tf32=self.tf32)


class Conv(_Forward):
    """Convolution: Y[n, m, o] = B[m] + sum over c, k of X[n, c, o s - p + k d] W[m, c, k].

    o, k, stride s, pad p and dilation d have a number for each axis; X is 0 beside its elements.
    A filter m reads the C / group channels of its group m // (M / group), which W counts from 0. A
    kernel that reaches beyond the padded X is refused. Zeros beside X are multiplied too, so that
    what is infinite in W can make NaN there.

    Memory: a workspace of at most 64 MiB, or 2.5 times X and Y: for W as tiles have it, and from
    8.0 on for X with its channels side by side, where it does not lie so. Arrays that lie so and
    that no tiles read, of float64 or few channels, are copied beside that.

    Source: ONNX Conv-22.
    """

    inputs = (X, W, B)


class ConvTranspose(_Transposed, _Forward):
    """Transposed convolution: Y[n, m, i s - p + k d] = B[m] + sum of X[n, c, i] W[c, m, k].

    The sum is over all c of m's group, i and k that meet there: the gradient of Conv, with X as dY.
    Along an axis Y has s (I - 1) + d (K - 1) + 1 + output_padding elements, less the pads; with
    SAME_UPPER and SAME_LOWER I s. Then, and where output_shape says how many, pads follow: they are
    halves, an odd one more at the end for SAME_UPPER, else at the beginning. Elements that nothing
    reaches are B.

    Memory: a workspace of at most 64 MiB, or 2.5 times X and Y: for W as tiles have it, and from
    8.0 on for X with its channels side by side, where it does not lie so. Arrays that lie so and
    that no tiles read, of float64 or few channels, are copied beside that.

    Source: ONNX ConvTranspose-22.
    """

    inputs = (X, TRANSPOSED_W, B)


class _Gradient(_Convolution):
    """Base of ConvGrad and ConvTransposeGrad."""

    outputs = GRADIENTS

    def infer(self, dy: Spec, x: Spec, w: Spec) -> tuple[Spec, ...]:
        """Return the specs of dX, dW and dB; refuse a dY of another shape than Y."""
        shape = self.result(self.convolution(x, w))
        if dy.shape != shape:
            refuse(self.name, "dY", f"shape {shape}, that of Y", f"shape {dy.shape}")
        return Spec(x.shape, x.dtype), Spec(w.shape, x.dtype), Spec(shape[1:2], x.dtype)

    def plan(self, device: Device, dy: Spec, x: Spec, w: Spec, *results: Spec | None) -> Plan:
        """Plan dX, dW and dB (results), None where not wanted, from dy, x and w.

        Of a transposed convolution dY is the ordinary one's X, and X its dY.
        """
        dx, dw, db = results
        convolution, tf32 = self.convolution(x, w), self.tf32
        if not self.is_transposed:
            wanted = Wanted(x, dy, w, dx, is_gradient=True, dw=dw, db=db)
            return plan_wanted(device, convolution, wanted, tf32=tf32)
        plan = plan_wanted(device, convolution, Wanted(dy, x, w, dx, dw=dw), tf32=tf32)
        return plan if db is None else plan.then(bias_gradient(device, dy, db))


class ConvGrad(_Gradient):
    """Gradient of Conv: dX[n, c, o s - p + k d] = sum over m, k, o of dY[n, m, o] W[m, c, k].

    dW[m, c, k] = sum over n, o of dY[n, m, o] X[n, c, o s - p + k d]; dB[m] = sum over n, o of dY.
    Names are as in Conv; m runs over the filters of c's group. Pads may differ at both ends, and
    auto_pad counts. What no output reads has a gradient of 0; of an empty batch dW and dB are 0.

    Memory: a workspace of at most 64 MiB, or 2.5 times X and dY: for parts of dW and dB, and from
    8.0 on for X and dY with their channels side by side, where they do not lie so. Arrays that lie
    so and that no tiles read, of float64 or few channels, are copied beside that, and on 9.0 dY
    once more with allow_tf32.

    Source: ONNX Conv-22, gradient; ONNX Runtime,
    orttraining/orttraining/training_ops/cuda/nn/conv_grad.cc.
    """

    inputs = (DY, X, W)


class ConvTransposeGrad(_Transposed, _Gradient):
    """Gradient of ConvTranspose: dX[n, c, i] = sum over m, k of dY[n, m, i s - p + k d] W[c, m, k].

    dW[c, m, k] = sum over n, i of X[n, c, i] dY[n, m, i s - p + k d]; dB[m] = sum over n, o of dY.
    dY is 0 beside its elements, m runs over the channels of c's group, and pads follow as in
    ConvTranspose.

    Memory: a workspace of at most 64 MiB, or 2.5 times X and dY: for parts of dW and dB, and from
    8.0 on for X and dY with their channels side by side, where they do not lie so. Arrays that lie
    so and that no tiles read, of float64 or few channels, are copied beside that, and on 9.0 dY
    once more with allow_tf32.

    Source: ONNX ConvTranspose-22, gradient; ONNX Runtime,
    orttraining/orttraining/training_ops/cuda/nn/conv_transpose_grad.cc.
    """

    inputs = (DY, X, TRANSPOSED_W)


OPS = {
    "Conv": Conv,
    "ConvGrad": ConvGrad,
    "ConvTranspose": ConvTranspose,
    "ConvTransposeGrad": ConvTransposeGrad,
}
