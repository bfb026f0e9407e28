# SPDX-License-Identifier: MIT
"""Saved-tensor hooks that store activations as codes from the forward pass to the backward pass.

Hooks cost time on the host: what tensors alike have in common is computed once, and a codec is one
launch over addresses. An `Entry` has the codes, compressed bytes, of one activation, or the tensor
itself, for all nodes that save it. A `Kind` has what tensors alike have in common: their codec,
which function saves them, and their `Form`, which has shape, strides, dtype and device.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._C import _is_torch_function_mode_enabled as is_mode_enabled

from ..activations.error_check import LINEAR, TILES
from ..activations.pending import PendingLengths, Step
from ..activations.policies import Policy as CodecPolicy
from ..errors import ProviderError
from ..summary import Summary
from ..typing import Policy
from .coding import ALIGNED, Stream, current_stream
from .error_checks import ErrorChecks, empty_numbers, is_captured
from .modes import (
    ExposedMemory,
    Hook,
    ThreadMode,
    is_compiled,
    is_trusted,
    n_modes,
    take_off_hooks,
    take_off_mode,
)
from .pinned import copy_to_host
from .save_rules import (
    CENTRING,
    LEAF_NODE,
    NAME,
    SAME_NODES,
    TorchPolicy,
    call_facts,
    centres,
    policy_of,
    source_of,
)
from .saved import (
    MANY,
    SMALL,
    Entry,
    Form,
    Kind,
    Statistics,
    Untouched,
    forms_of,
    new_form,
    new_kind,
    restore,
    store_untouched,
)

STRIDED = torch.strided
# Decoded tensors cached for later uses: a residual connection reads an activation again after the
# branch beside it.
MOST_DECODED = 2
NOTEWORTHY = 1 << 20  # bytes; less is no reason to warn that it was not compressed

# What `pack` returns: an entry; an entry of another tensor, and the form of this one, which shares
# it; or the tensor itself with its version.
Saved: TypeAlias = Entry | tuple[Entry, Form] | Untouched
# The newest step under each policy: a new context continues from it, so that a loop that makes one
# for each step does not wait for the device in each.
_steps: MutableMapping[TorchPolicy, Step] = weakref.WeakKeyDictionary()


class Statement:
    """One `with` statement of a thread.

    pack: its hook. n_modes: how often the thread's mode was on the stack before the statement.
    sees_all: the mode's attribute before.
    """

    def __init__(self, pack: Hook, n_modes: int, sees_all: bool) -> None:
        self.pack, self.n_modes, self.sees_all = pack, n_modes, sees_all


class ThreadStatements(threading.local):
    """A thread's open `with` statements, the innermost last."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []


class CompressedActivations(Summary):
    """A context in which autograd saves codes of activations.

    policy: a policy's name, or a function that chooses codecs (`compressed_activations`). check:
    keep a copy of every tensor, and refuse one that was written without a change of its version.
    """

    def __init__(self, policy: object, check: bool = False) -> None:
        self._argument, self._policy, self._check = policy, policy_of(policy), check
        self._forms = forms_of(self._policy)
        self._statistics = Statistics()
        self._exposed: ExposedMemory = {}
        # Entries of this step by address + elements; the garbage collector counts keys that are
        # tuples, not integers.
        self._known: dict[int, weakref.ref[Entry]] = {}
        self._thread = ThreadMode(self._exposed, self._known)
        self._entered = ThreadStatements()
        self._decoded: deque[weakref.ref[Entry]] = (
            deque()
        )  # that have decoded tensors, the newest last
        self._lengths = PendingLengths()
        self._checks = ErrorChecks(_steps.get(self._policy))
        self._has_warned = False

    def __reduce__(self) -> tuple[object, ...]:
        """Copy the policy only: a copied model gets a new context."""
        return type(self), (self._argument, self._check)

    def _facts(self) -> dict[str, object]:
        """Return what `repr` shows: bytes of codes now, and their maximum since it was made."""
        held = {"held": self._statistics.held, "peak": self._statistics.peak}
        return {"policy": self._argument, "check": self._check, **held}

    def __enter__(self) -> CompressedActivations:
        """Push this thread's mode, and the hooks; undo both if that is interrupted."""
        if is_compiled():
            raise ProviderError(
                f"{NAME}: expected to be entered outside of what torch.compile compiles"
            )
        pack: Hook = self.pack  # a new object
        unpack: Hook = self.unpack
        if self._check:
            pack, unpack = partial(pack_checked, pack), partial(unpack_checked, unpack)
        mode = self._thread.mode
        statement = Statement(pack, n_modes(mode), mode.sees_all)
        try:
            self._entered.statements.append(statement)
            mode.sees_all = is_trusted()
            if mode.sees_all:
                torch._C._push_on_torch_function_stack(mode)
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
            self._checks.begin_step()
            return self
        except BaseException:
            self._leave(statement)
            raise

    def __exit__(self, *error: object) -> None:
        # On one line: an interrupt comes between two, and would find nothing that is undone.
        try: self._leave(self._innermost())  # noqa: E701  # fmt: skip
        except BaseException:
            self._leave(self._innermost())
            raise
        if error[0] is None:
            self._warn_of_little()

    def _innermost(self) -> Statement:
        """Return this thread's innermost `with` statement; raise ProviderError if it has none."""
        if not self._entered.statements:
            raise ProviderError(
                f"{NAME}: expected to be left by the thread that entered it, got one that has not"
            )
        return self._entered.statements[-1]

    def _leave(self, statement: Statement) -> None:
        """End a `with` statement and its step, also if `__enter__` was interrupted in it; may be
        called twice for the same."""
        take_off_hooks(statement.pack)
        mode = self._thread.mode
        if n_modes(mode) > statement.n_modes:
            take_off_mode(mode)
        mode.sees_all = statement.sees_all
        self._known.clear()
        self._checks.end_step()
        _steps[self._policy] = self._checks.pending.last
        if self._entered.statements[-1:] == [statement]:
            del self._entered.statements[-1]  # unlike after a call, no interrupt comes after it

    def report(self) -> dict[str, object]:
        """Return counts and bytes since this object was created.

        `tensors` were encoded, from `before` to `after` bytes; `shared` reused existing codes.
        `held` are the bytes of codes now, `peak` their maximum, `window` the maximum of undecided
        originals. `names` has these by the node that computed the tensors, `consumers` by the
        function that saved them, each with the codec. `passed` are bytes that were not compressed,
        by reason, `untouched` those that their consumer needs exactly, by its name. `failed` counts
        tensors whose codes failed a check, by consumer and test; `failed_later` those of captured
        steps.
        """
        self._lengths.trim_all()
        self._checks.pending.finish_all()
        return {
            **self._statistics.report(),
            "window": self._checks.pending.peak,
            "failed_later": self._checks.failed_later(),
        }

    # ---- the hooks -------------------------------------------------------------------------------

    def pack(self, x: Tensor) -> Saved:
        """Save an activation: as codes, or the tensor itself."""
        call = self._thread.mode.call
        if call is None and is_mode_enabled():  # in a custom Function: do not call the mode below
            with torch._C.DisableTorchFunction():
                return self.pack(x)
        if x.layout is not STRIDED or x.is_nested:
            return self._pass(x, self._reason_of_odd(x), 0)
        policy, nbytes = self._policy, x.nbytes
        if x.is_leaf:
            if x.requires_grad:
                self._statistics.add_untouched("parameter", nbytes)
                return x, x._version
            if not self._is_mask(x):
                return self._pass(x, _reason_of_leaf(x, nbytes), nbytes)
        if call is not None and call[0] in CENTRING and centres(x, call):
            self._checks.centre(x)
        if type(x) is not Tensor:
            return self._pass(x, "subclass", nbytes)
        if nbytes < SMALL:
            return self._pass(x, "small", nbytes)
        if x.is_neg():
            return self._pass(x, "layout", nbytes)
        # Each access of grad_fn makes an object that lives as long as the graph.
        source = node = x.grad_fn
        if type(node) in SAME_NODES:
            source = source_of(node)
            if type(source) is LEAF_NODE:
                return self._pass(x, "parameter", nbytes)
        key = type(node), x.dtype, x.shape, x.stride(), x.device
        form = self._forms.get(key) or new_form(self._forms, key)
        reason = form.reason or (form.has_history and form.reason_of(x, source))
        if reason and (form.reason or policy.by_consumer):
            return self._pass(x, reason, nbytes)
        facts = call_facts(x, call) if policy.uses_consumer else None
        kind = form.kinds.get(facts) or new_kind(policy, form, x, facts)
        if not kind.is_exact and (reason := kind.reason or reason):
            return self._pass(x, reason, nbytes)
        return self._hold(x, kind, source)

    def unpack(self, saved: Any) -> Tensor:
        """Return the tensor, or its decoded codes, of what `pack` returned."""
        if type(saved) is Entry:
            entry, form = saved, saved.form
        else:
            entry, form = saved
            if type(entry) is not Entry:  # a tensor, and its version
                return entry if entry._version == form else restore(saved)
        if entry.pending:
            self._checks.pending.finish(entry)
        if entry.original is not None:
            return _view_as(restore(entry.original), form)
        stream = current_stream(form.index)
        entry.uses_left -= 1
        decoded = entry.decoded if stream is entry.stream else None
        if decoded is None or decoded._version != entry.decoded_version:  # it was written
            decoded = self._decode(entry, form, stream)
        else:
            decoded = _view_as(decoded, form)
        if entry.uses_left <= 0:  # the last use, unless the graph is retained
            entry.uses_left, entry.decoded = entry.uses, None
        return decoded

    # ---- parts of the hooks ----------------------------------------------------------------------

    def _pass(self, x: Tensor, reason: str, nbytes: int) -> Untouched:
        """Save the tensor itself, and count its bytes by the reason."""
        self._statistics.add_untouched(reason, nbytes)
        return store_untouched(x)

    def _reason_of_odd(self, x: Tensor) -> str:
        """Return why a sparse or nested tensor is not compressed."""
        if x.is_leaf and (x.requires_grad or not self._is_mask(x)):
            return _reason_of_leaf(x, SMALL)
        return "layout" if type(x) is Tensor else "subclass"

    def _is_mask(self, x: Tensor) -> bool:
        """Return True if a leaf may be compressed: a tensor of bools."""
        return x.dtype is torch.bool and self._policy.by_consumer

    def _hold(self, x: Tensor, kind: Kind, source: Any) -> Saved:
        """Store a tensor in a new entry, or share the entry that has its bits.

        source: the node that computed it, before views; None for a leaf.
        """
        form, storage, exposures = kind.form, x.untyped_storage(), self._exposed
        stream = current_stream(form.index)  # codes on another stream may not be ready
        history = None if source is None else source._sequence_nr()
        exposed_at = exposures.get(weakref.ref(storage)) if exposures else None
        sees_all, place = self._thread.mode.sees_all, x.data_ptr() + form.size
        known = self._known.get(place) if sees_all else None
        before = known() if known else None
        if before and before.is_same(storage, x._version, form, stream, history, exposed_at):
            self._share(before, x, kind)
            return before, form
        entry = Entry(storage, x._version, kind, stream, history, exposed_at, self._statistics)
        self._fill(entry, x, kind)
        if sees_all:
            if len(self._known) >= MANY:
                self._known.clear()
            self._known[place] = weakref.ref(entry)
        return entry

    def _share(self, entry: Entry, x: Tensor, kind: Kind) -> None:
        """Let one more node that saves x use an entry: store more bits, or measure codes again, if
        its kind needs that."""
        if kind.rank > entry.rank:
            self._fill(entry, x, kind)
        elif kind.measure and not self._checks.covers(entry, kind):
            self._encode(entry, x, kind, is_captured(kind))
        entry.add_use()
        if kind.use.need == LINEAR:
            self._checks.remember_product(entry)

    def _fill(self, entry: Entry, x: Tensor, kind: Kind) -> None:
        """Store in an entry what the kind's consumer needs of x: codes, or x itself."""
        if kind.is_exact:
            entry.store_whole(store_untouched(x), kind.reason, kind.use.consumer)
        elif kind.measure and self._checks.rejects(entry, kind, captured := is_captured(kind)):
            entry.store_whole(store_untouched(x), "guard", kind.use.consumer)
        else:
            self._encode(entry, x, kind, bool(kind.measure) and captured)
            if kind.use.need == LINEAR:
                self._checks.remember_product(entry)

    def _encode(self, entry: Entry, x: Tensor, kind: Kind, captured: bool) -> None:
        """Encode x for a kind, and measure the codes if the kind has a check.

        Codes are stored unless the entry has more exact ones; then they are only measured. Those of
        sparse codecs have their maximum size until their length is read. captured: x is measured
        inside a CUDA graph.
        """
        prepared, stream, address = kind.coding, entry.stream, x.data_ptr()
        # Codes that are replaced may have a length pending.
        if prepared.leaves_room or entry.code is not None:
            self._lengths.trim(stream)
        code, measure, numbers = kind.empty(), kind.measure, None
        encode = prepared.encode_unaligned if address % ALIGNED else prepared.encode
        if measure == TILES:
            numbers = empty_numbers(kind, captured)
            encode((address, code.data_ptr(), numbers.data_ptr()), stream)
        else:
            encode((address, code.data_ptr()), stream)
        if entry.code is None or kind.rank >= entry.rank:  # else the codes were only measured
            entry.store_codes(kind, code)
        if measure:
            self._checks.add(entry, x, kind, numbers, None if captured else store_untouched(x))
        if prepared.leaves_room:
            length = copy_to_host(code[:8].view(torch.int64), kind.index)
            self._lengths.add(stream, entry, partial(self._statistics.shorten_codes, kind), *length)

    def _decode(self, entry: Entry, form: Form, stream: Stream) -> Tensor:
        """Decode a tensor on the current stream; cache it for other nodes that saved it.

        form: has the tensor's shape, strides and dtype. It is cached only on the stream of its
        codes.
        """
        if stream is not entry.stream:
            _wait_for_codes(entry)
        assert form.empty is not None
        x = form.empty()
        entry.kind.coding.decode((entry.code.data_ptr(), x.data_ptr()), stream)
        if entry.uses_left > 0 and stream is entry.stream:
            self._cache(entry, x)
        return x

    def _cache(self, entry: Entry, x: Tensor) -> None:
        """Cache an entry's decoded tensor for its next use; drop the oldest beyond MOST_DECODED."""
        others = [other for other in self._decoded if _has_decoded(other())]
        for other in others[: len(others) + 1 - MOST_DECODED]:
            if (oldest := other()) is not None:
                oldest.decoded = None
        entry.decoded, entry.decoded_version = x, x._version
        self._decoded = deque([*others, weakref.ref(entry)], MOST_DECODED)

    def _warn_of_little(self) -> None:
        """Warn once if less than a tenth was compressed."""
        before, left = self._statistics.coded_and_left()
        if self._has_warned or 9 * before >= left or left < NOTEWORTHY:
            return
        self._has_warned = True
        warnings.warn(
            f"{NAME}: {before} bytes were compressed, {left} were not ("
            f"{self._statistics.most_left()}): docs/stash.md says what is left alone, and why; "
            f"compiled models take cto.torch.activation_codes",
            stacklevel=3,
        )


def compressed_activations(
    policy: Policy | Literal["wide"] | CodecPolicy = "default", *, check: bool = False
) -> CompressedActivations:
    """A context for the forward pass, in which autograd saves activations as codes.

        activations = cto.torch.compressed_activations("default")
        with activations:
            loss = model(x).sum()
        loss.backward()

    policy: `default`, which compresses what operations take linearly, and leaves alone what it
    does not know; `wide`, with more of it in fewer bits; `lossless`; `plain_msfp15` and `small`,
    which compress whatever is saved, safe or not; or a function of the name of the operation that
    made a tensor (`ReluBackward0`), its dtype's name, shape and need (`value`, and `mask` of bools)
    that returns a codec's name, or None. It is called once for tensors alike, so its answer must
    not change. If it has a parameter `consumer`, that is the name of the torch function that saves
    the tensor, "" if unknown.
    One object may be entered again and again, and by several threads; `report()` says what it did.
    check: for tests: keep every tensor and a copy, and refuse in the backward pass one that was
    written without a change of its version.

    Parameters, their views and casts, leaves, log-probabilities, statistics of normalisation and
    attention, integers, small tensors and memory with gaps pass untouched, and an error says where
    one of them was changed before the backward pass. Raises ArgumentError for a policy that names
    no codec, ProviderError inside of a function that torch.compile compiles.
    """
    return CompressedActivations(policy, check)


def _view_as(x: Tensor, form: Form) -> Tensor:
    """View memory in a form's shape and strides."""
    if x.shape == form.shape and x.stride() == form.strides:
        return x
    return x.as_strided(form.shape, form.strides)


def _has_decoded(entry: Entry | None) -> bool:
    return entry is not None and entry.decoded is not None


def _reason_of_leaf(x: Tensor, nbytes: int) -> str:
    """Return why a leaf of `nbytes` bytes is not compressed: "parameter", "leaf" or "small"."""
    if x.requires_grad or (type(x) is not Tensor and isinstance(x, torch.nn.Parameter)):
        return "parameter"
    return "leaf" if nbytes >= SMALL else "small"


def _wait_for_codes(entry: Entry) -> None:
    """Let the current stream wait for the codes' stream, and keep their memory from reuse."""
    with torch.cuda.device(entry.kind.form.device):
        address = entry.stream.ptr
        source = torch.cuda.ExternalStream(address) if address else torch.cuda.default_stream()
        current = torch.cuda.current_stream()
        current.wait_event(source.record_event())
        entry.code.record_stream(current)


# ---- checking mode: writes without a version change ----------------------------------------------


class Checked(NamedTuple):
    """In checking mode: what a hook saved, the tensor with its version, and a copy of its values,
    which is flat if it belongs to an entry that several tensors share."""

    saved: Any
    original: Tensor
    version: int
    copy: Tensor


def pack_checked(pack: Hook, x: Tensor) -> Any:
    """Save x by the hook `pack`; return what it saved, as `Checked` if x can be compared later."""
    saved = pack(x)
    is_plain = type(x) in (Tensor, torch.nn.Parameter) and not x.is_nested
    is_plain = is_plain and x.layout is torch.strided
    if not is_plain or x.is_neg() or x.is_conj():  # others have no memory of these values
        return saved
    with torch._C.DisableTorchFunction():
        original, entry = x.detach(), saved if type(saved) is Entry else saved[0]
        if type(entry) is not Entry:
            return Checked(saved, original, x._version, original.clone())
        if entry.copy is None:
            entry.copy = original.as_strided((x.numel(),), (1,)).clone()
        return Checked(saved, original, x._version, entry.copy)


def unpack_checked(unpack: Hook, saved: Any) -> Any:
    """Return the tensor of what `pack_checked` returned, by the hook `unpack`; raise RuntimeError
    if it was written without a version change."""
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
    """Return True if two tensors have equal bytes, also NaNs."""
    now, then = (each.contiguous().reshape(-1).view(torch.uint8) for each in (x, y))
    return bool(torch.equal(now, then))
