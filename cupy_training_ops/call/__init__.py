# SPDX-License-Identifier: MIT
"""Calls of operators: arguments are bound and checked, a plan is made, and runs."""
