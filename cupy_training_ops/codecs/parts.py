# SPDX-License-Identifier: MIT
"""NumPy arrays and their codes part by part: little memory beside the codes, and a word after each.

elements | 0 ............ | ............ n |
codes    | 0 .... |  ....  |    whole tiles: no code stands for elements of two parts
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ..declare.schema import Spec
from ..dtypes import HostArray, dtype_name
from ..plan import ceil_div
from .packed import Packed, compress
from .table import Codec, get_codec

PART = 1 << 22  # elements
Advance = Callable[[int], None]  # called with how many elements more are done


class Part(NamedTuple):
    """Places in an array and in its codes, both in row-major order."""

    elements: slice
    codes: slice


def parts(codec: Codec, n: int, whole: bool = False) -> Iterator[Part]:
    """Yield the parts of n elements, one where there is no element; all in one where `whole`."""
    tiles = codec.encoder.tiles or {}
    element, code = tiles.get("X", 1), tiles.get("Y", 1)
    most = max(n, 1) if whole else max(PART // element, 1) * element
    for start in range(0, max(n, 1), most):
        stop = min(start + most, n)
        yield Part(
            slice(start, stop), slice(start // element * code, ceil_div(stop, element) * code)
        )


def encoded(x: HostArray, name: str, options: dict[str, object], advance: Advance) -> Packed:
    """Encode as `compress` does, part by part; raises what it does."""
    codec = get_codec(name)
    if codec.leaves_room:  # where a part's codes begin depends on the values before it
        packed = compress(x, name, **options)
        advance(x.size)
        return packed
    encoder = codec.encoding(**options)
    (spec,) = encoder.infer(Spec(x.shape, x.dtype))
    code = np.empty(spec.shape, spec.dtype)
    elements, codes = x.reshape(-1), code.reshape(-1)
    for part in parts(codec, x.size):
        encoder(elements[part.elements], out=codes[part.codes])
        advance(part.elements.stop - part.elements.start)
    of_decoder = codec.decoder_options(encoder.attribute_values, options)
    return Packed(name, dtype_name(x.dtype), x.shape, code, of_decoder)


def decoded(packed: Packed, advance: Advance) -> Iterator[HostArray]:
    """Yield the elements in row-major order, part after part; `advance` hears of each."""
    codec, n = get_codec(packed.codec), math.prod(packed.shape)
    if codec.leaves_room:
        yield packed.decompress().reshape(-1)
        advance(n)
        return
    codes = np.asarray(packed.code).reshape(-1)
    for part in parts(codec, n):
        size = part.elements.stop - part.elements.start
        decoder = codec.decoder.shared(to=packed.dtype, shape=(size,), **packed.options)
        yield decoder(codes[part.codes])
        advance(size)
