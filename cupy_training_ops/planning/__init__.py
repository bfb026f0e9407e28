# SPDX-License-Identifier: MIT
"""Plans that operators of several families share, one module for each shape of work."""
