# SPDX-License-Identifier: MIT
"""Compressed arrays that know themselves: `compress(x, "msfp15")` gives a Packed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from .dtypes import dtype_name, to_dtype
from .errors import ArgumentError, refuse
from .frame import arrays
from .frame.op import Op
from .ops import gist
from .schema import Spec


@dataclass(frozen=True)
class Codec:
    """One codec: its two operators, and what it keeps, in words and numbers."""

    name: str
    encoder: type[Op]
    decoder: type[Op]
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


@dataclass(frozen=True, eq=False)
class Packed:
    """An encoded array with all that decoding needs: codec, dtype name, shape, options.

    `code` is the encoder's output, a NumPy or CuPy array, whose library chooses the provider.
    """

    codec: str
    dtype: str
    shape: tuple[int, ...]
    code: Any
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        codec = get_codec(self.codec)
        decoder: Any = codec.decoder.shared(to=self.dtype, shape=self.shape, **self.options)
        (expected,) = codec.encoder.shared(**self.options).infer(Spec(decoder.shape, decoder.to))
        if not hasattr(self.code, "dtype"):
            refuse("Packed", "code", "a NumPy or CuPy array", type(self.code).__name__)
        if (self.code.shape, self.code.dtype) != (expected.shape, expected.dtype):
            raise ArgumentError(
                f"Packed: code: expected {dtype_name(expected.dtype)} of shape {expected.shape} "
                f"for {self.codec} of {self.dtype} {self.shape}, "
                f"got {dtype_name(self.code.dtype)} of shape {self.code.shape}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the codes."""
        return int(self.code.nbytes)

    @property
    def original_nbytes(self) -> int:
        """Bytes of the array before encoding."""
        return math.prod(self.shape) * to_dtype(self.dtype).itemsize

    @property
    def ratio(self) -> float:
        """Bytes before over bytes after; 1 for an empty array."""
        return self.original_nbytes / self.nbytes if self.nbytes else 1.0

    def decompress(self, out: Any = None) -> Any:
        """The decoded array in its dtype and shape, on the provider and device the codes are on.

        out: an array of that dtype and shape to write into, C-contiguous, beside the codes.
        Deterministic; no copy between host and device. Raises ArgumentError and DtypeError.
        """
        decoder = get_codec(self.codec).decoder
        op = decoder.shared(to=self.dtype, shape=self.shape, **self.options)
        return op(self.code, out=out)

    def save(self, file: Any) -> None:
        """Write a `.npz` file, or to an open binary file; codes on a GPU are copied to the host.

        A path is replaced by a whole file or not at all. Raises OSError.
        """
        from .packed_file import save

        save(self, file)

    @classmethod
    def load(cls, file: Any, provider: str = "cpu") -> Packed:
        """Read what `save` wrote, codes onto the host ("cpu") or the current GPU ("cuda").

        Nothing in the file is executed. Raises ArgumentError where it is damaged, no Packed, or of
        another format version; FileNotFoundError where there is none; ProviderError for "cuda"
        where no GPU can be used.
        """
        from .packed_file import load

        return load(file, provider)


def compress(x: Any, codec: str, **options: Any) -> Packed:
    """Encode an array: `compress(x, "msfp15").decompress()` is x within the codec's bound.

    x: float32, float16, float64 or bfloat16 (bool too for "pack1"), any shape, C-contiguous, NumPy
    (CPU provider), CuPy (CUDA provider) or anything with `__dlpack__`. options: `keep_nonfinite`
    for "msfp15". Deterministic; no copy between host and device. Raises ArgumentError and
    DtypeError.
    """
    encoder = get_codec(codec).encoder.shared(**options)
    array = arrays.adopt(encoder.name, "X", x)
    code = encoder(array)
    frozen = {name: encoder.attribute_values[name] for name in options}
    return Packed(codec, dtype_name(array.dtype), array.shape, code, frozen)
