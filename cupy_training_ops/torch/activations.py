# SPDX-License-Identifier: MIT
"""Saved-tensor hooks that keep activations as codes from the forward pass to the backward pass.

A hook's time is the host's: what can be known of tensors that look alike is found once (`kinds`),
and a codec is a launch over addresses (`coding`).
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _is_torch_function_mode_enabled as is_mode_enabled

from ..codecs.kept.entry import Lengths
from ..codecs.kept.guards import LINEAR, TILES
from ..codecs.kept.window import Step
from ..errors import ProviderError
from .account import Account
from .coding import ALIGNED, Stream, current_stream
from .compiled import is_compiled
from .consumers import (
    CENTRING,
    LEAF_NODE,
    SAME_NODES,
    Consumers,
    InThread,
    Lent,
    asked_of,
    centres,
    is_trusted,
    source_of,
)
from .guarding import Guarding, is_captured, room
from .kinds import MANY, SMALL, Kind, Look, looks
from .kinds import kind as new_kind
from .kinds import look as new_look
from .late import copied
from .policies import NAME, TorchPolicy, policy_of
from .saved import Kept, Passed, lent, passed

STRIDED = torch.strided
# Decoded tensors that later uses are to find: an activation that a shortcut reads, too, is read
# again after those of the way beside it.
HELD = 2
NOTEWORTHY = 1 << 20  # bytes; where less was saved nobody is warned that it was not compressed

# Those that share what is held have it under their own shapes.
Saved = Kept | tuple[Kept, Look]
Hook = Callable[[Any], Any]
# The newest step under each policy: one who makes a context for every step goes on where the last
# one was, else the host would wait for the device within all of them.
_steps: MutableMapping[TorchPolicy, Step] = weakref.WeakKeyDictionary()


class Entry:
    """One entry of a thread: what there was before, and the hook by which it is known."""

    def __init__(self, pack: Hook, n_modes: int, sees_all: bool) -> None:
        self.pack, self.n_modes, self.sees_all = pack, n_modes, sees_all


class Entered(threading.local):
    """What a thread has to undo."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []


class CompressedActivations:
    """A context in which what autograd saves is kept as codes; see `compressed_activations`."""

    def __init__(self, policy: object, check: bool = False) -> None:
        self._given, self._policy, self._check = policy, policy_of(policy), check
        self._looks = looks(self._policy)
        self._account = Account()
        self._lent: Lent = {}
        self._thread = InThread(self._lent)
        self._entered = Entered()
        # By address and size, as numbers, which the garbage collector does not count.
        self._known: dict[int, weakref.ref[Kept]] = {}
        self._held: deque[weakref.ref[Kept]] = deque()  # with decoded tensors, the newest last
        self._lengths = Lengths()
        self._guarding = Guarding(_steps.get(self._policy))
        self._has_warned = False

    def __reduce__(self) -> tuple[object, ...]:
        """A copy, as of a model that has one, has the same policy, and begins anew."""
        return type(self), (self._given, self._check)

    def __enter__(self) -> CompressedActivations:
        if is_compiled():
            raise ProviderError(
                f"{NAME}: expected to be entered outside of what torch.compile compiles"
            )
        pack: Hook = self.pack  # a new object
        unpack: Hook = self.unpack
        if self._check:
            pack, unpack = partial(_pack_checked, pack), partial(_unpack_checked, unpack)
        mode = self._thread.mode
        entry = Entry(pack, _n_modes(mode), mode.sees_all)
        try:
            self._entered.entries.append(entry)
            mode.sees_all = is_trusted()
            if mode.sees_all:
                torch._C._push_on_torch_function_stack(mode)
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
            self._guarding.begin()
            return self
        except BaseException:
            self._leave(entry)
            raise

    def __exit__(self, *error: object) -> None:
        # On one line: an interrupt comes between two, and would find nothing that is undone.
        try: self._leave(self._entered.entries[-1])  # noqa: E701  # fmt: skip
        except BaseException:
            self._leave(self._entered.entries[-1])
            raise
        if error[0] is None:
            self._warn_of_little()

    def _leave(self, entry: Entry) -> None:
        """Undo an entry, or what there is of it: it may be done twice."""
        _take_off_hooks(entry.pack)
        mode = self._thread.mode
        if _n_modes(mode) > entry.n_modes:
            _take_off_mode(mode)
        mode.sees_all = entry.sees_all
        self._known.clear()
        self._guarding.end()
        _steps[self._policy] = self._guarding.window.last
        if self._entered.entries[-1:] == [entry]:
            self._entered.entries.pop()

    def report(self) -> dict[str, object]:
        """Counts and bytes since this object was made.

        `tensors` were encoded, from `before` to `after` bytes; `shared` were saved once more while
        their codes were there. `peak` is the most bytes of codes at a time, `held` those that are
        there now, `window` the most bytes of originals that waited for a decision. `names` is the
        same by what made them, `consumers` by what saved them, each with the codec; `passed` the
        bytes of tensors that were left as they are, by the reason, and `untouched` those that were
        left for what saved them, by its name. `failed` counts tensors whose codes would not have
        been good enough, by what saved them and the test; `failed_later` those of captured steps.
        """
        self._lengths.trim_all()
        self._guarding.window.finish_all()
        found = {
            "window": self._guarding.window.most,
            "failed_later": self._guarding.failed_later(),
        }
        return {**self._account.report(), **found}

    # ---- the hooks -------------------------------------------------------------------------------

    def pack(self, x: Tensor) -> Saved | Passed:
        """An activation's codes, or the tensor itself."""
        call = self._thread.mode.call
        if call is None and is_mode_enabled():  # in a custom function: the mode sees what is asked
            with torch._C.DisableTorchFunction():
                return self.pack(x)
        if x.layout is not STRIDED or x.is_nested:
            return self._passed(x, self._reason_of_odd(x), 0)
        policy, nbytes = self._policy, x.nbytes
        if x.is_leaf:
            if x.requires_grad:
                self._account.passed("parameter", nbytes)
                return x, x._version
            if not self._is_mask(x):
                return self._passed(x, _reason_of_leaf(x, nbytes), nbytes)
        if call is not None and call[0] in CENTRING and centres(x, call):
            self._guarding.centre(x)
        if type(x) is not Tensor:
            return self._passed(x, "subclass", nbytes)
        if nbytes < SMALL:
            return self._passed(x, "small", nbytes)
        if x.is_neg():
            return self._passed(x, "layout", nbytes)
        # Nodes are objects that live as long as the graph: none is made before it is needed.
        source = node = x.grad_fn
        if type(node) in SAME_NODES:
            source = source_of(node)
            if type(source) is LEAF_NODE:
                return self._passed(x, "parameter", nbytes)
        seen = type(node), x.dtype, x.shape, x.stride(), x.device
        look = self._looks.get(seen) or new_look(self._looks, seen)
        reason = look.reason or (look.is_told_apart and look.reason_of(x, source))
        if reason and (look.reason or policy.by_consumer):
            return self._passed(x, reason, nbytes)
        asked = asked_of(x, call) if policy.told else None
        kind = look.kinds.get(asked) or new_kind(policy, look, x, asked)
        if not kind.is_exact and (reason := kind.reason or reason):
            return self._passed(x, reason, nbytes)
        return self._kept(x, kind, source)

    def unpack(self, saved: Any) -> Tensor:
        """What gradients are computed from, of what `pack` returned."""
        if type(saved) is Kept:
            kept, look = saved, saved.look
        else:
            kept, look = saved
            if type(kept) is not Kept:
                return kept if kept._version == look else lent(saved)
        if kept.waiting:
            self._guarding.window.finish(kept)
        if kept.original is not None:
            return _shaped(lent(kept.original), look)
        stream = current_stream(look.index)
        kept.left -= 1
        decoded = kept.decoded if stream is kept.stream else None
        if decoded is None or decoded._version != kept.decoded_version:  # who had it wrote into it
            decoded = self._decoded(kept, look, stream)
        else:
            decoded = _shaped(decoded, look)
        if kept.left <= 0:  # the last use; another backward begins anew
            kept.left, kept.decoded = kept.uses, None
        return decoded

    # ---- what they are made of -------------------------------------------------------------------

    def _passed(self, x: Tensor, reason: str, nbytes: int) -> Passed:
        self._account.passed(reason, nbytes)
        return passed(x)

    def _reason_of_odd(self, x: Tensor) -> str:
        """Why a sparse or nested tensor passes."""
        if x.is_leaf and (x.requires_grad or not self._is_mask(x)):
            return _reason_of_leaf(x, SMALL)
        return "layout" if type(x) is Tensor else "subclass"

    def _is_mask(self, x: Tensor) -> bool:
        """Whether a leaf is compressed: bools, whoever made them."""
        return x.dtype is torch.bool and self._policy.by_consumer

    def _kept(self, x: Tensor, kind: Kind, source: Any) -> Saved:
        """What is held for a tensor, which may be there already."""
        look, storage, lends = kind.look, x.untyped_storage(), self._lent
        stream = current_stream(look.index)  # codes of another stream may not be there yet
        history = None if source is None else source._sequence_nr()
        lent_at = lends.get(weakref.ref(storage)) if lends else None
        sees_all, place = self._thread.mode.sees_all, x.data_ptr() + look.size
        known = self._known.get(place) if sees_all else None
        before = known() if known else None
        if before and before.is_of(storage, x._version, look, stream, history, lent_at):
            self._share(before, x, kind)
            return before, look
        kept = Kept(storage, x._version, kind, stream, history, lent_at, self._account)
        self._hold_more(kept, x, kind)
        if sees_all:
            if len(self._known) >= MANY:
                self._known.clear()
            self._known[place] = weakref.ref(kept)
        return kept

    def _share(self, kept: Kept, x: Tensor, kind: Kind) -> None:
        """Let one more have what is held, and more of it where it needs more."""
        if kind.rank > kept.rank:
            self._hold_more(kept, x, kind)
        elif kind.measure and not self._guarding.answers(kept, kind):
            self._encode(kept, x, kind, is_captured(kind))
        kept.again()
        if kind.use.need == LINEAR:
            self._guarding.link(kept)

    def _hold_more(self, kept: Kept, x: Tensor, kind: Kind) -> None:
        """Hold what a consumer needs."""
        if kind.is_exact:
            kept.whole(passed(x), kind.reason, kind.use.consumer)
        elif kind.measure and self._guarding.refuses(kept, kind, captured := is_captured(kind)):
            kept.whole(passed(x), "guard", kind.use.consumer)
        else:
            self._encode(kept, x, kind, bool(kind.measure) and captured)
            if kind.use.need == LINEAR:
                self._guarding.link(kept)

    def _encode(self, kept: Kept, x: Tensor, kind: Kind, captured: bool) -> None:
        """Make the codes, and measure them where they are guarded."""
        ready, stream, address = kind.coding, kept.stream, x.data_ptr()
        if ready.leaves_room or kept.code is not None:  # codes that are replaced have a length, too
            self._lengths.trim(stream)
        code, measure, numbers = kind.empty(), kind.measure, None
        encode = ready.encode_unaligned if address % ALIGNED else ready.encode
        if measure == TILES:
            numbers = room(kind, captured)
            encode((address, code.data_ptr(), numbers.data_ptr()), stream)
        else:
            encode((address, code.data_ptr()), stream)
        if kept.code is None or kind.rank >= kept.rank:  # else it was made to be measured
            kept.encoded(kind, code)
        if measure:
            self._guarding.add(kept, x, kind, numbers, None if captured else passed(x))
        if ready.leaves_room:
            length = copied(code[:8].view(torch.int64), kind.index)
            self._lengths.add(stream, kept, partial(self._account.shortened, kind), *length)

    def _decoded(self, kept: Kept, look: Look, stream: Stream) -> Tensor:
        """The tensor that the codes stand for, on the current stream."""
        if stream is not kept.stream:
            _follow(kept)
        assert look.empty is not None
        x = look.empty()
        kept.kind.coding.decode((kept.code.data_ptr(), x.data_ptr()), stream)
        if kept.left > 0 and stream is kept.stream:
            self._hold(kept, x)
        return x

    def _hold(self, kept: Kept, x: Tensor) -> None:
        """Keep a decoded tensor for its next use, and no more than a few of them."""
        others = [other for other in self._held if _has_decoded(other())]
        for other in others[: len(others) + 1 - HELD]:
            if (oldest := other()) is not None:
                oldest.decoded = None
        kept.decoded, kept.decoded_version = x, x._version
        self._held = deque([*others, weakref.ref(kept)], HELD)

    def _warn_of_little(self) -> None:
        """Say once where less than a tenth was compressed."""
        before, left = self._account.compressed_and_left()
        if self._has_warned or 9 * before >= left or left < NOTEWORTHY:
            return
        self._has_warned = True
        warnings.warn(
            f"{NAME}: {before} bytes were compressed, {left} were not ("
            f"{self._account.most_left()}): docs/stash.md says what is left alone, and why",
            stacklevel=3,
        )


def compressed_activations(
    policy: object = "default", *, check: bool = False
) -> CompressedActivations:
    """A context for the forward pass: what autograd saves in it is kept as codes.

        activations = cto.torch.compressed_activations("default")
        with activations:
            loss = model(x).sum()
        loss.backward()

    policy: `default`, which compresses what operations take linearly, and leaves alone what it
    does not know; `wide`, with more of it in fewer bits; `lossless`; `plain_msfp15` and `small`,
    which compress whatever is saved, safe or not; or a function of the name of the operation that
    made a tensor (`ReluBackward0`), its dtype's name, shape and need (`value`, and `mask` of bools)
    that gives a codec's name, or None for a tensor that stays as it is. A parameter `consumer` of
    it is given the name of the torch function that saves the tensor, empty where it is not known.
    One object may be entered again and again, and by several threads; `report()` says what it did.
    check: hold every tensor and a copy of it, and refuse in the backward pass one that was written
    without PyTorch's knowing, for whose sharing nobody answers. It is for tests.

    Parameters, their views and casts, leaves, log-probabilities, statistics of normalisation and
    attention, integers, small tensors and memory with gaps pass untouched, and an error says where
    one of them was changed before the backward pass. Raises ArgumentError for a policy that names
    no codec, ProviderError inside of a function that torch.compile compiles.
    """
    return CompressedActivations(policy, check)


class Checked(NamedTuple):
    """In checking mode: what is held of a tensor, the tensor, and a copy.

    Those that share codes share the copy, which is flat: it is of what the first of them saved.
    """

    saved: Saved | Passed
    original: Tensor
    version: int
    copy: Tensor


def _pack_checked(pack: Hook, x: Tensor) -> Any:
    """What is held of a tensor, in checking mode where it has bits of its own."""
    saved = pack(x)
    is_plain = type(x) in (Tensor, torch.nn.Parameter) and x.layout is STRIDED and not x.is_nested
    if not is_plain or x.is_neg() or x.is_conj():  # others have no bits of their own
        return saved
    with torch._C.DisableTorchFunction():
        original, kept = x.detach(), saved if type(saved) is Kept else saved[0]
        if type(kept) is not Kept:
            return Checked(saved, original, x._version, original.clone())
        if kept.copy is None:
            kept.copy = original.as_strided((x.numel(),), (1,)).clone()
        return Checked(saved, original, x._version, kept.copy)


def _unpack_checked(unpack: Hook, saved: Checked | Saved | Passed) -> Tensor:
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
    """Whether two tensors are equal, also where they are not equal to themselves."""
    now, then = (each.contiguous().reshape(-1).view(torch.uint8) for each in (x, y))
    return bool(torch.equal(now, then))


def _n_modes(mode: Consumers) -> int:
    """How often a mode is on the thread's stack."""
    return int(torch.overrides._get_current_function_mode_stack().count(mode))


def _take_off_mode(mode: Consumers) -> None:
    """Take a mode off the stack, whatever is above it."""
    others = []
    while (top := torch._C._pop_torch_function_stack()) is not mode:
        others.append(top)
    for other in reversed(others):
        torch._C._push_on_torch_function_stack(other)


def _take_off_hooks(pack: Hook) -> None:
    """Take hooks off the stack, whatever is above them; none where they are not there."""
    others = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        if top[0] is pack:
            break
        others.append(top)
    for other in reversed(others):
        torch._C._autograd._push_saved_tensors_default_hooks(*other)


def _shaped(x: Tensor, look: Look) -> Tensor:
    """The same memory under a shape."""
    if x.shape == look.shape and x.stride() == look.strides:
        return x
    return x.as_strided(look.shape, look.strides)


def _has_decoded(kept: Kept | None) -> bool:
    return kept is not None and kept.decoded is not None


def _reason_of_leaf(x: Tensor, nbytes: int) -> str:
    """Why a leaf passes: it is a parameter, or it is nobody's result."""
    if x.requires_grad or (type(x) is not Tensor and isinstance(x, torch.nn.Parameter)):
        return "parameter"
    return "leaf" if nbytes >= SMALL else "small"


def _follow(kept: Kept) -> None:
    """Let the current stream wait for the one that codes were made on, and hold their memory."""
    with torch.cuda.device(kept.kind.look.device):
        address = kept.stream.ptr
        made_on = torch.cuda.ExternalStream(address) if address else torch.cuda.default_stream()
        current = torch.cuda.current_stream()
        current.wait_event(made_on.record_event())
        kept.code.record_stream(current)
