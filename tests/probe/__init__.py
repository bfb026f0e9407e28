# SPDX-License-Identifier: MIT
"""Operators that exist to prove the frame, with kernels beside them."""
