# SPDX-License-Identifier: MIT
"""Data of hooks: `Form` and `Kind` for all tensors alike, an `Entry` for each, and `Statistics`.

A Form is a tensor's metadata and the type of autograd node that computed it. A Kind is a Form and a
Use, which function saves the tensor for what; it has the codec, or the reason why the tensor is not
compressed.
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

SMALL = 64 * 1024  # bytes; smaller tensors are not worth the launches
MANY = 4096  # forms, and kinds of a form, that are cached

# dtypes that may be compressed, with their names.
DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
    torch.bool: "bool",
}
# Nodes whose results are log-probabilities: a small error of these is a large one of a loss.
LOG_PROBABILITIES = frozenset({"LogSoftmaxBackward0", "LogsumexpBackward0"})

# ---- kinds ---------------------------------------------------------------------------------------

FormKey = tuple[Any, ...]  # type of grad_fn, dtype, shape, strides, device
CODES, HALF, WHOLE = range(3)  # ranks: how exactly a tensor is stored
_numbers = itertools.count(step=1 << 32)  # no step saves so many tensors of one kind
_forms: MutableMapping[TorchPolicy, dict[FormKey, Form]] = weakref.WeakKeyDictionary()


class Form:
    """Metadata that saved tensors have in common, and kinds by the function that saves them.

    key: (type of grad_fn, dtype, shape, strides, device). index: of the GPU, -1 for the host. size:
    elements. order: dimensions from the outermost in memory to the innermost; None with gaps or
    overlaps. empty(): allocates such a tensor. has_history: `reason_of` may return a reason.
    """

    __slots__ = (
        *("device", "dtype", "empty", "has_history", "index", "kinds", "name", "nbytes"),
        *("order", "reason", "shape", "size", "strides", "views"),
    )

    def __init__(self, key: FormKey) -> None:
        maker, self.dtype, self.shape, self.strides, self.device = key
        self.name = maker.__name__  # "ReluBackward0"
        self.index = gpu_of(self.device)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        self.order = order_of(self.shape, self.strides, 1)
        # A view may be one of log-probabilities.
        self.views = self.name in SAME_NUMBERS  # a view, copy or cast computed it
        # All results of a normalisation but the first are statistics, a few numbers a row.
        self.has_history = self.views or "Norm" in self.name
        self.reason = _reason(self)  # why they are not compressed; "" if they may be
        self.kinds: dict[CallFacts, Kind] = {}
        self.empty: Callable[[], Tensor] | None = None
        if not self.reason:  # takes half the time of torch.empty_strided
            one = torch.empty(0, dtype=self.dtype, device=self.device)
            self.empty = partial(one.new_empty_strided, self.shape, self.strides)

    def reason_of(self, x: Tensor, source: object) -> str:
        """Return why the node that computed a tensor forbids compression, or "".

        source: that node, seen through views and casts.
        """
        if not self.views:
            return "statistics" if x.output_nr else ""
        return "log-probabilities" if type(source).__name__ in LOG_PROBABILITIES else ""


@dataclass(frozen=True, eq=False, slots=True)  # eq=False: the hash is the identity's
class Kind:
    """Saved tensors of one form and one use: how they are encoded, or why they are not."""

    form: Form  # of the tensor that was encoded: others may share its memory
    use: Use
    reason: str  # why they are not compressed, or ""
    is_exact: bool  # the consumer needs all bits: the entry stores the tensor for all consumers
    codec: str
    coding: Any  # a Coding, or None without a codec
    check: ErrorCheck  # of the codes
    measure: str  # of `check`
    rank: int  # CODES, HALF or WHOLE: an entry of a lower rank is filled again
    empty: Any  # allocates codes; None without a codec
    nbytes: int  # of the tensor
    index: int  # of the GPU, -1 for the host
    number: int  # identifies its first tensor of a step; number + i the i-th


def forms_of(policy: TorchPolicy) -> dict[FormKey, Form]:
    """Return the cache of forms of a policy, which lives as long as it does."""
    return _forms.setdefault(policy, {})


def new_form(forms: dict[FormKey, Form], key: FormKey) -> Form:
    """Make a form and cache it."""
    if len(forms) >= MANY:
        forms.clear()
    form = forms[key] = Form(key)
    return form


def new_kind(policy: TorchPolicy, form: Form, x: Tensor, facts: CallFacts) -> Kind:
    """Return the form's kind with the use that follows from `facts`, or make it.

    facts: of `call_facts`, about the call that saves x, a tensor of this form.
    """
    if len(form.kinds) >= MANY:
        form.kinds.clear()
    use = use_of(x, facts)
    same = [each for each in list(form.kinds.values()) if each.use == use]
    kind = form.kinds[facts] = same[0] if same else _make_kind(policy, form, use)
    return kind


def _make_kind(policy: TorchPolicy, form: Form, use: Use) -> Kind:
    """Make a kind of a form and a use, with the codec that the policy chooses; only policies by
    consumer make kinds with `is_exact`."""
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
    """Return a function that allocates so many bytes."""
    return partial(torch.empty(0, dtype=torch.uint8, device=device).new_empty, nbytes)


def _check_of(policy: TorchPolicy, codec: str, form: Form, use: Use) -> ErrorCheck:
    """Return the error check of a codec; with a policy that ignores consumers one that measures
    nothing."""
    measure = MEASURES.get(codec, "") if policy.by_consumer else ""
    if not measure:
        return ErrorCheck("", use.need)
    grouping = grouping_of(tuple(form.shape), form.order or (), use.groups, use.runs)
    return ErrorCheck(measure, use.need, grouping)


def grouping_of(
    shape: tuple[int, ...], order: tuple[int, ...], groups: tuple[int, ...], runs: int
) -> Grouping | None:
    """Return extents (outer, groups, inner) that view the memory so that the middle index is the
    group; None if groups do not lie so.

    order: dimensions from the outermost in memory to the innermost. groups: the dimensions whose
    indices identify a group; or, of group norm, `runs` groups a sample.
    Images (N, C, H, W) with groups (1,) have (N, C, H * W), with channels last (N * H * W, C, 1).
    """
    n = math.prod(shape)
    if runs:
        is_plain = order == tuple(range(len(shape)))
        return (1, shape[0] * runs, n // (shape[0] * runs)) if is_plain else None
    # In memory order: the dimensions of groups have to be neighbours, and become the middle one.
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
    """Return why a form is never compressed, or ""."""
    if form.dtype not in DTYPES:
        return "dtype"
    if form.device.type not in ("cpu", "cuda"):
        return "device"
    if form.order is None:  # gaps or overlaps
        return "layout"
    return "log-probabilities" if form.name in LOG_PROBABILITIES else ""


# ---- one tensor ----------------------------------------------------------------------------------

Untouched: TypeAlias = tuple[Tensor, int]  # a tensor and its version when it was saved


def store_untouched(x: Tensor) -> Untouched:
    """Store a tensor itself, detached: a result that is saved would keep its own graph alive."""
    return x if x.is_leaf else x.detach(), x._version


def restore(untouched: Untouched) -> Tensor:
    """Return the tensor of (tensor, version); raise PyTorch's RuntimeError if it was written since
    it had that version."""
    x, version = untouched
    if x._version != version:
        raise RuntimeError(
            f"one of the variables needed for gradient computation has been modified by an "
            f"inplace operation: {x.type()} {list(x.shape)} is at version {x._version}; expected "
            f"version {version} instead"
        )
    return x


class Entry(pending.Entry):
    """One activation, shared by all nodes that save it: its codes, the tensor itself, or both.

    `code` is a tensor of bytes or None, `original` an Untouched or None. storage, version: the
    memory of the tensor that was saved first, and PyTorch's version of it. stream: makes the codes.
    history: sequence number of the node that computed the tensor, or None. exposed_at: identifies
    the last call that exposed the memory to unseen writes (`modes.expose`), or None. statistics:
    of all entries.
    """

    uses = uses_left = 1  # nodes that saved it, and those of them that have not unpacked it
    decoded: Tensor | None = None  # cached for the next use
    decoded_version = 0
    copy: Tensor | None = None  # of the original, in checking mode
    is_centred = False  # a norm removes the feature means of the product's result
    statistics: Statistics

    def __init__(
        self,
        storage: UntypedStorage,
        version: int,
        kind: Kind,
        stream: Stream,
        history: int | None,
        exposed_at: object,
        statistics: Statistics,
    ) -> None:
        self.storage, self.version, self.stream = weakref.ref(storage), version, stream
        self.history, self.exposed_at = history, exposed_at
        self.kind, self.statistics = kind, statistics
        self.form = kind.form  # of the first tensor that was saved

    def is_same(
        self,
        storage: UntypedStorage,
        version: int,
        form: Form,
        stream: Stream,
        history: int | None,
        exposed_at: object,
    ) -> bool:
        """Return True if a tensor has this entry's bits, and the codes are ready on its stream.

        Arguments are the tensor's, as those of the entry. Bits are equal if storage, version and
        node are, and if no unseen write can have come in between. Shapes may differ, as the memory
        is dense.
        """
        own = self.form
        return (
            self.storage() is storage
            and self.version == version
            and self.history == history
            and self.exposed_at is exposed_at is not AT_ANY_TIME
            and self.stream is stream
            and own.size == form.size
            and own.dtype is form.dtype
        )

    def __del__(self) -> None:
        if self.code is not None:
            self.statistics.add(-self.code.nbytes)

    @property
    def rank(self) -> int:
        """Return how exactly the tensor is stored now: CODES, HALF or WHOLE."""
        return WHOLE if self.code is None else self.kind.rank

    def store_codes(self, kind: Kind, code: Tensor) -> None:
        """Store codes; those of a lower rank are replaced."""
        if self.code is not None:
            self.statistics.remove_codes(self.kind, self.code.nbytes)
        self.kind, self.code, self.decoded = kind, code, None
        self.statistics.add_codes(kind)

    def store_whole(self, original: Untouched, reason: str, consumer: str) -> None:
        """Store the tensor itself, in place of codes.

        reason: why it is not compressed. consumer: name of the function that needs it.
        """
        self.original = original
        if self.code is not None:
            self.statistics.remove_codes(self.kind, self.code.nbytes)
            self.code = self.decoded = None
        self.statistics.add_untouched(reason, self.kind.nbytes, consumer)

    def add_use(self) -> None:
        """Count one more node that saves the tensor."""
        self.uses += 1
        self.uses_left += 1
        if self.code is not None:
            self.statistics.add_share(self.kind)

    def reject(self, check: Any, failure: str) -> None:
        """Store the tensor in place of codes that failed their check; failure: why."""
        consumer = check.kind.use.consumer
        self.statistics.add_failure(consumer, failure)
        self.store_whole(self.original, "guard", consumer)

    def shorten(self, nbytes: int) -> None:
        """Free the memory after the codes' end, if their stream is the current one."""
        if self.stream is current_stream(self.kind.index):
            super().shorten(nbytes)

    def copy_codes(self, nbytes: int) -> object:
        """Copy the first bytes of the codes."""
        return self.code[:nbytes].clone()


# ---- statistics ----------------------------------------------------------------------------------

# Tensors that were encoded, that shared existing codes; bytes of tensors, bytes of codes.
COLUMNS = ("tensors", "shared", "before", "after")


class Statistics(pending.HeldBytes):
    """Counts of tensors and bytes; thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        # [tensors encoded, tensors that shared codes, bytes by which codes are below code_nbytes].
        self._kinds: defaultdict[Kind, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._passed: defaultdict[str, int] = defaultdict(int)  # uncompressed bytes, by reason
        self._untouched: Counter[str] = Counter()  # uncompressed bytes, by consumer
        self._failed: Counter[str] = Counter()  # checks, by consumer and reason

    def add_codes(self, kind: Kind) -> None:
        """Count a tensor that was encoded."""
        with self.lock:
            self._kinds[kind][0] += 1
            self.held += kind.coding.code_nbytes
            if self.held > self.peak:
                self.peak = self.held

    def remove_codes(self, kind: Kind, nbytes: int) -> None:
        """Subtract codes of so many bytes, which were replaced."""
        with self.lock:
            self._kinds[kind][0] -= 1
            self._kinds[kind][2] -= kind.coding.code_nbytes - nbytes
            self.add(-nbytes)

    def shorten_codes(self, kind: Kind, nbytes: int) -> None:
        """Note that codes of maximum size turned out to have only so many bytes."""
        with self.lock:
            self._kinds[kind][2] += kind.coding.code_nbytes - nbytes

    def add_share(self, kind: Kind) -> None:
        """Count a tensor that shares existing codes."""
        with self.lock:
            self._kinds[kind][1] += 1

    def add_untouched(self, reason: str, nbytes: int, consumer: str | None = None) -> None:
        """Count bytes of a tensor that is not compressed; consumer: the function that needs it."""
        with self.lock:
            self._passed[reason] += nbytes
            if consumer is not None:
                self._untouched[consumer] += nbytes

    def add_failure(self, consumer: str, reason: str) -> None:
        """Count codes that failed their check, by the function that saved the tensor and why."""
        with self.lock:
            self._failed[f"{consumer} {reason}"] += 1

    def coded_and_left(self) -> tuple[int, int]:
        """Return (bytes of tensors that were encoded, bytes of those that were not), the latter
        without parameters, and without tensors for which the policy names no codec."""
        with self.lock:
            before = sum(kind.nbytes * n for kind, (n, _, _) in self._kinds.items())
            wanted = {**self._passed, "parameter": 0, "policy": 0}
        return before, sum(wanted.values())

    def most_left(self) -> str:
        """Return a text of the two main reasons why tensors were not compressed, with bytes."""
        with self.lock:
            reasons = Counter(self._passed)
        del reasons["parameter"], reasons["policy"]
        return ", ".join(f"{nbytes} as {reason!r}" for reason, nbytes in reasons.most_common(2))

    def report(self) -> dict[str, object]:
        """Return counts of tensors, and bytes, as plain dictionaries.

        COLUMNS in total, by node in `names` and by consumer in `consumers`; bytes of codes now,
        `held`, and at most, `peak`; uncompressed bytes by reason, `passed`, and by consumer,
        `untouched`; numbers of tensors whose codes failed a check, `failed`.
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
    """Sum COLUMNS over the kinds of each name; kinds: (kind, *counts of `Statistics._kinds`)."""
    rows: dict[str, dict[str, int]] = {}
    for kind, n, shared, shorter in kinds:
        row = rows.setdefault(name(kind), dict.fromkeys(COLUMNS, 0))
        counts = n, shared, n * kind.nbytes, n * kind.coding.code_nbytes - shorter
        for column, count in zip(COLUMNS, counts, strict=True):
            row[column] += count
    return {name: row for name, row in rows.items() if any(row.values())}
