# SPDX-License-Identifier: MIT
"""Policies of compiled graphs: the format for each need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .consumers import Need, Uses
from .formats import INT4, INT4_SIGNED, INT8, INT8_SIGNED, Format

SIGNED = {INT8: INT8_SIGNED, INT4: INT4_SIGNED}


@dataclass(frozen=True)
class GraphPolicy:
    """Formats by need; values with other needs are not encoded."""

    name: str
    formats: Mapping[Need, Format]

    def format_for(self, uses: Uses) -> Format | None:
        chosen = self.formats.get(uses.need)
        return SIGNED[chosen] if chosen and uses.signs else chosen


def _policy(name: str, **formats: Format) -> GraphPolicy:
    by_need = {Need[need.upper()]: chosen for need, chosen in formats.items()}
    return GraphPolicy(name, MappingProxyType(by_need))


POLICIES = {
    policy.name: policy
    for policy in (
        _policy("default", linear=INT8, smooth=INT8),
        _policy("wide", linear=INT8, smooth=INT8, mixed=INT8, scores=INT8),
        _policy("products", linear=INT8),
        _policy("small", linear=INT4, smooth=INT8),
    )
}
