# SPDX-License-Identifier: MIT
"""An array as channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...declare.schema import Shape, Spec
from ...dtypes import Dtype

PIECE_NBYTES = 64  # from which on neighbouring elements are walked as they lie


@dataclass(frozen=True)
class Channels:
    """An array (outer, n, length) whose channels are along its middle."""

    outer: int
    n: int
    length: int

    @classmethod
    def of(cls, shape: Shape) -> Channels:
        """Channels are along the second axis; an array of rank 1 is one. One lies in one piece."""
        if len(shape) == 1:
            return cls(1, 1, shape[0])
        if shape[1] == 1:
            return cls(1, 1, math.prod(shape))
        return cls(shape[0], shape[1], math.prod(shape[2:]))

    @classmethod
    def of_arrays(cls, arrays: Sequence[Spec]) -> Channels:
        """What arrays of one shape that lie alike are in memory; with the channels last they are
        rows of one element for each."""
        spec = arrays[0]
        if not any(array.channels_last for array in arrays):
            return cls.of(spec.shape)
        channels = spec.shape[1]
        return cls.of((spec.size // max(1, channels), channels))

    @property
    def elements(self) -> int:
        """Of one channel."""
        return self.outer * self.length

    def fit_pieces(self, t: Dtype) -> bool:
        """Whether the elements of a channel are walked as they lie, and not those of a row."""
        return self.n == 1 or self.length * t.itemsize >= PIECE_NBYTES
