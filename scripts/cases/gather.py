# SPDX-License-Identifier: MIT
"""Benchmark cases of the gather family."""

from __future__ import annotations

from . import Case

CASES: list[Case] = []
