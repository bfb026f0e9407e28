# SPDX-License-Identifier: MIT
"""Ranks that work together: how they meet, agree, exchange NumPy arrays and notice faults."""

from .group import ProcessGroup

__all__ = ["ProcessGroup"]
