# SPDX-License-Identifier: MIT
"""Arrays with their channels last, where no tiles read or write them so."""

from __future__ import annotations

from collections.abc import Callable

from ...declare.schema import Spec
from ...dtypes import Dtype
from ...plan import Launch, Scratch
from ...planning import other_layouts
from .plan_variants import small_variant


def have_channels_last(*arrays: Spec | None) -> bool:
    """Whether some have."""
    return any(spec is not None and spec.channels_last for spec in arrays)


class Copies(other_layouts.Copies):
    """C-contiguous arrays in scratch memory, or staged ones with their channels side by side."""

    def __init__(self, dtype: Dtype) -> None:
        super().__init__("conv__transpose", small_variant(dtype).slots)

    def staged(self, spec: Spec, staging: Callable[[Spec, Scratch], Launch]) -> Spec:
        """What stands for an array that is read, with its channels side by side."""
        copy, piece = self.copy(spec, last=True)
        self.before.append(staging(spec, piece))
        return copy
