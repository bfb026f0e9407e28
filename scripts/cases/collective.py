# SPDX-License-Identifier: MIT
"""None here: collectives need several ranks, see scripts/collective_benchmark.py."""

from __future__ import annotations

from . import Case

CASES: tuple[Case, ...] = ()
