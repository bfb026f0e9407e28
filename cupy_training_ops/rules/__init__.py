# SPDX-License-Identifier: MIT
"""Arithmetic that families share, and that both providers follow."""
