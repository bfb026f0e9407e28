# SPDX-License-Identifier: MIT
"""Encode and decode moments in PyTorch, on any device; `families/adam/codes.py` has the format.

Rounds to nearest, so encode(decode(codes)) == codes. Of a DTensor each rank codes its local shard.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...errors import refuse
from ...families.adam.codes import coded_nbytes
from ...families.adam.facts import CODED_BLOCK, FIRST_BITS, SECOND_BITS
from .part import in_memory_order, is_distributed, local, part_like

SIGNED = {"exp_avg": True, "exp_avg_sq": False}
_FRACTION, _INFINITE, _NAN = 23, 0x7F80_0000, 0x7FC0_0000


def zeros(parameter: Tensor) -> Tensor:
    """Return codes of moments that are 0."""
    n = coded_nbytes(local(parameter).numel())
    return torch.zeros(n, dtype=torch.uint8, device=parameter.device)


def encode(moments: Tensor, like: Tensor, *, signed: bool) -> Tensor:
    """Return codes of moments, in the memory order of their parameter `like`."""
    dense = torch.empty_like(local(like), dtype=torch.float32).copy_(local(moments))
    flat = in_memory_order(dense).reshape(-1)
    n_bits, top = (FIRST_BITS, 127) if signed else (SECOND_BITS, 255)
    shift = _FRACTION - n_bits
    bits = flat.abs().view(torch.int32)
    special = torch.where(bits > _INFINITE, _NAN, _INFINITE).to(torch.int32)
    rounded = torch.where(bits == 0, 0, bits.clamp(max=_INFINITE) + (1 << (shift - 1)))
    upper = torch.where(bits >= _INFINITE, special, rounded).to(torch.int32) >> shift
    blocks = pad(upper, (0, -flat.numel() % CODED_BLOCK)).view(-1, CODED_BLOCK)
    exponents = (blocks.amax(1) if len(blocks) else blocks.new_zeros(0)) >> n_bits
    least = torch.zeros_like(upper) if signed else (flat != 0).to(torch.int32)
    codes = torch.maximum(upper - _bases(exponents, n_bits, top, flat.numel()), least)
    if signed:
        codes |= flat.signbit().to(torch.int32) << 7
    return torch.cat((codes, exponents)).to(torch.uint8)


def decode(codes: Tensor, like: Tensor, *, signed: bool) -> Tensor:
    """Return moments in float32, with the strides of their parameter `like`."""
    own = local(like)
    n, (n_bits, top) = own.numel(), (FIRST_BITS, 127) if signed else (SECOND_BITS, 255)
    each, exponents = codes[:n].to(torch.int32), codes[n:].to(torch.int32)
    size = each & 127 if signed else each
    bits = torch.where(size == 0, 0, size + _bases(exponents, n_bits, top, n)) << (
        _FRACTION - n_bits
    )
    flat = bits.to(torch.int32).view(torch.float32)
    if signed:
        flat = torch.where(each & 128 != 0, -flat, flat)
    numbers = torch.empty_like(own, dtype=torch.float32)
    view = in_memory_order(numbers)
    view.copy_(flat.view(view.shape))
    return part_like(numbers, like)


def numbers(codes: Tensor, like: Tensor, *, signed: bool) -> Tensor:
    """Decode codes in row-major order on their own device, after a check of their size."""
    expected = coded_nbytes(like.numel())
    if is_distributed(like):
        refuse("AdamW", "state", "moments in numbers for a part of a tensor", "codes")
    if codes.shape != (expected,):
        got = f"shape {tuple(codes.shape)}"
        refuse("AdamW", "state", f"codes of {expected} bytes for {like.numel()} elements", got)
    return decode(codes, torch.empty(like.shape, device=codes.device), signed=signed)


def _bases(exponents: Tensor, n_bits: int, top: int, n: int) -> Tensor:
    """For each element, what is subtracted from its bits: 0 is the least code of its block."""
    bases = ((exponents << n_bits) + (1 << n_bits) - 1 - top).clamp(min=0)
    return bases.repeat_interleave(CODED_BLOCK)[:n]
