# SPDX-License-Identifier: MIT
"""A tensor's memory on this rank, and its elements in their order in memory."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

Ranks = tuple[Any, ...]  # of PyTorch's process groups


def is_distributed(tensor: Tensor) -> bool:
    """Return True if it is a part of a tensor that is divided over ranks."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def ranks_of(tensor: Tensor) -> Ranks:
    """The groups of ranks among which a tensor is taken apart; none where it is whole."""
    if not is_distributed(tensor):
        return ()
    part: Any = tensor
    placed = enumerate(part.placements)
    return tuple(part.device_mesh.get_group(i) for i, place in placed if place.is_shard())


def local(tensor: Tensor) -> Tensor:
    """The memory of this rank; gradients are not recorded."""
    if not is_distributed(tensor):
        return tensor
    part: Any = tensor
    own: Tensor = part.to_local()
    return own


def part_like(own: Tensor, like: Tensor) -> Tensor:
    """This rank's memory as its part of a tensor that is taken apart as another is."""
    if not is_distributed(like):
        return own
    part: Any = like
    found: Tensor = type(part).from_local(
        own, part.device_mesh, part.placements, shape=part.shape, stride=part.stride()
    )
    return found


def ordered(tensor: Tensor) -> Tensor:
    """A dense tensor's view whose dimensions are in the order of memory; others as they are."""
    if tensor.is_contiguous():
        return tensor
    strides = tensor.stride()
    view = tensor.permute(sorted(range(tensor.dim()), key=lambda d: -strides[d]))
    return view if view.is_contiguous() else tensor


def without_gaps(tensor: Tensor) -> Tensor:
    """A tensor's elements in some order; what is sparse is as it is, to be refused."""
    if tensor.layout != torch.strided:
        return tensor
    return ordered(tensor.resolve_neg()).contiguous()


def laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """The same in the order of another tensor's memory; a copy where it is in another order."""
    if gradient.shape != like.shape or gradient.layout != torch.strided:
        return gradient
    if gradient.stride() != like.stride():
        gradient = torch.empty_like(like, dtype=gradient.dtype).copy_(gradient)
    return ordered(gradient.resolve_neg())
