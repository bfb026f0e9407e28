# SPDX-License-Identifier: MIT
"""Activations and their gradients, element by element.

float16 and bfloat16 are computed in float32 and rounded once; float64 is computed in float64. The
attribute alpha is rounded to the type that is computed in, beyond its range to infinity. On the GPU
float32 arithmetic reads a subnormal number as zero and writes zero in its place; the selections of
ReluGrad and LeakyReluGrad do not: a subnormal X counts by its sign, and a subnormal dY passes. A
result that underflows is a zero of either sign.
"""

from __future__ import annotations

from typing import ClassVar

from ...call.op import Op
from ...declare.schema import Input, Output, Spec, attribute, real
from ...declare.type_rows import Types
from ...dtypes import FLOATS
from ...errors import refuse
from ...facts import ELEMENTWISE_NBYTES, ELEMENTWISE_THREADS
from ...plan import VEC_NBYTES, Config, Device, Launch, Plan, ceil_div
from ...planning.elementwise import ElementwiseOp, Number, type_slots
from ...planning.fast_division import divisor

DY = Input("dY", "T", shape="any shape")
X = Input("X", "T", shape="shape of dY", doc="the forward input")
Y = Input("Y", "T", shape="shape of dY", doc="the forward output")
DX = Output("dX", "T", may_alias=("dY",), shape="shape of dY")

DY_ROWS = Input("dY", "T", shape="rank 1 or more")
B = Input("B", "T", shape="shape (last extent of X,)", doc="a row, added to every row of X")

X_FORWARD = Input("X", "T", shape="any shape")
Y_FORWARD = Output("Y", "T", may_alias=("X",), shape="shape of X")


GATE = Input("A", "T", shape="any shape", doc="the gate")
VALUE = Input("B", "T", shape="shape of A", doc="what the gate multiplies")
A = Input("A", "T", shape="shape of dY", doc="the gate")
B_OF_DY = Input("B", "T", shape="shape of dY", doc="what the gate multiplied")
DA = Output("dA", "T", may_alias=("dY", "A", "B"), shape="shape of dY")
DB = Output("dB", "T", may_alias=("dY", "A", "B"), shape="shape of dY")


class ReluGrad(ElementwiseOp):
    """Gradient of Relu: dX = dY where X > 0, else 0.

    This is a selection, not a product: where X is NaN, dX is 0. dY passes unchanged; on the GPU a
    NaN of float16 or bfloat16 stays a NaN but may not keep its bits.

    Source: ONNX Relu-14, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/activation/activations_grad.cc.
    """

    kernel = "relu_grad"
    inputs = (
        DY,
        Input("X", "T", shape="shape of dY", doc="the forward input, or the forward output"),
    )
    outputs = (DX,)
    bitwise_exact = True


class LeakyReluGrad(ElementwiseOp):
    """Gradient of LeakyRelu: dX = dY where Y > 0, else alpha dY.

    Y is the forward output, and its sign is the sign of the input only where alpha is above 0. For
    a negative alpha pass the forward input as Y: the formula is the same, and the gradient right.
    Where Y is NaN, dX is alpha dY.

    Source: ONNX LeakyRelu-16, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/activation/activations_grad.cc.
    """

    kernel = "leaky_relu_grad"
    inputs = (DY, Y)
    outputs = (DX,)
    alpha = attribute(real, 0.01)

    def options(self, *inputs: object) -> tuple[Number, ...]:
        return (self.alpha,)


class SigmoidGrad(ElementwiseOp):
    """Gradient of Sigmoid: dX = dY Y (1 - Y).

    NaN propagates. An infinite Y, which Sigmoid never gives, makes dX infinite or NaN.

    Source: ONNX Sigmoid-13, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/activation/activations_grad.cc.
    """

    kernel = "sigmoid_grad"
    inputs = (DY, Y)
    outputs = (DX,)


class TanhGrad(ElementwiseOp):
    """Gradient of Tanh: dX = dY (1 - Y^2).

    NaN propagates. An infinite Y, which Tanh never gives, makes dX infinite or NaN.

    Source: ONNX Tanh-13, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/activation/activations_grad.cc.
    """

    kernel = "tanh_grad"
    inputs = (DY, Y)
    outputs = (DX,)


class GeluGrad(ElementwiseOp):
    """Gradient of Gelu: dX = dY (Phi(X) + X phi(X)).

    Phi is the distribution function of the standard normal, phi its density. At X = inf the result
    is the limit dY, at X = -inf the limit 0, or NaN where dY is infinite. NaN propagates.

    Source: ONNX Gelu-20 with approximate="none", gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/activation/activations_grad.cc.
    """

    kernel = "gelu_grad"
    inputs = (DY, X)
    outputs = (DX,)


class FastGeluGrad(ElementwiseOp):
    """Gradient of FastGelu: dX = dY (s + X v' s (1 - s)), s = 1 / (1 + exp(-v)).

    v = 2 sqrt(2 / pi) (X + 0.044715 X^3), and v' is its derivative. At X = inf the result is the
    limit dY, at X = -inf the limit 0, or NaN where dY is infinite. NaN propagates.

    Source: ONNX Gelu-20 with approximate="tanh", gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/activation/activations_grad.cc.
    """

    kernel = "fast_gelu_grad"
    inputs = (DY, X)
    outputs = (DX,)


class QuickGeluGrad(ElementwiseOp):
    """Gradient of QuickGelu: dX = dY s (1 + v (1 - s)), v = alpha X, s = 1 / (1 + exp(-v)).

    alpha may have any sign. At v = inf the result is the limit dY, at v = -inf the limit 0, or NaN
    where dY is infinite. NaN propagates; so does the NaN of 0 inf where alpha is 0 and X infinite.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/activation/activations_grad.cc.
    """

    kernel = "quick_gelu_grad"
    inputs = (DY, X)
    outputs = (DX,)
    alpha = attribute(real, 1.702)

    def options(self, *inputs: object) -> tuple[Number, ...]:
        return (self.alpha,)


class BiasGeluGrad_dX(ElementwiseOp):  # noqa: N801 (a registered name)
    """Gradient of BiasGelu by X: dX = dY (Phi(Z) + Z phi(Z)), Z = X + B.

    Z is not rounded to T. Phi, phi and special values of Z are those of GeluGrad. The gradient by B
    is the sum of dX over all dimensions but the last.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/activation/bias_gelu_grad.cc.
    """

    kernel = "bias_gelu_grad_dx"
    inputs = (DY_ROWS, X, B)
    outputs = (DX,)
    row = "B"


class BiasFastGeluGrad_dX(ElementwiseOp):  # noqa: N801 (a registered name)
    """Gradient of FastGelu with bias by X: dX = dY (s + Z v' s (1 - s)), Z = X + B.

    s, v and special values of Z are those of FastGeluGrad, with Z in the place of X. Z is not
    rounded to T. The gradient by B is the sum of dX over all dimensions but the last.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/activation/bias_gelu_grad.cc.
    """

    kernel = "bias_fast_gelu_grad_dx"
    inputs = (DY_ROWS, X, B)
    outputs = (DX,)
    row = "B"


class Gelu(ElementwiseOp):
    """Gaussian error linear unit: Y = X Phi(X).

    Phi is the distribution function of the standard normal. At X = inf the result is the limit inf,
    at X = -inf the limit 0. NaN propagates. On the GPU zeros of Y have no sign: -0.0 gives 0.0.

    Source: ONNX Gelu-20 with approximate="none";
    ONNX Runtime, onnxruntime/core/providers/cuda/tensor/gelu.cc.
    """

    kernel = "gelu"
    inputs = (X_FORWARD,)
    outputs = (Y_FORWARD,)


class BiasGelu(ElementwiseOp):
    """Gelu of a sum: C = Z Phi(Z), Z = A + B.

    Z is not rounded to T. Phi and special values of Z are those of Gelu.

    Source: ONNX Runtime, onnxruntime/contrib_ops/cuda/math/bias_gelu.cc.
    """

    kernel = "bias_gelu"
    inputs = (
        Input("A", "T", shape="rank 1 or more"),
        Input("B", "T", shape="shape (last extent of A,)", doc="a row, added to every row of A"),
    )
    outputs = (Output("C", "T", may_alias=("A",), shape="shape of A"),)
    row = "B"


class FastGelu(ElementwiseOp):
    """Gelu by tanh: Y = Z / (1 + exp(-v)), v = 2 sqrt(2 / pi) (Z + 0.044715 Z^3), Z = X + bias.

    That is Z / 2 (1 + tanh(v / 2)). Z is not rounded to T. At Z = inf the result is the limit inf,
    at Z = -inf the limit 0. NaN propagates.

    Source: ONNX Gelu-20 with approximate="tanh";
    ONNX Runtime, onnxruntime/contrib_ops/cuda/bert/fast_gelu.cc.
    """

    kernel = "fast_gelu"
    inputs = (
        X_FORWARD,
        Input("bias", "T", optional=True, shape="shape (last extent of X,)", doc="a row"),
    )
    outputs = (Y_FORWARD,)
    row = "bias"


class QuickGelu(ElementwiseOp):
    """Sigmoid-weighted unit: Y = X / (1 + exp(-alpha X)).

    alpha = 1 is SiLU; alpha may have any sign. At infinite X the result is the limit, X or 0. NaN
    propagates; so does the NaN of 0 inf where alpha is 0 and X infinite.

    Source: ONNX Runtime, onnxruntime/contrib_ops/cuda/activation/activations.cc.
    """

    kernel = "quick_gelu"
    inputs = (X_FORWARD,)
    outputs = (Y_FORWARD,)
    alpha = attribute(real, 1.702)

    def options(self, *inputs: object) -> tuple[Number, ...]:
        return (self.alpha,)


class SwiGlu(ElementwiseOp):
    """Gated SiLU: Y = A s(A) B, s(A) = 1 / (1 + exp(-A)).

    Rounded once. A s(A) is inf at A = inf and 0 at A = -inf, where Y is a NaN if B is infinite. NaN
    propagates.

    Source: Shazeer, GLU Variants Improve Transformer (2020).
    """

    domain = "cupy_training_ops"
    kernel = "swi_glu"
    inputs = (GATE, VALUE)
    outputs = (Output("Y", "T", may_alias=("A", "B"), shape="shape of A"),)


class SwiGluGrad(ElementwiseOp):
    """Gradient of SwiGlu: dA = (dY B) s (1 + A (1 - s)), dB = dY A s, s = 1 / (1 + exp(-A)).

    The slope by A is 1 at A = inf and 0 at A = -inf. NaN propagates.

    Source: Shazeer, GLU Variants Improve Transformer (2020), gradient.
    """

    domain = "cupy_training_ops"
    kernel = "swi_glu_grad"
    inputs = (DY, A, B_OF_DY)
    outputs = (DA, DB)


class _Halves(Op):
    """Base of gated activations whose gate and value are the halves of each row of X.

    Methods have the specs by names in small letters; `rows`: the array without halves, Y or dY.
    """

    domain = "cupy_training_ops"
    types: ClassVar[Types] = {"T": FLOATS}
    kernel: ClassVar[str]

    def launch(self, rows: Spec, *arrays: Spec) -> Plan:
        """Plan one launch over arrays, an item for each element of `rows`; by vectors where rows
        are whole ones and all arrays aligned."""
        columns = rows.shape[-1]
        in_vectors = columns * rows.dtype.itemsize % VEC_NBYTES == 0
        is_aligned = in_vectors and all(spec.aligned for spec in arrays)
        n_blocks = ceil_div(rows.nbytes, ELEMENTWISE_THREADS * ELEMENTWISE_NBYTES)
        config = Config((n_blocks,), (ELEMENTWISE_THREADS,))
        args = (*arrays, rows.size, is_aligned, divisor(max(columns, 1)))
        return Plan((Launch(self.kernel, config, args, type_slots(rows.dtype)),))


class SwiGluHalves(_Halves):
    """SwiGlu of the halves of rows: Y = A s(A) B, s(A) = 1 / (1 + exp(-A)), rows of X (A, B).

    As SwiGlu, of a gate and a value that one matrix product gives.

    Source: Shazeer, GLU Variants Improve Transformer (2020), as transformers' Phi3MLP has it.
    """

    kernel = "swi_glu_halves"
    inputs = (Input("X", "T", shape="shape (..., 2 n)", doc="gates, then what they multiply"),)
    outputs = (Output("Y", "T", shape="shape (..., n)"),)

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        """Return the spec of Y; refuse rows without halves."""
        if not x.shape or x.shape[-1] % 2:
            refuse(self.name, "X", "rank 1 or more and an even last extent", f"shape {x.shape}")
        return (Spec((*x.shape[:-1], x.shape[-1] // 2), x.dtype),)

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        """Plan one launch."""
        return self.launch(y, x, y)


class SwiGluHalvesGrad(_Halves):
    """Gradient of SwiGluHalves: dX = (dA, dB), those of SwiGluGrad, in each row.

    Source: Shazeer, GLU Variants Improve Transformer (2020), gradient.
    """

    kernel = "swi_glu_halves_grad"
    inputs = (
        Input("dY", "T", shape="shape (..., n)"),
        Input("X", "T", shape="shape (..., 2 n)", doc="the forward input"),
    )
    outputs = (Output("dX", "T", may_alias=("X",), shape="shape of X"),)

    def infer(self, dy: Spec, x: Spec) -> tuple[Spec, ...]:
        """Return the spec of dX; refuse an X whose rows are not twice as long as those of dY."""
        if not dy.shape:
            refuse(self.name, "dY", "rank 1 or more", "a scalar")
        expected = (*dy.shape[:-1], 2 * dy.shape[-1])
        if x.shape != expected:
            refuse(self.name, "X", f"shape {expected}, as dY is {dy.shape}", f"{x.shape}")
        return (Spec(x.shape, x.dtype),)

    def plan(self, device: Device, dy: Spec, x: Spec, dx: Spec) -> Plan:
        """Plan one launch."""
        return self.launch(dy, dy, x, dx)


class FastGeGlu(ElementwiseOp):
    """Gated Gelu by tanh: Y = FastGelu(A) B.

    Rounded once. FastGelu(A) is inf at A = inf and 0 at A = -inf, where Y is a NaN if B is
    infinite. NaN propagates.

    Source: Shazeer, GLU Variants Improve Transformer (2020).
    """

    domain = "cupy_training_ops"
    kernel = "fast_ge_glu"
    inputs = (GATE, VALUE)
    outputs = (Output("Y", "T", may_alias=("A", "B"), shape="shape of A"),)


class FastGeGluGrad(ElementwiseOp):
    """Gradient of FastGeGlu: dA = (dY B) slope, dB = dY FastGelu(A), slope as in FastGeluGrad.

    The slope by A is 1 at A = inf and 0 at A = -inf. NaN propagates.

    Source: Shazeer, GLU Variants Improve Transformer (2020), gradient.
    """

    domain = "cupy_training_ops"
    kernel = "fast_ge_glu_grad"
    inputs = (DY, A, B_OF_DY)
    outputs = (DA, DB)


OPS = {
    "BiasFastGeluGrad_dX": BiasFastGeluGrad_dX,
    "BiasGelu": BiasGelu,
    "BiasGeluGrad_dX": BiasGeluGrad_dX,
    "FastGeGlu": FastGeGlu,
    "FastGeGluGrad": FastGeGluGrad,
    "FastGelu": FastGelu,
    "FastGeluGrad": FastGeluGrad,
    "Gelu": Gelu,
    "GeluGrad": GeluGrad,
    "LeakyReluGrad": LeakyReluGrad,
    "QuickGelu": QuickGelu,
    "QuickGeluGrad": QuickGeluGrad,
    "ReluGrad": ReluGrad,
    "SigmoidGrad": SigmoidGrad,
    "SwiGlu": SwiGlu,
    "SwiGluGrad": SwiGluGrad,
    "SwiGluHalves": SwiGluHalves,
    "SwiGluHalvesGrad": SwiGluHalvesGrad,
    "TanhGrad": TanhGrad,
}
