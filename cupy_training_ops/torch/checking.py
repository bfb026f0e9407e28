# SPDX-License-Identifier: MIT
"""Saved tensors that are checked: were they written without PyTorch's knowing?"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .policies import NAME
from .saved import Kept
from .stacks import Hook


class Checked(NamedTuple):
    """In checking mode: what is held of a tensor, the tensor, and a copy.

    Those that share codes share the copy, which is flat: it is of what the first of them saved.
    """

    saved: Any  # what the hook gave
    original: Tensor
    version: int
    copy: Tensor


def pack_checked(pack: Hook, x: Tensor) -> Any:
    """Save a tensor by a hook, and hold it and a copy beside."""
    saved = pack(x)
    is_plain = type(x) in (Tensor, torch.nn.Parameter) and not x.is_nested
    is_plain = is_plain and x.layout is torch.strided
    if not is_plain or x.is_neg() or x.is_conj():  # others have no bits of their own
        return saved
    with torch._C.DisableTorchFunction():
        original, kept = x.detach(), saved if type(saved) is Kept else saved[0]
        if type(kept) is not Kept:
            return Checked(saved, original, x._version, original.clone())
        if kept.copy is None:
            kept.copy = original.as_strided((x.numel(),), (1,)).clone()
        return Checked(saved, original, x._version, kept.copy)


def unpack_checked(unpack: Hook, saved: Any) -> Any:
    """Give back what was saved; RuntimeError where the tensor was written unseen."""
    if type(saved) is not Checked:
        return unpack(saved)
    x, version, copy = saved.original, saved.version, saved.copy
    now = x if x.shape == copy.shape else x.as_strided(copy.shape, copy.stride())
    if x._version == version and not _same_bits(now, copy):
        raise RuntimeError(
            f"{NAME}: a tensor of {x.type()} {list(x.shape)} was written after it was saved, and "
            f"PyTorch was not told: expected writes that raise its version"
        )
    return unpack(saved.saved)


def _same_bits(x: Tensor, y: Tensor) -> bool:
    """Return True if two tensors are equal, also where they are not equal to themselves."""
    now, then = (each.contiguous().reshape(-1).view(torch.uint8) for each in (x, y))
    return bool(torch.equal(now, then))
