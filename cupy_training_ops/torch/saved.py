# SPDX-License-Identifier: MIT
"""What is held for saved tensors: codes, or the tensor itself."""

from __future__ import annotations

import weakref
from typing import Any, TypeAlias

from torch import Tensor, UntypedStorage

from ..codecs.kept.entry import Entry
from .account import Account
from .coding import Stream, current_stream
from .kinds import WHOLE, Kind, Look
from .lending import AT_ANY_TIME

# A tensor that stays as it is, and the version that it was saved in.
Passed: TypeAlias = tuple[Tensor, int]


def passed(x: Tensor) -> Passed:
    """What is held of a tensor that stays as it is.

    A tensor holds its own graph, which would keep itself alive without a backward where the tensor
    is a result, or is written after it was saved.
    """
    return x if x.is_leaf else x.detach(), x._version


def lent(saved: Passed) -> Tensor:
    """The tensor, if nobody wrote into it."""
    x, version = saved
    if x._version != version:
        raise RuntimeError(
            f"one of the variables needed for gradient computation has been modified by an "
            f"inplace operation: {x.type()} {list(x.shape)} is at version {x._version}; expected "
            f"version {version} instead"
        )
    return x


class Kept(Entry):
    """One activation; all that saved it hold the same."""

    uses = left = 1  # how many saved it, and how many of them are still to ask
    decoded: Tensor | None = None  # for the next use, where that follows at once
    decoded_version = 0
    copy: Tensor | None = None  # of what was encoded first, where that is checked
    centred = False  # features are, by the norm that took the product's result
    account: Account  # `code` is a tensor or None, `original` a Passed or None

    def __init__(
        self,
        storage: UntypedStorage,
        version: int,
        kind: Kind,
        stream: Stream,
        history: int | None,
        lent_at: object,
        account: Account,
    ) -> None:
        """history: the number of the node that made the tensor. lent_at: when its memory was."""
        self.storage, self.version, self.stream = weakref.ref(storage), version, stream
        self.history, self.lent_at = history, lent_at
        self.kind, self.account = kind, account
        self.look = kind.look  # of the first that saved it

    def is_of(
        self,
        storage: UntypedStorage,
        version: int,
        look: Look,
        stream: Stream,
        history: int | None,
        lent_at: object,
    ) -> bool:
        """Return True if it is of the same bits, and codes are there on the stream.

        Whatever else may write the memory was seen, and has not begun since. Dense memory is the
        same under any shape.
        """
        own = self.look
        return (
            self.storage() is storage
            and self.version == version
            and self.history == history
            and self.lent_at is lent_at is not AT_ANY_TIME
            and self.stream is stream
            and own.size == look.size
            and own.dtype is look.dtype
        )

    def __del__(self) -> None:
        if self.code is not None:
            self.account.add(-self.code.nbytes)

    @property
    def rank(self) -> int:
        """How much of the tensor is there."""
        return WHOLE if self.code is None else self.kind.rank

    def encoded(self, kind: Kind, code: Tensor) -> None:
        """Hold codes, in place of shorter ones."""
        if self.code is not None:
            self.account.undone(self.kind, self.code.nbytes)
        self.kind, self.code, self.decoded = kind, code, None
        self.account.encoded(kind)

    def whole(self, original: Passed, reason: str, consumer: str) -> None:
        """Hold the tensor itself."""
        self.original = original
        if self.code is not None:
            self.account.undone(self.kind, self.code.nbytes)
            self.code = self.decoded = None
        self.account.passed(reason, self.kind.nbytes, consumer)

    def again(self) -> None:
        """It is saved once more."""
        self.uses += 1
        self.left += 1
        if self.code is not None:
            self.account.again(self.kind)

    def failed(self, waiting: Any, lack: str) -> None:
        """Hold the tensor alone."""
        consumer = waiting.kind.use.consumer
        self.account.failed(consumer, lack)
        self.whole(self.original, "guard", consumer)

    def shorten(self, nbytes: int) -> None:
        """Memory goes back on the stream that it is of, where that is current."""
        if self.stream is current_stream(self.kind.index):
            super().shorten(nbytes)

    def cut(self, nbytes: int) -> object:
        """By PyTorch's allocator."""
        return self.code[:nbytes].clone()
