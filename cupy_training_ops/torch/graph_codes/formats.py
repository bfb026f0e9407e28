# SPDX-License-Identifier: MIT
"""Formats of codes in compiled graphs: 8 or 4 bits a value with a scale for each 32, or bits.

Encoders and decoders are functions of tensors whose last dimension is contiguous, in operators that
a compiler fuses with those around them. keep_signs: values that are not 0 get a code that is not 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

TILE = 32  # neighbours of the last dimension that share a scale
SAMPLE = 64  # places of a mean, at least
LEAST_SHARE = 0.2  # mean^2 / mean of squares = 0.5^2 / (0.5^2 + 1), if the mean is half a deviation
LEAST_SCALE = 1e-30  # of a tile; with it the signs of smaller numbers are still encoded
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Parts = tuple[Tensor, ...]  # (codes, scales), or (bits,)


@dataclass(frozen=True)
class Format:
    """A format of codes: an encoder, its decoder, and the bits of a value."""

    name: str
    bits: float  # a value, with its share of the scale
    multiple: int  # the last dimension has to be a multiple of it
    encode: Callable[[Tensor], Parts]
    decode: Callable[..., Tensor]  # of the parts; float32, or bools
    is_centred: bool = False  # the distance from the mean over tokens is encoded

    def nbytes(self, numel: int) -> int:
        """Return the bytes of the codes of so many values, with their scales."""
        return int(numel * self.bits) // 8


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast by the operator that compiled graphs have."""
    if x.dtype == dtype:
        return x
    result: Tensor = torch.ops.prims.convert_element_type.default(x, dtype)
    return result


def _scale(x: Tensor, largest: int, *, keep_signs: bool) -> tuple[Tensor, Tensor]:
    """Return rounded x / scale as float32 of shape (..., tiles, TILE), and the scales, bfloat16 of
    shape (..., tiles, 1).

    largest: magnitude that the largest of a tile gets. With keep_signs numbers that are not 0 are
    rounded to 1 or -1 at least.

    A tile with a NaN or an infinity has a scale that is not finite, and decodes to such numbers.
    """
    tiles = cast(x.reshape(*x.shape[:-1], x.shape[-1] // TILE, TILE), torch.float32)
    scale = (tiles.abs().amax(-1, keepdim=True) * (1 / largest)).clamp_min(LEAST_SCALE)
    scale = cast(scale, torch.bfloat16)
    scaled = tiles * cast(scale, torch.float32).reciprocal()
    if keep_signs:
        return scaled.sign() * scaled.abs().round().clamp(1, largest), scale
    return scaled.round().clamp(-largest, largest), scale


def _repeat_scales(scale: Tensor) -> Tensor:
    """Expand scales (..., tiles) to float32, one for each value, (..., tiles * TILE)."""
    scale = cast(scale, torch.float32).unsqueeze(-1)
    return scale.expand(*scale.shape[:-1], TILE).reshape(*scale.shape[:-2], -1)


def _encode_int8(x: Tensor, *, keep_signs: bool) -> Parts:
    """Return int8 codes of x's shape, from -127 to 127, and scales (..., tiles)."""
    q, scale = _scale(x, 127, keep_signs=keep_signs)
    return cast(q, torch.int8).reshape(x.shape), scale.squeeze(-1)


def encode_int8(x: Tensor) -> Parts:
    return _encode_int8(x, keep_signs=False)


def encode_int8_signed(x: Tensor) -> Parts:
    return _encode_int8(x, keep_signs=True)


def decode_int8(q: Tensor, scale: Tensor) -> Tensor:
    """Return float32 of `encode_int8`'s codes and scales."""
    return cast(q, torch.float32) * _repeat_scales(scale)


def _encode_int4(x: Tensor, *, keep_signs: bool) -> Parts:
    """Return bytes, (..., n / 2), of numbers from -7 to 7, plus 8, and scales, (..., tiles).

    Element i of a tile is the low half of its byte i, element i + TILE / 2 the high half.
    """
    q, scale = _scale(x, 7, keep_signs=keep_signs)
    q = cast(q + 8, torch.uint8)  # 1 to 15
    low, high = q.split(TILE // 2, -1)
    codes = low | (high << 4)
    return codes.reshape(*x.shape[:-1], x.shape[-1] // 2), scale.squeeze(-1)


def encode_int4(x: Tensor) -> Parts:
    return _encode_int4(x, keep_signs=False)


def encode_int4_signed(x: Tensor) -> Parts:
    return _encode_int4(x, keep_signs=True)


def decode_int4(codes: Tensor, scale: Tensor) -> Tensor:
    """Return float32, (..., n), of `encode_int4`'s codes, (..., n / 2), and scales."""
    codes = codes.reshape(*codes.shape[:-1], codes.shape[-1] * 2 // TILE, TILE // 2)
    q = torch.cat((codes & 15, codes >> 4), -1)
    values = (cast(q, torch.float32) - 8) * cast(scale, torch.float32).unsqueeze(-1)
    return values.reshape(*values.shape[:-2], values.shape[-2] * TILE)


def centre_of(x: Tensor, dim: int) -> Tensor:
    """Return the mean over about 64 places of the dimension `dim`, which becomes 1, in float32; 0
    where it is not finite or less than half a deviation from 0, as of one large place among small.

    Any centre is right, as it is added again: the nearer to most values, the smaller the error.
    """
    extent = x.shape[dim]
    step = max(extent // SAMPLE, 1) if isinstance(extent, int) else 1
    sample = x[(slice(None),) * dim + (slice(None, None, step),)]
    wide = cast(sample, torch.float32)
    centre = wide.mean(dim, keepdim=True)
    squares = (wide * wide).mean(dim, keepdim=True)
    is_far = LEAST_SHARE * squares <= centre * centre
    return torch.where(is_far & (squares < math.inf), centre, 0.0)


def encode_bits(x: Tensor) -> Parts:
    """Pack bools, (..., 8 * n) -> (..., n) bytes; bit i of a byte is element i of eight."""
    octets = cast(x.reshape(*x.shape[:-1], x.shape[-1] // 8, 8), torch.uint8)
    bits = octets[..., 0]
    for i in range(1, 8):
        bits = bits | (octets[..., i] << i)
    return (bits,)


def decode_bits(bits: Tensor) -> Tensor:
    """Return the bools of `encode_bits`, (..., n) bytes -> (..., 8 * n)."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    octets = (bits.unsqueeze(-1) >> shifts) & 1
    return (octets != 0).reshape(*bits.shape[:-1], bits.shape[-1] * 8)


SCALE_BITS = 16 / TILE
INT8 = Format("int8", 8 + SCALE_BITS, TILE, encode_int8, decode_int8)
INT8_SIGNED = Format("int8_signed", 8 + SCALE_BITS, TILE, encode_int8_signed, decode_int8)
INT8_CENTRED = Format("int8_centred", 8 + SCALE_BITS, TILE, encode_int8, decode_int8, True)
INT4 = Format("int4", 4 + SCALE_BITS, TILE, encode_int4, decode_int4)
INT4_SIGNED = Format("int4_signed", 4 + SCALE_BITS, TILE, encode_int4_signed, decode_int4)
BITS = Format("bits", 1, 8, encode_bits, decode_bits)
