# SPDX-License-Identifier: MIT
"""Which saved tensors are compressed: what all that look alike have in common, found once."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..call.layout import order_of
from ..codecs.kept.guards import MEASURES, Guard
from ..families.gist_guard.sample import Grouping
from .coding import coding
from .consumers import SAME_NUMBERS, Asked, Use, use_of
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


class Look:
    """Saved tensors that look alike, whoever saves them."""

    __slots__ = (
        *("device", "dtype", "empty", "index", "is_told_apart", "kinds", "name", "nbytes"),
        *("order", "reason", "shape", "size", "strides", "views"),
    )

    def __init__(self, seen: Seen) -> None:
        made_by, self.dtype, self.shape, self.strides, self.device = seen
        self.name = made_by.__name__  # of the operation that made them
        self.index = gpu_of(self.device)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        self.order = order_of(self.shape, self.strides, 1)
        # They may be log-probabilities in other words.
        self.views = self.name in SAME_NUMBERS
        # Of a normalisation all results but the first are statistics, a few numbers a row.
        self.is_told_apart = self.views or "Norm" in self.name
        self.reason = _reason(self)  # why they pass as they are; empty where they may not
        self.kinds: dict[Asked, Kind] = {}
        self.empty: Callable[[], torch.Tensor] | None = None
        if not self.reason:  # half the time of torch.empty_strided
            one = torch.empty(0, dtype=self.dtype, device=self.device)
            self.empty = partial(one.new_empty_strided, self.shape, self.strides)

    def reason_of(self, x: torch.Tensor, source: object) -> str:
        """Why a tensor passes that is like others but for its history; empty where it does not."""
        if not self.views:
            return "statistics" if x.output_nr else ""
        return "log-probabilities" if type(source).__name__ in LOG_PROBABILITIES else ""


@dataclass(frozen=True, eq=False, slots=True)  # known by identity: its hash is taken at each save
class Kind:
    """Saved tensors of one look and one use: how they are encoded, or why they pass as they are."""

    look: Look  # of the tensor that is encoded: others may have the same memory
    use: Use
    reason: str  # empty where they are compressed
    is_exact: bool  # they pass for who saves them, and others that save them take them as they are
    codec: str
    coding: Any  # a Coding, or None where they pass
    guard: Guard  # of the codes
    measure: str  # the guard's
    rank: int  # who needs more has more
    empty: Any  # makes room for codes; None where they pass
    nbytes: int  # of the tensor
    index: int  # of the GPU, -1 for the host
    number: int  # its own


Seen = tuple[Any, ...]  # type of the node that made a tensor, dtype, shape, strides, device
CODES, HALF, WHOLE = range(3)  # ranks
_numbers = itertools.count(step=1 << 32)  # more than a step has of one kind
_kinds: MutableMapping[TorchPolicy, dict[Seen, Look]] = weakref.WeakKeyDictionary()


def looks(policy: TorchPolicy) -> dict[Seen, Look]:
    """What is known under a policy; kept for the next step as long as it is."""
    return _kinds.setdefault(policy, {})


def look(known: dict[Seen, Look], seen: Seen) -> Look:
    """A new look."""
    if len(known) >= MANY:
        known.clear()
    found = known[seen] = Look(seen)
    return found


def kind(policy: TorchPolicy, look: Look, x: torch.Tensor, asked: Asked) -> Kind:
    """A new kind of tensors that look like x, by who saves them."""
    if len(look.kinds) >= MANY:
        look.kinds.clear()
    use = use_of(x, asked)
    same = [each for each in list(look.kinds.values()) if each.use == use]
    found = look.kinds[asked] = same[0] if same else _made(policy, look, use)
    return found


def _made(policy: TorchPolicy, look: Look, use: Use) -> Kind:
    codec, reason, is_exact = "", look.reason, False
    if not reason:
        need = "mask" if look.dtype == torch.bool else "value"
        codec, reason = policy.chosen(look.name, DTYPES[look.dtype], tuple(look.shape), need, use)
        is_exact = bool(reason) and policy.by_consumer
    guard = _guard(policy, codec, look, use)
    about = look.size, look.index, guard.measure, guard.grouping
    ready = coding(codec, DTYPES[look.dtype], *about) if codec else None
    return Kind(
        look=look,
        use=use,
        reason=reason,
        is_exact=is_exact,
        codec=codec,
        coding=ready,
        guard=guard,
        measure=guard.measure,
        rank=WHOLE if not codec else HALF if codec == "pack16" else CODES,
        empty=ready and _room(ready.code_nbytes, look.device),
        nbytes=look.nbytes,
        index=look.index,
        number=next(_numbers),
    )


def _room(nbytes: int, device: torch.device) -> Callable[[], torch.Tensor]:
    return partial(torch.empty(0, dtype=torch.uint8, device=device).new_empty, nbytes)


def _guard(policy: TorchPolicy, codec: str, look: Look, use: Use) -> Guard:
    measure = MEASURES.get(codec, "") if policy.by_consumer else ""
    if not measure:
        return Guard("", use.need)
    groups = grouping_of(tuple(look.shape), look.order or (), use.groups, use.runs)
    return Guard(measure, use.need, groups)


def grouping_of(
    shape: tuple[int, ...], order: tuple[int, ...], groups: tuple[int, ...], runs: int
) -> Grouping | None:
    """Groups as they lie in memory: (outer, groups, inner); None where they lie otherwise.

    shape, order: the tensor's, dimensions from the outermost in memory to the innermost. groups:
    the dimensions that tell groups apart. runs: in place of them so many runs a sample.
    """
    n = math.prod(shape)
    if runs:
        is_plain = order == tuple(range(len(shape)))
        return (1, shape[0] * runs, n // (shape[0] * runs)) if is_plain else None
    extents = [(d in groups, shape[d]) for d in order if shape[d] != 1]
    kept = [i for i, (is_kept, _) in enumerate(extents) if is_kept]
    if not groups or (kept and kept[-1] - kept[0] + 1 != len(kept)):
        return None
    first, last = (kept[0], kept[-1] + 1) if kept else (0, 0)
    parts = (extents[:first], extents[first:last], extents[last:])
    outer, middle, inner = (math.prod(extent for _, extent in part) for part in parts)
    return outer, middle, inner


def gpu_of(device: torch.device) -> int:
    """The index of a GPU, -1 for the host."""
    return device.index if device.type == "cuda" else -1


def _reason(look: Look) -> str:
    """Why tensors pass untouched; empty where they do not."""
    if look.dtype not in DTYPES:
        return "dtype"
    if look.device.type not in ("cpu", "cuda"):
        return "device"
    if look.order is None:  # gaps or overlaps
        return "layout"
    return "log-probabilities" if look.name in LOG_PROBABILITIES else ""
