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
from ..stash.policies import POLICIES, Policy, chosen, get_policy
from .coding import Coding, coding

NAME = "compressed_activations"
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
# What gives the same numbers in other words: a tensor made so is as its source. Casts are those of
# autocast, and no parameter is the base of one.
SAME_NUMBERS = frozenset(
    f"{name}Backward{i}"
    for i in (0, 1)
    for name in (
        *("Alias", "AsStrided", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split"),
        *("Squeeze", "T", "ToCopy", "Transpose", "Unsqueeze", "UnsafeView", "View", "Clone"),
    )
)
LEAF = "AccumulateGrad"
MAKE_ZEROS = frozenset({"ReluBackward0", "ThresholdBackward0", "NativeDropoutBackward0"})


def small(name: str, dtype: str, shape: tuple[int, ...], need: str) -> str | None:
    """Sparse codes where an operation makes zeros; elsewhere they would be longer than MSFP15."""
    return POLICIES["small" if name in MAKE_ZEROS else "default"](name, dtype, shape, need)


def policy_of(policy: object) -> Policy:
    """A policy by name, or the caller's function."""
    return small if policy == "small" else get_policy(NAME, policy)


@dataclass(frozen=True, eq=False, slots=True)  # known by identity: its hash is taken at each save
class Kind:
    """Saved tensors of one look: how they are encoded, or why they pass as they are."""

    name: str  # of the operation that made them
    reason: str  # empty where they are compressed
    dtype: torch.dtype
    device: torch.device
    index: int  # of the GPU, -1 for the host
    size: int
    nbytes: int
    codec: str
    coding: Coding
    views: bool  # they may be a parameter or log-probabilities in other words
    normalises: bool  # the operation's results but the first are statistics, a few numbers a row


Look = tuple[Any, ...]
NO_CODING: Any = None
_kinds: MutableMapping[Policy, dict[Look, Kind]] = weakref.WeakKeyDictionary()


def kinds(policy: Policy) -> dict[Look, Kind]:
    """The kinds that are known under a policy; kept for the next step as long as it is."""
    try:
        return _kinds.setdefault(policy, {})
    except TypeError:  # an object that is not hashed, or not held weakly
        return {}


def look_of(x: torch.Tensor, node: Any) -> Look:
    """What a tensor's kind depends on."""
    return type(node), x.dtype, x.shape, x.stride(), x.device


def kind(policy: Policy, look: Look) -> Kind:
    """The kind of tensors of this look."""
    made_by, dtype, shape, strides, device = look
    name, size = made_by.__name__, math.prod(shape)
    nbytes = size * dtype.itemsize
    codec = None
    reason = _reason(name, dtype, nbytes, shape, strides, device)
    if not reason:
        need = "mask" if dtype == torch.bool else "value"
        codec = chosen(NAME, policy, name, DTYPES[dtype], tuple(shape), need)
        reason = "" if codec else "policy"
    index = device.index if device.type == "cuda" else -1
    ready = coding(codec, DTYPES[dtype], size, index) if codec else NO_CODING
    return Kind(
        name=name,
        reason=reason,
        dtype=dtype,
        device=device,
        index=index,
        size=size,
        nbytes=nbytes,
        codec=codec or "",
        coding=ready,
        views=name in SAME_NUMBERS,
        normalises="Norm" in name,
    )


def _reason(
    name: str,
    dtype: torch.dtype,
    nbytes: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    device: torch.device,
) -> str:
    """Why tensors pass untouched; empty where they do not."""
    if dtype not in DTYPES:
        return "dtype"
    if nbytes < SMALL:
        return "small"
    if device.type not in ("cpu", "cuda"):
        return "device"
    if order_of(shape, strides, 1) is None:  # gaps or overlaps
        return "layout"
    return "log-probabilities" if name in LOG_PROBABILITIES else ""


def reason_of_views(node: Any) -> str:
    """Why a tensor passes that views and casts made of another; empty where it does not."""
    while type(node).__name__ in SAME_NUMBERS:
        node = node.next_functions[0][0]
    name = type(node).__name__
    if name == LEAF:
        return "parameter"
    return "log-probabilities" if name in LOG_PROBABILITIES else ""
