# SPDX-License-Identifier: MIT
"""Encode and decode moments in PyTorch, on any device; `families/adam/codes.py` has the formats.

Rounds to nearest, so a state that was decoded has the same moments again. Of a DTensor each rank
codes its local shard. Here m and v are the n first and second moments of a parameter, flat, in
float32; `first` and `second` are their codes, flat uint8. Exponents are float32's with its bias,
127; blocks are CODED_BLOCK neighbours that share a scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...errors import refuse
from ...families.adam.codes import coded_sizes, decode_old, old_size
from ...families.adam.facts import (
    CODED_BLOCK,
    FIRST_BITS,
    LEAST_EXPONENT,
    LEVELS,
    MOST_BITS,
    OCTAVES,
    ROOM,
    SECOND_BITS,
)
from .part import in_memory_order, is_distributed, local, part_like

NAMES = ("exp_avg", "exp_avg_sq")
Moments = dict[str, Tensor]

_FRACTION, _BIAS = 23, 127  # of float32
_INFINITE, _NAN = 0x7F80_0000, 0x7FC0_0000
_TOP = (1 << (FIRST_BITS + 4)) - 1  # largest 8-bit code of a first moment, without its sign


def are_codes(state: Mapping[str, Any]) -> bool:
    """Return True if a state has moments in codes."""
    return any(isinstance(m := state.get(n), Tensor) and m.dtype == torch.uint8 for n in NAMES)


def are_old(state: Mapping[str, Any], parameter: Tensor) -> bool:
    """Return True if a state has codes of an older version, which are known by their sizes."""
    size = old_size(local(parameter).numel())
    return are_codes(state) and _sizes(state) == (size, size)


def zeros(parameter: Tensor, bits: int) -> Moments:
    """Return codes, in `bits` bits each, of a parameter's moments that are 0, by NAMES."""
    sizes, device = coded_sizes(local(parameter).numel(), bits), parameter.device
    own = [torch.zeros(n, dtype=torch.uint8, device=device) for n in sizes]
    return dict(zip(NAMES, own, strict=True))


def encode(state: Mapping[str, Any], like: Tensor, bits: int) -> Moments:
    """Return codes of a state's moments, by NAMES, in the memory order of their parameter `like`.

    bits: 8 or 4, of a code.
    """
    first, second = (_flat(state[name], like) for name in NAMES)
    coded = (_encode if bits == 8 else _encode_few)(first, second)
    return dict(zip(NAMES, coded, strict=True))


def decode(state: Mapping[str, Any], like: Tensor) -> Moments:
    """Return moments in float32, by NAMES, with the strides of their parameter `like`."""
    own = local(like)
    n = own.numel()
    first, second = (state[name] for name in NAMES)
    is_wide = (len(first), len(second)) == coded_sizes(n, 8)
    return {
        name: part_like(_laid_out(flat, own), like)
        for name, flat in zip(
            NAMES, (_decode if is_wide else _decode_few)(first, second, n), strict=True
        )
    }


def numbers_of(state: Mapping[str, Any], like: Tensor, optimizer: str = "AdamW") -> Moments:
    """Return a state's moments in float32, by NAMES: codes in row-major order, as state dicts have
    them, decoded on their own device after a check of their sizes.

    like: the parameter. optimizer: its name, for errors. Codes of older versions too, on the host.
    """
    n, first = like.numel(), state[NAMES[0]]
    if is_distributed(like):
        refuse(optimizer, "state", "moments in numbers for a part of a tensor", "codes")
    plain = torch.empty(like.shape, device=first.device)
    if are_old(state, plain):
        codes = tuple(state[name].cpu().numpy() for name in NAMES)
        wide = [torch.from_numpy(x).to(first.device) for x in decode_old(codes, n)]
        return {name: x.reshape(like.shape) for name, x in zip(NAMES, wide, strict=True)}
    expected = [coded_sizes(n, bits) for bits in (8, 4)]
    if _sizes(state) not in expected:
        words = " or ".join(f"{a} and {b}" for a, b in expected)
        got = " and ".join(str(tuple(state[name].shape)) for name in NAMES)
        refuse(optimizer, "state", f"codes of {words} bytes for {n} elements", f"shapes {got}")
    return decode(state, plain)


def _sizes(state: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the sizes in bytes of both arrays of codes; None if one is no flat uint8 array."""
    every = [state[name] for name in NAMES]
    are_flat = all(x.dtype == torch.uint8 and x.dim() == 1 for x in every)
    return tuple(len(x) for x in every) if are_flat else None


def _flat(moments: Tensor, like: Tensor) -> Tensor:
    """Return moments as flat float32, in the memory order of their parameter `like`."""
    dense = torch.empty_like(local(like), dtype=torch.float32).copy_(local(moments))
    return in_memory_order(dense).reshape(-1)


def _laid_out(flat: Tensor, like: Tensor) -> Tensor:
    """Return flat float32 in memory order as a tensor with the shape and strides of `like`."""
    numbers = torch.empty_like(like, dtype=torch.float32)
    view = in_memory_order(numbers)
    view.copy_(flat.view(view.shape))
    return numbers


# ---- 8 bits --------------------------------------------------------------------------------------


def _encode(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return (first, second), 8-bit codes of the first and second moments.

    second: n codes, (exponent, 3 bits of the fraction) as one number, minus the block's `_base`, at
    least 1 if v is not 0; then the largest exponent of each block.
    first: the sign in bit 7; below it (exponent, 3 bits) minus those of the least code, plus 1.
    """
    upper = _uppers(v, SECOND_BITS)
    exponents = _largest(upper) >> SECOND_BITS
    codes = torch.maximum(upper - _each(_base(exponents, SECOND_BITS, 255), len(v)), (v != 0).int())
    second = torch.cat((codes, exponents)).to(torch.uint8)
    least = _least(_decode_second(second, len(v)))
    bits = m.abs().view(torch.int32)
    half = 1 << (_FRACTION - FIRST_BITS - 1)
    upper = (bits.clamp(max=_NAN) + half) >> (_FRACTION - FIRST_BITS)
    codes = (upper - (least << FIRST_BITS) + 1).clamp(max=_TOP)
    share = m.abs() * _power(2 * _BIAS - least)  # |m| / 2^(least - 127): below 1, to 0 or to code 1
    codes = torch.where(bits < least << _FRACTION, (share > 0.5).int(), codes)
    return (codes | m.signbit().int() << 7).to(torch.uint8), second


def _decode(first: Tensor, second: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return (m, v) of the 8-bit codes that `_encode` returned; n: elements of each."""
    v = _decode_second(second, n)
    each = first.int()
    m = _numbers(each & _TOP, (_least(v) << FIRST_BITS) - 1, FIRST_BITS)
    return torch.where(each > _TOP, -m, m), v


def _decode_second(second: Tensor, n: int) -> Tensor:
    """Return v of its n 8-bit codes and the blocks' exponents behind them."""
    bases = _each(_base(second[n:].int(), SECOND_BITS, 255), n)
    return _numbers(second[:n].int(), bases, SECOND_BITS)


def _least(v: Tensor) -> Tensor:
    """Return the exponent of the least code of each first moment: the codes' OCTAVES powers of two
    end ROOM above the root of v."""
    return _roots(v) + (ROOM + 1 - OCTAVES)


# ---- 4 bits --------------------------------------------------------------------------------------


def _encode_few(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return (first, second): two 4-bit codes a byte, then two bytes for each block.

    second: codes, (exponent, 2, 1 or 0 bits of the fraction) as one number, minus the block's
    `_base`; as many bits as let the block's least v that is not 0 have a code of at least 1; the
    bytes are the largest exponent and the number of bits of the fraction.
    first: sign in bit 3, below it |m| / 2^(exponent of sqrt(v)) in steps of a bfloat16, the bytes.
    """
    n = len(v)
    codes = torch.zeros(n, dtype=torch.int32, device=v.device)
    exponents = torch.zeros(-(-n // CODED_BLOCK), dtype=torch.int32, device=v.device)
    kinds = torch.full_like(exponents, -1)  # bits of the fraction, by block; -1: not chosen yet
    for fraction in range(MOST_BITS, -1, -1):
        upper = _uppers(v, fraction)
        own = _largest(upper) >> fraction
        each = upper - _each(_base(own, fraction, 15), n)
        # Blocks without a choice yet, in which no v but 0 is below code 1; at last all others.
        chosen = (kinds < 0) & (_largest(((each < 1) & (v != 0)).int()) == 0)
        chosen = kinds < 0 if fraction == 0 else chosen
        codes = torch.where(_each(chosen, n), torch.maximum(each, (v != 0).int()), codes)
        exponents = torch.where(chosen, own, exponents)
        kinds = torch.where(chosen, fraction, kinds)
    scales = torch.stack((exponents, kinds), 1).to(torch.uint8).view(-1)
    second = torch.cat((_packed(codes), scales))
    root = _roots(_decode_few_second(second, n))
    ratios = torch.nan_to_num(m.abs() * _power(2 * _BIAS - root), nan=torch.finfo(m.dtype).max)
    largest = _largest(ratios)
    parts = (largest / LEVELS).view(torch.int32) >> 16  # bits of the step as bfloat16
    parts = torch.where(largest < 2.0**LEAST_EXPONENT, 0, parts).int()
    part = _each((parts << 16).view(torch.float32), n)
    levels = torch.where(part > 0, ratios / part + 0.5, 0).clamp(max=LEVELS).int()
    bytes_ = torch.stack((parts & 255, parts >> 8), 1).to(torch.uint8).view(-1)
    return torch.cat((_packed(levels | m.signbit().int() << 3), bytes_)), second


def _decode_few(first: Tensor, second: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return (m, v) of the 4-bit codes that `_encode_few` returned; n: elements of each."""
    v = _decode_few_second(second, n)
    codes, scales = _unpacked(first, n)
    # The step of each block, a bfloat16 from two bytes.
    part = ((scales[:, 0] | scales[:, 1] << 8) << 16).view(torch.float32)
    m = (codes & LEVELS).float() * _each(part, n) * _power(_roots(v))
    return torch.where(codes > LEVELS, -m, m), v


def _decode_few_second(second: Tensor, n: int) -> Tensor:
    """Return v, n elements, of its 4-bit codes and the blocks' scales behind them."""
    codes, scales = _unpacked(second, n)
    exponents, kinds = scales[:, 0], scales[:, 1].clamp(max=MOST_BITS)
    bases = ((exponents << kinds) + (1 << kinds) - 16).clamp(min=0)
    return _numbers(codes, _each(bases, n), _each(kinds, n))


def _packed(codes: Tensor) -> Tensor:
    """Return 4-bit codes as bytes, the first of two in the lower half."""
    pairs = pad(codes, (0, len(codes) % 2)).view(-1, 2)
    return (pairs[:, 0] | pairs[:, 1] << 4).to(torch.uint8)


def _unpacked(bytes_: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return n codes of 4 bits, and the two bytes of each block, (blocks, 2); both int32."""
    end = -(-n // 2)
    pairs = torch.stack((bytes_[:end] & 15, bytes_[:end] >> 4), 1)
    return pairs.view(-1)[:n].int(), bytes_[end:].view(-1, 2).int()


# ---- floats --------------------------------------------------------------------------------------


def _roots(v: Tensor) -> Tensor:
    """Return the exponents of the powers of two at or below sqrt(v)."""
    return (v.view(torch.int32) >> _FRACTION) + _BIAS >> 1


def _power(exponents: Tensor) -> Tensor:
    """Return 2^(exponents - 127) in float32."""
    return (exponents << _FRACTION).view(torch.float32)


def _uppers(x: Tensor, fraction: int) -> Tensor:
    """Return the upper bits of each |x| as a number, rounded to nearest: its exponent, and so many
    bits of its fraction. Infinities and NaN are not rounded."""
    bits, shift = x.abs().view(torch.int32), _FRACTION - fraction
    special = torch.where(bits > _INFINITE, _NAN, _INFINITE)
    rounded = torch.where(bits == 0, 0, bits.clamp(max=_INFINITE) + (1 << (shift - 1)))
    return torch.where(bits >= _INFINITE, special, rounded).int() >> shift


def _numbers(codes: Tensor, bases: Tensor, fraction: int | Tensor) -> Tensor:
    """Return the float32 numbers whose upper bits, the exponent and `fraction` bits of the
    fraction, are codes + bases, and whose lower bits are 0; 0 for code 0."""
    bits = torch.where(codes == 0, 0, codes + bases).int() << (_FRACTION - fraction)
    return bits.view(torch.float32)


def _base(exponents: Tensor, fraction: int, top: int) -> Tensor:
    """Return, for each block, what is subtracted from upper bits (`_uppers`) to make codes: the
    largest with the block's exponent gets the code `top`, e.g. 255.

    exponents: the largest of each block. fraction: bits of the fraction in the upper bits.
    """
    return ((exponents << fraction) + (1 << fraction) - 1 - top).clamp(min=0)


def _largest(x: Tensor) -> Tensor:
    """Return the largest number of each block; the last block may be short."""
    blocks = pad(x, (0, -len(x) % CODED_BLOCK)).view(-1, CODED_BLOCK)
    return blocks.amax(1) if len(blocks) else blocks.new_zeros(0)


def _each(of_blocks: Tensor, n: int) -> Tensor:
    """Repeat numbers of blocks for each of the n elements."""
    return of_blocks.repeat_interleave(CODED_BLOCK)[:n]
