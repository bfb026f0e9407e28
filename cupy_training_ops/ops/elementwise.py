# SPDX-License-Identifier: MIT
"""Scaling, quantisation and finiteness, element by element; the gradient of a division.

float16 and bfloat16 compute in float32 and round once, float64 stays float64. On the GPU float32
arithmetic flushes subnormals to zero, of inputs and results. All are deterministic.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..dtypes import FLOATS
from ..errors import refuse
from ..frame.op import Op
from ..numerics import rounded
from ..plan import Device, Plan
from ..planning import broadcasting
from ..planning.div_grad import Arrays, plan_general, plan_part
from ..planning.elementwise import ElementwiseOp, streamed
from ..schema import Attribute, Input, Output, Spec, Types, boolean, integer, optional, real, single


def number(value: Any) -> float:
    """One number: a Python or NumPy number, or an array or sequence of one element."""
    return real(single(value))


def bound(value: Any) -> int:
    """An integer within the range of float64."""
    whole = integer(value)
    real(whole)
    return whole


class Scale(ElementwiseOp):
    """Scaling by a number: output = input scale, or input / scale with `scale_down`.

    The scale is rounded to float32 (float64 for float64), beyond its range to infinity; scale_down
    is a true division.

    input: T, any shape, device. scale: one number, host (a Python number or a NumPy array of one
    element); a captured graph keeps its value. output: T, shape of input, device; may be input.
    T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 16.
    """

    inputs = (Input("input", "T"), Input("scale", "float64", memory="host", convert=number))
    outputs = (Output("output", "T", may_alias=("input",)),)
    attributes = (Attribute("scale_down", boolean, False),)
    scale_down: bool

    @property
    def symbol(self) -> str:
        return "scale__down" if self.scale_down else "scale"

    def options(self, *inputs: Any) -> tuple[Any, ...]:
        return (inputs[1],)


class BatchScale(ElementwiseOp):
    """Several scaled copies: output_i = input scale_i, i = 0, 1 and, if there is a scale_2, 2.

    The scales are rounded to float32 (float64 for float64), beyond its range to infinity. Without
    scale_2 output_2 is None.

    input: T, any shape, device. output_i: T, shape of input, device; one of them may be input.
    T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 17.
    """

    inputs = (Input("input", "T"),)
    outputs = tuple(Output(f"output_{i}", "T", may_alias=("input",)) for i in range(3))
    attributes = (
        Attribute("scale_0", real),
        Attribute("scale_1", real),
        Attribute("scale_2", optional(real), None),
    )
    scale_0: float
    scale_1: float
    scale_2: float | None

    def infer(self, *inputs: Any) -> tuple[Any, ...]:
        first, second, third = super().infer(*inputs)
        return first, second, None if self.scale_2 is None else third

    def options(self, *inputs: Any) -> tuple[Any, ...]:
        return self.scale_0, self.scale_1, self.scale_2 or 0.0


class ScaledSum(ElementwiseOp):
    """Weighted sum: output = input_0 scale_0 + input_1 scale_1 [+ input_2 scale_2].

    Added from left to right. The scales are rounded to float32 (float64 for float64), beyond its
    range to infinity. scale_2 is required with input_2 and ignored without it.

    input_i: T, one shape, device; input_2 may be None. output: T, that shape, device; may be any
    input. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 18.
    """

    inputs = (Input("input_0", "T"), Input("input_1", "T"), Input("input_2", "T", optional=True))
    outputs = (Output("output", "T", may_alias=("input_0", "input_1", "input_2")),)
    attributes = BatchScale.attributes
    scale_0: float
    scale_1: float
    scale_2: float | None

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        if inputs[2] is not None and self.scale_2 is None:
            refuse(self.name, "scale_2", "a number, because input_2 is given", "None")
        return super().infer(*inputs)

    def options(self, *inputs: Any) -> tuple[Any, ...]:
        # The kernel reads 0 for an absent input_2: 0 times -0 adds nothing, even to -0.
        return self.scale_0, self.scale_1, -0.0 if inputs[2] is None else self.scale_2


class FakeQuant(ElementwiseOp):
    """Quantised and back: output = (min(quant_max, max(quant_min, q)) - zero_point) scale.

    q = rint(input / scale) + zero_point, halves to even; mask = quant_min <= q <= quant_max.
    Infinities are clamped; NaN stays NaN; the mask is False for both. All four numbers are rounded
    to float32 (float64 for float64), bounds beyond its range to infinity.

    input: T, any shape, device. scale, zero_point: one number each, host (Python numbers or NumPy
    arrays of one element); a captured graph keeps their values. scale is a normal number once it is
    rounded: not 0, subnormal, infinite or NaN. output: T, mask: bool, shape of input, device;
    output may be input. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 19.
    """

    inputs = (
        Input("input", "T"),
        Input("scale", "float64", memory="host", convert=number),
        Input("zero_point", "float64", memory="host", convert=number),
    )
    outputs = (Output("output", "T", may_alias=("input",)), Output("mask", "bool"))
    attributes = (Attribute("quant_min", bound, 0), Attribute("quant_max", bound, 255))
    quant_min: int
    quant_max: int

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        if self.quant_min > self.quant_max:
            expected = f"at least quant_min, {self.quant_min}"
            refuse(self.name, "quant_max", expected, str(self.quant_max))

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        scale = rounded(inputs[1], inputs[0].dtype)
        limits = np.finfo(scale)
        if not limits.smallest_normal <= abs(scale) <= limits.max:
            expected = f"a number other than 0 that is normal in {scale.dtype}"
            refuse(self.name, "scale", expected, f"{inputs[1]}")
        return super().infer(*inputs)

    def options(self, *inputs: Any) -> tuple[Any, ...]:
        return (*inputs[1:], self.quant_min, self.quant_max)


class FakeQuantGrad(ElementwiseOp):
    """Gradient of FakeQuant, straight through: dX = dY where gradient_mask, else 0.

    A plain select: a NaN outside the mask gives 0, dY passes unchanged; on the GPU a NaN of float16
    or bfloat16 stays a NaN but may not keep its bits.

    dY: T, gradient_mask: bool, one shape, device. dX: T, that shape, device; may be dY.
    T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 20.
    """

    inputs = (Input("dY", "T"), Input("gradient_mask", "bool"))
    outputs = (Output("dX", "T", may_alias=("dY",)),)
    bitwise_exact = True


class IsFinite(ElementwiseOp):
    """Test for numbers: Y = X is neither infinite nor NaN.

    X: T, any shape, device. Y: bool, shape of X, device. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 10.
    """

    inputs = (Input("X", "T"),)
    outputs = (Output("Y", "bool"),)
    bitwise_exact = True


class DivGrad(Op):
    """Gradient of Y = A / B: dA = sum of dY / B, dB = sum of -(dY / B) (A / B).

    A and B broadcast; the sums run over the dimensions that A, or B, is repeated along, in float32
    (float64 for float64), in an order that depends on shapes and alignment only. Division by zero,
    infinities, NaN and subnormal divisors as IEEE 754 has them. `outputs=("dB",)` saves the other.

    dY: T, broadcast shape of A and B, device. A, B: T, device. dA: T, shape of A, dB: T, shape of
    B, device. T: float32, float16, float64, bfloat16. Needs scratch memory where a gradient is
    summed. Deterministic. Raises ArgumentError and DtypeError. Source: contract 21.
    """

    inputs = (Input("dY", "T"), Input("A", "T"), Input("B", "T"))
    outputs = (Output("dA", "T"), Output("dB", "T"))
    types: ClassVar[Types] = {"T": FLOATS}

    def infer(self, dy: Spec, a: Spec, b: Spec) -> tuple[Spec, ...]:
        try:
            shape = np.broadcast_shapes(a.shape, b.shape)
        except ValueError:
            refuse(self.name, "B", f"a shape that broadcasts with {a.shape}", f"{b.shape}")
        if dy.shape != shape:
            refuse(self.name, "dY", f"shape {shape}, that of A / B", f"{dy.shape}")
        return Spec(a.shape, a.dtype), Spec(b.shape, b.dtype)

    def plan(
        self, device: Device, dy: Spec, a: Spec, b: Spec, da: Spec | None, db: Spec | None
    ) -> Plan:
        arrays = Arrays(dy, a, b, da, db)
        if a.size == b.size == dy.size:
            return Plan((streamed("div_grad", arrays.present),))
        dims = broadcasting.dimensions(a.shape, b.shape)
        for part in ("B", "A"):
            form = broadcasting.outer_kept_inner(dims, part)
            if form is not None:
                return plan_part(form, part, arrays)
        return plan_general(dims, arrays)


OPS: dict[str, type[Op]] = {
    "BatchScale": BatchScale,
    "DivGrad": DivGrad,
    "FakeQuant": FakeQuant,
    "FakeQuantGrad": FakeQuantGrad,
    "IsFinite": IsFinite,
    "Scale": Scale,
    "ScaledSum": ScaledSum,
}
