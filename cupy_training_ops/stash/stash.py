# SPDX-License-Identifier: MIT
"""Activations of NumPy-style loops, kept as codes from the forward pass to the backward pass.

    caller's stream   layer 1 | layer 2 | layer 3 | ...     gradient of 3 | of 2 | of 1
    beside it                 | put 1   | put 2   | ...  get 3   | get 2  | get 1

An array is encoded while the next layer runs, and let go at the next `put`, when its stream was
told to wait for that. The one that was put before it is decoded while the gradients of a layer are
computed.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from ..backend import Array, Backend
from ..codecs.table import Codec, get_codec
from ..declare.schema import Spec
from ..dtypes import dtype_name
from ..errors import ArgumentError, ProviderError, refuse, shown
from ..families.gist.operators import Decoder
from ..frame.arrays import adopt
from ..frame.backends import BACKENDS
from ..frame.foreign import as_tensor, is_tensor
from .guards import encoding, flaw
from .policies import OPTIONS, chosen, get_policy
from .streams import Cuda, Host, Mark, Streams

NAME = "ActivationStash"
HOST = Host()


@dataclass(eq=False)
class _Entry:
    """One array: as codes, or as it is where the policy names no codec."""

    name: str
    need: str
    codec: str | None
    decoder: Decoder | None
    spec: Spec
    device: int
    code: Array
    decoded: Array | None = None  # ahead of its use
    mark: Mark = None  # after decoding
    original: Any = None  # in checking mode, with a copy
    copy: Any = None
    given: Any = None  # while it is not decided whether the codes do
    flaw: Callable[[], int] | None = None  # whether they do not; it may wait for the device
    is_tensor: bool = False  # what came was one, and comes back as one

    @property
    def row(self) -> dict[str, Any]:
        """What a report says of it."""
        sizes = {"before": self.spec.nbytes, "after": self.code.nbytes}
        return {"codec": self.codec, "need": self.need, **sizes}


@dataclass
class _Counts:
    """Bytes that a stash holds, and held at most; what was put, by name."""

    held: int = 0
    peak: int = 0
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, nbytes: int) -> None:
        """More is held, or less."""
        self.held += nbytes
        self.peak = max(self.peak, self.held)


class ActivationStash:
    """Keeps arrays of a forward pass as codes until the backward pass takes them.

        with cto.ActivationStash("default") as stash:
            stash.put("hidden", hidden)
            ...
            hidden = stash.get("hidden")

    policy: `lossless`; `default`, which is lossless where it can be and MSFP15 elsewhere; `small`,
    with FP10 of what is not zero; or a function of name, dtype's name, shape and need that gives a
    codec's name, or None for an array that is kept as it is.

    NumPy arrays are encoded and decoded at once. CuPy arrays are on a stream beside the current
    one, and nothing is copied to the host but the lengths of sparse codes. Give up your own
    reference after `put`, and never write to the array. An object may be entered again, for each
    step; it belongs to one thread.

    check: hold every array and a copy of it, and refuse at `get` one that was changed after `put`.
    keep_buffers: keep the memory of codes for the next step, which may then be captured in a graph;
    `get` needs `out` there. Codecs whose sizes depend on the data cannot be captured.
    """

    def __init__(
        self, policy: object = "default", *, check: bool = False, keep_buffers: bool = False
    ) -> None:
        self._policy = get_policy(NAME, policy)
        self._check, self._keep_buffers = check, keep_buffers
        self._streams: dict[int, Streams] = {}  # by device
        self._buffers: dict[tuple[object, ...], Array] = {}
        self._stays: defaultdict[tuple[object, ...], bool] = defaultdict(bool)
        self._is_open = False
        self._begin()

    def _begin(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._taken: set[str] = set()
        # Originals with the streams that own them, and marks after their encoding.
        self._leaving: deque[tuple[Array, Streams, Any, Mark]] = deque()
        # By name, with what waits for the length of codes that have room behind them. Weakly: who
        # is taken meanwhile gives back all.
        self._untrimmed: deque[tuple[str, weakref.ref[_Entry], Callable[[], int]]] = deque()
        self._counts = _Counts()

    def __enter__(self) -> ActivationStash:
        if self._is_open:
            raise ArgumentError(f"{NAME}: expected one `with` at a time, got another inside of it")
        self._begin()
        self._is_open = True
        return self

    def __exit__(self, *error: object) -> None:
        self._let_go(keep=0)
        for entry in self._entries.values():  # what was decoded and not taken
            if entry.mark is not None:
                streams = self._of(entry)
                streams.join(streams.current(), entry.mark)
        self._entries.clear()
        self._is_open = False

    def put(self, name: str, array: Any, need: str = "value") -> None:
        """Keep an array until `get`.

        need: what the backward pass needs of it: `value`; its `sign` (x > 0; the array comes back
        as ones and zeros); a `mask` (the same of bools); an `index` from 0 to 15, as max-pool's
        within its window; `linear`, a value that a product with parameters takes; `normalised`, one
        that a normalisation of its last dimension takes. Of the last two `default` keeps the array
        where codes would be too far off. An index beyond 15 is refused: on a GPU by `get` or the
        next `put`, and not in a captured step. Raises ArgumentError, DtypeError, ProviderError.
        """
        self._refuse_closed("put")
        if not isinstance(name, str):
            refuse(NAME, "name", "a text", shown(name))
        if name in self._entries:
            refuse(NAME, "name", "one that is not there yet", shown(name))
        x = adopt(NAME, "array", array)
        if x is None:
            refuse(NAME, "array", "an array", "None")
        backend = BACKENDS[type(x)]
        _, dtype, shape, aligned, _, device = backend.info(x)
        codec = chosen(NAME, self._policy, name, dtype_name(dtype), shape, need)
        entry = _Entry(name, need, codec, None, Spec(shape, dtype, aligned), device, x)
        entry.is_tensor = is_tensor(array)
        if self._check:
            entry.original, entry.copy = x, x.copy()
        self._trim()
        if codec is not None:
            self._encode(entry, x, backend, get_codec(codec))
        self._entries[name] = entry
        self._taken.discard(name)
        self._counts.rows[name] = entry.row
        self._counts.add(entry.code.nbytes)
        if self._of(entry) is HOST:
            self._decide(entry)

    def get(self, name: str, out: Any = None) -> Any:
        """The array, decoded; each is given back once.

        out: an array of its shape and dtype to write into, where it was encoded. Raises
        ArgumentError, and ProviderError under capture without `out`.
        """
        self._refuse_closed("get")
        entry = self._entries.get(name)
        if entry is None:
            self._refuse_name(name)
        if self._check:
            self._refuse_changed(entry)
        self._decide(entry)
        array = self._taken_out(entry, out)
        del self._entries[name]
        self._taken.add(name)
        self._counts.add(-entry.code.nbytes)
        self._let_go(keep=0)
        if out is None and self._of(entry) is not HOST:
            self._decode_ahead()
        return as_tensor(array) if entry.is_tensor and out is None else array

    def report(self) -> dict[str, Any]:
        """Bytes of the current `with`, or of the last: `names` has codec, need, before and after
        of each array, `before` and `after` are their sums, `peak` is the most that was held."""
        self._trim()
        for entry in self._entries.values():
            self._decide(entry)
        rows = {name: dict(row) for name, row in self._counts.rows.items()}
        sums = {column: sum(row[column] for row in rows.values()) for column in ("before", "after")}
        return {**sums, "peak": self._counts.peak, "names": rows}

    # ---- encoding --------------------------------------------------------------------------------

    def _encode(self, entry: _Entry, x: Array, backend: Backend, codec: Codec) -> None:
        """Queue it beside, and hold the array until that is done."""
        options = OPTIONS.get(codec.name, {})
        encoder, is_guarded = encoding(codec, entry.need, entry.spec, options)
        told = codec.kept(encoder.attribute_values, options)
        out = self._buffer(entry, backend, codec)
        if self._stays[self._buffer_key(entry)] and backend.capturing(entry.device):
            entry.codec = None
            return
        entry.decoder = codec.decoder.shared(to=entry.spec.dtype, shape=entry.spec.shape, **told)
        streams = self._of(entry)
        streams.fork()
        made = streams.beside(lambda: encoder(x, out=(out, None) if is_guarded else out))
        entry.code, guard = made if is_guarded else (made, None)
        found = None if backend.capturing(entry.device) else flaw(codec, x, guard, entry.need)
        if found is not None:
            entry.given, entry.flaw = x, streams.read(streams.beside(found))
        if self._keep_buffers:
            self._buffers[self._buffer_key(entry)] = entry.code
        if codec.leaves_room and entry.code.nbytes:
            length = streams.beside(lambda: streams.read(entry.code))
            if streams is HOST:
                entry.code = entry.code[: length()].copy()
            else:
                self._untrimmed.append((entry.name, weakref.ref(entry), length))
        self._leaving.append((x, streams, streams.current(), streams.mark()))
        self._let_go(keep=1)

    def _decide(self, entry: _Entry) -> None:
        """Keep the array itself, or refuse it, where its codes do not do."""
        if entry.flaw is None:
            return
        is_flawed = bool(entry.flaw())
        x, entry.given, entry.flaw = entry.given, None, None
        if is_flawed and entry.need == "index":
            del self._entries[entry.name]
            refuse(NAME, "array", f"indices from 0 to 15 of {entry.name!r}", "another number")
        self._stays[self._buffer_key(entry)] |= is_flawed
        if is_flawed:
            self._stay(entry, x)

    def _stay(self, entry: _Entry, x: Array) -> None:
        """Keep the array in place of its codes."""
        self._counts.add(x.nbytes - entry.code.nbytes)
        if entry.decoded is not None:
            self._counts.add(-entry.spec.nbytes)
        entry.code, entry.codec, entry.decoder, entry.decoded = x, None, None, None
        self._counts.rows[entry.name] = entry.row

    def _buffer(self, entry: _Entry, backend: Backend, codec: Codec) -> Array | None:
        """Memory of an earlier step for the codes; None where it is to be allocated."""
        found = self._buffers.get(self._buffer_key(entry))
        if not backend.capturing(entry.device):
            return None if codec.leaves_room else found
        if codec.leaves_room:
            raise ProviderError(
                f"{NAME}: put: {codec.name!r} cannot be captured, because the size of its codes "
                f"depends on the data"
            )
        if found is None:
            raise ProviderError(
                f"{NAME}: put: a capture needs memory that exists already for the codes of "
                f"{entry.name!r}: make a step with keep_buffers=True before"
            )
        return found

    def _buffer_key(self, entry: _Entry) -> tuple[object, ...]:
        return entry.name, entry.need, entry.spec.dtype, entry.spec.shape, entry.device

    def _let_go(self, keep: int) -> None:
        """Give up originals, the newest but `keep`, when their streams wait for their encoding."""
        while len(self._leaving) > keep:
            _, streams, stream, mark = self._leaving.popleft()
            streams.join(stream, mark)

    def _trim(self) -> None:
        """Give back what is behind sparse codes.

        The host waits until they are made; what was queued since keeps the GPU busy meanwhile.
        """
        while self._untrimmed:
            name, reference, length = self._untrimmed.popleft()
            nbytes, entry = length(), reference()
            if entry is not None and nbytes < entry.code.nbytes:
                self._counts.add(nbytes - entry.code.nbytes)
                entry.code = self._of(entry).beside(entry.code[:nbytes].copy)
            self._counts.rows[name]["after"] = nbytes

    # ---- decoding --------------------------------------------------------------------------------

    def _taken_out(self, entry: _Entry, out: Any) -> Any:
        """The array on the caller's stream."""
        if entry.decoder is None:
            if out is not None:
                refuse(NAME, "out", f"None for {entry.name!r}, which is kept as it is", "an array")
            return entry.code
        target = adopt(NAME, "out", out)
        if entry.decoded is None:
            self._decode(entry, target)
        else:
            self._counts.add(-entry.spec.nbytes)
        streams, decoded = self._of(entry), entry.decoded
        streams.join(streams.current(), entry.mark)
        if out is None:
            return decoded
        if decoded is not target:  # it was decoded ahead, where nobody had said `out`
            target[...] = decoded
        return out

    def _decode(self, entry: _Entry, out: Any = None) -> None:
        """Queue it beside, into memory of the caller's stream."""
        assert entry.decoder is not None
        decoder, code = entry.decoder, entry.code
        target = self._new(entry) if out is None else out
        streams = self._of(entry)
        streams.fork()
        streams.beside(lambda: decoder(code, out=target))
        entry.decoded, entry.mark = target, streams.mark()

    def _decode_ahead(self) -> None:
        """Decode what was put last, which most loops take next."""
        entry = next(reversed(self._entries.values()), None)
        if entry is not None:
            self._decide(entry)
        if entry is not None and entry.decoder is not None and entry.decoded is None:
            self._decode(entry)
            self._counts.add(entry.spec.nbytes)

    def _new(self, entry: _Entry) -> Array:
        backend = self._backend(entry)
        if backend.capturing(entry.device):
            raise ProviderError(
                f"{NAME}: get: a capture needs `out` for {entry.name!r}, because memory from the "
                f"pool would be handed out again while the graph still writes to it"
            )
        return backend.empty(entry.spec, entry.device)

    # ---- what both need --------------------------------------------------------------------------

    def _backend(self, entry: _Entry) -> Backend:
        return BACKENDS[type(entry.code)]

    def _of(self, entry: _Entry) -> Streams:
        """The streams where an array is."""
        found = self._streams.get(entry.device)
        if found is None:
            on_host = self._on_host(entry.code)
            found = self._streams[entry.device] = HOST if on_host else Cuda(entry.device)
        return found

    @staticmethod
    def _on_host(array: Array) -> bool:
        return isinstance(array, np.ndarray)

    def _refuse_closed(self, method: str) -> None:
        if not self._is_open:
            raise ArgumentError(f"{NAME}: {method}: expected to be called inside of `with`")

    def _refuse_name(self, name: object) -> NoReturn:
        if name in self._taken:
            refuse(NAME, "name", "one that was not taken yet", shown(name))
        there = ", ".join(map(repr, self._entries)) or "none is there"
        refuse(NAME, "name", f"one that was put ({there})", shown(name))

    def _refuse_changed(self, entry: _Entry) -> None:
        """In checking mode: compare every bit with the copy that `put` made."""
        now, then = (a.reshape(-1).view(np.uint8) for a in (entry.original, entry.copy))
        if not bool((now == then).all()):
            raise ArgumentError(
                f"{NAME}: {entry.name!r} was changed after put: expected an array that nobody "
                f"writes to, because it may not be encoded yet"
            )
