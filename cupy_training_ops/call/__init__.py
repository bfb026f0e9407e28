# SPDX-License-Identifier: MIT
"""The way of a call: arguments are bound, checked and planned for, and what is planned runs."""
