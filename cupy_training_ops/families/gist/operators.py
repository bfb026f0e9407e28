# SPDX-License-Identifier: MIT
"""Gist activation codecs: ten encoders and decoders that shrink activations saved for backward.

Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA 2018.
"""

from __future__ import annotations

from typing import ClassVar

from ...call.op import Op
from ...declare.schema import Input, Output, Spec, Tiles, attribute, boolean, dtype, optional, shape
from ...declare.type_rows import Types
from ...dtypes import BOOL, FLOATS, UINT8, Dtype, HostArray, to_dtype
from ...errors import refuse
from ...plan import Config, Device, Launch, Plan, ceil_div, slots
from .facts import BOX, ELEMENT_NBYTES, THREADS, TILE_NBYTES

TO = attribute(dtype, type="T")
SHAPE = attribute(optional(shape), None, doc="the shape of Y")
X = Input("X", "T", shape="any shape")
MSFP15_CODES = Output(
    "Y",
    "uint8",
    shape="shape of X where its size n is a multiple of 8",
    doc="else shape (8 ceil(n / 8),), the last tile padded with zeros",
)
KEEP_NONFINITE = attribute(
    boolean, False, doc="keep infinities and NaN, which else become zeros with all of their tile"
)
KEEP_SIGN = attribute(boolean, False, doc="round what is not 0 to a step at least, never to 0")


class _Codec(Op):
    """Base of the ten: one launch from X to Y.

    Blocks have `threads` threads, each for `thread_nbytes` bytes of decoded elements; a code stands
    for `per_code` elements.
    """

    inputs = (X,)
    outputs = (Output("Y", "T", shape="shape of X where `shape` is None"),)
    types: ClassVar[Types] = {"T": FLOATS}
    tiles: ClassVar[Tiles] = {}
    bitwise_exact = True
    threads: ClassVar[int] = THREADS
    thread_nbytes: ClassVar[int] = ELEMENT_NBYTES
    per_code: ClassVar[int] = 1  # elements

    @property
    def kernel(self) -> str:
        """Return the kernel's name, which a subclass states."""
        raise NotImplementedError

    def stream(self, x: Spec, y: Spec, decoded: Spec) -> Plan:
        """Plan one launch; decoded: which of x and y has the elements, the other has the codes.

        The kernel takes (x, y, their sizes, True if both are aligned, options).
        """
        grid = ceil_div(decoded.nbytes, self.threads * self.thread_nbytes)
        aligned = x.aligned and y.aligned
        arguments = (x, y, x.size, y.size, aligned, *self.options())
        config = Config((grid,), (self.threads,))
        return Plan((Launch(self.kernel, config, arguments, self.binding(decoded.dtype)),))

    def binding(self, decoded: Dtype) -> dict[str, str]:
        """Return the macros of the kernel's types; decoded: the dtype of elements."""
        return slots(T=decoded)

    def options(self) -> tuple[object, ...]:
        """Return the kernel's arguments behind arrays, sizes and alignment."""
        return ()


class Encoder(_Codec):
    """Base of operators that make codes of elements."""

    detaches = True

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(self.code_shape(x), to_dtype(self.outputs[0].type)),)

    def code_shape(self, x: Spec) -> tuple[int, ...]:
        """Return the shape of the codes of x."""
        return x.shape if self.per_code == 1 else (ceil_div(x.size, self.per_code),)

    def takes_back(self, x: Spec, shape: tuple[int, ...], dtype: Dtype) -> bool:
        """Return True if an array of this shape and dtype may be the codes of x."""
        (y,) = self.infer(x)
        return (shape, dtype) == (y.shape, y.dtype)

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        return self.stream(x, y, x)


class Decoder(_Codec):
    """Base of operators that make elements of dtype `to` and shape `shape` of codes."""

    to = TO
    shape = SHAPE

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        """Return the spec of Y; refuse codes of another number of elements."""
        y = Spec(self.flat_shape(x) if self.shape is None else self.shape, self.to)
        if self.codes(y.size) != x.size:
            expected = f"{self.codes(y.size)} codes for shape {y.shape}"
            refuse(self.name, "X", expected, f"{x.size} of shape {x.shape}")
        return (y,)

    def flat_shape(self, x: Spec) -> tuple[int, ...]:
        """Return the shape of Y where `shape` is None, as in ONNX Runtime."""
        return x.shape if self.per_code == 1 else (self.per_code * x.size,)

    def codes(self, n: int) -> int:
        """Return how many codes n elements have."""
        return ceil_div(n, self.per_code)

    def flaw(self, codes: HostArray) -> str:
        """Return words for a fault in codes that no encoder makes; "" if there is none."""
        return ""

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        return self.stream(x, y, y)

    def cpu_attributes(self) -> dict[str, object]:
        # The CPU provider decodes Y in pieces, which `shape`, that of all of Y, would not fit.
        return {**self.attribute_values, "shape": None}


class GistBinarizeEncoder(Encoder):
    """Sign test: Y = X > 0, in one byte an element.

    Zeros of either sign, negative numbers and NaN give False; subnormal numbers above zero give
    True.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/gist/gist.cc.
    """

    kernel = "gist_binarize_encoder"
    outputs = (Output("Y", "bool", shape="shape of X"),)


class GistBinarizeDecoder(Decoder):
    """Sign test back to numbers: Y = 1 where X, else 0.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/gist/gist.cc.
    """

    kernel = "gist_binarize_decoder"
    inputs = (Input("X", "bool", shape="any shape"),)


class GistPack1Encoder(Encoder):
    """Sign bits: bit 7 - j of Y[k] = X[8 k + j] > 0, the first element in the highest bit.

        element   8k  8k+1  8k+2  8k+3  8k+4  8k+5  8k+6  8k+7
        Y[k] bit   7     6     5     4     3     2     1     0

    The n elements are encoded in row-major order; bits of the last byte that no element has are 0.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/gist/gist.cc.
    """

    kernel = "gist_pack1_encoder"
    outputs = (Output("Y", "uint8", shape="shape (ceil(n / 8),)"),)
    tiles: ClassVar[Tiles] = {"X": BOX}
    thread_nbytes = TILE_NBYTES
    types: ClassVar[Types] = {"T": (BOOL, *FLOATS)}
    per_code = BOX


class GistPack1Decoder(Decoder):
    """Sign bits back to numbers: Y[8 k + j] = bit 7 - j of X[k], as 1 or 0.

    GistPack1Encoder draws the bits.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/gist/gist.cc.
    """

    kernel = "gist_pack1_decoder"
    inputs = (
        Input(
            "X", "uint8", shape="any shape", doc="with `shape`, ceil(n / 8) codes for n elements"
        ),
    )
    outputs = (Output("Y", "T", shape="shape (8 m,) of m codes where `shape` is None"),)
    tiles: ClassVar[Tiles] = {"Y": BOX}
    thread_nbytes = TILE_NBYTES
    types: ClassVar[Types] = {"T": (BOOL, *FLOATS)}
    per_code = BOX


class GistPack8Encoder(Encoder):
    """OCP FP8 E5M2, unscaled: Y = X rounded to 1 sign, 5 exponent (bias 15) and 2 fraction bits.

        bit   7      6 5 4 3 2   1 0
              sign   exponent    fraction

    X is rounded straight from T to the nearest code, ties to even. Subnormal numbers and signed
    zeros stay. |X| >= 61440 gives infinity (0x7C); NaN gives 0x7E with the sign of X. The error
    is at most 2^-3 |X| from 2^-14 on, and 2^-17 below.

    Source: OCP 8-bit Floating Point Specification 1.0, E5M2. Upstream's own codes
    (orttraining/orttraining/training_ops/cuda/gist/gist.cc) do not give back their values.
    """

    kernel = "gist_pack8_encoder"
    outputs = (Output("Y", "uint8", shape="shape of X"),)


class GistPack8Decoder(Decoder):
    """The exact value of an E5M2 code: Y = the float16 whose upper byte is X and lower byte 0.

    Every T holds it exactly. Of a NaN only the sign stays. GistPack8Encoder draws
    the bits.

    Source: OCP 8-bit Floating Point Specification 1.0, E5M2.
    """

    kernel = "gist_pack8_decoder"
    inputs = (Input("X", "uint8", shape="any shape"),)


class GistPack16Encoder(Encoder):
    """Half precision: Y = X rounded to float16.

    X is rounded straight from T to nearest, ties to even. Subnormal numbers stay, |X| >= 65520
    gives infinity, NaN gives 0x7E00 with the sign of X. The error is at most 2^-11 |X| from 2^-14
    on, and 2^-25 below.

    Source: IEEE 754 binary16; ONNX Runtime, orttraining/orttraining/training_ops/cuda/gist/gist.cc.
    """

    kernel = "gist_pack16_encoder"
    outputs = (Output("Y", "float16", shape="shape of X"),)


class GistPack16Decoder(Decoder):
    """Half precision back: Y = X in type T.

    The value is exact but for bfloat16, to which it is rounded: to nearest, ties to even. Of a NaN
    only the sign stays, also where T is float16.

    Source: IEEE 754 binary16; ONNX Runtime, orttraining/orttraining/training_ops/cuda/gist/gist.cc.
    """

    kernel = "gist_pack16_decoder"
    inputs = (Input("X", "float16", shape="any shape"),)


def msfp15_shape(x: Spec) -> tuple[int, ...]:
    """Return the shape of the MSFP15 codes of x: its own, or that of its padded tiles, flat."""
    return x.shape if x.size % BOX == 0 else (BOX * ceil_div(x.size, BOX),)


class GistPackMsfp15Encoder(Encoder):
    """MSFP15: X[i] = (-1)^s M 2^(E - 132), E shared by 8 consecutive elements of the flat array.

    A tile is eight bytes, one an element: its sign s, its magnitude M and one bit of the tile's E.

        bit    7            6   5 4 3 2 1 0
        Y[0]   bit 0 of E   s   M
        Y[1]   bit 1 of E   s   M
         ...
        Y[7]   bit 7 of E   s   M

    E is the largest biased float32 exponent of the tile. M = |X| / 2^(E - 132) rounded half up, at
    most 63. The error is at most 2^-6 2^(E - 127), twice that where M saturates. Numbers below
    2^-126 become zero. A tile with a number that is not finite (from float64 also one of 2^128 or
    more, which counts as infinity) becomes eight zero bytes.

    With keep_nonfinite such a tile has E = 255, and an exponent F of its finite numbers in bits 5:

        Y[j]   1   s   bit j of F   M

    M is 31 for NaN and 30 for infinity, else |X| / 2^(F - 131) rounded half up. F is the largest
    biased exponent of the tile's finite numbers, one more where M would be above 29 (for tiles
    below 2^-126: where |X| is at least 27 2^-131), and then M is at most 15. If the largest is in
    2^e to 2^(e + 1), their error is at most 2^-4 2^e, and 2^-3 2^e with keep_sign or from
    1.9375 2^e on.

    With keep_sign M is at least 1 where X is not 0, so that a finite tile keeps every sign; format
    and decoder stay the same. The error is then at most a step, 2^-5 2^(E - 127), for every number
    of the tile. Numbers below 2^-126 are rounded as all others; a tile of them alone has E = 0, its
    step is 2^-132. What decodes is not 0 in the type that was encoded, but is subnormal in float32
    and bfloat16 where it is below 2^-126: a GPU's arithmetic may take it for 0.

    Source: Darvish Rouhani et al., "Pushing the Limits of Narrow Precision Inferencing at Cloud
    Scale with Microsoft Floating Point", NeurIPS 2020;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/gist/gist.cc.
    """

    outputs = (MSFP15_CODES,)
    tiles: ClassVar[Tiles] = {"X": BOX, "Y": BOX}
    thread_nbytes = TILE_NBYTES
    keep_nonfinite = KEEP_NONFINITE
    keep_sign = KEEP_SIGN

    code_shape = staticmethod(msfp15_shape)

    @property
    def kernel(self) -> str:
        if self.keep_sign:
            return "gist_pack_msfp15_encoder__keep_sign"
        return "gist_pack_msfp15_encoder"

    def options(self) -> tuple[object, ...]:
        return (self.keep_nonfinite,)


class GistPackMsfp15Decoder(Decoder):
    """MSFP15 back: Y = (-1)^s M 2^(E - 132), rounded to float32 and then to T.

    GistPackMsfp15Encoder draws the bits. M = 0 gives +0. E = 255 with M >= 32 overflows to
    infinity; with keep_nonfinite E = 255 is a tile with infinities and NaN, which keep their signs.
    Eight bytes of 0x80, as older encoders gave such a tile, are eight NaN without a sign there.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/gist/gist.cc.
    """

    kernel = "gist_pack_msfp15_decoder"
    inputs = (
        Input(
            "X",
            "uint8",
            shape="any shape",
            doc="whole tiles of 8 codes; with `shape`, as many as its elements need",
        ),
    )
    tiles: ClassVar[Tiles] = {"X": BOX, "Y": BOX}
    thread_nbytes = TILE_NBYTES
    keep_nonfinite = attribute(boolean, False, doc="a tile with E = 255 has infinities or NaN")

    def codes(self, n: int) -> int:
        return BOX * ceil_div(n, BOX)

    def options(self) -> tuple[object, ...]:
        return (self.keep_nonfinite,)


class ReluGradFromBits(Op):
    """Gradient of Relu from sign bits: dX = dY where the bit of X > 0 is set, else 0.

    bit 7 - j of bits[k] is that of element 8 k + j, as GistPack1Encoder writes it: the result is
    that of ReluGrad with the X that was encoded. Where the bit is set dY is copied bit by bit,
    NaN too; where it is not the result is +0, whatever dY is.

    Source: ONNX Relu-14, gradient; Jain et al., "Gist: Efficient Data Encoding for Deep Neural
    Network Training", ISCA 2018.
    """

    domain = "cupy_training_ops"
    inputs = (
        Input("dY", "T", shape="any shape"),
        Input("bits", "uint8", shape="shape (ceil(n / 8),) of the n elements of dY"),
    )
    outputs = (Output("dX", "T", may_alias=("dY",), shape="shape of dY"),)
    types: ClassVar[Types] = {"T": FLOATS}
    tiles: ClassVar[Tiles] = {"dY": BOX, "dX": BOX}
    bitwise_exact = True

    def infer(self, dy: Spec, bits: Spec) -> tuple[Spec, ...]:
        """Return the spec of dX; refuse bits of another shape."""
        expected = (ceil_div(dy.size, BOX),)
        if bits.shape != expected:
            refuse(self.name, "bits", f"shape {expected}", f"shape {bits.shape}")
        return (Spec(dy.shape, dy.dtype),)

    def plan(self, device: Device, dy: Spec, bits: Spec, dx: Spec) -> Plan:
        """Plan one launch, in which a thread has TILE_NBYTES bytes of dY."""
        config = Config((ceil_div(dy.nbytes, THREADS * TILE_NBYTES),), (THREADS,))
        arguments = (dy, bits, dx, dy.size, dy.aligned and dx.aligned)
        return Plan((Launch("relu_grad_from_bits", config, arguments, slots(T=dy.dtype)),))


class ReluWithBits(Op):
    """Relu and its bits: Y = max(X, 0), bit 7 - j of bits[k] = not X[8 k + j] <= 0.

    bits are what ReluGradFromBits takes. Where X is at most 0 the result is +0; where X is NaN the
    result is that NaN and its bit is 1, so that a gradient passes there, as PyTorch's does.
    Elsewhere bits are those of GistPack1Encoder.

    Source: ONNX Relu-14; Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network
    Training", ISCA 2018.
    """

    domain = "cupy_training_ops"
    inputs = (X,)
    outputs = (
        Output("Y", "T", may_alias=("X",), shape="shape of X"),
        Output("bits", "uint8", shape="shape (ceil(n / 8),) of the n elements of X"),
    )
    types: ClassVar[Types] = {"T": FLOATS}
    tiles: ClassVar[Tiles] = {"X": BOX, "Y": BOX}
    bitwise_exact = True

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return Spec(x.shape, x.dtype), Spec((ceil_div(x.size, BOX),), UINT8)

    def plan(self, device: Device, x: Spec, y: Spec | None, bits: Spec | None) -> Plan:
        """Plan one launch, in which a thread has TILE_NBYTES bytes of X."""
        config = Config((ceil_div(x.nbytes, THREADS * TILE_NBYTES),), (THREADS,))
        arguments = (x, y, bits, x.size, x.aligned and (y is None or y.aligned))
        return Plan((Launch("relu_with_bits", config, arguments, slots(T=x.dtype)),))


OPS = {
    "GistBinarizeDecoder": GistBinarizeDecoder,
    "GistBinarizeEncoder": GistBinarizeEncoder,
    "GistPack16Decoder": GistPack16Decoder,
    "GistPack16Encoder": GistPack16Encoder,
    "GistPack1Decoder": GistPack1Decoder,
    "GistPack1Encoder": GistPack1Encoder,
    "GistPack8Decoder": GistPack8Decoder,
    "GistPack8Encoder": GistPack8Encoder,
    "GistPackMsfp15Decoder": GistPackMsfp15Decoder,
    "GistPackMsfp15Encoder": GistPackMsfp15Encoder,
    "ReluGradFromBits": ReluGradFromBits,
    "ReluWithBits": ReluWithBits,
}
