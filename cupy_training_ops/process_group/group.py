# SPDX-License-Identifier: MIT
"""ProcessGroup: the ranks of a job, as one of them sees them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self

from ..errors import ArgumentError, GroupError, OpError, refuse, shown
from ..forks import InChild
from ..summary import Summary
from . import embedded
from .engine import GRACE, STOPPED, Answer, Engine, Part, Ranks, quote

DEFAULT_TIMEOUT = 300.0  # seconds
MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_NTASKS")  # and srun
TORCH = ("RANK", "WORLD_SIZE")

INSTEAD = (  # end of an error's message: how ranks are started
    "one machine: cupy-training-ops launch, or ProcessGroup.in_threads(n); "
    "several: torchrun and ProcessGroup.from_torch(), or mpirun, srun and ProcessGroup.from_mpi()"
)

ABORT_TIMEOUT = 10.0  # seconds that aborting NCCL may take
MAX_INTERVAL = 1.0  # seconds between looks at what is under way on the GPU, at most
IN_CHILD = "it belongs to the process that forked this one, which has to make its own"

# A forked child's copies of connections, referenced for ever: a destructor would end the parent's.
_of_parents: list[object] = []


class Sizes(NamedTuple):
    """Numbers of ranks of a data group, a horizontal group and a node; None if not specified."""

    data_size: int | None = None
    horizontal_size: int | None = None
    local_size: int | None = None

    def check(self, n: int | None) -> None:
        """Refuse sizes that are not integers or, if n is known, do not divide the n ranks."""
        for name, value in self._asdict().items():
            if value is not None and type(value) is not int:
                refuse("ProcessGroup", name, "a number of ranks", shown(value))
            if value is not None and n is not None and (value < 1 or n % value):
                refuse("ProcessGroup", name, f"a divisor of the {n} ranks", str(value))
        data, horizontal, _ = self
        if data and horizontal and n is not None and data * horizontal != n:
            expected = f"{n // data}, so that {data} times it are the {n} ranks"
            refuse("ProcessGroup", "horizontal_size", expected, str(horizontal))


class ProcessGroup(Summary):
    """The ranks that work together: one in each process, or in each thread of one.

    `ProcessGroup()` is that of the launcher that started this process: `cupy-training-ops launch`,
    torchrun (as by `from_torch()`), mpirun or srun (`from_mpi()`); `ProcessGroup(0, 1)` is a rank
    alone. Each rank makes the same calls in the same order, from one thread at a time.

    timeout: seconds that a rank waits for the others; CTO_TIMEOUT, else 300. A rank that is gone or
    late, or that an exception stops in the middle of a call, ends the group for all: what they wait
    for, and whatever they do with it next, raises GroupError. Work on a GPU that NCCL cannot abort
    ends its process with status 1. data_size, horizontal_size, local_size: ranks of a data and of a
    horizontal group, and on each node, for operators with group_type 1 to 4.
    """

    def __init__(
        self,
        rank: int | None = None,
        size: int | None = None,
        address: object = None,
        *,
        timeout: float | None = None,
        secret: object = None,
        **sizes: int | None,
    ) -> None:
        """Connect to the other ranks, which all call this, by the launcher's environment variables.

        rank, size: none, or 0 and 1 for a rank alone. address, secret: arguments of older versions,
        refused. timeout: seconds to wait for others. sizes: data_size, horizontal_size, local_size.
        """
        if address is not None or secret is not None:
            name = "secret" if address is None else "address"
            raise ArgumentError(f"ProcessGroup: {name}: ranks meet by no address now: {INSTEAD}")
        is_alone = type(rank) is int and type(size) is int and (rank, size) == (0, 1)
        if not is_alone and (rank is not None or size is not None):
            got = f"{shown(rank)}, {shown(size)}"
            refuse("ProcessGroup", "rank, size", f"none, or 0 and 1 (alone): {INSTEAD}", got)
        seconds, known = _check_arguments(timeout, sizes)
        engine = engine_of(os.environ, seconds) if rank is None else Engine(0, 1, seconds)
        self._start(engine, known)

    @classmethod
    def from_mpi(cls, comm: Any = None, timeout: float | None = None, **sizes: int | None) -> Self:
        """Make a group of the ranks of `comm`, an mpi4py communicator, by default COMM_WORLD.

        All of its ranks call this. sizes: data_size, horizontal_size, local_size. After a fault
        every rank raises GroupError, and as it exits MPI aborts the job.
        """
        from . import of_mpi

        seconds, checked = _check_arguments(timeout, sizes)
        return cls._over(of_mpi.engine(comm, seconds), checked)

    @classmethod
    def from_torch(
        cls, group: Any = None, timeout: float | None = None, **sizes: int | None
    ) -> Self:
        """Make a group of the ranks of a torch.distributed group, by default all.

        All of its ranks call this. sizes: data_size, horizontal_size, local_size. Close it before
        PyTorch's group is destroyed.
        """
        from . import of_torch

        seconds, checked = _check_arguments(timeout, sizes)
        return cls._over(of_torch.engine(group, seconds), checked)

    @classmethod
    def in_threads(cls, n: int, timeout: float | None = None, **sizes: int | None) -> list[Self]:
        """Make n ranks that are threads of this process; return the group of each.

        sizes: data_size, horizontal_size, local_size.
        """
        if type(n) is not int or n < 1:
            refuse("ProcessGroup.in_threads", "n", "a number of ranks from 1 on", shown(n))
        seconds, checked = _check_arguments(timeout, sizes, n)
        ends = enumerate(list(embedded.socket_pairs(n)))
        engines = [embedded.Embedded(rank, sockets, seconds) for rank, sockets in ends]
        return [cls._over(engine, checked, compares=False) for engine in engines]

    @classmethod
    def _over(cls, engine: Engine, sizes: Sizes, compares: bool = True) -> Self:
        """Make a group over an engine, without `__init__`, which reads the environment.

        compares: refuse sizes that differ from the other ranks'.
        """
        group = cls.__new__(cls)
        group._start(engine, sizes, compares)
        return group

    def _start(self, engine: Engine, sizes: Sizes, compares: bool = True) -> None:
        """Set all attributes; `compares`: refuse sizes that differ from the other ranks'.

        rank, size; local_rank, local_size: of the ranks on this node; everyone: (0, ..., size - 1).
        """
        self.rank, self.size, self.timeout = engine.rank, engine.size, engine.timeout
        self.local_rank, self.everyone = engine.local_rank, tuple(range(engine.size))
        local = sizes.local_size
        self.local_size = engine.local_size if local is None else local
        self.device: int | None = None  # GPU of NCCL's communicators; None before the first
        self.begun = 0  # number of calls of `begin`
        self._agreed: set[tuple[Ranks, str]] = set()  # descriptions compared by `agree`
        self.instances: MutableMapping[object, Any] = {}  # see collective.plan.once_per_group
        self._engine, self.resources = engine, Resources(engine)
        self.busy = self.resources.busy  # while a call is under way
        self._finalizer = weakref.finalize(self, self.resources.close)
        try:
            if compares:
                self.exchange("ProcessGroup", self.everyone, f"ProcessGroup with {sizes}")
            self.sizes = sizes._replace(local_size=self.local_size)
            self.sizes.check(self.size)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the group; messages that were sent still arrive."""
        self.instances = weakref.WeakValueDictionary()  # a closed group keeps nothing alive
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        """Close the group; after an error the others are told, and do not wait."""
        if kind is not None and self._finalizer.alive:
            words = f"rank {self.rank} failed: {kind.__name__}: {error}"
            self._engine.last_words = quote(words)
        self.close()

    def check(self) -> None:
        """Raise GroupError if the group has ended."""
        self.require_open("ProcessGroup")

    def _facts(self) -> dict[str, object]:
        facts = {"rank": self.rank, "size": self.size, "local_rank": self.local_rank}
        return {**facts, "engine": self._engine.name, "timeout": self.timeout}

    def __repr__(self) -> str:
        return f"<ProcessGroup rank {self.rank} of {self.size}, {self._engine.name}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ProcessGroup belongs to its process and cannot be pickled")

    def __deepcopy__(self, _: object = None) -> Self:
        return self

    __copy__ = __deepcopy__

    def require_open(self, op: str) -> None:
        """Refuse a group that is closed or cannot go on; op: the caller, for the error."""
        if fault := self._engine.fault:
            raise GroupError(f"{op}: group: {fault}")
        if not self._finalizer.alive:
            raise GroupError(f"{op}: group: expected an open group, got a closed one")

    def begin(self, op: str) -> None:
        """Begin a call: count it, and acquire `busy`, which the caller releases at its end.

        op: name of the call in errors, here and below.
        """
        self.require_open(op)
        self.begun += 1
        if not self.busy.acquire(False):
            raise GroupError(f"{op}: group: a call of another thread is under way")

    @contextlib.contextmanager
    def call(self, op: str) -> Iterator[Engine]:
        """Context of the messages of one call, by `op`; an exception inside ends the group for
        all."""
        self.begin(op)
        try:
            with self._engine.lock:
                try:
                    yield self._engine
                except BaseException as error:
                    raise self.broken(op, error) from None
        finally:
            self.busy.release()

    def exchange(
        self, op: str, ranks: Ranks, text: str, parts: Sequence[Part] = (), answer: Answer = None
    ) -> Sequence[Any]:
        """Send `text` and `parts` to the first of these ranks; return this rank's share.

        All of `ranks` call this. text: describes the call; ArgumentError on all ranks if texts
        differ. parts: bytes-like objects. answer: called on the first rank with the parts of each
        rank, returns the share of each, a sequence of bytes-like objects; () without `answer`.
        """
        if len(ranks) == 1:
            self.require_open(op)
            return answer([[memoryview(part) for part in parts]])[0] if answer else ()
        with self.call(op) as engine:
            words, share = engine.exchange(ranks, text, parts, answer)
        if words:
            raise ArgumentError(f"{op}: {quote(words)}")
        return share

    def agree(self, op: str, ranks: Ranks, text: str) -> bool:
        """Compare `text`, a call's description, with the other `ranks`', the first time only.

        Return True if it was compared; raise ArgumentError on all ranks if they differ.
        """
        is_new = (ranks, text) not in self._agreed
        if is_new:
            self.exchange(op, ranks, text)
            self._agreed.add((ranks, text))
        return is_new

    def broken(self, op: str, error: BaseException) -> BaseException:
        """End the group for all ranks because `error` stopped a call; return the error to raise:
        GroupError in place of one of this package or of a connection, else `error`."""
        engine = self._engine
        engine.fault = engine.fault or STOPPED
        if isinstance(error, GroupError):
            engine.end(str(error))
        else:
            engine.end(f"rank {self.rank} stopped in the middle of {op}: {error!r}")
        if isinstance(error, OpError | OSError | EOFError | MemoryError | SystemError):
            return GroupError(f"{op}: group: {engine.fault}")
        return error


def _check_arguments(timeout: object, sizes: Any, n: int | None = None) -> tuple[float, Sizes]:
    """Check timeout and sizes before a connection is opened; return (seconds, sizes).

    sizes: dictionary of the keywords of ProcessGroup that are sizes. n: number of ranks, if known.
    """
    for name in sizes.keys() - set(Sizes._fields):
        refuse("ProcessGroup", name, f"a keyword among {list(Sizes._fields)}", "an unknown one")
    checked = Sizes(**sizes)
    checked.check(n)
    return timeout_of(os.environ, timeout), checked


def engine_of(variables: MutableMapping[str, str], timeout: float) -> Engine:
    """Make the engine of the launcher that set these environment variables; timeout: seconds.

    The launchers are `cupy-training-ops launch`, torchrun, and mpirun or srun.
    """
    for name in ("CTO_ADDRESS", "CTO_SECRET"):
        if name in variables:
            raise GroupError(f"ProcessGroup: {name} is not used any more: {INSTEAD}")
    if embedded.LAUNCHER in variables:
        return embedded.from_launcher(variables, timeout)
    if all(name in variables for name in TORCH):
        if number(variables, "WORLD_SIZE") == 1:
            return Engine(0, 1, timeout)
        from . import of_torch

        rank, size = (number(variables, name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        return of_torch.from_torchrun(rank, size, timeout)
    if any(name in variables for name in MPI):
        from . import of_mpi

        return of_mpi.engine(None, timeout)
    raise GroupError(f"ProcessGroup: no launcher started this process. {INSTEAD}")


def timeout_of(variables: Mapping[str, str], limit: object) -> float:
    """Return the seconds that a rank waits: `limit`, else the variable CTO_TIMEOUT, else 300."""
    if limit is None and variables.get("CTO_TIMEOUT"):
        limit = number(variables, "CTO_TIMEOUT", "a number of seconds", float)
    elif limit is None:
        limit = DEFAULT_TIMEOUT
    if isinstance(limit, int | float) and limit is not True and 0 < limit <= sys.float_info.max:
        return float(limit)
    refuse("ProcessGroup", "timeout", "seconds above 0", shown(limit))


def number(variables: Mapping[str, str], name: str, what: str = "a number", kind: Any = int) -> Any:
    """Return kind(environment variable), such as int("3"); None if it is not set.

    what: describes the expected text in the GroupError for another one.
    """
    text = variables.get(name)
    try:
        return None if text is None else kind(text)
    except ValueError:
        raise GroupError(f"ProcessGroup: {name}: expected {what}, got {shown(text)}") from None


class Resources(InChild):
    """Resources of a group: engine, communicators, watching thread, without reference to the group.

    A forked child drops them without sending messages, which others would read as its parent's.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.communicators: dict[Ranks, Any] = {}  # nccl.Communicator, which imports the group
        self.busy = threading.Lock()  # while a call is under way
        self._stop, self._is_connected = threading.Event(), threading.Event()
        self._is_connected.set()
        self._watcher: threading.Thread | None = None

    def renew(self) -> None:
        """In a forked child, mark the group as ended without closing the parent's resources."""
        _of_parents.append((self.engine, list(self.communicators.values())))
        self.communicators.clear()
        self._watcher = None
        self.busy, self.engine.lock = threading.Lock(), threading.Lock()
        self.engine.has_ended, self.engine.fault = True, IN_CHILD
        self.engine.abandon()

    def close(self) -> None:
        """Stop the watching thread, end communicators and close the engine, which tells others."""
        # Another thread's call has to end first: the last message would be read as part of its own.
        if not self.busy.acquire(blocking=False):
            self.engine.end(f"rank {self.engine.rank} closed its group in the middle of a call")
            self.busy.acquire(timeout=GRACE)  # not for ever: the call may be this thread's own
        self._stop.set()
        communicators = self.communicators.values()
        if communicators:
            is_well = not (self.engine.fault or self.engine.last_words)
            _within(ABORT_TIMEOUT, [partial(item.end, is_well) for item in communicators])
        self.communicators.clear()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(ABORT_TIMEOUT)
        if self.engine.fault != IN_CHILD:
            self.engine.close()

    @contextlib.contextmanager
    def initialising(self) -> Iterator[None]:
        """Context in which NCCL connects: it cannot be aborted yet. Starts the watching thread."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="cto-nccl", daemon=True)
            self._watcher.start()
        self._is_connected.clear()
        try:
            yield
        finally:
            self._is_connected.set()

    def _watch(self) -> None:
        """Until `close`, look for faults of other ranks and of the GPU; abort NCCL at the first."""
        engine = self.engine
        try:
            while not engine.fault and not self._stop.wait(min(MAX_INTERVAL, engine.timeout / 4)):
                if words := self._trouble():
                    engine.end(words)
        except BaseException as error:
            engine.end(f"rank {engine.rank}: the thread that watches ended: {error!r}")
        if engine.fault and not self._stop.is_set():
            self._abort(engine.fault)

    def _trouble(self) -> str:
        """Describe a fault of another rank, or of NCCL's calls on the GPU; "" if there is none."""
        engine = self.engine
        if engine.lock.acquire(blocking=False):  # else a call of the host looks itself
            try:
                if words := engine.news():
                    return words
            finally:
                engine.lock.release()
        for communicator in list(self.communicators.values()):
            if words := communicator.trouble():
                return f"rank {engine.rank}: {words}"
        return ""

    def _abort(self, words: str) -> None:
        """Abort NCCL's communicators, so that streams that wait for other ranks go on.

        If that takes longer than ABORT_TIMEOUT, or a communicator is still connecting then, write
        `words` to stderr and exit the process with status 1.
        """
        aborts = [item.end for item in self.communicators.values()]
        if not _within(ABORT_TIMEOUT, [*aborts, self._is_connected.wait]):
            message = f"cupy-training-ops: rank {self.engine.rank}: {words}; NCCL hangs\n"
            sys.stderr.write(message)
            sys.stderr.flush()
            os._exit(1)


def _within(seconds: float, actions: Sequence[Callable[[], object]]) -> bool:
    """Call actions one after the other in a thread; return True if all returned in time."""
    every = (action() for action in actions)
    thread = threading.Thread(target=tuple, args=(every,), name="cto-nccl", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
