# SPDX-License-Identifier: MIT
"""No cases: what is computed is the caller's function."""

from __future__ import annotations

from . import Case

CASES: list[Case] = []
