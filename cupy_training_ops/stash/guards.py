# SPDX-License-Identifier: MIT
"""Whether codes do for what an array is needed for: what an encoder measured beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..backend import Array
from ..codecs.table import Codec
from ..declare.schema import Spec
from ..families.gist_guard.operators import GistGuardedMsfp15Encoder

# Squares of an error's share of the deviation that its consumer sees.
TILE = 0.03**2  # of the distances from the means of tiles, or of features and channels
GROUP = 0.06**2  # of those of each normalised group
GUARDED = ("linear", "normalised")


def encoding(codec: Codec, need: str, x: Spec, options: Mapping[str, object]) -> tuple[Any, bool]:
    """The encoder for a need, and whether it measures."""
    if codec.name != "msfp15_signed" or need not in GUARDED or not x.size:
        return codec.encoding(**options), False
    row = x.shape[-1] if x.shape else 1
    grouping = (1, x.size // row, row) if need == "normalised" else None
    return GistGuardedMsfp15Encoder.shared(grouping=grouping, **options), True


def flaw(codec: Codec, x: Any, guard: Any, need: str) -> Callable[[], Array] | None:
    """What finds 1 where codes do not do, else 0, in eight bytes where the array is."""
    if codec.name == "index4" and x.size:
        return lambda: _bytes((x < 0) | (x > 15))
    if guard is None:
        return None

    def bad() -> Any:
        good = guard[0] <= TILE * guard[1]
        if need == "normalised":
            good = good & (guard[3] <= GROUP)
        return _bytes(~good)

    return bad


def _bytes(found: Any) -> Any:
    xp = np if isinstance(found, np.ndarray | np.generic) else sys.modules["cupy"]
    return xp.asarray(found).any().astype(np.int64).reshape(1).view(np.uint8)
