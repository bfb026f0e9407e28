# SPDX-License-Identifier: MIT
"""Gist activation codecs: ten encoders and decoders that shrink activations kept for backward.

Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA 2018.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..dtypes import BOOL, FLOATS, to_dtype
from ..errors import refuse
from ..frame.op import Op, slots
from ..plan import Config, Device, Launch, Plan, ceil_div
from ..schema import Attribute, Input, Output, Spec, Types, boolean, dtype, optional, shape

TILE = 8  # elements of an MSFP15 tile, and bits of a Pack1 byte
THREADS = 128
# Bytes of decoded elements a thread has in flight, for codecs of single elements and for codecs of
# tiles: the fastest of a sweep on an H200.
ELEMENT_NBYTES = 32
TILE_NBYTES = 64
STREAM = {
    "THREADS": str(THREADS),
    "ELEMENT_NBYTES": str(ELEMENT_NBYTES),
    "TILE_NBYTES": str(TILE_NBYTES),
}

TO = Attribute("to", dtype, type="T")
SHAPE = Attribute("shape", optional(shape), None)
KEEP_NONFINITE = Attribute("keep_nonfinite", boolean, False)


class _Codec(Op):
    """What the ten share: one streaming launch from X to Y."""

    inputs = (Input("X", "T"),)
    outputs = (Output("Y", "T"),)
    types: ClassVar[Types] = {"T": FLOATS}
    bitwise_exact = True
    thread_nbytes: ClassVar[int] = ELEMENT_NBYTES

    def stream(self, x: Spec, y: Spec, decoded: Spec) -> Plan:
        """One launch over all elements; the kernel is told whether both arrays are aligned."""
        config = Config((ceil_div(decoded.nbytes, THREADS * self.thread_nbytes),), (THREADS,))
        aligned = x.aligned and y.aligned
        arguments = (x, y, x.size, y.size, aligned, *self.options())
        binding = slots(T=decoded.dtype) | STREAM
        return Plan((Launch(self.function_name, config, arguments, binding),))

    def options(self) -> tuple[Any, ...]:
        """The kernel's arguments after arrays, sizes and alignment."""
        return ()


class _Encoder(_Codec):
    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(self.code_shape(x), to_dtype(self.outputs[0].type)),)

    def code_shape(self, x: Spec) -> tuple[int, ...]:
        """The shape of Y: one code an element."""
        return x.shape

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        return self.stream(x, y, x)


class _Decoder(_Codec):
    attributes: ClassVar[tuple[Attribute, ...]] = (TO, SHAPE)
    to: np.dtype[Any]
    shape: tuple[int, ...] | None

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        y = Spec(self.flat_shape(x) if self.shape is None else self.shape, self.to)
        if self.codes(y.size) != x.size:
            expected = f"{self.codes(y.size)} codes for shape {y.shape}"
            refuse(self.name, "X", expected, f"{x.size} of shape {x.shape}")
        return (y,)

    def flat_shape(self, x: Spec) -> tuple[int, ...]:
        """The shape of Y without `shape`: what upstream gives."""
        return x.shape

    def codes(self, n: int) -> int:
        """How many codes n elements have."""
        return n

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        return self.stream(x, y, y)


class GistBinarizeEncoder(_Encoder):
    """Sign test: Y = X > 0, one bool (one byte) an element.

    Zeros of either sign, negatives and NaN give False; subnormals above zero give True.

    X: T, any shape, device. Y: bool, shape of X, device. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 6.1.
    """

    outputs = (Output("Y", "bool"),)


class GistBinarizeDecoder(_Decoder):
    """Inverse of GistBinarizeEncoder as far as it has one: Y = 1 where X, else 0.

    X: bool, any shape, device. Y: T, `shape` or the shape of X, device. `to`: T as a dtype, its
    name or its ONNX number. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 6.1.
    """

    inputs = (Input("X", "bool"),)


class GistPack1Encoder(_Encoder):
    """Sign bits: bit 7 - j of Y[k] = X[8 k + j] > 0, the first element in the highest bit.

    Any number of elements n, taken in row-major order; missing ones of the last byte are 0 bits.

    X: T, any shape, device. Y: uint8, shape (ceil(n / 8),), device. T: bool and the four floats.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 6.2.
    """

    outputs = (Output("Y", "uint8"),)
    thread_nbytes = TILE_NBYTES
    types: ClassVar[Types] = {"T": (BOOL, *FLOATS)}

    def code_shape(self, x: Spec) -> tuple[int, ...]:
        return (ceil_div(x.size, TILE),)


class GistPack1Decoder(_Decoder):
    """Sign bits back to numbers: Y[8 k + j] = bit 7 - j of X[k], as 1 or 0.

    X: uint8 codes, device; with `shape` as many as ceil(n / 8) for its n elements, of any shape.
    Y: T, `shape` or (8 m,) for m codes, device. T: bool and the four floats.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 6.2.
    """

    inputs = (Input("X", "uint8"),)
    thread_nbytes = TILE_NBYTES
    types: ClassVar[Types] = {"T": (BOOL, *FLOATS)}

    def flat_shape(self, x: Spec) -> tuple[int, ...]:
        return (TILE * x.size,)

    def codes(self, n: int) -> int:
        return ceil_div(n, TILE)


class GistPack8Encoder(_Encoder):
    """OCP FP8 E5M2: Y = X rounded to 1 sign, 5 exponent (bias 15) and 2 fraction bits.

    To nearest, ties to even, straight from T; subnormals and signed zeros are kept; |X| >= 61440
    gives infinity (0x7C), NaN gives 0x7E with the sign of X. |Y - X| <= 2^-3 |X| in the normal
    range, from 2^-14; <= 2^-17 below it.

    X: T, any shape, device. Y: uint8, shape of X, device. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: OCP 8-bit Floating Point
    Specification 1.0; contract 6.3 (upstream's own codes do not round-trip and are not met).
    """

    outputs = (Output("Y", "uint8"),)


class GistPack8Decoder(_Decoder):
    """The exact value of an E5M2 code: Y = the float16 whose upper byte is X, widened to T.

    X: uint8, any shape, device. Y: T, `shape` or the shape of X, device. T: float32, float16,
    float64, bfloat16; every code is exact in each.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 6.3.
    """

    inputs = (Input("X", "uint8"),)


class GistPack16Encoder(_Encoder):
    """IEEE half precision: Y = X rounded to float16.

    To nearest, ties to even, straight from T; subnormals kept; |X| >= 65520 gives infinity; NaN
    stays NaN. |Y - X| <= 2^-11 |X| in the normal range, from 2^-14; <= 2^-25 below it.

    X: T, any shape, device. Y: float16, shape of X, device. T: float32, float16 (a copy), float64,
    bfloat16. Deterministic. Raises ArgumentError and DtypeError. Source: IEEE 754; contract 6.4.
    """

    outputs = (Output("Y", "float16"),)


class GistPack16Decoder(_Decoder):
    """Half precision back: Y = X widened to T (rounded, to nearest even, where T is bfloat16).

    X: float16, any shape, device. Y: T, `shape` or the shape of X, device. T: float32, float16,
    float64, bfloat16. Deterministic. Raises ArgumentError and DtypeError. Source: contract 6.4.
    """

    inputs = (Input("X", "float16"),)


class GistPackMsfp15Encoder(_Encoder):
    """MSFP15: X[i] = (-1)^s M 2^(E - 132), E shared by 8 consecutive elements of the flat array.

    E is the largest biased float32 exponent of the tile; M = |X| / 2^(E - 132) rounded half up and
    at most 63. Byte j of a tile holds bit j of E, s, and the six bits of M. Magnitudes below 2^-126
    become zero. A tile with a non-finite value (for float64 also 2^128 or more) becomes eight zero
    bytes as upstream, or with `keep_nonfinite` a tile with E = 255 that decodes to NaN.
    |Y - X| <= 2^-6 2^(E - 127), twice that where M saturates.

    X: T, any shape, device. Y: uint8, device; shape of X where its size n is a multiple of 8, else
    (8 ceil(n / 8),), the last tile padded with zeros. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 6.5.
    """

    outputs = (Output("Y", "uint8"),)
    thread_nbytes = TILE_NBYTES
    attributes = (KEEP_NONFINITE,)
    keep_nonfinite: bool

    def code_shape(self, x: Spec) -> tuple[int, ...]:
        return x.shape if x.size % TILE == 0 else (TILE * ceil_div(x.size, TILE),)

    def options(self) -> tuple[Any, ...]:
        return (self.keep_nonfinite,)


class GistPackMsfp15Decoder(_Decoder):
    """MSFP15 back: Y = (-1)^s M 2^(E - 132) rounded to float32, then to T.

    A zero M gives +0. E = 255 with M >= 32 overflows to infinity; with `keep_nonfinite` a tile with
    E = 255 is eight NaN.

    X: uint8, device, whole tiles of 8 codes; with `shape` as many as its elements need. Y: T,
    `shape` or the shape of X, device. T: float32, float16, float64, bfloat16.
    Deterministic. Raises ArgumentError and DtypeError. Source: contract 6.5.
    """

    inputs = (Input("X", "uint8"),)
    thread_nbytes = TILE_NBYTES
    attributes = (TO, SHAPE, KEEP_NONFINITE)
    keep_nonfinite: bool

    def codes(self, n: int) -> int:
        return TILE * ceil_div(n, TILE)

    def options(self) -> tuple[Any, ...]:
        return (self.keep_nonfinite,)


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
}
