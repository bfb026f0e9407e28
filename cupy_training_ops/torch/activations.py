# SPDX-License-Identifier: MIT
"""Saved-tensor hooks that keep activations as codes from the forward pass to the backward pass.

A hook's time is the host's: what can be known of tensors that look alike is found once (`kinds`),
and a codec is a launch over addresses (`coding`).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..errors import ProviderError
from .account import Account
from .coding import ALIGNED, Stream, stream_of
from .kinds import MANY, NAME, SMALL, Kind, kind, kinds, look_of, policy_of, reason_of_views

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
NO_STREAM = Stream(0)  # of the host
# Decoded tensors that later uses are to find: an activation that a shortcut reads, too, is read
# again after those of the way beside it.
HELD = 2


class Passed:
    """A tensor that stays as it is, with the version that it was saved in."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        # A saved result holds its own graph, which would keep itself alive without a backward.
        self.tensor = tensor.detach()
        self.version = tensor._version


class Kept:
    """The codes of one activation; all that saved it hold the same."""

    __slots__ = (
        "__weakref__",
        "account",
        "code",
        "decoded",
        "kind",
        "left",
        "storage",
        "stream",
        "uses",
    )

    def __init__(
        self, x: Tensor, kind: Kind, code: Tensor, stream: Stream, account: Account
    ) -> None:
        self.kind, self.code, self.stream, self.account = kind, code, stream, account
        self.storage = weakref.ref(x.untyped_storage())
        self.uses = self.left = 1  # how many saved it, and how many of them are still to ask
        self.decoded: Tensor | None = None  # for the next use, where that follows at once
        account.encoded(kind)

    def __del__(self) -> None:
        self.account.released(self.code.nbytes)

    def shorten(self, nbytes: int) -> None:
        """Give back the memory behind the codes."""
        released = self.code.nbytes - nbytes
        if released:
            self.code = self.code[:nbytes].clone()
            self.account.released(released)


class Roomy:
    """Sparse codes in memory for the longest ones, until the device has said how long they are.

    The host waits for that at the next such tensor of the stream: what was queued since keeps the
    GPU busy.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._waiting: dict[Stream, deque[tuple[weakref.ref[Kept], Kind, Tensor, Any]]] = {}

    def add(self, kept: Kept) -> None:
        """New codes, which may not be made yet."""
        length, event = kept.code[:8].view(torch.int64), None
        if kept.kind.index >= 0:
            on_host = torch.empty(1, dtype=torch.int64, pin_memory=True)
            length = on_host.copy_(length, non_blocking=True)
            event = torch.cuda.current_stream(kept.kind.index).record_event()
        waiting = self._waiting.setdefault(kept.stream, deque())
        waiting.append((weakref.ref(kept), kept.kind, length, event))
        if event is None:
            self.shorten(kept.stream)

    def shorten(self, stream: Stream) -> None:
        """Wait for the lengths of a stream's codes, and give back what is behind them."""
        waiting = self._waiting.get(stream)
        while waiting:
            with contextlib.suppress(IndexError):  # another thread took the last
                reference, kind, length, event = waiting.popleft()
                if event is not None:
                    event.synchronize()
                nbytes, kept = int(length), reference()
                self._account.shortened(kind, kind.coding.code_nbytes - nbytes)
                if kept is not None and stream is _current_stream(kind.index):
                    kept.shorten(nbytes)

    def shorten_all(self) -> None:
        """The same of all streams; memory goes back only on the current one."""
        for stream in list(self._waiting):
            self.shorten(stream)


Saved = tuple[Kept, tuple[int, ...], tuple[int, ...]]  # codes, shape, strides


class CompressedActivations:
    """A context in which what autograd saves is kept as codes; see `compressed_activations`."""

    def __init__(self, policy: object) -> None:
        self._policy = policy_of(policy)
        self._kinds = kinds(self._policy)
        self._account = Account()
        self._hooks = saved_tensors_hooks(self.pack, self.unpack)
        # By place in memory; the storage behind it tells whether it is the same tensor still.
        self._known: dict[tuple[Any, ...], weakref.ref[Kept]] = {}
        self._held: deque[weakref.ref[Kept]] = deque()  # with decoded tensors, the newest last
        self._roomy = Roomy(self._account)
        self._has_warned = False

    def __enter__(self) -> CompressedActivations:
        if _is_compiled():
            raise ProviderError(
                f"{NAME}: expected to be entered outside of what torch.compile compiles"
            )
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)
        self._known.clear()
        if error[0] is None:
            self._warn_of_leaves()

    def report(self) -> dict[str, Any]:
        """Counts and bytes since this object was made.

        `tensors` were encoded, from `before` to `after` bytes; `shared` were saved once more while
        their codes were there. `peak` is the most bytes of codes at a time, `held` those that are
        there now, `names` the same by what made them, `passed` the bytes of tensors that were left
        as they are, by the reason.
        """
        self._roomy.shorten_all()
        return self._account.report()

    # ---- the hooks -------------------------------------------------------------------------------

    def pack(self, x: Tensor) -> Saved | Passed:
        """An activation's codes, or the tensor itself."""
        if x.is_leaf:
            return self._passed(x, _reason_of_leaf(x))
        if type(x) is not Tensor:
            return self._passed(x, "subclass")
        if x.layout is not torch.strided or x.is_neg():
            return self._passed(x, "layout")
        node = x.grad_fn
        look = look_of(x, node)
        found = self._kinds.get(look)
        if found is None:
            found = self._new_kind(look)
        reason = found.reason
        if not reason and found.views:
            reason = reason_of_views(node)
        if not reason and found.normalises and x.output_nr:
            reason = "statistics"
        if reason:
            return self._passed(x, reason)
        return self._kept(x, found), look[2], look[3]

    def unpack(self, saved: Saved | Passed) -> Tensor:
        """What gradients are computed from."""
        if type(saved) is Passed:
            if saved.tensor._version != saved.version:
                raise RuntimeError(
                    f"one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: {saved.tensor.type()} {list(saved.tensor.shape)} is at "
                    f"version {saved.tensor._version}; expected version {saved.version} instead"
                )
            return saved.tensor
        kept, shape, strides = saved  # type: ignore[misc]
        stream = _current_stream(kept.kind.index)
        kept.left -= 1
        decoded = kept.decoded if stream is kept.stream else None
        if decoded is None:
            decoded = self._decoded(kept, shape, strides, stream)
        elif decoded.shape != shape or decoded.stride() != strides:
            decoded = decoded.as_strided(shape, strides)
        if kept.left <= 0:  # the last use; another backward begins anew
            kept.left, kept.decoded = kept.uses, None
        return decoded

    # ---- what they are made of -------------------------------------------------------------------

    def _passed(self, x: Tensor, reason: str) -> Passed:
        self._account.passed(reason, x.nbytes if x.layout is torch.strided else 0)
        return Passed(x)

    def _new_kind(self, look: tuple[Any, ...]) -> Kind:
        if len(self._kinds) >= MANY:
            self._kinds.clear()
        self._kinds[look] = made = kind(self._policy, look)
        return made

    def _kept(self, x: Tensor, kind: Kind) -> Kept:
        """The codes of a tensor, which may be there already."""
        stream = _current_stream(kind.index)
        address = x.data_ptr()
        # Dense memory is the same under any shape. Codes of another stream may not be there yet.
        place = address, x.dtype, kind.size, x._version, stream
        known = self._known.get(place)
        kept = known() if known else None
        if kept is not None and kept.storage() is x.untyped_storage():
            kept.uses += 1
            kept.left += 1
            self._account.again(kept.kind)
            return kept
        ready = kind.coding
        if ready.leaves_room:
            self._roomy.shorten(stream)
        code = torch.empty(ready.code_nbytes, dtype=torch.uint8, device=kind.device)
        encode = ready.encode_unaligned if address % ALIGNED else ready.encode
        encode(address, code.data_ptr(), stream)
        kept = Kept(x, kind, code, stream, self._account)
        if ready.leaves_room:
            self._roomy.add(kept)
        if len(self._known) >= MANY:
            self._known.clear()
        self._known[place] = weakref.ref(kept)
        return kept

    def _decoded(
        self, kept: Kept, shape: tuple[int, ...], strides: tuple[int, ...], stream: Stream
    ) -> Tensor:
        """The tensor that the codes stand for, on the current stream."""
        if stream is not kept.stream:
            _follow(kept)
        code, kind = kept.code, kept.kind
        x = torch.empty_strided(shape, strides, dtype=kind.dtype, device=kind.device)
        kind.coding.decode(code.data_ptr(), x.data_ptr(), stream)
        if kept.left > 0 and stream is kept.stream:
            self._hold(kept, x)
        return x

    def _hold(self, kept: Kept, x: Tensor) -> None:
        """Keep a decoded tensor for its next use, and no more than a few of them."""
        others = [other for other in self._held if _has_decoded(other())]
        for other in others[: len(others) + 1 - HELD]:
            if (oldest := other()) is not None:
                oldest.decoded = None
        kept.decoded = x
        self._held = deque([*others, weakref.ref(kept)], HELD)

    def _warn_of_leaves(self) -> None:
        """Say once where most of what was saved passed as leaves."""
        leaves, before = self._account.passed_as("leaf"), self._account.before
        if leaves > before + self._account.passed_as("policy") and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{NAME}: {leaves} bytes passed as leaves, {before} were compressed: what "
                f"torch.compile and custom functions save arrives as leaves, which are left alone",
                stacklevel=3,
            )


def compressed_activations(policy: object = "default") -> CompressedActivations:
    """A context for the forward pass: what autograd saves in it is kept as codes.

        activations = cto.torch.compressed_activations("default")
        with activations:
            loss = model(x).sum()
        loss.backward()

    policy: `lossless`, `default` (MSFP15), `small`, or a function of the name of the operation
    that made a tensor (`ReluBackward0`), its dtype's name, shape and need (`value`, and `mask` of
    bools) that gives a codec's name, or None for a tensor that stays as it is. One object may be
    entered again and again, and by several threads; `report()` says what it did.

    Parameters, their views and casts, leaves, log-probabilities, statistics of normalisation and
    attention, integers, small tensors and memory with gaps pass untouched, and an error says where
    one of them was changed before the backward pass. Raises ArgumentError for a policy that names
    no codec, ProviderError inside of a function that torch.compile compiles.
    """
    return CompressedActivations(policy)


def _has_decoded(kept: Kept | None) -> bool:
    return kept is not None and kept.decoded is not None


@functools.cache
def _leave_alone() -> None:
    """Let torch.compile leave this package alone: it may look on when a hook is called."""
    torch._dynamo.trace_rules.add(__package__.partition(".")[0])


def _is_compiled() -> bool:
    """Whether torch.compile looks on."""
    if "torch._dynamo" not in sys.modules:
        return False
    _leave_alone()
    callback = torch._C._dynamo.eval_frame.get_eval_frame_callback()
    return torch.compiler.is_compiling() or callback not in (None, False)


def _reason_of_leaf(x: Tensor) -> str:
    """Why a leaf passes: it is a parameter, or it is nobody's result."""
    if x.requires_grad or isinstance(x, torch.nn.Parameter):
        return "parameter"
    return "leaf" if x.layout is not torch.strided or x.nbytes >= SMALL else "small"


def _current_stream(index: int) -> Stream:
    """PyTorch's, in this thread; that of the host for -1."""
    if index < 0:
        return NO_STREAM
    if _raw_stream is not None:
        return stream_of(_raw_stream(index))
    return stream_of(torch.cuda.current_stream(index).cuda_stream)


def _follow(kept: Kept) -> None:
    """Let the current stream wait for the one that codes were made on, and hold their memory."""
    with torch.cuda.device(kept.kind.device):
        address = kept.stream.ptr
        made_on = torch.cuda.ExternalStream(address) if address else torch.cuda.default_stream()
        current = torch.cuda.current_stream()
        current.wait_event(made_on.record_event())
        kept.code.record_stream(current)
