# SPDX-License-Identifier: MIT
"""Scaling, quantisation and finiteness, element by element; the gradient of a division.

float16 and bfloat16 are computed in float32 and rounded once; float64 is computed in float64.
Numbers such as scales are rounded to the type that is computed in, beyond its range to infinity. On
the GPU float32 arithmetic reads a subnormal number as zero and writes zero in its place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ...call.op import Op
from ...declare.schema import (
    Input,
    Output,
    Spec,
    Tiles,
    attribute,
    boolean,
    integer,
    optional,
    real,
    single,
)
from ...declare.type_rows import Types
from ...dtypes import FLOATS
from ...errors import refuse
from ...plan import Config, Device, Plan, ceil_div
from ...planning.elementwise import ElementwiseOp, Number, streaming_launch
from ...rules.widening import round_number
from .facts import MAX_DIMENSIONS
from .plan_div_grad import Arrays, broadcast, dimensions, plan_gradients

# Tiles of a block of ScaleInPlace, at most, once each multiprocessor has TILED_BLOCKS blocks.
MOST_TILES = 16
TILED_BLOCKS = 64
INPUT = Input("input", "T", shape="any shape")
OUTPUT = Output("output", "T", may_alias=("input",), shape="shape of input")


def number(value: object) -> float:
    """A real number, also in an array or a sequence of one element.

    Return `value` as such, or refuse it; documents show the first line.
    """
    return value if type(value) is float else real(single(value))


def limit(value: object) -> int:
    """An integer within the range of float64.

    Return `value` as such, or refuse it; documents show the first line.
    """
    whole = integer(value)
    real(whole)
    return whole


class Scale(ElementwiseOp):
    """Scaling by a number: output = input scale, or input / scale with `scale_down`.

    With scale_down each element is divided: it is not multiplied by a rounded 1 / scale.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/scale.cc.
    """

    inputs = (INPUT, Input("scale", "float64", memory="host", convert=number, static=False))
    outputs = (OUTPUT,)
    scale_down = attribute(boolean, False, doc="divide instead of multiplying")

    @property
    def kernel(self) -> str:
        return "scale__down" if self.scale_down else "scale"

    def options(self, *inputs: Any) -> tuple[Number, ...]:
        return (inputs[1],)


class ScaleInPlace(ElementwiseOp):
    """Scaling in place by a number in memory: output = input factor.

    Where factor is 1, and output is input's array, input is neither read nor written.

    Source: PyTorch's mul_, of the gradient of a loss.
    """

    domain = "cupy_training_ops"
    kernel = "scale_in_place"
    inputs = (
        INPUT,
        Input("factor", "float32", shape="one element", doc="read where it is"),
    )
    outputs = (Output("output", "T", aliases="input", shape="shape of input"),)
    tiles: ClassVar[Tiles] = None

    def infer(self, *inputs: Any) -> tuple[Spec | None, ...]:
        """Return the spec of output, that of input; refuse a factor of several elements.

        inputs: the specs of input and factor.
        """
        x, factor = inputs
        if factor.size != 1:
            refuse(self.name, "factor", "one element", f"shape {factor.shape}")
        return (Spec(x.shape, x.dtype),)

    def plan(self, device: Device, *specs: Any) -> Plan:
        x, factor, y = specs
        launch = streaming_launch(self.kernel, (x, y))
        (n_tiles,) = launch.config.grid
        tiles = max(1, min(MOST_TILES, n_tiles // (TILED_BLOCKS * device.multiprocessors)))
        config = Config((ceil_div(n_tiles, tiles),), launch.config.block)
        return Plan((replace(launch, config=config, args=(*launch.args, tiles, factor)),))


class BatchScale(ElementwiseOp):
    """Several scaled copies: output_i = input scale_i for i = 0, 1 and, if there is a scale_2, 2.

    Without scale_2, output_2 is None. One output at most may be input's array.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/batch_scale.cc.
    """

    kernel = "batch_scale"
    inputs = (INPUT,)
    outputs = tuple(
        Output(f"output_{i}", "T", optional=i == 2, may_alias=("input",), shape="shape of input")
        for i in range(3)
    )
    scale_0 = attribute(real)
    scale_1 = attribute(real)
    scale_2 = attribute(optional(real), None)

    def infer(self, *inputs: object) -> tuple[Spec | None, ...]:
        first, second, third = super().infer(*inputs)
        return first, second, None if self.scale_2 is None else third

    def options(self, *inputs: object) -> tuple[Number, ...]:
        return self.scale_0, self.scale_1, self.scale_2 or 0.0


class ScaledSum(ElementwiseOp):
    """Weighted sum: output = input_0 scale_0 + input_1 scale_1 [+ input_2 scale_2].

    The products are added from left to right. scale_2 is required with input_2 and
    ignored where it is not.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/scaled_sum.cc.
    """

    kernel = "scaled_sum"
    inputs = (
        Input("input_0", "T", shape="any shape"),
        Input("input_1", "T", shape="shape of input_0"),
        Input("input_2", "T", optional=True, shape="shape of input_0"),
    )
    outputs = (
        Output(
            "output",
            "T",
            may_alias=("input_0", "input_1", "input_2"),
            shape="shape of input_0",
        ),
    )
    scale_0 = attribute(real)
    scale_1 = attribute(real)
    scale_2 = attribute(optional(real), None)

    def infer(self, *inputs: object) -> tuple[Spec | None, ...]:
        """Refuse an input_2 without a scale_2; return the spec of output."""
        if inputs[2] is not None and self.scale_2 is None:
            refuse(self.name, "scale_2", "a number, because there is an input_2", "None")
        return super().infer(*inputs)

    def options(self, *inputs: object) -> tuple[Number, ...]:
        """Return the three scales; of an absent input_2, the third of `inputs`, -0.0."""
        # The kernel reads 0 for an absent input_2: 0 times -0 adds nothing, even to -0.
        scale_2 = -0.0 if inputs[2] is None or self.scale_2 is None else self.scale_2
        return self.scale_0, self.scale_1, scale_2


class FakeQuant(ElementwiseOp):
    """Quantised and back: output = (min(quant_max, max(quant_min, q)) - zero_point) scale.

    q = rint(input / scale) + zero_point, halves to even; mask = quant_min <= q <= quant_max. An
    infinite q is clamped, a NaN stays a NaN; the mask is False for both.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/quantization/fake_quant.cc.
    """

    kernel = "fake_quant"
    inputs = (
        INPUT,
        Input(
            "scale",
            "float64",
            memory="host",
            convert=number,
            doc="normal once it is rounded: not 0, subnormal, infinite or NaN",
        ),
        Input("zero_point", "float64", memory="host", convert=number, static=False),
    )
    outputs = (OUTPUT, Output("mask", "bool", shape="shape of input"))
    quant_min = attribute(limit, 0)
    quant_max = attribute(limit, 255)

    def __init__(self, **attributes: object) -> None:
        """Refuse a quant_max below quant_min."""
        super().__init__(**attributes)
        if self.quant_min > self.quant_max:
            expected = f"at least quant_min, {self.quant_min}"
            refuse(self.name, "quant_max", expected, str(self.quant_max))

    def check_numbers(self, *inputs: Any) -> None:
        """Refuse a scale that is 0, subnormal, infinite or NaN once it is rounded.

        inputs: the spec of input, then the numbers scale and zero_point.
        """
        scale = round_number(inputs[1], inputs[0].dtype)
        limits = np.finfo(scale.dtype)
        if not limits.smallest_normal <= abs(scale) <= limits.max:
            expected = f"a number other than 0 that is normal in {scale.dtype}"
            refuse(self.name, "scale", expected, f"{inputs[1]}")

    def options(self, *inputs: Any) -> tuple[Number, ...]:
        return (*inputs[1:], self.quant_min, self.quant_max)


class FakeQuantGrad(ElementwiseOp):
    """Gradient of FakeQuant, straight through: dX = dY where gradient_mask, else 0.

    This is a selection, not a product: a NaN outside the mask gives 0, and dY passes unchanged; on
    the GPU a NaN of float16 or bfloat16 stays a NaN but may not keep its bits.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/quantization/fake_quant.cc.
    """

    kernel = "fake_quant_grad"
    inputs = (
        Input("dY", "T", shape="any shape"),
        Input("gradient_mask", "bool", shape="shape of dY", doc="the mask that FakeQuant gave"),
    )
    outputs = (Output("dX", "T", may_alias=("dY",), shape="shape of dY"),)
    bitwise_exact = True


class IsFinite(ElementwiseOp):
    """Test for numbers: Y = X is neither infinite nor NaN.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/isfinite.cc.
    """

    kernel = "is_finite"
    inputs = (Input("X", "T", shape="any shape"),)
    outputs = (Output("Y", "bool", shape="shape of X"),)
    bitwise_exact = True


class DivGrad(Op):
    """Gradient of Y = A / B: dA = sum of dY / B, dB = sum of -(dY / B) (A / B).

    A and B broadcast. The sum for dA runs over the dimensions that A is repeated along, the sum for
    dB over those of B; both are accumulated in float32 (float64 for float64), in an order that
    depends on shapes and alignment only. Zeros, infinities, NaN and subnormal divisors give what
    IEEE 754 says. `outputs=("dB",)` saves the work for dA.

    Memory: a workspace where a gradient is summed.

    Source: ONNX Div-14, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/div_grad.cc.
    """

    inputs = (
        Input("dY", "T", shape="the shape that A and B broadcast to"),
        Input("A", "T", shape="any shape"),
        Input("B", "T", shape="a shape that broadcasts with that of A"),
    )
    outputs = (Output("dA", "T", shape="shape of A"), Output("dB", "T", shape="shape of B"))
    types: ClassVar[Types] = {"T": FLOATS}

    def infer(self, dy: Spec, a: Spec, b: Spec) -> tuple[Spec, ...]:
        """Check that a (A) and b (B) broadcast to dY's shape; return the specs of dA and dB.

        More than MAX_DIMENSIONS dimensions may do, if neighbours broadcast alike and are merged.
        """
        shape = broadcast(a.shape, b.shape)
        if shape is None:
            refuse(self.name, "B", f"a shape that broadcasts with {a.shape}", f"{b.shape}")
        if dy.shape != shape:
            refuse(self.name, "dY", f"shape {shape}, that of A / B", f"{dy.shape}")
        many = len(shape) > MAX_DIMENSIONS
        groups = len(dimensions(a.shape, b.shape)) if many else 0
        if groups > MAX_DIMENSIONS:
            expected = f"at most {MAX_DIMENSIONS} changes between the operands"
            refuse(self.name, "B", expected, str(groups))
        return Spec(a.shape, a.dtype), Spec(b.shape, b.dtype)

    def plan(self, device: Device, *arrays: Any) -> Plan:
        return plan_gradients(Arrays(*arrays))


OPS: dict[str, type[Op]] = {
    "BatchScale": BatchScale,
    "DivGrad": DivGrad,
    "FakeQuant": FakeQuant,
    "FakeQuantGrad": FakeQuantGrad,
    "IsFinite": IsFinite,
    "Scale": Scale,
    "ScaleInPlace": ScaleInPlace,
    "ScaledSum": ScaledSum,
}
