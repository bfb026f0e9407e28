# SPDX-License-Identifier: MIT
"""The table of codecs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import ArgumentError
from ..ops import gist


@dataclass(frozen=True)
class Codec:
    """One codec: its two operators, and what it keeps, in words and numbers."""

    name: str
    encoder: type[gist.Encoder]
    decoder: type[gist.Decoder]
    bits: int  # per value
    formula: str
    bound: str


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
        ),
        Codec(
            "pack1",
            gist.GistPack1Encoder,
            gist.GistPack1Decoder,
            1,
            "1 if x > 0 else 0, one bit, first element in the highest",
            "the sign test is exact",
        ),
        Codec(
            "pack8",
            gist.GistPack8Encoder,
            gist.GistPack8Decoder,
            8,
            "FP8 E5M2, round to nearest even",
            "2^-3 |x| from 2^-14, 2^-17 below; infinity from 61440",
        ),
        Codec(
            "pack16",
            gist.GistPack16Encoder,
            gist.GistPack16Decoder,
            16,
            "float16, round to nearest even",
            "2^-11 |x| from 2^-14, 2^-25 below; infinity from 65520",
        ),
        Codec(
            "msfp15",
            gist.GistPackMsfp15Encoder,
            gist.GistPackMsfp15Decoder,
            8,
            "(-1)^s M 2^(E - 132), M of 6 bits, E shared by 8 values",
            "2^-6 2^E of the tile, twice that where M saturates; below 2^-126 zero",
        ),
    )
}


def get_codec(name: str) -> Codec:
    """A codec by name; an error that lists the names there are."""
    codec = CODECS.get(name)
    if codec is None:
        raise ArgumentError(f"no codec {name!r}; known: {', '.join(CODECS)}")
    return codec


def described() -> Iterator[str]:
    """The codecs with their bits, formula and bound, for help."""
    yield "codecs"
    for codec in CODECS.values():
        yield f"  {codec.name:8}  {codec.bits:2}-bit values: {codec.formula}"
        yield f"  {'':8}  error at most: {codec.bound}"
