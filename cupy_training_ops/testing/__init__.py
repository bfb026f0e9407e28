# SPDX-License-Identifier: MIT
"""What tests, the benchmark and `verify` share: sample inputs and a comparison that can fail."""
