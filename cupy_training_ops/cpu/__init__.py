# SPDX-License-Identifier: MIT
"""The CPU provider: one NumPy function an operator, the same families as `ops/`."""
