# SPDX-License-Identifier: MIT
"""Declarations: inputs, outputs and attributes, and which types go together."""
