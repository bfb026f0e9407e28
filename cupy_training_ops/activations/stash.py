# SPDX-License-Identifier: MIT
"""Activations of NumPy-style loops, stored as codes, in fewer bytes, until the backward pass.

    caller's stream   layer 1 | layer 2 | layer 3 | ...     gradient of 3 | of 2 | of 1
    side stream               | put 1   | put 2   | ...  get 3   | get 2  | get 1

An array is encoded while the next layer runs, and released at the next `put`, after its stream was
made to wait for the encoder. While a layer's gradients are computed, the array of the layer before
is decoded.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, overload

import numpy as np

from ..backend import Array, Backend
from ..call.arguments import adopt
from ..call.backends import BACKENDS
from ..call.interop import as_tensor, is_tensor
from ..codecs.table import Codec, get_codec
from ..declare.schema import Spec
from ..device.streams import Cuda, Mark, Streams
from ..device.tensor_guards import raise_versions
from ..dtypes import FLOAT64, dtype_name
from ..errors import ArgumentError, ProviderError, refuse, shown
from ..families.gist.operators import Decoder
from ..summary import Summary
from ..typing import Array as AnyArray
from ..typing import Need, OutT, Policy
from .error_check import (
    INDEX,
    LINEAR,
    MEASURES,
    NORMALISED,
    RANGE,
    TILES,
    ErrorCheck,
    measure_range,
)
from .pending import Entry, HeldBytes, PendingCheck, PendingChecks, PendingLengths
from .policies import BY_RANGE, POLICIES, choose_codec, coders, get_policy
from .policies import Policy as CodecPolicy

NAME = "ActivationStash"
HOST = Streams()


@dataclass(eq=False, kw_only=True)
class StashEntry(Entry):
    """One array of a stash, with its codes if it has some."""

    name: str
    spec: Spec
    device: int  # the array's, by index
    streams: Streams  # the device's side stream, which encodes and decodes
    # (name, need, codec, dtype, shape, device), of which steps that are alike have the same.
    place: tuple[object, ...]
    row: dict[str, Any]  # in the report: codec, need, before and after in bytes
    statistics: HeldBytes
    entries: dict[str, StashEntry]  # the stash's, by name
    original: Any  # the array, or None once its codes have passed their check
    is_tensor: bool  # PyTorch's, as the decoded array is
    checked: tuple[Any, Any] | None  # in checking mode: the array, and a copy
    code: Any = None
    decoder: Decoder | None = None
    target: Array | None = None  # memory to decode into, set first
    decoded: Array | None = None  # the same memory, valid after `mark`
    mark: Mark = None

    @property
    def nbytes(self) -> int:
        """Bytes stored: of codes, or of the array."""
        return self.spec.nbytes if self.code is None else self.code.nbytes

    def copy_codes(self, nbytes: int) -> Any:
        """Copy the first bytes of the codes, into memory of the side stream."""
        return self.streams.on_side(self.code[:nbytes].copy)

    def reject(self, check: PendingCheck, failure: str) -> None:
        """Store the array instead of codes; raise if it has indices out of range.

        failure: why the codes fail the check, as INDEX.
        """
        self.statistics.add(-self.nbytes)
        self.code = self.decoder = None
        if failure == INDEX and check.check.need == "index":
            self.entries.pop(self.name, None)
            refuse(NAME, "array", f"indices from 0 to 15 of {self.name!r}", "another number")
        self.statistics.add(self.nbytes)
        self.row.update(codec=None, after=self.nbytes)


class ExitMethod:
    """A descriptor for `__exit__`, which an interrupt may stop before its first line.

    Each `with` statement gets a new function, which lives until the statement is left: by a weak
    reference to it the object knows whether it is inside. ExitStack, which calls the class's
    method, counts as inside until that call.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Callable[..., None]:
        """Return a new bound function, and set instance.next_exit, a weak reference to it."""
        if instance is None:
            return self._function
        leave = partial(self._function, instance)
        instance.next_exit = weakref.ref(leave)
        return leave


class ActivationStash(Summary):
    """Stores arrays of a forward pass as codes until the backward pass gets them.

        with cto.ActivationStash("default") as stash:
            stash.put("hidden", hidden)
            ...
            hidden = stash.get("hidden")

    policy: `lossless`; `default`, which is lossless where it can be and MSFP15 elsewhere; `small`,
    with FP10 of what is not zero; or a function of name, dtype's name, shape and need that returns
    a codec's name, or None for an array that is not compressed.

    NumPy arrays are encoded and decoded at once, CuPy arrays on a side stream; only lengths of
    sparse codes and measured errors are copied to the host. Drop your own reference after `put`,
    and never write to the array. An object may be entered again, for each step; it belongs to one
    thread.

    check: keep every array and a copy of it, and refuse at `get` one that was changed after `put`.
    keep_buffers: keep the memory of codes for the next step, which may then be captured in a graph;
    `get` needs `out` there. Codecs whose sizes depend on the data cannot be captured.
    """

    def __init__(
        self,
        policy: Policy | CodecPolicy = "default",
        *,
        check: bool = False,
        keep_buffers: bool = False,
    ) -> None:
        self._policy_argument = policy
        self._policy = get_policy(NAME, policy, POLICIES)
        self._check, self._keep_buffers = check, keep_buffers
        self._streams: dict[int, Streams] = {}  # by device
        self._buffers: dict[tuple[object, ...], Array] = {}  # of codes, by place, for later steps
        self._pending = PendingChecks()
        # Weak references to the function `__exit__` of the `with` that is about to be entered, and
        # of the one that was entered last; None if unknown. ExitMethod sets the first.
        self.next_exit: Callable[[], object] | None = None
        self._current_exit: Callable[[], object] | None = None
        self._is_open = False  # between __enter__ and __exit__
        self._is_over = True  # `_end` has run without an exception
        self._begin()

    def _facts(self) -> dict[str, object]:
        """Return what `repr` shows: bytes, as far as they are known, of this `with` or the last."""
        rows = self._rows.values()
        return {
            "policy": self._policy_argument,
            "is_inside": self._is_inside(),
            "arrays": len(self._entries),
            "before": sum(row["before"] for row in rows),
            "held": self._statistics.held if self._is_inside() else 0,
            "peak": self._statistics.peak,
        }

    def _begin(self) -> None:
        """Reset what belongs to one `with`."""
        self._entries: dict[str, StashEntry] = {}
        self._taken: set[str] = set()  # names of arrays that `get` has returned
        # Originals, their streams, and marks after their encoding.
        self._leaving: deque[tuple[Array, Streams, object, Mark]] = deque()
        self._lengths = PendingLengths()
        self._statistics, self._rows = HeldBytes(), dict[str, dict[str, Any]]()

    def __enter__(self) -> ActivationStash:
        """Open the stash for a forward pass; refuse a `with` inside of another."""
        current_exit, self.next_exit = self.next_exit, None
        if current_exit is not None and current_exit() is None:
            current_exit = None  # freed by a subclass, whose own `__exit__` calls this one
        if self._is_inside():
            raise ArgumentError(f"{NAME}: expected one `with` at a time, got another inside of it")
        if not self._is_over:  # an exception stopped the previous end
            self._end()
            self._pending = self._pending.successor()
        self._begin()
        self._is_over, self._current_exit, self._is_open = False, current_exit, True
        return self

    @ExitMethod
    def __exit__(self, *error: object) -> None:
        """Release all arrays."""
        self._is_open = False
        self._end()
        self._is_over = error[0] is None  # else `_end` may have to run again

    def _is_inside(self) -> bool:
        """Return True inside of `with`; its function is freed even if `__exit__` was stopped."""
        return self._is_open and (self._current_exit is None or self._current_exit() is not None)

    def _end(self) -> None:
        """Release all memory, after its streams wait for work that uses it."""
        self._release(keep=0)
        for entry in self._entries.values():  # decoded ahead, but not got
            if entry.target is not None:  # its memory is reused after the decoder is done
                mark = entry.mark or entry.streams.mark()
                entry.streams.join(entry.streams.current(), mark)
        self._entries.clear()
        self._pending.end_step()

    def __reduce__(self) -> tuple[object, ...]:
        """Copy the policy only."""
        make = partial(ActivationStash, check=self._check, keep_buffers=self._keep_buffers)
        return make, (self._policy_argument,)

    def put(self, name: str, array: AnyArray, need: Need = "value") -> None:
        """Store an array until `get`.

        need: what the backward pass needs of it: `value`; its `sign` (x > 0; the array comes back
        as ones and zeros); a `mask` (the same of bools); an `index` from 0 to 15, as max-pool's
        within its window; `linear`, a value that a product with parameters takes; `normalised`, one
        that a normalisation of its last dimension takes; `smooth`, one that a smooth function of
        each number takes; `product`, one that is multiplied by another activation. Of the last four
        `default` keeps the array where codes would be too far off. An index beyond 15 is refused:
        on a GPU by `get` or a later `put`, and not in a captured step. Raises ArgumentError,
        DtypeError, ProviderError.
        """
        self._refuse_closed("put")
        if not isinstance(name, str):
            refuse(NAME, "name", "a text", shown(name))
        if name in self._entries:
            refuse(NAME, "name", "one that is not there yet", shown(name))
        x = adopt(NAME, "array", array)
        if x is None:
            refuse(NAME, "array", "an array", "None")
        entry = self._entry(name, x, need, is_tensor(array))
        codec, backend = entry.row["codec"], BACKENDS[type(x)]
        # The host waits for lengths, while earlier work keeps the GPU busy.
        self._lengths.trim_all()
        self._pending.read_ready()
        check = codec and self._encode(entry, x, backend, get_codec(codec))
        self._entries[name], self._rows[name] = entry, entry.row
        self._taken.discard(name)
        entry.row["after"] = entry.nbytes
        self._statistics.add(entry.nbytes)
        if check:
            self._pending.add(check, entry, entry.nbytes)

    def _entry(self, name: str, x: Any, need: str, is_tensor: bool) -> StashEntry:
        """Make an entry, with the codec that the policy chooses.

        x: a NumPy or CuPy array. need: what the backward pass needs of it, as "sign". is_tensor:
        the caller's array is PyTorch's.
        """
        _, dtype, shape, aligned, _, device = BACKENDS[type(x)].info(x)
        codec = choose_codec(NAME, self._policy, name, dtype_name(dtype), shape, need)
        spec = Spec(shape, dtype, aligned)
        return StashEntry(
            name=name,
            spec=spec,
            device=device,
            streams=self._streams_of(x, device),
            place=(name, need, codec, dtype, shape, device),
            row={"codec": codec, "need": need, "before": spec.nbytes},
            statistics=self._statistics,
            entries=self._entries,
            original=x,
            is_tensor=is_tensor,
            checked=(x, x.copy()) if self._check else None,
        )

    @overload
    def get(self, name: str, out: None = None) -> Any: ...
    @overload
    def get(self, name: str, out: OutT) -> OutT: ...

    def get(self, name: str, out: object = None) -> Any:
        """Return the decoded array, once.

        out: an array of its shape and dtype to write into, if it was encoded. Raises
        ArgumentError, and ProviderError under capture without `out`.
        """
        self._refuse_closed("get")
        entry = self._entries.get(name)
        if entry is None:
            self._refuse_name(name)
        self._refuse_changed(entry)
        self._pending.finish(entry)
        array = self._decoded_array(entry, out)
        if is_tensor(out):
            raise_versions([out])
        del self._entries[name]
        self._taken.add(name)
        self._statistics.add(-entry.nbytes)
        self._release(keep=0)
        if out is None and entry.streams is not HOST:
            self._decode_ahead()
        return as_tensor(array) if entry.is_tensor and out is None else array

    def report(self) -> dict[str, Any]:
        """Return bytes of the current `with`, or of the last: `names` has codec, need, before and
        after of each array, `before` and `after` are their sums, `peak` is their maximum at a time.
        """
        self._lengths.trim_all()
        self._pending.finish_all()
        rows = {name: dict(row) for name, row in self._rows.items()}
        total = {
            column: sum(row[column] for row in rows.values()) for column in ("before", "after")
        }
        return {**total, "peak": self._statistics.peak, "names": rows}

    # ---- encoding --------------------------------------------------------------------------------

    def _encode(
        self, entry: StashEntry, x: Any, backend: Backend, codec: Codec
    ) -> PendingCheck | None:
        """Queue the encoding of x on the side stream; return the pending check, or None without.

        Sets the entry's codes and decoder; not in a capture where an earlier step's codes failed.
        backend: of x, NumPy's or CuPy's.
        """
        out = self._buffer(entry, backend, codec)
        is_captured = backend.capturing(entry.device)
        if is_captured and not self._pending.decisions.get(entry.place, True):
            entry.row["codec"] = None
            return None
        check = _check_of(codec.name, entry.row["need"], entry.spec)
        streams = entry.streams
        about = entry.spec.dtype, entry.spec.shape, check.measure, check.grouping
        encoder, entry.decoder = coders(codec.name, *about)
        measures = check.measure == TILES
        streams.fork()
        results = streams.on_side(lambda: encoder(x, out=(out, None) if measures else out))
        entry.code, numbers = results if measures else (results, None)
        if check.measure == RANGE:
            three = Spec((3,), FLOAT64)
            numbers = streams.on_side(
                lambda: measure_range(x, backend.empty(three, entry.device), check.need)
            )
        if check.measure == INDEX:
            numbers = streams.on_side(lambda: ((x < 0) | (x > 15)).any().reshape(1))
        if self._keep_buffers:
            self._buffers[entry.place] = entry.code
        if codec.leaves_room and entry.code.nbytes:
            self._await_length(entry)
        self._leaving.append((x, streams, streams.current(), streams.mark()))
        self._release(keep=1)
        if is_captured or not check.measure:
            entry.original = None
            return None
        return PendingCheck(entry, check, entry.spec.nbytes, *streams.copy_to_host(numbers))

    def _await_length(self, entry: StashEntry) -> None:
        """Shorten codes to their length, their first 8 bytes: on the host at once, on a GPU when it
        can be read."""
        length, event = entry.streams.copy_to_host(entry.code[:8].view(np.int64))
        if event is None:
            entry.code = entry.copy_codes(int(length[0]))
        else:
            tell = partial(entry.row.__setitem__, "after")
            self._lengths.add(entry.streams, entry, tell, length, event)

    def _buffer(self, entry: StashEntry, backend: Backend, codec: Codec) -> Array | None:
        """Return memory of an earlier step for the entry's codes; None: the encoder allocates it.

        Raises ProviderError inside a capture that has none.
        """
        buffer = self._buffers.get(entry.place)
        if not backend.capturing(entry.device):
            return None if codec.leaves_room else buffer
        if codec.leaves_room:
            raise ProviderError(
                f"{NAME}: put: {codec.name!r} cannot be captured, because the size of its codes "
                f"depends on the data"
            )
        if buffer is None:
            raise ProviderError(
                f"{NAME}: put: a capture needs memory that exists already for the codes of "
                f"{entry.name!r}: make a step with keep_buffers=True before"
            )
        return buffer

    def _release(self, keep: int) -> None:
        """Release all originals but the newest `keep`, after their streams wait for encoders."""
        while len(self._leaving) > keep:
            _, streams, stream, mark = self._leaving[0]
            streams.join(stream, mark)
            self._leaving.popleft()

    # ---- decoding --------------------------------------------------------------------------------

    def _decoded_array(self, entry: StashEntry, out: Any) -> Any:
        """Return the array of an entry, decoded if needed; the caller's stream waits for it."""
        if entry.decoder is None:
            if out is not None:
                refuse(NAME, "out", f"None for {entry.name!r}, which is kept as it is", "an array")
            return entry.original
        target, ahead = adopt(NAME, "out", out), entry.decoded
        if ahead is None or target is not None:  # the decoder checks `out`
            self._decode(entry, target)
        if ahead is not None:
            self._statistics.add(-entry.spec.nbytes)
        entry.streams.join(entry.streams.current(), entry.mark)
        return entry.decoded if out is None else out

    def _decode(self, entry: StashEntry, out: Any = None) -> None:
        """Queue the decoding of an entry on the side stream, into the array `out` or a new one; set
        its `target`, `decoded` and `mark`."""
        assert entry.decoder is not None
        decoder, code, streams = entry.decoder, entry.code, entry.streams
        entry.target = target = self._new(entry) if out is None else out
        streams.fork()
        streams.on_side(lambda: decoder(code, out=target))
        entry.mark = streams.mark()
        entry.decoded = target

    def _decode_ahead(self) -> None:
        """Decode the newest entry, which most loops get next."""
        entry = next(reversed(self._entries.values()), None)
        if entry is None:
            return
        self._pending.finish(entry)
        if entry.decoder is not None and entry.decoded is None:
            self._decode(entry)
            self._statistics.add(entry.spec.nbytes)

    def _new(self, entry: StashEntry) -> Array:
        """Allocate an array to decode an entry into; refuse that under graph capture."""
        backend = BACKENDS[type(entry.code)]
        if backend.capturing(entry.device):
            raise ProviderError(
                f"{NAME}: get: a capture needs `out` for {entry.name!r}, because memory from the "
                f"pool would be handed out again while the graph still writes to it"
            )
        return backend.empty(entry.spec, entry.device)

    # ---- helpers of both -------------------------------------------------------------------------

    def _streams_of(self, x: Array, device: int) -> Streams:
        if device not in self._streams:
            self._streams[device] = HOST if isinstance(x, np.ndarray) else Cuda(device)
        return self._streams[device]

    def _refuse_closed(self, method: str) -> None:
        if not self._is_inside():
            raise ArgumentError(f"{NAME}: {method}: expected to be called inside of `with`")

    def _refuse_name(self, name: object) -> NoReturn:
        if name in self._taken:
            refuse(NAME, "name", "one that was not taken yet", shown(name))
        there = ", ".join(map(repr, self._entries)) or "none is there"
        refuse(NAME, "name", f"one that was put ({there})", shown(name))

    def _refuse_changed(self, entry: StashEntry) -> None:
        """In checking mode, refuse an entry whose array was changed since `put`, by any bit."""
        if entry.checked is None:
            return
        now, then = (a.reshape(-1).view(np.uint8) for a in entry.checked)
        if not bool((now == then).all()):
            raise ArgumentError(
                f"{NAME}: {entry.name!r} was changed after put: expected an array that nobody "
                f"writes to, because it may not be encoded yet"
            )


def _check_of(codec: str, need: str, x: Spec) -> ErrorCheck:
    """Return the error check for a codec and a need; one that measures nothing if none is needed.

    x: spec of the array; a normalisation's groups are its rows.
    """
    measure, row = MEASURES.get(codec, ""), x.shape[-1] if x.shape else 1
    needs = {TILES: (LINEAR, NORMALISED), RANGE: BY_RANGE}.get(measure, (need,))
    if not x.size or need not in needs:
        measure = ""
    grouping = (1, x.size // row, row) if need == NORMALISED and measure else None
    return ErrorCheck(measure, need, grouping)
