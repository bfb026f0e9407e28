# SPDX-License-Identifier: MIT
"""Saved tensors: what those that are alike have in common, what is held of one, and statistics.

A `Kind` is known once for all tensors of one form and one use; an `Entry` is one tensor; the
`Statistics` count what became of all.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, UntypedStorage

from ..activations import pending
from ..activations.error_check import MEASURES, ErrorCheck
from ..call.layout import order_of
from ..families.gist_guard.sample import Grouping
from .coding import Stream, coding, current_stream
from .modes import AT_ANY_TIME
from .save_rules import SAME_NUMBERS, CallFacts, TorchPolicy, Use, use_of

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

# ---- kinds ---------------------------------------------------------------------------------------

FormKey = tuple[Any, ...]  # type of the node that made a tensor, dtype, shape, strides, device
CODES, HALF, WHOLE = range(3)  # ranks: how exactly a tensor is held
_numbers = itertools.count(step=1 << 32)  # more than a step has of one kind
_forms: MutableMapping[TorchPolicy, dict[FormKey, Form]] = weakref.WeakKeyDictionary()


class Form:
    """The form of saved tensors that are alike, whoever saves them."""

    __slots__ = (
        *("device", "dtype", "empty", "has_history", "index", "kinds", "name", "nbytes"),
        *("order", "reason", "shape", "size", "strides", "views"),
    )

    def __init__(self, key: FormKey) -> None:
        maker, self.dtype, self.shape, self.strides, self.device = key
        self.name = maker.__name__  # of the operation that made them
        self.index = gpu_of(self.device)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        self.order = order_of(self.shape, self.strides, 1)
        # They may be log-probabilities in other words.
        self.views = self.name in SAME_NUMBERS
        # Of a normalisation all results but the first are statistics, a few numbers a row.
        self.has_history = self.views or "Norm" in self.name
        self.reason = _reason(self)  # why they pass as they are; empty where they may not
        self.kinds: dict[CallFacts, Kind] = {}
        self.empty: Callable[[], Tensor] | None = None
        if not self.reason:  # half the time of torch.empty_strided
            one = torch.empty(0, dtype=self.dtype, device=self.device)
            self.empty = partial(one.new_empty_strided, self.shape, self.strides)

    def reason_of(self, x: Tensor, source: object) -> str:
        """Return why a tensor passes for what made it, seen through views; empty where it does not.

        "statistics": a norm's results behind the first. source: the node whose numbers views show.
        """
        if not self.views:
            return "statistics" if x.output_nr else ""
        return "log-probabilities" if type(source).__name__ in LOG_PROBABILITIES else ""


@dataclass(frozen=True, eq=False, slots=True)  # known by identity: its hash is taken at each save
class Kind:
    """Saved tensors of one form and one use: how they are encoded, or why they pass as they are."""

    form: Form  # of the tensor that is encoded: others may have the same memory
    use: Use
    reason: str  # empty where they are compressed
    is_exact: bool  # who saves them needs all bits: an entry holds them whole, for all others too
    codec: str
    coding: Any  # a Coding, or None where they pass
    check: ErrorCheck  # of the codes
    measure: str  # the check's
    rank: int  # CODES, HALF or WHOLE: an entry of a lower one is filled again
    empty: Any  # allocates codes; None where they pass
    nbytes: int  # of the tensor
    index: int  # of the GPU, -1 for the host
    number: int  # the place of its first tensor in a step; the others' follow


def forms_of(policy: TorchPolicy) -> dict[FormKey, Form]:
    """Return the forms known under a policy, which live as long as it does."""
    return _forms.setdefault(policy, {})


def new_form(forms: dict[FormKey, Form], key: FormKey) -> Form:
    """Make a form, and remember it."""
    if len(forms) >= MANY:
        forms.clear()
    form = forms[key] = Form(key)
    return form


def new_kind(policy: TorchPolicy, form: Form, x: Tensor, facts: CallFacts) -> Kind:
    """Make a kind of tensors like x, by who saves them, or take one of the same use."""
    if len(form.kinds) >= MANY:
        form.kinds.clear()
    use = use_of(x, facts)
    same = [each for each in list(form.kinds.values()) if each.use == use]
    kind = form.kinds[facts] = same[0] if same else _make_kind(policy, form, use)
    return kind


def _make_kind(policy: TorchPolicy, form: Form, use: Use) -> Kind:
    """A form that is never compressed has its reason, whoever saves it; only a policy by
    consumers makes a kind exact, of which `Entry` holds the tensor itself."""
    codec, reason, is_exact = "", form.reason, False
    if not reason:
        need = "mask" if form.dtype == torch.bool else "value"
        about = form.name, DTYPES[form.dtype], tuple(form.shape), need
        codec, reason = policy.codec_or_reason(*about, use)
        is_exact = bool(reason) and policy.by_consumer
    check = _check_of(policy, codec, form, use)
    memory = form.size, form.index, check.measure, check.grouping
    prepared = coding(codec, DTYPES[form.dtype], *memory) if codec else None
    return Kind(
        form=form,
        use=use,
        reason=reason,
        is_exact=is_exact,
        codec=codec,
        coding=prepared,
        check=check,
        measure=check.measure,
        rank=WHOLE if not codec else HALF if codec == "pack16" else CODES,
        empty=prepared and _allocator(prepared.code_nbytes, form.device),
        nbytes=form.nbytes,
        index=form.index,
        number=next(_numbers),
    )


def _allocator(nbytes: int, device: torch.device) -> Callable[[], Tensor]:
    return partial(torch.empty(0, dtype=torch.uint8, device=device).new_empty, nbytes)


def _check_of(policy: TorchPolicy, codec: str, form: Form, use: Use) -> ErrorCheck:
    """The codes of some codecs are measured, where the policy asks who saves a tensor."""
    measure = MEASURES.get(codec, "") if policy.by_consumer else ""
    if not measure:
        return ErrorCheck("", use.need)
    grouping = grouping_of(tuple(form.shape), form.order or (), use.groups, use.runs)
    return ErrorCheck(measure, use.need, grouping)


def grouping_of(
    shape: tuple[int, ...], order: tuple[int, ...], groups: tuple[int, ...], runs: int
) -> Grouping | None:
    """Groups as they lie in memory: (outer, groups, inner); None where they lie otherwise.

    shape, order: the tensor's, dimensions from the outermost in memory to the innermost. groups:
    the dimensions that tell groups apart. runs: in place of them so many runs a sample.
    Images (N, C, H, W) with groups (1,) have (N, C, H * W), with channels last (N * H * W, C, 1).
    """
    n = math.prod(shape)
    if runs:
        is_plain = order == tuple(range(len(shape)))
        return (1, shape[0] * runs, n // (shape[0] * runs)) if is_plain else None
    extents = [(d in groups, shape[d]) for d in order if shape[d] != 1]
    places = [i for i, (is_group, _) in enumerate(extents) if is_group]
    if not groups or (places and places[-1] - places[0] + 1 != len(places)):
        return None
    first, last = (places[0], places[-1] + 1) if places else (0, 0)
    parts = (extents[:first], extents[first:last], extents[last:])
    outer, middle, inner = (math.prod(extent for _, extent in part) for part in parts)
    return outer, middle, inner


def gpu_of(device: torch.device) -> int:
    """Return the index of a GPU, -1 for the host."""
    return device.index if device.type == "cuda" else -1


def _reason(form: Form) -> str:
    """Return why tensors pass untouched; empty where they do not."""
    if form.dtype not in DTYPES:
        return "dtype"
    if form.device.type not in ("cpu", "cuda"):
        return "device"
    if form.order is None:  # gaps or overlaps
        return "layout"
    return "log-probabilities" if form.name in LOG_PROBABILITIES else ""


# ---- one tensor ----------------------------------------------------------------------------------

Untouched: TypeAlias = tuple[Tensor, int]  # a tensor as it is, and the version it was saved in


def leave(x: Tensor) -> Untouched:
    """Hold a tensor as it is.

    A tensor holds its own graph, which would keep itself alive without a backward where the tensor
    is a result, or is written after it was saved.
    """
    return x if x.is_leaf else x.detach(), x._version


def take_back(untouched: Untouched) -> Tensor:
    """Return the tensor, if nobody wrote into it."""
    x, version = untouched
    if x._version != version:
        raise RuntimeError(
            f"one of the variables needed for gradient computation has been modified by an "
            f"inplace operation: {x.type()} {list(x.shape)} is at version {x._version}; expected "
            f"version {version} instead"
        )
    return x


class Entry(pending.Entry):
    """One activation; all that saved it hold the same. Its `original` is an Untouched or None."""

    uses = left = 1  # how many saved it, and how many of them are still to ask
    decoded: Tensor | None = None  # for the next use, where that follows at once
    decoded_version = 0
    copy: Tensor | None = None  # of what was encoded first, where writes are looked for
    is_centred = False  # features are, by the norm that took the product's result
    statistics: Statistics

    def __init__(
        self,
        storage: UntypedStorage,
        version: int,
        kind: Kind,
        stream: Stream,
        history: int | None,
        lent_at: object,
        statistics: Statistics,
    ) -> None:
        """history: the number of the node that made the tensor. lent_at: when its memory was lent
        to what may write it unseen; None if never."""
        self.storage, self.version, self.stream = weakref.ref(storage), version, stream
        self.history, self.lent_at = history, lent_at
        self.kind, self.statistics = kind, statistics
        self.form = kind.form  # of the first that saved it

    def is_same(
        self,
        storage: UntypedStorage,
        version: int,
        form: Form,
        stream: Stream,
        history: int | None,
        lent_at: object,
    ) -> bool:
        """Return True if a tensor has the bits of this entry, whose codes are there on its stream.

        So it is for one storage, version and node, if the memory was lent to nobody since who may
        write it unseen, and never to one who may at any time. Dense memory is equal under any
        shape.
        """
        own = self.form
        return (
            self.storage() is storage
            and self.version == version
            and self.history == history
            and self.lent_at is lent_at is not AT_ANY_TIME
            and self.stream is stream
            and own.size == form.size
            and own.dtype is form.dtype
        )

    def __del__(self) -> None:
        if self.code is not None:
            self.statistics.add(-self.code.nbytes)

    @property
    def rank(self) -> int:
        """How exactly the tensor is held now: CODES, HALF or WHOLE."""
        return WHOLE if self.code is None else self.kind.rank

    def hold_codes(self, kind: Kind, code: Tensor) -> None:
        """Hold codes, in place of shorter ones."""
        if self.code is not None:
            self.statistics.remove_codes(self.kind, self.code.nbytes)
        self.kind, self.code, self.decoded = kind, code, None
        self.statistics.add_codes(kind)

    def hold_whole(self, original: Untouched, reason: str, consumer: str) -> None:
        """Hold the tensor itself."""
        self.original = original
        if self.code is not None:
            self.statistics.remove_codes(self.kind, self.code.nbytes)
            self.code = self.decoded = None
        self.statistics.add_untouched(reason, self.kind.nbytes, consumer)

    def add_use(self) -> None:
        """Count one more node that saves the tensor."""
        self.uses += 1
        self.left += 1
        if self.code is not None:
            self.statistics.add_share(self.kind)

    def reject(self, check: Any, failure: str) -> None:
        """Hold the tensor in place of codes that failed their check."""
        consumer = check.kind.use.consumer
        self.statistics.add_failure(consumer, failure)
        self.hold_whole(self.original, "guard", consumer)

    def shorten(self, nbytes: int) -> None:
        """Give back the memory behind codes, if the stream that they are on is the current one."""
        if self.stream is current_stream(self.kind.index):
            super().shorten(nbytes)

    def copy_codes(self, nbytes: int) -> object:
        """Copy the first bytes of the codes into memory of PyTorch's allocator."""
        return self.code[:nbytes].clone()


# ---- statistics ----------------------------------------------------------------------------------

# Tensors that became codes, that were saved while these were there; bytes of tensors, and of codes.
COLUMNS = ("tensors", "shared", "before", "after")


class Statistics(pending.HeldBytes):
    """Counts of tensors and bytes, from any thread."""

    def __init__(self) -> None:
        super().__init__()
        # Tensors that are codes, that were saved while their codes were there; bytes by which codes
        # are shorter than the longest.
        self._kinds: defaultdict[Kind, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._passed: defaultdict[str, int] = defaultdict(int)
        self._untouched: Counter[str] = Counter()  # bytes, by who saved them
        self._failed: Counter[str] = Counter()  # checks, by who saved the tensor

    def add_codes(self, kind: Kind) -> None:
        """Count a tensor that became codes."""
        with self.lock:
            self._kinds[kind][0] += 1
            self.held += kind.coding.code_nbytes
            if self.held > self.peak:
                self.peak = self.held

    def remove_codes(self, kind: Kind, nbytes: int) -> None:
        """Take off codes of so many bytes, which gave way to the tensor or to longer ones."""
        with self.lock:
            self._kinds[kind][0] -= 1
            self._kinds[kind][2] -= kind.coding.code_nbytes - nbytes
            self.add(-nbytes)

    def shorten_codes(self, kind: Kind, nbytes: int) -> None:
        """Note that codes have no more bytes than that."""
        with self.lock:
            self._kinds[kind][2] += kind.coding.code_nbytes - nbytes

    def add_share(self, kind: Kind) -> None:
        """Count a tensor that was saved while its codes are there."""
        with self.lock:
            self._kinds[kind][1] += 1

    def add_untouched(self, reason: str, nbytes: int, consumer: str | None = None) -> None:
        """Add up bytes of tensors that were left as they are: by reason, and by who saves them."""
        with self.lock:
            self._passed[reason] += nbytes
            if consumer is not None:
                self._untouched[consumer] += nbytes

    def add_failure(self, consumer: str, reason: str) -> None:
        """Count codes that failed their check."""
        with self.lock:
            self._failed[f"{consumer} {reason}"] += 1

    def coded_and_left(self) -> tuple[int, int]:
        """Return the bytes that were encoded, and those that the policy asked for in vain."""
        with self.lock:
            before = sum(kind.nbytes * n for kind, (n, _, _) in self._kinds.items())
            wanted = {**self._passed, "parameter": 0, "policy": 0}
        return before, sum(wanted.values())

    def most_left(self) -> str:
        """Say why most of what passed did."""
        with self.lock:
            reasons = Counter(self._passed)
        del reasons["parameter"], reasons["policy"]
        return ", ".join(f"{nbytes} as {reason!r}" for reason, nbytes in reasons.most_common(2))

    def report(self) -> dict[str, object]:
        """Return counts of tensors, and bytes, as plain dictionaries.

        COLUMNS for all, by who made tensors in `names`, by who saved them in `consumers`; bytes of
        codes now, `held`, and at most, `peak`; bytes that were left as they are by the reason in
        `passed`, by who saved them in `untouched`; tensors whose codes failed in `failed`.
        """
        with self.lock:
            kinds = [(kind, *counts) for kind, counts in self._kinds.items()]
            passed, untouched = dict(self._passed), dict(self._untouched)
            failed, peak, held = dict(self._failed), self.peak, self.held
        names = _table(kinds, lambda kind: f"{kind.form.name} {kind.codec}")
        return {
            **{column: sum(row[column] for row in names.values()) for column in COLUMNS},
            "peak": peak,
            "held": held,
            "names": names,
            "consumers": _table(kinds, lambda kind: f"{kind.use.consumer} {kind.codec}".strip()),
            "passed": passed,
            "untouched": untouched,
            "failed": failed,
        }


def _table(
    kinds: Iterable[tuple[Any, ...]], name: Callable[[Kind], str]
) -> dict[str, dict[str, int]]:
    """Add up COLUMNS over the kinds of each name.

    kinds: (kind, encoded, shared, bytes by which codes are shorter than the longest).
    """
    rows: dict[str, dict[str, int]] = {}
    for kind, n, shared, shorter in kinds:
        row = rows.setdefault(name(kind), dict.fromkeys(COLUMNS, 0))
        counts = n, shared, n * kind.nbytes, n * kind.coding.code_nbytes - shorter
        for column, count in zip(COLUMNS, counts, strict=True):
            row[column] += count
    return {name: row for name, row in rows.items() if any(row.values())}
