# SPDX-License-Identifier: MIT
"""Gist codecs of numbers in few bits: FP10, 4-bit indices, and 8 bits with a scale for each block.

Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA 2018.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...declare.schema import Input, Output, Spec, Tiles, attribute, boolean
from ...declare.type_rows import Types
from ...dtypes import INTEGERS, Dtype
from ...errors import refuse
from ...facts import FP10_IN_WORD
from ...plan import ceil_div, slots
from ..gist import operators as gist
from .facts import (
    FP10_NBYTES,
    IN_BYTE,
    INT8_SCALES_NBYTES,
    NBYTES,
    SCALES_NBYTES,
    THREADS,
    TILE,
)


class _Narrow:
    """Base of this family's encoders and decoders.

    A block has `threads` threads, each for `thread_nbytes` bytes of decoded elements.
    """

    domain = "cupy_training_ops"
    threads: ClassVar[int] = THREADS
    thread_nbytes: ClassVar[int] = NBYTES


# ---- FP10 ----------------------------------------------------------------------------------------


class GistFp10Encoder(_Narrow, gist.Encoder):
    """FP10: Y = X rounded to 1 sign, 5 exponent (bias 15) and 4 fraction bits, three in a word.

        bit of a code    9      8 7 6 5 4   3 2 1 0
                        sign    exponent    fraction

        bits of Y[k]    0 to 9   10 to 19   20 to 29   30, 31
        element          3 k      3 k + 1    3 k + 2      0

    X is rounded straight from T to the nearest code, ties to even. Subnormal numbers and signed
    zeros stay. |X| >= 64512 gives infinity (0x1F0); NaN gives 0x1F8 with the sign of X. The
    error is at most 2^-5 |X| from 2^-14 on, and 2^-19 below. A code is the upper ten bits of the
    float16 of the same value. The n elements are encoded in row-major order; codes of the last word
    that no element has are 0.

    Source: Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA
    2018.
    """

    kernel = "gist_fp10_encoder"
    outputs = (Output("Y", "uint32", shape="shape (ceil(n / 3),)"),)
    tiles: ClassVar[Tiles] = {"X": FP10_IN_WORD}
    thread_nbytes = FP10_NBYTES
    per_code = FP10_IN_WORD


class GistFp10Decoder(_Narrow, gist.Decoder):
    """FP10 back: Y = the float16 whose upper ten bits are the code and whose lower bits are 0.

    Every T holds it exactly. Of a NaN only the sign stays. GistFp10Encoder draws
    the bits; bits 30 and 31 of a word are ignored.

    Source: Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA
    2018.
    """

    kernel = "gist_fp10_decoder"
    inputs = (
        Input(
            "X", "uint32", shape="any shape", doc="with `shape`, ceil(n / 3) words for n elements"
        ),
    )
    outputs = (Output("Y", "T", shape="shape (3 m,) of m words where `shape` is None"),)
    tiles: ClassVar[Tiles] = {"Y": FP10_IN_WORD}
    per_code = FP10_IN_WORD


# ---- 4-bit indices -------------------------------------------------------------------------------


class _Index4(_Narrow):
    """Base of codecs of integers, whose kernels know them as unsigned words of their size."""

    types: ClassVar[Types] = {"T": INTEGERS}
    per_code: ClassVar[int] = IN_BYTE

    def binding(self, decoded: Dtype) -> dict[str, str]:
        return slots(INDEX=np.dtype(f"u{decoded.itemsize}"))


class GistIndex4Encoder(_Index4, gist.Encoder):
    """4-bit indices: Y[k] = X[2 k] mod 16 + 16 (X[2 k + 1] mod 16), numbers from 0 to 15 exactly.

    For the argmax of pooling windows of at most 16 elements. Of other numbers the lowest four bits
    of two's complement are stored; with check=True they are refused. The n elements are encoded in
    row-major order; the upper half of the last byte is 0 where no element has it.

    Source: Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA
    2018.
    """

    kernel = "gist_index4_encoder"
    outputs = (Output("Y", "uint8", shape="shape (ceil(n / 2),)"),)
    tiles: ClassVar[Tiles] = {"X": IN_BYTE}
    check = attribute(
        boolean,
        False,
        doc="True refuses numbers outside 0 to 15 before any launch, for which the call reads "
        "X, waits for the device and cannot be captured in a graph",
    )

    def check_values(self, *inputs: Any) -> None:
        """Refuse numbers outside 0 to 15."""
        (x,) = inputs
        outside = (x < 0) | (x > 15)
        if bool(outside.any()):
            refuse(self.name, "X", "indices from 0 to 15", str(int(x[outside].ravel()[0])))


class GistIndex4Decoder(_Index4, gist.Decoder):
    """4-bit indices back: Y[2 k] = X[k] mod 16, Y[2 k + 1] = X[k] / 16 rounded down.

    Source: Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA
    2018.
    """

    kernel = "gist_index4_decoder"
    inputs = (
        Input(
            "X", "uint8", shape="any shape", doc="with `shape`, ceil(n / 2) codes for n elements"
        ),
    )
    outputs = (Output("Y", "T", shape="shape (2 m,) of m codes where `shape` is None"),)
    tiles: ClassVar[Tiles] = {"Y": IN_BYTE}


# ---- 8 bits and a scale --------------------------------------------------------------------------


class _BlockEncoder(_Narrow, gist.Encoder):
    """Base of encoders whose tile of 1,024 elements is scales, then a byte an element."""

    scales_nbytes: ClassVar[int] = SCALES_NBYTES  # of a tile
    outputs = (Output("Y", "uint8", shape="shape (n + 16 ceil(n / 1024),)"),)
    tiles: ClassVar[Tiles] = {"X": TILE, "Y": TILE + SCALES_NBYTES}

    def code_shape(self, x: Spec) -> tuple[int, ...]:
        """Return (bytes,): one an element, and scales for each tile begun."""
        return (x.size + self.scales_nbytes * ceil_div(x.size, TILE),)


class _BlockDecoder(_Narrow, gist.Decoder):
    """Base of decoders of what a _BlockEncoder makes."""

    scales_nbytes: ClassVar[int] = SCALES_NBYTES  # of a tile
    inputs = (
        Input(
            "X",
            "uint8",
            shape="any shape",
            doc="n + 16 ceil(n / 1024) bytes for n elements",
        ),
    )
    outputs = (Output("Y", "T", shape="shape (n,) where `shape` is None"),)
    tiles: ClassVar[Tiles] = {"X": TILE + SCALES_NBYTES, "Y": TILE}

    def flat_shape(self, x: Spec) -> tuple[int, ...]:
        """Return (n,) for the n elements whose codes and scales take x.size bytes."""
        n = x.size - self.scales_nbytes * ceil_div(x.size, TILE + self.scales_nbytes)
        return (max(n, 0),)

    def codes(self, n: int) -> int:
        """Return the bytes of n elements: one each, and scales for each tile begun."""
        return n + self.scales_nbytes * ceil_div(n, TILE)


class GistBlockE4m3Encoder(_BlockEncoder):
    """Scaled FP8: Y = X / 2^s rounded to OCP E4M3, s shared by 128 consecutive elements.

    A tile of 1,024 elements is 1,040 bytes, the last tile 16 more than it has elements:

        byte     0, 1          2, 3       ...   14, 15         16          17     ...
               s of block 0  of block 1        of block 7  element 0   element 1

    s is a 16-bit integer, its lower byte first: the smallest at which no finite element of the
    block rounds to more than 448, and 0 where none is finite and not zero. Scaled numbers are
    rounded straight from T to the nearest code, ties to even; signed zeros stay. NaN and
    infinities count for no scale; NaN gives 0x7F with the sign of X. The error is at most 2^-4
    |X| from 2^(s - 6) on, and 2^(s - 10) below; the block's largest is at least 2^(s + 7).

    E4M3 has no infinity. The s of a block with infinities is larger by one, so that no finite
    element has 0x7E, which stands for infinity there, with its sign; bit 14 of such an s is unlike
    bit 15.

    Source: OCP 8-bit Floating Point Specification 1.0, E4M3.
    """

    kernel = "gist_block_e4m3_encoder"


class GistBlockE4m3Decoder(_BlockDecoder):
    """Scaled FP8 back: Y = 2^s times the value of an E4M3 code, rounded to float32 and then to T.

    To float64 it is exact, or rounded once. What is beyond T becomes infinity: a number near T's
    largest may be rounded up. Of a NaN only the sign stays. GistBlockE4m3Encoder
    draws the bytes.

    Source: OCP 8-bit Floating Point Specification 1.0, E4M3.
    """

    kernel = "gist_block_e4m3_decoder"


class GistBlockE5m2Encoder(_BlockEncoder):
    """Scaled FP8: Y = X / 2^s rounded to OCP E5M2, s shared by 128 consecutive elements.

    The bytes lie as GistBlockE4m3Encoder draws them; s is the smallest at which no finite element
    rounds to more than 57344. Scaled numbers are rounded straight from T to the nearest code, ties
    to even; signed zeros stay. Infinities stay (0x7C), NaN gives 0x7E, with the sign of X, and
    both count for no scale. The error is at most 2^-3 |X| from 2^(s - 14) on, and
    2^(s - 17) below; the block's largest is at least 2^(s + 14).

    Source: OCP 8-bit Floating Point Specification 1.0, E5M2.
    """

    kernel = "gist_block_e5m2_encoder"


class GistBlockE5m2Decoder(_BlockDecoder):
    """Scaled FP8 back: Y = 2^s times the value of an E5M2 code, rounded to float32 and then to T.

    To float64 it is exact, or rounded once. What is beyond T becomes infinity: a number near T's
    largest may be rounded up. Of a NaN only the sign stays. GistBlockE4m3Encoder
    draws where the bytes lie.

    Source: OCP 8-bit Floating Point Specification 1.0, E5M2.
    """

    kernel = "gist_block_e5m2_decoder"


class GistInt8Encoder(_BlockEncoder):
    """Scaled integers: Y = X / s rounded to -127 ... 127, s shared by 32 consecutive elements.

        s = bfloat16(max(max |X| of the block / 127, 1e-30)),   code = round(X (1 / s))

    In float32, ties to even. A tile of 1,024 elements is 1,088 bytes, the last tile 64 more than it
    has elements:

        byte     0, 1          2, 3       ...   62, 63         64          65     ...
               s of block 0  of block 1       of block 31  element 0   element 1

    s is a bfloat16, its lower byte first; element codes are in two's complement. X is rounded to
    float32 first. With keep_sign what is not 0 has a code of at least 1 and keeps its sign. The
    error is at most 0.51 s, below s / 2 with keep_sign s; s is at most 1 / 126 of the block's
    largest.

    A block with NaN or infinities has -s, of its finite numbers over 126 in place of 127: their
    codes are -126 to 126, those of infinities 127 and -127, that of NaN is -128.

    Source: OCP Microscaling Formats (MX) Specification 1.0, MXINT8, but for the scale, which is a
    power of two there.
    """

    scales_nbytes = INT8_SCALES_NBYTES
    outputs = (Output("Y", "uint8", shape="shape (n + 64 ceil(n / 1024),)"),)
    tiles: ClassVar[Tiles] = {"X": TILE, "Y": TILE + INT8_SCALES_NBYTES}
    keep_sign = gist.KEEP_SIGN

    @property
    def kernel(self) -> str:
        return "gist_int8_encoder__keep_sign" if self.keep_sign else "gist_int8_encoder"


class GistInt8Decoder(_BlockDecoder):
    """Scaled integers back: Y = s times the code in float32, rounded to T.

    What is beyond T becomes infinity. With a negative s 127 and -127 are infinities, -128 is a NaN
    without a sign; with an s that is NaN, as older encoders gave such a block, all others are NaN.
    GistInt8Encoder draws where the bytes lie. An s below 2^-126, which no encoder makes, counts as
    0.

    Source: OCP Microscaling Formats (MX) Specification 1.0, MXINT8, but for the scale, which is a
    power of two there.
    """

    kernel = "gist_int8_decoder"
    scales_nbytes = INT8_SCALES_NBYTES
    inputs = (
        Input(
            "X",
            "uint8",
            shape="any shape",
            doc="n + 64 ceil(n / 1024) bytes for n elements",
        ),
    )
    tiles: ClassVar[Tiles] = {"X": TILE + INT8_SCALES_NBYTES, "Y": TILE}


OPS = {
    "GistBlockE4m3Decoder": GistBlockE4m3Decoder,
    "GistBlockE4m3Encoder": GistBlockE4m3Encoder,
    "GistBlockE5m2Decoder": GistBlockE5m2Decoder,
    "GistBlockE5m2Encoder": GistBlockE5m2Encoder,
    "GistFp10Decoder": GistFp10Decoder,
    "GistFp10Encoder": GistFp10Encoder,
    "GistIndex4Decoder": GistIndex4Decoder,
    "GistIndex4Encoder": GistIndex4Encoder,
    "GistInt8Decoder": GistInt8Decoder,
    "GistInt8Encoder": GistInt8Encoder,
}
