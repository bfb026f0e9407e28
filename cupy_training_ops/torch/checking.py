# SPDX-License-Identifier: MIT
"""Saved tensors that are checked: were they written without PyTorch's knowing?"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .policies import NAME
from .stacks import Hook


class Checked(NamedTuple):
    """In checking mode: what is held of a tensor, the tensor, and a copy."""

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
        return Checked(saved, x.detach(), x._version, x.detach().clone())


def unpack_checked(unpack: Hook, saved: Any) -> Any:
    """Give back what was saved; RuntimeError where the tensor was written unseen."""
    if type(saved) is not Checked:
        return unpack(saved)
    x, version = saved.original, saved.version
    if x._version == version and not _same_bits(x, saved.copy):
        raise RuntimeError(
            f"{NAME}: a tensor of {x.type()} {list(x.shape)} was written after it was saved, and "
            f"PyTorch was not told: expected writes that raise its version"
        )
    return unpack(saved.saved)


def _same_bits(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are equal, also where they are not equal to themselves."""
    now, then = (each.contiguous().reshape(-1).view(torch.uint8) for each in (x, y))
    return bool(torch.equal(now, then))
