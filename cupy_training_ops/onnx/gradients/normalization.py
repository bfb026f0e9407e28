# SPDX-License-Identifier: MIT
"""Gradients of normalization."""

from __future__ import annotations
