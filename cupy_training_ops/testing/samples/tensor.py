# SPDX-License-Identifier: MIT
"""Tensor movement: views, joining, splitting, slicing, padding, resizing."""

from __future__ import annotations

from . import Sample

SAMPLES: dict[str, tuple[Sample, ...]] = {}
