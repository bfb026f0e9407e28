# SPDX-License-Identifier: MIT
"""Policies of compiled graphs: the format for each need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from .consumers import Need, Uses
from .formats import INT4, INT4_SIGNED, INT8, INT8_CENTRED, INT8_SIGNED, Format

# Formats that keep signs, by those that may round them to 0.
SIGNED = {INT8: INT8_SIGNED, INT4: INT4_SIGNED}


@dataclass(frozen=True)
class GraphPolicy:
    """Formats by need; values with other needs are not encoded.

    narrow: needs for which float32 values are not encoded; codes of 16-bit ones are about as far
    off as these are by their own rounding.
    """

    name: str
    formats: Mapping[Need, Format]
    narrow: frozenset[Need] = frozenset()

    def format_for(self, uses: Uses, dtype: torch.dtype) -> Format | None:
        """Return the format of codes for a value with these uses; None: it is not encoded."""
        if dtype is torch.float32 and uses.need in self.narrow:
            return None
        chosen = self.formats.get(uses.need)
        return SIGNED.get(chosen) if chosen and uses.signs else chosen


def _policy(name: str, narrow: Iterable[Need] = (), **formats: Format) -> GraphPolicy:
    """Make a policy; formats: by names of needs in lower case."""
    by_need = {Need[need.upper()]: chosen for need, chosen in formats.items()}
    return GraphPolicy(name, MappingProxyType(by_need), frozenset(narrow))


POLICIES = {
    policy.name: policy
    for policy in (
        _policy("default", {Need.MIXED}, linear=INT8, smooth=INT8, mixed=INT8_CENTRED),
        _policy("wide", linear=INT8, smooth=INT8, mixed=INT8_CENTRED, scores=INT8_CENTRED),
        _policy("products", linear=INT8),
        _policy("small", {Need.MIXED}, linear=INT4, smooth=INT8, mixed=INT8_CENTRED),
    )
}
