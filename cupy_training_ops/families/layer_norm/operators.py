# SPDX-License-Identifier: MIT
"""Layer normalisations and their gradients, of everything from an axis on.

Everything is computed in float32 (float64 for float64) and rounded once; sums over rows are added
in two stages, in an order that follows from shapes, alignment and the GPU. A row whose squared
distances add up to more than float32 holds has an infinite variance, and inv_std 0.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from ...call.checks import from_front
from ...call.op import Op
from ...declare.schema import (
    Input,
    Output,
    Shape,
    Spec,
    attribute,
    dtype,
    integer,
    one_of,
    optional,
    positive_or_zero,
)
from ...declare.type_rows import TypeRows, Types
from ...dtypes import BFLOAT16, FLOAT16, Dtype
from ...errors import refuse
from ...plan import Device, Plan
from ...rules.widening import computed_in
from .plan import FROM_X, FROM_Y, Matrix, Read, forward, gradient

# X, statistics, Y. All operators have all of them.
ROWS = TypeRows(
    "T U V",
    "float32 float32 float32",
    "float64 float64 float64",
    "H float32 H",
    "float32 float32 H",
    "H float32 float32",
    H=(FLOAT16, BFLOAT16),
)

SCALE = "the dimensions of X from the axis on, or as many in one"
STATISTIC = "the dimensions of X before the axis, with or without ones behind, or all in one"
STATISTICS = "shape of X with ones from the axis on"


class _ByRows(Op):
    """Base of all: arrays as rows, everything from `axis` on, and checks of other shapes."""

    types: ClassVar[Types] = ROWS
    axis = attribute(
        integer, -1, doc="from -rank to rank - 1; a row is everything from this axis on"
    )

    def split_shape(self, x: Spec) -> tuple[Shape, Shape]:
        """Return the dimensions of x before the axis, and those of a row."""
        axis = from_front(self.name, self.axis, len(x.shape))
        return x.shape[:axis], x.shape[axis:]

    def matrix(self, device: Device, x: Spec, v: Spec) -> Matrix:
        """Return x as rows to plan with; v: an array of Y's type."""
        before, row = self.split_shape(x)
        return Matrix(device, math.prod(before), math.prod(row), x.dtype, v.dtype)

    def check_parameters(self, row: Shape, **parameters: Spec | None) -> None:
        """Refuse scale or bias unless its shape is `row`, or flat with as many elements."""
        flat = (math.prod(row),)
        for name, spec in parameters.items():
            if spec is not None and spec.shape not in (row, flat):
                expected = f"shape {row}" if row == flat else f"shape {row} or {flat}"
                refuse(self.name, name, expected, f"shape {spec.shape}")


class _Forward(_ByRows):
    """Base of normalisations; `is_centred`: means are subtracted."""

    domain = "ai.onnx"
    is_centred: ClassVar[bool]
    epsilon = attribute(positive_or_zero, 1e-5, doc="added to the variance")

    def infer(self, x: Spec, scale: Spec, *bias: Spec | None) -> tuple[Spec, ...]:
        """Check scale and bias; return the specs of Y and of the statistics of rows."""
        before, row = self.split_shape(x)
        names = (item.name for item in self.inputs[1:])
        self.check_parameters(row, **dict(zip(names, (scale, *bias), strict=True)))
        statistics = Spec((*before, *(1 for _ in row)), computed_in(x.dtype))
        n_statistics = len(self.outputs) - 1
        return Spec(x.shape, scale.dtype), *[statistics] * n_statistics

    def plan(self, device: Device, x: Spec, scale: Spec, *others: Spec | None) -> Plan:
        """Plan one launch; others: bias if centred, then Y, mean if centred, and inv_std."""
        bias, y, mean, inv_std = others if self.is_centred else (None, others[0], None, others[1])
        matrix, results = self.matrix(device, x, scale), (y, mean, inv_std)
        return forward(matrix, x, (scale, bias), results, self.is_centred, self.epsilon)


class LayerNormalization(_Forward):
    """Layer normalisation: Y = (X - mean) inv_std Scale + B, inv_std = 1 / sqrt(var + epsilon).

    Mean and variance, the biased one, are those of a row. They lose no digits where a row is far
    from zero. Scale, B and Y may have another type than X. Statistics are float32, of float64
    float64; an empty row has mean 0 and variance 0.

    Source: ONNX LayerNormalization-17.
    """

    since = 17
    is_centred = True
    inputs = (
        Input("X", "T", shape="any shape"),
        Input("Scale", "V", shape=SCALE),
        Input("B", "V", optional=True, shape=SCALE),
    )
    outputs = (
        Output("Y", "V", may_alias=("X",), shape="shape of X"),
        Output("Mean", "U", shape=STATISTICS),
        Output("InvStdDev", "U", shape=STATISTICS),
    )
    stash_type = attribute(one_of(1), 1, doc="statistics are never narrower than float32")


class SimplifiedLayerNormalization(_Forward):
    """RMSNorm: Y = X inv_std scale, inv_std = 1 / sqrt(mean of X^2 + epsilon).

    The mean is that of a row. Scale and Y may have another type than X. inv_std is float32, of
    float64 float64; of an empty row the mean is 0.

    Source: ONNX Runtime, onnxruntime/core/providers/cuda/nn/layer_norm.cc.
    """

    is_centred = False
    inputs = (Input("X", "T", shape="any shape"), Input("scale", "V", shape=SCALE))
    outputs = (
        Output("Y", "V", may_alias=("X",), shape="shape of X"),
        Output("inv_std_var", "U", shape=STATISTICS),
    )


Y_GRAD = Input("Y_grad", "V", shape="any shape")
X = Input("X", "T", shape="shape of Y_grad")
GRADIENT_SCALE = Input("scale", "V", shape=SCALE)
X_GRAD = Output("X_grad", "T", may_alias=("Y_grad", "X"), shape="shape of Y_grad")
SCALE_GRAD = Output("scale_grad", "V", shape="shape of scale")
BIAS_GRAD = Output("bias_grad", "V", shape="shape of scale")


class _Gradient(_ByRows):
    """Base of gradients: inputs are dY, X or Y, scale, maybe bias, and statistics of rows."""

    output_type: Dtype | None = None  # where there is no such attribute

    def infer(self, dy: Spec, x: Spec, scale: Spec, *others: Spec) -> tuple[Spec, ...]:
        """Check all shapes; return the specs of X_grad, and of scale_grad and bias_grad.

        others: the inputs behind scale: bias if it is declared, and statistics of rows.
        """
        before, row = self.split_shape(dy)
        if x.shape != dy.shape:
            expected = f"shape {dy.shape}, as Y_grad"
            refuse(self.name, self.inputs[1].name, expected, f"shape {x.shape}")
        named = dict(zip((item.name for item in self.inputs[3:]), others, strict=True))
        self.check_parameters(row, scale=scale, bias=named.pop("bias", None))
        for name, spec in named.items():
            self.check_statistic(before, name, spec)
        sums = Spec(scale.shape, scale.dtype)
        return Spec(dy.shape, self.output_type or x.dtype), *[sums] * (len(self.outputs) - 1)

    def check_statistic(self, before: Shape, name: str, spec: Spec) -> None:
        """Refuse a statistic that has not a number for each row; before: dimensions of rows."""
        flat = (math.prod(before),)
        if _bare(spec.shape) not in (_bare(before), _bare(flat)):
            expected = f"shape {before}" if before == flat else f"shape {before} or {flat}"
            refuse(self.name, name, f"{expected}, or ones behind it", f"shape {spec.shape}")


class LayerNormalizationGrad(_Gradient):
    """Gradient of LayerNormalization: X_grad = inv_std (h - mean of h - x^ (mean of h x^)).

    h = Y_grad scale, x^ = (X - mean) inv_std, means are those of a row; scale_grad is the sum of
    Y_grad x^ over the rows, bias_grad that of Y_grad. Mean and inv_std are used as they are. The
    gradients of no rows are 0.

    Rows of up to 16,384 elements (8,192 where they or their arrays are not aligned, 4,096 of
    float64) that fit into shared memory are read once. A call without X_grad reads what the others
    need, for bias_grad alone Y_grad.

    Memory: a workspace of at most 20 numbers a multiprocessor for each element of a row; of rows
    that do not fit, two numbers a row besides.

    Source: ONNX LayerNormalization-17, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/nn/layer_norm_impl.cu.
    """

    inputs = (
        Y_GRAD,
        X,
        GRADIENT_SCALE,
        Input("mean", "U", shape=STATISTIC),
        Input("inv_std_dev", "U", shape=STATISTIC),
    )
    outputs = (X_GRAD, SCALE_GRAD, BIAS_GRAD)

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan X_grad and the sums over rows; specs: inputs, then outputs."""
        dy, x, scale, mean, inv_std, dx, of_scale, of_bias = specs
        read = Read(FROM_X, dy, x, (scale,), (mean, inv_std))
        return gradient(self.matrix(device, x, dy), read, dx, (of_scale, of_bias))


class SimplifiedLayerNormalizationGrad(_Gradient):
    """Gradient of RMSNorm: X_grad = inv_std (h - x^ (mean of h x^)).

    h = Y_grad scale, x^ = X inv_std, the mean is that of a row; scale_grad is the sum of Y_grad x^
    over the rows, 0 of no rows. inv_std is used as it is. How often a row is read, and the
    workspace, are as in LayerNormalizationGrad.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/nn/layer_norm_impl.cu.
    """

    inputs = (Y_GRAD, X, GRADIENT_SCALE, Input("inv_std_var", "U", shape=STATISTIC))
    outputs = (X_GRAD, SCALE_GRAD)

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan X_grad and the sum over rows; specs: inputs, then outputs."""
        dy, x, scale, inv_std, dx, of_scale = specs
        read = Read(FROM_X, dy, x, (scale,), (None, inv_std))
        return gradient(self.matrix(device, x, dy), read, dx, (of_scale, None))


class InvertibleLayerNormalizationGrad(_Gradient):
    """Gradient of LayerNormalization from its output: x^ = (Y - bias) / scale.

    The formulas are those of LayerNormalizationGrad; X is not needed. Of a column whose scale is
    0, Y tells nothing: x^ counts as 0 there, so that its scale_grad is 0, not what it was; X_grad
    lacks the term with x^, which a scale of 0 leaves nothing but rounding of. All other columns are
    as they should be. Where a bias is large beside scale, Y has few digits of x^ left.

    X_grad has the type `output_type`. How often a row is read, and the workspace, are as in
    LayerNormalizationGrad.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/nn/layer_norm_impl.cu.
    """

    inputs = (
        Y_GRAD,
        Input("Y", "V", shape="shape of Y_grad"),
        GRADIENT_SCALE,
        Input("bias", "V", shape=SCALE),
        Input("inv_std_var", "U", shape=STATISTIC),
    )
    outputs = (
        Output("X_grad", "T", may_alias=("Y_grad", "Y"), shape="shape of Y_grad"),
        SCALE_GRAD,
        BIAS_GRAD,
    )
    output_type = attribute(optional(dtype), None, type="T", doc="V where it is None")

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan X_grad and the sums over rows from Y; specs: inputs, then outputs."""
        dy, y, scale, bias, inv_std, dx, of_scale, of_bias = specs
        read = Read(FROM_Y, dy, y, (scale, bias), (inv_std,))
        x = Spec(y.shape, self.output_type or y.dtype)
        return gradient(self.matrix(device, x, dy), read, dx, (of_scale, of_bias))


def _bare(shape: Shape) -> Shape:
    """Return the shape without its last ones: (2, 3, 1, 1) is (2, 3)."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


OPS = {
    "InvertibleLayerNormalizationGrad": InvertibleLayerNormalizationGrad,
    "LayerNormalization": LayerNormalization,
    "LayerNormalizationGrad": LayerNormalizationGrad,
    "SimplifiedLayerNormalization": SimplifiedLayerNormalization,
    "SimplifiedLayerNormalizationGrad": SimplifiedLayerNormalizationGrad,
}
