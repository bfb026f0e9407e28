# SPDX-License-Identifier: MIT
"""What is held for saved tensors: codes, or the tensor itself."""

from __future__ import annotations

import weakref
from typing import Any, TypeAlias

from torch import Tensor, UntypedStorage

from ..codecs.kept.entry import Entry
from .account import Account
from .coding import Stream, current_stream
from .kinds import WHOLE, Kind

# A tensor that stays as it is, and the version that it was saved in.
Passed: TypeAlias = tuple[Tensor, int]


def passed(x: Tensor) -> Passed:
    """What is held of a tensor that stays as it is.

    A tensor holds its own graph, which would keep itself alive without a backward where the tensor
    is a result, or is written after it was saved.
    """
    return x if x.grad_fn is None else x.detach(), x._version


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
    centred = False  # features are, by the norm that took the product's result
    account: Account  # `code` is a tensor or None, `original` a Passed or None

    def __init__(
        self, storage: UntypedStorage, kind: Kind, stream: Stream, account: Account
    ) -> None:
        self.kind, self.stream, self.account = kind, stream, account
        self.storage = weakref.ref(storage)

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
