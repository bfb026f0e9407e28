# SPDX-License-Identifier: MIT
"""Gist's sparse encoding: a bit an element, and the elements that are not zero, packed.

Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA 2018.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ...call.op import Op
from ...declare.schema import Input, Output, Spec, Tiles
from ...declare.type_rows import Types
from ...dtypes import FIXED_SIZE, UINT8, Dtype, HostArray
from ...errors import refuse
from ...plan import Config, Device, Launch, Plan, ScratchMemory, slots
from ..gist import operators as gist
from .facts import (
    FP10_GROUP,
    GROUP_NBYTES,
    HEAD_NBYTES,
    MSFP15_GROUP,
    NARROW_THREADS,
    THREADS,
    TILE_NBYTES,
)
from .layout import Layout, layout

# Blocks of the launches for each multiprocessor. Encoding ones that are not resident find no tile
# left; finishing ones have little to do where codes are sparse.
ENCODING, NARROW_ENCODING, FINISHING = 4, 5, 2


class _Sparse(Op):
    """Base of the family's encoders and decoders. Values are the elements that are not zero."""

    domain = "cupy_training_ops"
    tiles: ClassVar[Tiles] = None
    values: ClassVar[str]  # the CUDA class that codes values: AsTheyAre, Fp10 or Msfp15
    group: ClassVar[int]  # values that it codes in 16 bytes

    def layout(self, decoded: Spec) -> Layout:
        """Return the layout of the code of the array `decoded`."""
        return layout(decoded.size, decoded.dtype.itemsize, self.group_of(decoded.dtype))

    def group_of(self, dtype: Dtype) -> int:
        """Return how many values of `dtype` take 16 bytes."""
        return self.group

    def binding(self, decoded: Dtype) -> dict[str, str]:
        """Return the macros that kernels are compiled with: codec and element type."""
        return {"VALUES": self.values, **slots(T=decoded)}

    def launch(
        self,
        kernel: str,
        blocks: int,
        args: tuple[object, ...],
        decoded: Dtype,
        threads: int = THREADS,
    ) -> Launch:
        """Plan a launch of one of the family's three kernels with `blocks` blocks of `threads`.

        args: its arguments. decoded: the dtype of the elements, by which it is compiled.
        """
        config = Config((blocks,), (threads,))
        return Launch(kernel, config, args, self.binding(decoded))


class _AsTheyAre(_Sparse):
    """Values as they are, moved as words of their size."""

    values = "AsTheyAre"

    def group_of(self, dtype: Dtype) -> int:
        return GROUP_NBYTES // dtype.itemsize

    def binding(self, decoded: Dtype) -> dict[str, str]:
        """Return the macros; elements are words: unsigned integers, or pairs of 8 bytes."""
        word = "Pair" if decoded.itemsize == 16 else slots(T=np.dtype(f"u{decoded.itemsize}"))["T"]
        return {"VALUES": self.values, "T": word}


class _Fp10(_Sparse):
    """Values as FP10, three in a word."""

    values = "Fp10"
    group = FP10_GROUP


class _Msfp15(_Sparse):
    """Values as MSFP15, a byte each, eight with one exponent."""

    values = "Msfp15"
    group = MSFP15_GROUP


CODE = Output(
    "Y",
    "uint8",
    shape="shape (m,) of the m bytes that the longest code of n elements takes",
    doc="the code's length is its first eight bytes; what is behind it is not written",
)


class SparseEncoder(_Sparse, gist.Encoder):
    """Base of operators that make sparse codes, whose length only the device knows."""

    outputs = (CODE,)

    def code_shape(self, x: Spec) -> tuple[int, ...]:
        """Return (bytes of the longest code,)."""
        return (self.layout(x).most,)

    def takes_back(self, x: Spec, shape: tuple[int, ...], dtype: Dtype) -> bool:
        """Return True for bytes that may be a code of x, cut to its length or not."""
        parts = self.layout(x)
        return dtype == UINT8 and len(shape) == 1 and parts.least <= shape[0] <= parts.most

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        """Plan two launches: encode; then store raw elements instead if these are no longer.

        Scratch: a ticket that numbers tiles, groups of 16 bytes of each tile's values, those of all
        tiles before it, and bytes of the code.
        """
        parts = self.layout(x)
        scratch = ScratchMemory()
        tickets, groups = scratch.zeros(1, np.uint32), scratch.zeros(parts.tiles, np.uint32)
        begins, nbytes = scratch.take(parts.tiles, np.uint64), scratch.take(1, np.uint64)
        shared = (groups, begins, nbytes, scratch.take(1, np.uint32), x.aligned and y.aligned)
        args = (x, y, x.size, y.size, parts.mask, parts.values)
        narrow = x.dtype.itemsize == 2
        most, threads = (NARROW_ENCODING, NARROW_THREADS) if narrow else (ENCODING, THREADS)
        blocks = min(parts.tiles, most * device.multiprocessors)
        encode = self.launch(
            "gist_sparse__encode", blocks, (*args, tickets, *shared), x.dtype, threads
        )
        blocks = min(parts.tiles, FINISHING * device.multiprocessors)
        finish = self.launch("gist_sparse__finish", blocks, (*args, *shared), x.dtype)
        return scratch.plan(*(() if parts.always_plain else (encode,)), finish)


class SparseDecoder(_Sparse, gist.Decoder):
    """Base of operators that decode sparse codes."""

    inputs = (Input("X", "uint8", shape="any shape", doc="a code, or more bytes behind it"),)
    outputs = (Output("Y", "T", shape="shape `shape`, which has to be given"),)

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        """Return the spec of Y; refuse a code that is too short or too long for `shape`."""
        if self.shape is None:
            refuse(self.name, "shape", "the shape of Y", "None")
        y = Spec(self.shape, self.to)
        parts = self.layout(y)
        if not parts.least <= x.size <= parts.most:
            expected = f"{parts.least} to {parts.most} bytes for shape {y.shape}"
            refuse(self.name, "X", expected, f"{x.size} of shape {x.shape}")
        return (y,)

    def plan(self, device: Device, x: Spec, y: Spec) -> Plan:
        """Plan one launch, a block for each tile of y."""
        parts = self.layout(y)
        args = (x, y, x.size, y.size, parts.mask, parts.values, x.aligned and y.aligned)
        return Plan((self.launch("gist_sparse__decode", parts.tiles, args, y.dtype),))

    def cpu_attributes(self) -> dict[str, object]:
        return self.attribute_values

    def flaw(self, codes: HostArray) -> str:
        """Say what is wrong with a code's head or length; "" if nothing is."""
        y = Spec(self.shape or (), self.to)
        parts = self.layout(y)
        if not y.size:
            return ""
        length, is_plain = (int(number) for number in codes[:HEAD_NBYTES].view(np.uint64))
        if length != codes.size:
            return f"a code of {length} bytes in {codes.size}"
        if is_plain not in (0, 1) or bool(is_plain) != (length == parts.plain):
            return f"{is_plain} says how {length} bytes are coded"
        return "" if is_plain else self._flaw_of_sparse(codes, y, parts)

    def _flaw_of_sparse(self, codes: HostArray, y: Spec, parts: Layout) -> str:
        """Return words for starts that do not follow from the mask, or bits behind it; else "".

        codes: the code, uint8. y: the elements' shape and dtype. parts: where the code's parts
        begin.
        """
        mask = np.unpackbits(codes[parts.mask : parts.values], bitorder="little")
        if mask[y.size :].any():
            return "its mask goes on after the last element"
        tile = TILE_NBYTES // y.dtype.itemsize
        counts = np.add.reduceat(mask[: y.size], np.arange(0, y.size, tile), dtype=np.int64)
        nbytes = GROUP_NBYTES * -(-counts // self.group_of(y.dtype))
        ends = parts.values + np.cumsum(nbytes)
        starts = codes[HEAD_NBYTES : HEAD_NBYTES + 8 * parts.tiles].view(np.uint64)
        if ends[-1] != codes.size or (starts != ends - nbytes).any():
            return "its tiles do not begin where its mask says"
        return ""


class GistSparseEncoder(_AsTheyAre, SparseEncoder):
    """Sparse code: Y = a bit an element, 1 where any of its bits is 1, and those elements, packed.

    Lossless for every type: -0 and NaN are elements like others. A tile is 16,384 bytes of X:

        bytes     0 to 7    of this code, in all
                  8 to 15   1 where the elements are raw, else 0
        sparse    starts    8 bytes a tile: the byte of the code where its values begin
                  mask      a bit an element, the first in the lowest bit of a byte
                  values    of each tile in order, zeros up to a multiple of 16 bytes
        raw       X         where that takes no more bytes

    Starts and mask are padded with zeros to multiples of 16 bytes; numbers have their lower bytes
    first. The device knows the length first, and nothing waits for it: Y has room for X.

    Memory: a workspace of 12 bytes a tile and 32 more.

    Source: Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA
    2018.
    """

    types: ClassVar[Types] = {"T": FIXED_SIZE}


class GistSparseDecoder(_AsTheyAre, SparseDecoder):
    """Sparse code back: Y = the next value of its tile where the bit is 1, else 0.

    GistSparseEncoder draws the bytes. `to` is as wide as the type that was encoded: where values
    are not where the code says, as of a damaged code, elements are 0. Nothing outside the code is
    read.

    Source: Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA
    2018.
    """

    types: ClassVar[Types] = {"T": FIXED_SIZE}


class GistSparseFp10Encoder(_Fp10, SparseEncoder):
    """Sparse code with FP10 values: Y = that of GistSparseEncoder, 12 values in four words.

    The last 12 values of a tile are completed by zeros. GistFp10Encoder says what a value becomes.

    Memory: a workspace of 12 bytes a tile and 32 more.

    Source: Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA
    2018.
    """


class GistSparseFp10Decoder(_Fp10, SparseDecoder):
    """Sparse code with FP10 values back: Y = the next value of its tile where the bit is 1, else 0.

    GistSparseEncoder draws the bytes, GistFp10Encoder those of the values.

    `to` is the type that was encoded. Of a type of another width the tiles are others: where values
    are not where the code says, as of a damaged code, elements are NaN. Of raw elements
    as they are nothing says whether they are float16 or bfloat16.

    Source: Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA
    2018.
    """


class GistSparseMsfp15Encoder(_Msfp15, SparseEncoder):
    """Sparse code with MSFP15 values: Y = that of GistSparseEncoder, values in boxes of eight.

    The last two boxes of a tile are completed by zeros. GistPackMsfp15Encoder says what a box
    becomes, also with keep_sign; infinities and NaN stay, as with its keep_nonfinite.

    Memory: a workspace of 12 bytes a tile and 32 more.

    Source: Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA
    2018.
    """

    keep_sign = gist.KEEP_SIGN

    def binding(self, decoded: Dtype) -> dict[str, str]:
        values = "Msfp15KeepSign" if self.keep_sign else self.values
        return {**super().binding(decoded), "VALUES": values}


class GistSparseMsfp15Decoder(_Msfp15, SparseDecoder):
    """Sparse code with MSFP15 values back: Y = the next value where the bit is 1, else 0.

    GistSparseEncoder draws the bytes, GistPackMsfp15Encoder those of the values.

    `to` is the type that was encoded. Of a type of another width the tiles are others: where values
    are not where the code says, as of a damaged code, elements are NaN. Of raw elements
    as they are nothing says whether they are float16 or bfloat16.

    Source: Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training", ISCA
    2018.
    """


OPS = {
    "GistSparseDecoder": GistSparseDecoder,
    "GistSparseEncoder": GistSparseEncoder,
    "GistSparseFp10Decoder": GistSparseFp10Decoder,
    "GistSparseFp10Encoder": GistSparseFp10Encoder,
    "GistSparseMsfp15Decoder": GistSparseMsfp15Decoder,
    "GistSparseMsfp15Encoder": GistSparseMsfp15Encoder,
}
