# SPDX-License-Identifier: MIT
"""Activations and their gradients, element by element.

float16 and bfloat16 compute in float32 and round once, float64 stays float64. alpha is rounded
likewise, beyond the range to infinity. On the GPU float32 arithmetic flushes subnormals to zero, of
inputs and results; the selects of ReluGrad and LeakyReluGrad do not. A zero that a result
underflows to may have either sign. dX may be written into dY (`out=dy`). All are deterministic.
"""

from __future__ import annotations

from typing import Any

from ..planning.elementwise import ElementwiseOp
from ..schema import Attribute, Input, Output, real

DY = Input("dY", "T")
X = Input("X", "T")
Y = Input("Y", "T")
B = Input("B", "T")
DX = Output("dX", "T", may_alias=("dY",))


class ReluGrad(ElementwiseOp):
    """Gradient of Relu: dX = dY where X > 0, else 0.

    X is the forward input or output. A plain select: NaN in X gives 0, dY passes unchanged; on the
    GPU a NaN of float16 or bfloat16 stays a NaN but may not keep its bits.

    dY, X: T, one shape, device. dX: T, that shape, device; may be dY. T: float32, float16, float64,
    bfloat16. Deterministic. Raises ArgumentError and DtypeError. Source: contract 22.
    """

    inputs = (DY, X)
    outputs = (DX,)
    bitwise_exact = True


class LeakyReluGrad(ElementwiseOp):
    """Gradient of LeakyRelu: dX = dY where Y > 0, else alpha dY.

    Y is the forward *output*, whose sign is that of the input only for alpha > 0: with a negative
    alpha the gradient of a negative input is wrong by design of the contract; give the forward
    input as Y then, the formula is the same. A plain select: NaN in Y gives alpha dY.

    dY, Y: T, one shape, device. dX: T, that shape, device; may be dY. T: float32, float16, float64,
    bfloat16. Deterministic. Raises ArgumentError and DtypeError. Source: contract 22.
    """

    inputs = (DY, Y)
    outputs = (DX,)
    attributes = (Attribute("alpha", real, 0.01),)
    alpha: float

    def options(self, *inputs: Any) -> tuple[Any, ...]:
        return (self.alpha,)


class SigmoidGrad(ElementwiseOp):
    """Gradient of Sigmoid: dX = dY Y (1 - Y), Y the forward output.

    NaN propagates; an infinite Y, which Sigmoid never gives, makes dX infinite or NaN.

    dY, Y: T, one shape, device. dX: T, that shape, device; may be dY. T: float32, float16, float64,
    bfloat16. Deterministic. Raises ArgumentError and DtypeError. Source: contract 22.
    """

    inputs = (DY, Y)
    outputs = (DX,)


class TanhGrad(ElementwiseOp):
    """Gradient of Tanh: dX = dY (1 - Y^2), Y the forward output.

    NaN propagates; an infinite Y, which Tanh never gives, makes dX infinite or NaN.

    dY, Y: T, one shape, device. dX: T, that shape, device; may be dY. T: float32, float16, float64,
    bfloat16. Deterministic. Raises ArgumentError and DtypeError. Source: contract 22.
    """

    inputs = (DY, Y)
    outputs = (DX,)


class GeluGrad(ElementwiseOp):
    """Gradient of Gelu: dX = dY (Phi(X) + X phi(X)), Phi and phi of the standard normal.

    At X = inf and -inf the limits dY and 0 (NaN for an infinite dY times 0); NaN propagates.

    dY, X: T, one shape, device. dX: T, that shape, device; may be dY. T: float32, float16, float64,
    bfloat16. Deterministic. Raises ArgumentError and DtypeError. Source: contract 22.
    """

    inputs = (DY, X)
    outputs = (DX,)


class FastGeluGrad(ElementwiseOp):
    """Gradient of FastGelu: dX = dY (s + X v' s (1 - s)), s = 1 / (1 + exp(-v)).

    v = 2 sqrt(2 / pi) (X + 0.044715 X^3), v' its derivative. At X = inf and -inf the limits dY and
    0 (NaN for an infinite dY times 0); NaN propagates.

    dY, X: T, one shape, device. dX: T, that shape, device; may be dY. T: float32, float16, float64,
    bfloat16. Deterministic. Raises ArgumentError and DtypeError. Source: contract 22.
    """

    inputs = (DY, X)
    outputs = (DX,)


class QuickGeluGrad(ElementwiseOp):
    """Gradient of QuickGelu: dX = dY s (1 + v (1 - s)), v = alpha X, s = 1 / (1 + exp(-v)).

    alpha may have any sign. At infinite v the limits dY and 0 (NaN for an infinite dY times 0); NaN
    propagates, also the NaN of 0 inf where alpha is 0 and X infinite.

    dY, X: T, one shape, device. dX: T, that shape, device; may be dY. T: float32, float16, float64,
    bfloat16. Deterministic. Raises ArgumentError and DtypeError. Source: contract 22.
    """

    inputs = (DY, X)
    outputs = (DX,)
    attributes = (Attribute("alpha", real, 1.702),)
    alpha: float

    def options(self, *inputs: Any) -> tuple[Any, ...]:
        return (self.alpha,)


class BiasGeluGrad_dX(ElementwiseOp):  # noqa: N801 (a registered name)
    """Gradient of BiasGelu by X: dX = dY (Phi(Z) + Z phi(Z)), Z = X + B; see GeluGrad.

    Z is not rounded to T. The gradient by B is the sum of dX over all dimensions but the last.

    dY, X: T, one shape of rank 1 or more, device. B: T, shape (last extent of X,), device. dX: T,
    shape of X, device; may be dY. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 22.1.
    """

    inputs = (DY, X, B)
    outputs = (DX,)
    row = "B"


class BiasFastGeluGrad_dX(ElementwiseOp):  # noqa: N801 (a registered name)
    """Gradient of FastGelu with bias by X: dX = dY times the slope of FastGelu at X + B.

    See FastGeluGrad. X + B is not rounded to T. The gradient by B is the sum of dX over all
    dimensions but the last.

    dY, X: T, one shape of rank 1 or more, device. B: T, shape (last extent of X,), device. dX: T,
    shape of X, device; may be dY. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 22.1.
    """

    inputs = (DY, X, B)
    outputs = (DX,)
    row = "B"


class Gelu(ElementwiseOp):
    """Gaussian error linear unit: Y = X Phi(X), Phi of the standard normal.

    At X = inf and -inf the limits inf and 0; NaN propagates. On the GPU zeros of Y have no sign:
    -0.0 gives 0.0.

    X: T, any shape, device. Y: T, that shape, device. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 23.
    """

    inputs = (X,)
    outputs = (Output("Y", "T", may_alias=("X",)),)


class BiasGelu(ElementwiseOp):
    """Gelu of a sum: C = Z Phi(Z), Z = A + B, which is not rounded to T; as Gelu at special values.

    A: T, rank 1 or more, device. B: T, shape (last extent of A,), device. C: T, shape of A,
    device. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 23.
    """

    inputs = (Input("A", "T"), B)
    outputs = (Output("C", "T", may_alias=("A",)),)
    row = "B"


class FastGelu(ElementwiseOp):
    """Gelu's tanh form: Y = Z / (1 + exp(-v)), v = 2 sqrt(2 / pi) (Z + 0.044715 Z^3), Z = X + bias.

    That is Z / 2 (1 + tanh(v / 2)). Z is not rounded to T. At Z = inf and -inf the limits inf and
    0; NaN propagates.

    X: T, any shape, device. bias: T, shape (last extent of X,), device, may be None. Y: T, shape of
    X, device. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 23.
    """

    inputs = (X, Input("bias", "T", optional=True))
    outputs = (Output("Y", "T", may_alias=("X",)),)
    row = "bias"


class QuickGelu(ElementwiseOp):
    """Sigmoid-weighted unit: Y = X / (1 + exp(-alpha X)); alpha = 1 is SiLU.

    alpha may have any sign. At infinite X the limits (X or 0); NaN propagates, also the NaN of
    0 inf where alpha is 0 and X infinite.

    X: T, any shape, device. Y: T, that shape, device. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 23.
    """

    inputs = (X,)
    outputs = (Output("Y", "T", may_alias=("X",)),)
    attributes = (Attribute("alpha", real, 1.702),)
    alpha: float

    def options(self, *inputs: Any) -> tuple[Any, ...]:
        return (self.alpha,)


OPS = {
    "BiasFastGeluGrad_dX": BiasFastGeluGrad_dX,
    "BiasGelu": BiasGelu,
    "BiasGeluGrad_dX": BiasGeluGrad_dX,
    "FastGelu": FastGelu,
    "FastGeluGrad": FastGeluGrad,
    "Gelu": Gelu,
    "GeluGrad": GeluGrad,
    "LeakyReluGrad": LeakyReluGrad,
    "QuickGelu": QuickGelu,
    "QuickGeluGrad": QuickGeluGrad,
    "ReluGrad": ReluGrad,
    "SigmoidGrad": SigmoidGrad,
    "TanhGrad": TanhGrad,
}
