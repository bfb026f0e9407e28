# SPDX-License-Identifier: MIT
"""Which arrays a codec takes."""

from __future__ import annotations

from collections.abc import Sequence

from ..codecs.safetensors_file import UNREAD
from ..codecs.table import Codec
from ..dtypes import BFLOAT16, Dtype
from ..errors import cut
from .inputs import Member


def not_taken(member: Member, codecs: Sequence[Codec], raw: bool) -> str | None:
    """Why what a file holds is left out, without reading it; or None.

    Where no codecs are asked for, floating-point arrays alone are of interest.
    """
    dtype = member.dtype(raw)
    if dtype is None:
        return "no array"
    if dtype in UNREAD.values():
        return f"{dtype} cannot be read"
    if any(dtype in codec.dtypes for codec in codecs) or (not codecs and is_floating(dtype)):
        return None
    hint = "; --dtype bfloat16 reads raw two-byte arrays" if dtype == "V2" else ""
    what = "no type that a codec asked for takes" if codecs else "no floating-point type"
    return f"{cut(str(dtype))} is {what}{hint}"


def is_floating(dtype: Dtype) -> bool:
    """Also of a type that no codec takes; bfloat16 has no such kind."""
    return dtype.kind == "f" or dtype == BFLOAT16
