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
from collections.abc import MutableMapping
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..codecs.kept.entry import Lengths
from ..codecs.kept.guards import TILES
from ..codecs.kept.window import Step
from ..errors import ProviderError
from .account import Account
from .coding import ALIGNED, Stream, current_stream
from .compiled import is_compiled
from .consumers import CENTRING, Consumers, asked_of, centres, is_trusted
from .guarding import Guarding
from .kinds import MANY, SMALL, Kind, Look, looks
from .kinds import kind as new_kind
from .kinds import look as new_look
from .late import copied
from .policies import NAME, TorchPolicy, policy_of
from .saved import Kept, Passed

STRIDED = torch.strided
# Decoded tensors that later uses are to find: an activation that a shortcut reads, too, is read
# again after those of the way beside it.
HELD = 2
NOTEWORTHY = 1 << 20  # bytes; where less was saved nobody is warned that it was not compressed

Saved = tuple[Kept, Look]
# The newest step under each policy: one who makes a context for every step goes on where the last
# one was, else the host would wait for the device within all of them.
_steps: MutableMapping[TorchPolicy, Step] = weakref.WeakKeyDictionary()


class Entered(threading.local):
    """What a thread has to undo."""

    def __init__(self) -> None:
        self.modes: list[Consumers | None] = []


class CompressedActivations:
    """A context in which what autograd saves is kept as codes; see `compressed_activations`."""

    def __init__(self, policy: object) -> None:
        self._given, self._policy = policy, policy_of(policy)
        self._looks = looks(self._policy)
        self._account = Account()
        self._hooks = saved_tensors_hooks(self.pack, self.unpack)
        self._consumers = Consumers()
        self._under_way = self._consumers.local
        self._entered = Entered()
        # By place in memory; the storage behind it tells whether it is the same tensor still.
        self._known: dict[tuple[object, ...], weakref.ref[Kept]] = {}
        self._held: deque[weakref.ref[Kept]] = deque()  # with decoded tensors, the newest last
        self._lengths = Lengths()
        self._guarding = Guarding(_steps.get(self._policy))
        self._has_warned = False

    def __reduce__(self) -> tuple[object, ...]:
        """A copy, as of a model that has one, has the same policy, and begins anew."""
        return type(self), (self._given,)

    def __enter__(self) -> CompressedActivations:
        if is_compiled():
            raise ProviderError(
                f"{NAME}: expected to be entered outside of what torch.compile compiles"
            )
        mode = self._consumers if self._policy.told and is_trusted() else None
        self._entered.modes.append(mode)
        if mode is not None:
            mode.__enter__()
        self._hooks.__enter__()
        self._guarding.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)
        mode = self._entered.modes.pop()
        if mode is not None:
            mode.__exit__(*error)
        self._known.clear()
        self._guarding.end()
        _steps[self._policy] = self._guarding.window.last
        if error[0] is None:
            self._warn_of_little()

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
        call = self._under_way.call
        if call is not None and call[0] in CENTRING and centres(x, call):
            self._guarding.centre(x)
        node = x.grad_fn
        if x.layout is not STRIDED or x.is_nested:
            return self._passed(x, self._reason_of_odd(x), 0)
        nbytes = x.nbytes
        if node is None and (x.requires_grad or not self._is_mask(x)):
            return self._passed(x, _reason_of_leaf(x, nbytes), nbytes)
        if type(x) is not Tensor:
            return self._passed(x, "subclass", nbytes)
        if nbytes < SMALL:
            return self._passed(x, "small", nbytes)
        if x.is_neg():
            return self._passed(x, "layout", nbytes)
        seen = type(node), x.dtype, x.shape, x.stride(), x.device
        look = self._looks.get(seen) or new_look(self._looks, seen)
        reason = look.reason or (look.is_told_apart and look.reason_of(x, node))
        if reason and (look.reason or self._policy.by_consumer):
            return self._passed(x, reason, nbytes)
        asked = asked_of(x, call) if self._policy.told else None
        found = look.kinds.get(asked) or new_kind(self._policy, look, x, asked)
        if not found.is_exact and (reason := found.reason or reason):
            return self._passed(x, reason, nbytes)
        return self._kept(x, found), look

    def unpack(self, saved: Saved | Passed) -> Tensor:
        """What gradients are computed from."""
        if type(saved) is Passed:
            return saved.lent()
        kept, look = saved  # type: ignore[misc]
        if kept.waiting:
            self._guarding.window.finish(kept)
        if kept.original is not None:
            return _shaped(kept.original.lent(), look)
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
        return Passed(x)

    def _reason_of_odd(self, x: Tensor) -> str:
        """Why a sparse or nested tensor passes."""
        if x.is_leaf and (x.requires_grad or not self._is_mask(x)):
            return _reason_of_leaf(x, SMALL)
        return "layout" if type(x) is Tensor else "subclass"

    def _is_mask(self, x: Tensor) -> bool:
        """Whether a leaf is compressed: bools, whoever made them."""
        return x.dtype is torch.bool and self._policy.by_consumer

    def _kept(self, x: Tensor, kind: Kind) -> Kept:
        """What is held for a tensor, which may be there already."""
        look = kind.look
        stream = current_stream(look.index)
        # Dense memory is the same under any shape. Codes of another stream may not be there yet.
        place = x.data_ptr(), x._version, look.size, look.dtype, stream
        known = self._known.get(place)
        kept = known() if known else None
        if kept is not None and kept.storage() is x.untyped_storage():
            self._share(kept, x, kind)
            return kept
        kept = Kept(x, kind, stream, self._account)
        self._hold_more(kept, x, kind)
        if len(self._known) >= MANY:
            self._known.clear()
        self._known[place] = weakref.ref(kept)
        return kept

    def _share(self, kept: Kept, x: Tensor, kind: Kind) -> None:
        """Let one more have what is held, and more of it where it needs more."""
        if kind.rank > kept.rank:
            self._hold_more(kept, x, kind)
        elif kind.coding is not None and not self._guarding.answers(kept, kind):
            self._encode(kept, x, kind, self._guarding.is_captured(kind))
        kept.again()
        self._guarding.link(kept, kind)

    def _hold_more(self, kept: Kept, x: Tensor, kind: Kind) -> None:
        """Hold what a consumer needs."""
        if kind.is_exact:
            kept.whole(Passed(x), kind.reason, kind.use.consumer)
            return
        is_captured = self._guarding.is_captured(kind)
        if kind.guard.measure and self._guarding.refuses(kept, kind, is_captured):
            kept.whole(Passed(x), "guard", kind.use.consumer)
        else:
            self._encode(kept, x, kind, is_captured)
            self._guarding.link(kept, kind)

    def _encode(self, kept: Kept, x: Tensor, kind: Kind, is_captured: bool) -> None:
        """Make the codes, and measure them where they are guarded."""
        ready, stream, address = kind.coding, kept.stream, x.data_ptr()
        if ready.leaves_room or kept.code is not None:  # codes that are replaced have a length, too
            self._lengths.trim(stream)
        code, numbers = kind.empty(), None
        addresses: tuple[int, ...] = (address, code.data_ptr())
        if kind.guard.measure == TILES:
            numbers = self._guarding.room(kind, is_captured)
            addresses = (*addresses, numbers.data_ptr())
        encode = ready.encode_unaligned if address % ALIGNED else ready.encode
        encode(addresses, stream)
        if kept.code is None or kind.rank >= kept.rank:  # else it was made to be measured
            kept.encoded(kind, code)
        if kind.guard.measure:
            original = None if is_captured else Passed(x)
            self._guarding.add(kept, x, kind, numbers, original)
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
            f"{self._account.most_left()}): docs/stash.md says what is left alone, and why; "
            f"compiled models take cto.torch.activation_codes",
            stacklevel=3,
        )


def compressed_activations(policy: object = "default") -> CompressedActivations:
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

    Parameters, their views and casts, leaves, log-probabilities, statistics of normalisation and
    attention, integers, small tensors and memory with gaps pass untouched, and an error says where
    one of them was changed before the backward pass. Raises ArgumentError for a policy that names
    no codec, ProviderError inside of a function that torch.compile compiles.
    """
    return CompressedActivations(policy)


def _shaped(x: Tensor, look: Look) -> Tensor:
    """The same memory under a shape."""
    if x.shape == look.shape and x.stride() == look.strides:
        return x
    return x.as_strided(look.shape, look.strides)


def _has_decoded(kept: Kept | None) -> bool:
    return kept is not None and kept.decoded is not None


def _reason_of_leaf(x: Tensor, nbytes: int) -> str:
    """Why a leaf passes: it is a parameter, or it is nobody's result."""
    if x.requires_grad or isinstance(x, torch.nn.Parameter):
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
