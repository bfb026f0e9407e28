# SPDX-License-Identifier: MIT
"""The table of codecs: name, operators, bits, error bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..dtypes import Dtype, HostArray
from ..errors import ArgumentError, refuse, shown
from ..families.gist import operators as gist
from ..families.gist_narrow import operators as gist_narrow
from ..families.gist_sparse import operators as gist_sparse

Kind = Literal["sign", "mask", "index", "value"]


@dataclass(frozen=True)
class Codec:
    """A codec: its two operators and its error.

    formula, bound: texts for help. kinds: what of an array can be decoded: the `sign` test x > 0, a
    `mask` of bools, an `index`, or the `value` within the bound. lossless: decoding is exact for
    these kinds. fixed: options of the encoder that the codec's name implies. defaults: values of
    options where they differ from the encoder's own.
    """

    name: str
    encoder: type[gist.Encoder]
    decoder: type[gist.Decoder]
    bits: float  # per value; for a sparse codec per zero
    formula: str
    bound: str
    kinds: tuple[Kind, ...]
    lossless: bool = False
    fixed: Mapping[str, object] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)

    def encoding(self, **options: object) -> Any:
        """Return the encoder with these options and the fixed ones."""
        for name in self.fixed.keys() & options.keys():
            refuse(self.name, name, "no option that the name stands for", shown(options[name]))
        return self.encoder.shared(**options, **self.fixed)

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        """The dtypes of arrays that it encodes."""
        return tuple(self.encoder.types["T"])

    @property
    def leaves_room(self) -> bool:
        """Return True if the length of codes depends on values, and buffers on a GPU are larger."""
        return issubclass(self.encoder, gist_sparse.SparseEncoder)

    def length(self, code: HostArray) -> int:
        """Return the length of codes in bytes, if `leaves_room`: an int64 at their beginning."""
        return int(code[:8].view(np.int64)[0]) if code.size else 0

    def decoder_options(
        self, values: Mapping[str, object], names: Iterable[str]
    ) -> dict[str, object]:
        """Return {name: value} of the options in `names` that the decoder has, too.

        values: all attributes of the encoder.
        """
        known = {attribute.name for attribute in self.decoder.attributes}
        return {name: values[name] for name in names if name in known}


KEEP_NONFINITE = {"keep_nonfinite": True}

CODECS = {
    codec.name: codec
    for codec in (
        Codec(
            "binarize",
            gist.GistBinarizeEncoder,
            gist.GistBinarizeDecoder,
            8,
            "1 if x > 0 else 0, one byte",
            "the sign test is exact",
            ("sign",),
            lossless=True,
        ),
        Codec(
            "pack1",
            gist.GistPack1Encoder,
            gist.GistPack1Decoder,
            1,
            "1 if x > 0 else 0, one bit, first element in the highest",
            "the sign test is exact",
            ("sign", "mask"),
            lossless=True,
        ),
        Codec(
            "pack8",
            gist.GistPack8Encoder,
            gist.GistPack8Decoder,
            8,
            "FP8 E5M2 without a scale, round to nearest even",
            "2^-3 |x| from 2^-14, 2^-17 below; infinity from 61440",
            ("value",),
        ),
        Codec(
            "pack16",
            gist.GistPack16Encoder,
            gist.GistPack16Decoder,
            16,
            "float16, round to nearest even",
            "2^-11 |x| from 2^-14, 2^-25 below; infinity from 65520",
            ("value",),
        ),
        Codec(
            "msfp15",
            gist.GistPackMsfp15Encoder,
            gist.GistPackMsfp15Decoder,
            8,
            "(-1)^s M 2^(E - 132), M of 6 bits, E shared by 8 values",
            "2^-6 2^E of the tile, twice that where M saturates, 2^-4 beside infinity and NaN; "
            "below 2^-126 zero",
            ("value",),
            defaults=KEEP_NONFINITE,
        ),
        Codec(
            "msfp15_signed",
            gist.GistPackMsfp15Encoder,
            gist.GistPackMsfp15Decoder,
            8,
            "msfp15, but what is not zero has M >= 1 and keeps its sign",
            "2^-5 2^E of the tile, 2^-3 beside infinity and NaN",
            ("value",),
            fixed={"keep_sign": True},
            defaults=KEEP_NONFINITE,
        ),
        Codec(
            "sparse",
            gist_sparse.GistSparseEncoder,
            gist_sparse.GistSparseDecoder,
            1,
            "one bit, and the element where any of its bits is 1",
            "every bit is kept; as it is where that takes no more bytes",
            ("value", "sign", "mask", "index"),
            lossless=True,
        ),
        Codec(
            "sparse_fp10",
            gist_sparse.GistSparseFp10Encoder,
            gist_sparse.GistSparseFp10Decoder,
            1,
            "one bit, and FP10 where any bit is 1",
            "that of fp10",
            ("value",),
        ),
        Codec(
            "sparse_msfp15",
            gist_sparse.GistSparseMsfp15Encoder,
            gist_sparse.GistSparseMsfp15Decoder,
            1,
            "one bit, and msfp15 in boxes of 8 values that are not zero",
            "that of msfp15 in the box",
            ("value",),
        ),
        Codec(
            "fp10",
            gist_narrow.GistFp10Encoder,
            gist_narrow.GistFp10Decoder,
            32 / 3,
            "1 sign, 5 exponent, 4 fraction bits, three in 32; round to nearest even",
            "2^-5 |x| from 2^-14, 2^-19 below; infinity from 64512",
            ("value",),
        ),
        Codec(
            "index4",
            gist_narrow.GistIndex4Encoder,
            gist_narrow.GistIndex4Decoder,
            4,
            "x mod 16, two in a byte, the first in the lower half",
            "0 to 15 are exact; check=True refuses others",
            ("index",),
            lossless=True,
        ),
        Codec(
            "block_e4m3",
            gist_narrow.GistBlockE4m3Encoder,
            gist_narrow.GistBlockE4m3Decoder,
            8.125,
            "FP8 E4M3 of x / 2^s, s shared by 128 values; round to nearest even",
            "2^-4 |x| from 2^(s - 6), 2^(s - 10) below",
            ("value",),
        ),
        Codec(
            "block_e5m2",
            gist_narrow.GistBlockE5m2Encoder,
            gist_narrow.GistBlockE5m2Decoder,
            8.125,
            "FP8 E5M2 of x / 2^s, s shared by 128 values; round to nearest even",
            "2^-3 |x| from 2^(s - 14), 2^(s - 17) below",
            ("value",),
        ),
        Codec(
            "int8",
            gist_narrow.GistInt8Encoder,
            gist_narrow.GistInt8Decoder,
            8.5,
            "x / s rounded to an integer, s = max |x| / 127 shared by 32 values",
            "0.51 s, and half a unit in the last place",
            ("value",),
        ),
        Codec(
            "int8_signed",
            gist_narrow.GistInt8Encoder,
            gist_narrow.GistInt8Decoder,
            8.5,
            "int8, but what is not zero has a code of 1 at least and keeps its sign",
            "that of int8, s below s / 2",
            ("value",),
            fixed={"keep_sign": True},
        ),
    )
}


def get_codec(name: str) -> Codec:
    """Return a codec by name; the ArgumentError for another lists all names."""
    codec = CODECS.get(name)
    if codec is None:
        raise ArgumentError(f"no codec {shown(name)}; known: {', '.join(CODECS)}")
    return codec


def describe() -> Iterator[str]:
    """Yield lines of help: the codecs with their bits, formula and bound."""
    yield "codecs"
    for codec in CODECS.values():
        yield f"  {codec.name:13}  {codec.bits:.4g}-bit values: {codec.formula}"
        yield f"  {'':13}  error at most: {codec.bound}"
