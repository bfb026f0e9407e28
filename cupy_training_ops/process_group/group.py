# SPDX-License-Identifier: MIT
"""ProcessGroup: the ranks of a job, from one of them."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from ..errors import ArgumentError, GroupError, refuse, shown
from ..forks import InChild
from .address import Address, check_secret, to_address
from .environment import placed
from .exchange import Answer, exchange, nothing
from .hub import Hub
from .link import LINGER, Link, connected
from .mail import Mail
from .members import GLOBAL, Members, chosen, sub_groups
from .wire import Part

if TYPE_CHECKING:
    from .nccl import Communicator

DEFAULT_TIMEOUT = 300.0
ABORT_TIMEOUT = 10.0  # seconds that aborting NCCL may take
IN_CHILD = "it belongs to the process that forked this one, which has to make its own"
FAILED = 1  # the status of a process that a fault ends

OnFault = Literal["exit", "raise"]


class ProcessGroup:
    """The ranks that work together: one in each process, or in each thread of one.

    `ProcessGroup(rank, size, "127.0.0.1:29500")` returns when all ranks have joined: rank 0 listens
    at the address, the others connect to it. Beyond this machine's loopback addresses the
    environment variable CTO_SECRET has to hold the same text for every rank. Operators take the
    group as their attribute `group`. Each rank makes the same calls in the same order. A
    forked child of a rank has no group, and may make one.

    timeout: seconds that a rank waits for the others. A rank that is gone or late ends the group
    for all: what they wait for, and whatever they do with it next, raises GroupError. local_size:
    ranks on each node. data_size, horizontal_size: ranks of a data and of a horizontal group, for
    operators with group_type 1 to 4. on_fault: a GPU's work that cannot be aborted ends the process
    with status 1 ("exit") or is left ("raise").
    """

    def __init__(
        self,
        rank: int,
        size: int,
        address: str | tuple[str, int] | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        secret: str | None = None,
        local_rank: int | None = None,
        local_size: int | None = None,
        data_size: int | None = None,
        horizontal_size: int | None = None,
        on_fault: OnFault = "exit",
    ) -> None:
        _check(rank, size, timeout, on_fault)
        self.rank = rank
        self.size = size
        self.timeout = float(timeout)
        self.local_rank = rank if local_rank is None else local_rank
        self.local_size = local_size
        self.device: int | None = None  # the GPU that it communicates from, once it has
        self._members = sub_groups(rank, size, data_size, horizontal_size, local_size)
        self._agreed: set[tuple[Members, str]] = set()
        self._instances: dict[object, object] = {}
        self._resources = _Resources(rank, on_fault)
        self._finalizer = weakref.finalize(self, self._resources.close)
        self._mail: Mail | None = None
        if size > 1:
            text = os.environ.get("CTO_SECRET", "") if secret is None else secret
            sizes = f"ProcessGroup({data_size=}, {horizontal_size=}, {local_size=})"
            self._meet(_given(address), text.encode(), sizes)

    @classmethod
    def from_environment(
        cls,
        timeout: float | None = None,
        *,
        data_size: int | None = None,
        horizontal_size: int | None = None,
        on_fault: OnFault = "exit",
    ) -> Self:
        """The group of a job that torchrun, Open MPI, MPICH, Slurm or `launch` started.

        Rank 0 listens at CTO_ADDRESS, or at MASTER_ADDR and MASTER_PORT.
        """
        place = placed(os.environ)
        if timeout is None:
            timeout = float(os.environ.get("CTO_TIMEOUT") or DEFAULT_TIMEOUT)
        return cls(
            place.rank,
            place.size,
            place.address,
            timeout=timeout,
            local_rank=place.local_rank,
            local_size=place.local_size,
            data_size=data_size,
            horizontal_size=horizontal_size,
            on_fault=on_fault,
        )

    # ---- the group's life ------------------------------------------------------------------------

    def _meet(self, address: Address, secret: bytes, sizes: str) -> None:
        check_secret(address, secret)
        try:
            self._resources.connect(self.size, address, secret, self.timeout)
            self._mail = Mail(self._link)
            everyone = self._members[GLOBAL]
            exchange(self._link, everyone, "ProcessGroup", sizes, (), nothing)
        except GroupError as error:
            self.close()
            words = str(error)
            raise GroupError(
                words if words.startswith("ProcessGroup") else f"ProcessGroup: {words}"
            ) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the group; waits a few seconds for what the others still send."""
        self._instances.clear()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the group; after an error the others are told, and do not wait."""
        if kind is not None:
            self._resources.failure = f"rank {self.rank} failed: {kind.__name__}: {error}"
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return not self._finalizer.alive

    def check(self) -> None:
        """Raise what ended the group, if something did."""
        self.require_open("ProcessGroup")

    def __repr__(self) -> str:
        return f"<ProcessGroup rank {self.rank} of {self.size}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ProcessGroup belongs to its process and cannot be pickled")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: object) -> Self:
        return self

    # ---- what operators ask ----------------------------------------------------------------------

    def members(self, op: str, group_type: int) -> Members:
        """The sub-group of a type."""
        return chosen(op, self._members, group_type)

    def instance(self, key: object, make: Callable[[], object]) -> object:
        """What an operator keeps with the group, and only as long as it."""
        if self.is_closed:
            return make()
        found = self._instances.get(key)
        if found is None:
            found = self._instances[key] = make()
        return found

    def require_open(self, op: str) -> None:
        """Refuse a group that is closed or cannot go on."""
        link = self._resources.link
        if link is not None and link.fault:
            raise GroupError(f"{op}: group: {link.fault}")
        if not self._finalizer.alive:
            raise GroupError(f"{op}: group: expected an open group, got a closed one")

    def require_device(self, op: str, device: int) -> None:
        """Refuse arrays on another GPU than the group's; -1 is the host, which each rank has."""
        if device >= 0 and self.device is not None and device != self.device:
            expected = f"one that communicates from cuda device {device}, where the arrays are"
            refuse(op, "group", expected, f"one on cuda device {self.device}")

    def require_rank(self, op: str, remote: int) -> None:
        """Refuse a rank that there is not, and the own one."""
        if not 0 <= remote < self.size or remote == self.rank:
            expected = f"another rank than {self.rank}, below {self.size}"
            refuse(op, "Remote", expected, str(remote))

    def exchange(
        self, op: str, members: Members, text: str, parts: Sequence[Part], answer: Answer
    ) -> Sequence[Any]:
        """This rank's share of what the first member answers to all."""
        self.require_open(op)
        if members.size == 1:
            return answer([[memoryview(part) for part in parts]])[0]
        with self.named(op):
            return exchange(self._link, members, op, text, parts, answer)

    def agree(self, op: str, members: Members, text: str) -> None:
        """Compare the description of a call with the other ranks', the first time it is made."""
        if (members, text) not in self._agreed:
            self.exchange(op, members, text, (), nothing)
            self._agreed.add((members, text))

    @property
    def mail(self) -> Mail:
        """Messages to and from single ranks."""
        assert self._mail is not None
        return self._mail

    def communicator(self, op: str, members: Members) -> Communicator:
        """NCCL's among these ranks, made by all of them on their current devices."""
        from . import nccl

        found = self._resources.communicators.get(members)
        if found is None:
            with self.named(op), self._resources.initialising():
                found = nccl.connect(self, op, members)
            self._resources.communicators[members] = found
            self.device = found.device
        return found

    @contextmanager
    def named(self, op: str) -> Iterator[None]:
        """Errors of the group with the operator's name."""
        try:
            yield
        except GroupError as error:
            raise GroupError(f"{op}: group: {error}") from None

    @property
    def _link(self) -> Link:
        assert self._resources.link is not None
        return self._resources.link


_of_parents: list[object] = []  # communicators in a forked child, whose end would be the parent's


class _Resources(InChild):
    """What a group has to let go of, which does not know the group: it may be collected.

    A forked child lets go of it at once, without a word to the others: it has no thread that
    listens, and what it did to a connection or a communicator would be its parent's doing.
    """

    def __init__(self, rank: int, on_fault: OnFault) -> None:
        super().__init__()
        self.link: Link | None = None
        self.communicators: dict[Members, Communicator] = {}
        self.failure = ""  # what went wrong on this rank, for the others
        self._rank = rank
        self._on_fault = on_fault
        self._hub: Hub | None = None
        self._is_initialising = False

    def connect(self, size: int, address: Address, secret: bytes, timeout: float) -> None:
        """Join the group, which rank 0 opens."""
        if self._rank == 0:
            self._hub = Hub(size, address, secret, timeout)
            sock = self._hub.attach()
        else:
            sock = connected(address, self._rank, size, secret, timeout)
        self.link = Link(sock, self._rank, timeout)
        self.link.on_fault = self._abort
        self.link.on_tick = self._overdue
        self.link.needs_all = self._uses_nccl
        self.link.waits_for_all()

    def renew(self) -> None:
        """In a child the group has ended, and nothing is left to close."""
        _of_parents.append(list(self.communicators.values()))
        self.communicators.clear()
        self._is_initialising = False
        if self._hub is not None:
            self._hub.abandon()
            self._hub = None
        if self.link is not None:
            self.link.abandon(IN_CHILD)

    @contextmanager
    def initialising(self) -> Iterator[None]:
        """While NCCL connects, there is nothing yet that could be aborted."""
        self._is_initialising = True
        try:
            yield
        finally:
            self._is_initialising = False

    def close(self) -> None:
        """Let the others know, then end everything."""
        link, hub = self.link, self._hub
        is_well = link is None or not (link.fault or self.failure)
        if self.communicators:
            found = self.communicators.values()
            _within(ABORT_TIMEOUT, [item.close if is_well else item.abort for item in found])
        self.communicators.clear()
        if link is not None:
            link.leave(self.failure)
        if hub is not None:
            hub.all_left.wait(LINGER)
            hub.close()
        if link is not None:
            link.close()

    def _uses_nccl(self) -> bool:
        return bool(self.communicators) or self._is_initialising

    def _overdue(self) -> str:
        """What is wrong with calls that are under way on the GPU."""
        for communicator in list(self.communicators.values()):
            words = communicator.trouble()
            if words:
                return f"rank {self._rank}: {words}"
        return ""

    def _abort(self, words: str) -> None:
        """End what is under way on the GPU, so that its stream goes on."""
        if not self._uses_nccl():
            return
        aborts = [found.abort for found in self.communicators.values()]
        is_done = _within(ABORT_TIMEOUT, aborts) and not self._hangs()
        if not is_done and self._on_fault == "exit":
            sys.stderr.write(f"cupy-training-ops: rank {self._rank}: {words}; NCCL hangs\n")
            sys.stderr.flush()
            os._exit(FAILED)

    def _hangs(self) -> bool:
        """Whether NCCL is still connecting, some time after the fault."""
        if not self._is_initialising:
            return False
        finished = threading.Event()
        for _ in range(int(ABORT_TIMEOUT * 10)):
            if not self._is_initialising:
                return False
            finished.wait(0.1)
        return True


def _within(seconds: float, actions: Sequence[Callable[[], None]]) -> bool:
    """Whether actions that may hang came back in time."""

    def act() -> None:
        for action in actions:
            action()

    thread = threading.Thread(target=act, name="cto-nccl", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _given(address: object) -> Address:
    if address is None:
        raise ArgumentError(
            "ProcessGroup: address: expected 'host:port' where rank 0 listens, got None"
        )
    return to_address(address)


def _check(rank: object, size: object, timeout: object, on_fault: object) -> None:
    """The arguments, in the words of all refusals."""
    if not _is_integer(size) or size < 1:  # type: ignore[operator]
        refuse("ProcessGroup", "size", "a number of ranks from 1 on", shown(size))
    if not _is_integer(rank) or not 0 <= rank < size:  # type: ignore[operator]
        refuse("ProcessGroup", "rank", f"an integer from 0 to {size - 1}", shown(rank))  # type: ignore[operator]
    if not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        refuse("ProcessGroup", "timeout", "seconds above 0", shown(timeout))
    if on_fault not in ("exit", "raise"):
        refuse("ProcessGroup", "on_fault", "'exit' or 'raise'", shown(on_fault))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
