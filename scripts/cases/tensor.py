# SPDX-License-Identifier: MIT
"""Benchmark cases of the tensor family."""

from __future__ import annotations

from . import Case

CASES: list[Case] = []
