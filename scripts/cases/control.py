# SPDX-License-Identifier: MIT
"""No cases: nothing is computed and nothing moves."""

from __future__ import annotations

from . import Case

CASES: list[Case] = []
