# SPDX-License-Identifier: MIT
"""The engine over torch.distributed: short messages are values in its store, long ones go by gloo.

    key "0/1/5": message 5 from rank 0 to rank 1
    value b"+" and the message, or b"4096": so many bytes follow by gloo

The receiver deletes the key, for a long message once the bytes have arrived. Who waits polls keys,
so that Ctrl-C and faults of others reach it.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

from ..errors import GroupError, OpError, ProviderError, raise_if_from_handler, refuse, shown
from .engine import GRACE, Engine, pack, quote

SHORT = 1024  # bytes of the longest message in the store
MOST = 1e6  # seconds of the longest wait
ENDED = "fault"  # key of the words that end the group

_made: Counter[str] = Counter()  # number of groups made so far, by their ranks ("0-1-2")


def library() -> Any:
    """Return the module torch.distributed; raise ProviderError if it or gloo is missing."""
    with contextlib.suppress(ImportError):
        import torch.distributed as dist

        if dist.is_available() and dist.is_gloo_available():
            return dist
    raise ProviderError("ProcessGroup.from_torch: needs PyTorch with torch.distributed (gloo)")


@contextlib.contextmanager
def _as_group_error(words: str) -> Iterator[None]:
    """Raise GroupError("words: ...") in place of PyTorch's RuntimeError or ValueError."""
    try:
        yield
    except OpError:
        raise
    except (RuntimeError, ValueError) as error:  # ValueError: a wrong argument or variable
        raise_if_from_handler(error)
        line = str(error).partition("\n")[0][:200]
        raise GroupError(f"{words}: {line}") from None


def from_torchrun(local_rank: int | None, local_size: int | None, timeout: float) -> Engine:
    """Make the engine under torchrun; initialise torch.distributed if the script has not.

    local_rank, local_size: of this node, as torchrun sets them; None if unknown. timeout: seconds.
    """
    dist = library()
    owns = not dist.is_initialized()
    if owns:
        with _as_group_error("torch.distributed could not connect the ranks"):
            dist.init_process_group("gloo", timeout=_delta(timeout))
    engine = Torch(None, timeout, owns)
    engine.local_rank = engine.rank if local_rank is None else local_rank
    engine.local_size = local_size if local_size and engine.size % local_size == 0 else None
    return engine


def engine(group: Any, timeout: float) -> Engine:
    """Make the engine of a group of torch.distributed, None: of its default one.

    timeout: seconds.
    """
    dist = library()
    if not dist.is_initialized():
        remedy = "call its init_process_group(), or start the script by torchrun"
        raise GroupError(f"ProcessGroup.from_torch: torch.distributed has no group yet: {remedy}")
    if group is not None and not isinstance(group, dist.ProcessGroup):
        expected = "one of torch.distributed's that this process is in"
        refuse("ProcessGroup.from_torch", "group", expected, shown(group))
    return Torch(group, timeout)


class Torch(Engine):
    """A rank of a gloo group of its own, over the ranks of another group."""

    name = "torch"
    pause = 0.02

    def __init__(self, group: Any, timeout: float, owns: bool = False) -> None:
        """group: None for the default one. owns: destroy torch.distributed's group at the end."""
        dist = self._dist = library()
        ranks, own = dist.get_process_group_ranks(group or dist.group.WORLD), dist.get_rank(group)
        if own < 0:
            raise GroupError("ProcessGroup.from_torch: group: this process is not in it")
        super().__init__(own, len(ranks), timeout)
        self._owns = owns
        self._call = Caller("cto-torch")
        # By torch.distributed's own way ranks that are in more groups would not find the others.
        same = "-".join(map(str, ranks))
        _made[same] += 1
        store, name = dist.distributed_c10d._get_default_store(), f"{same}/{_made[same]}"
        self._store = dist.PrefixStore(f"cupy-training-ops/{name}", store)
        args = dist.PrefixStore("gloo", self._store), own, len(ranks), _delta(timeout)
        with _as_group_error("gloo could not connect the ranks"):
            self._gloo = self._ask(dist.ProcessGroupGloo, *args, seconds=timeout + GRACE)

    @_as_group_error("the others cannot be reached")
    def put(self, peer: int, data: bytearray, seconds: float) -> None:
        """Send `data`, a message, to rank `peer` by the store, but a long one's bytes by gloo, for
        which it waits `seconds` at most."""
        key = f"{self.rank}/{peer}/{self.sent[peer]}"
        if len(data) <= SHORT:
            self._ask(self._store.set, key, b"+" + data)
            return
        sent = self._gloo.send([_tensor(data)], peer, 0)
        self._ask(self._store.set, key, str(len(data)))
        self.until(lambda: not self._ask(self._store.check, [key]), seconds, peer)
        sent.wait(_delta(self.timeout))

    @_as_group_error("the others cannot be reached")
    def listen(self, peer: int | None, seconds: float) -> None:
        """Receive the next message of rank `peer`, or the words that ended the group, if there.

        peer None: look for the words alone. Waits only for the bytes of a long message, not
        `seconds`.
        """
        key = "" if peer is None else f"{peer}/{self.rank}/{self.heard[peer] + 1}"
        said, is_message = self._ask(_look, self._store, key)
        if is_message and peer is not None:
            data = said[1:] if said[:1] == b"+" else bytearray(int(said))
            if said[:1] != b"+":
                self._gloo.recv([_tensor(data)], peer, 0).wait(_delta(self.timeout))
                self._ask(self._store.delete_key, key)
            self.hear(peer, data)
        elif said:
            self.note(quote(str(said, "utf-8", "replace")))

    def farewell(self, number: int, words: str) -> None:
        """Put words that end the group under ENDED; without words, send each other rank a message
        with this number, LEFT."""
        if words:
            self._ask(self._store.set, ENDED, words, seconds=GRACE)
            return
        for peer in self.others:
            key = f"{self.rank}/{peer}/{self.sent[peer] + 1}"
            self._ask(self._store.set, key, b"+" + pack(number, words), seconds=GRACE)

    def _ask(self, function: Callable[..., Any], *args: Any, seconds: float | None = None) -> Any:
        """Return function(*args), called in a thread; GroupError after `seconds`, or the timeout.

        A store on a machine that is out of reach never answers.
        """
        try:
            return self._call(seconds or self.timeout, function, *args)
        except TimeoutError as error:
            raise_if_from_handler(error)
            raise GroupError("torch.distributed did not answer within the timeout") from None

    def release(self) -> None:
        """End the thread, and torch.distributed's group if it was made here."""
        self._call.end()
        if self._owns:
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                self._dist.destroy_process_group()

    def abandon(self) -> None:
        """Leak PyTorch's groups in a forked child: their destructors would wait for threads that it
        lacks."""
        for group in {self._gloo, self._dist.group.WORLD} - {None}:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _look(store: Any, key: str) -> tuple[bytes, bool]:
    """Return (the value at `key`, True) if it is there, else (words that ended the group, False).

    A short message is deleted. key "": look for the words alone. b"": there are none.
    """
    # The store's own wait warns each time that a key is not there.
    if key and store.check([key]):
        said = store.get(key)
        if said[:1] == b"+":
            store.delete_key(key)
        return said, True
    return (store.get(ENDED) if store.check([ENDED]) else b""), False


def _tensor(data: bytearray) -> Any:
    """Return a uint8 tensor over the same memory."""
    import torch

    return torch.frombuffer(data, dtype=torch.uint8)


def _delta(seconds: float) -> timedelta:
    """Return a timeout as PyTorch takes it, of MOST seconds at most."""
    return timedelta(seconds=min(seconds, MOST))


# ---- calls that may never return -----------------------------------------------------------------


class Caller:
    """A thread that makes one call after the other, until `end()` or this object's deletion.

    A call that never returns blocks the thread for ever, but its caller goes on after the timeout.
    """

    def __init__(self, name: str) -> None:
        self._asked: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_answer, args=(self._asked,), name=name, daemon=True).start()
        self.end = weakref.finalize(self, self._asked.put, None)

    def __call__(self, seconds: float, function: Callable[..., Any], *args: Any) -> Any:
        """Return or raise as function(*args) does; TimeoutError if it takes more `seconds`."""
        answer: SimpleQueue[Any] = SimpleQueue()
        self._asked.put((answer, function, args))
        try:
            result, error = answer.get(timeout=min(seconds, MOST))
        except Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return result


def _answer(asked: SimpleQueue[Any]) -> None:
    """Make the calls of the queue `asked` until None comes.

    Each is (queue for its answer, function, arguments); an answer is (result, error or None).
    """
    for answer, function, args in iter(asked.get, None):
        try:
            answer.put((function(*args), None))
        except BaseException as error:
            answer.put((None, error))
