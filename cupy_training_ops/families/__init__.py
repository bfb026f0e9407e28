# SPDX-License-Identifier: MIT
"""Families of operators: each with its declarations, plans, NumPy reference and samples."""
