# SPDX-License-Identifier: MIT
"""Operator classes, one module a family; each ends in its literal table OPS."""
