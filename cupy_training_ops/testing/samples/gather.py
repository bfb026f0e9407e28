# SPDX-License-Identifier: MIT
"""Gradients of the gather operators: sums of slices that met in one place."""

from __future__ import annotations

from . import Sample

SAMPLES: dict[str, tuple[Sample, ...]] = {}
