# SPDX-License-Identifier: MIT
"""Python functions of the caller's that operators run: registered by name, or split in two."""
