# SPDX-License-Identifier: MIT
"""Sample inputs and a comparison that can fail, for tests, the benchmark and `verify`."""
