# SPDX-License-Identifier: MIT
"""Which saved tensors are compressed: what all that look alike have in common, found once."""

from __future__ import annotations

import math
import weakref
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

from ..frame.layout import order_of
from .coding import Coding, coding
from .consumers import LEAF, SAME_NUMBERS, Use, source_of
from .guards import grouping_of
from .policies import TorchPolicy

SMALL = 64 * 1024  # bytes below which a tensor is not worth its launches
MANY = 4096  # kinds that a policy is remembered for

DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
    torch.bool: "bool",
}
LOG_PROBABILITIES = frozenset({"LogSoftmaxBackward0", "LogsumexpBackward0"})


@dataclass(frozen=True, eq=False, slots=True)  # known by identity: its hash is taken at each save
class Kind:
    """Saved tensors of one look: how they are encoded, or why they pass as they are."""

    name: str  # of the operation that made them
    use: Use
    reason: str  # empty where they are compressed
    is_exact: bool  # they pass for who saves them, and others that save them take them as they are
    dtype: torch.dtype
    device: torch.device
    index: int  # of the GPU, -1 for the host
    size: int
    nbytes: int
    codec: str
    coding: Any  # a Coding, or None where they pass
    rank: int  # who needs more has more
    views: bool  # they may be a parameter or log-probabilities in other words
    normalises: bool  # the operation's results but the first are statistics, a few numbers a row


Look = tuple[Any, ...]
CODES, HALF, WHOLE = range(3)  # ranks
_kinds: MutableMapping[TorchPolicy, dict[Look, Kind]] = weakref.WeakKeyDictionary()


def kinds(policy: TorchPolicy) -> dict[Look, Kind]:
    """The kinds that are known under a policy; kept for the next step as long as it is."""
    return _kinds.setdefault(policy, {})


def look_of(x: torch.Tensor, node: Any, use: Use) -> Look:
    """What a tensor's kind depends on."""
    return type(node), x.dtype, x.shape, x.stride(), x.device, use


def kind(policy: TorchPolicy, look: Look) -> Kind:
    """The kind of tensors of this look."""
    made_by, dtype, shape, strides, device, use = look
    name, size = made_by.__name__, math.prod(shape)
    order = order_of(shape, strides, 1)
    codec, reason, is_exact = "", _reason(name, dtype, order, device), False
    if not reason:
        need = "mask" if dtype == torch.bool else "value"
        codec, reason = policy.chosen(name, DTYPES[dtype], tuple(shape), need, use)
        is_exact = bool(reason) and policy.by_consumer
    index = device.index if device.type == "cuda" else -1
    return Kind(
        name=name,
        use=use,
        reason=reason,
        is_exact=is_exact,
        dtype=dtype,
        device=device,
        index=index,
        size=size,
        nbytes=size * dtype.itemsize,
        codec=codec,
        coding=_coding(policy, codec, look, size, index, order),
        rank=WHOLE if not codec else HALF if codec == "pack16" else CODES,
        views=name in SAME_NUMBERS,
        normalises="Norm" in name,
    )


def _coding(
    policy: TorchPolicy, codec: str, look: Look, size: int, index: int, order: Any
) -> Coding | None:
    _, dtype, shape, _, _, use = look
    if not codec:
        return None
    if not (policy.by_consumer and codec in ("pack16", "msfp15_signed")):
        return coding(codec, DTYPES[dtype], size, index)
    groups = grouping_of(tuple(shape), order, use.groups, use.runs)
    return coding(codec, DTYPES[dtype], size, index, True, groups)


def _reason(name: str, dtype: torch.dtype, order: Any, device: torch.device) -> str:
    """Why tensors pass untouched; empty where they do not."""
    if dtype not in DTYPES:
        return "dtype"
    if device.type not in ("cpu", "cuda"):
        return "device"
    if order is None:  # gaps or overlaps
        return "layout"
    return "log-probabilities" if name in LOG_PROBABILITIES else ""


def reason_of_views(node: Any) -> str:
    """Why a tensor passes that views and casts made of another; empty where it does not."""
    name = type(source_of(node)).__name__
    if name == LEAF:
        return "parameter"
    return "log-probabilities" if name in LOG_PROBABILITIES else ""
