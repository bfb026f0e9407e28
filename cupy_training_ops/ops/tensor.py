# SPDX-License-Identifier: MIT
"""Tensor movement: views, joining, splitting, slicing, padding, resizing."""

from __future__ import annotations

from ..op import Op

OPS: dict[str, type[Op]] = {}
