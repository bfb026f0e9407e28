# SPDX-License-Identifier: MIT
"""The engine under ActivationStash and cto.torch: arrays as codes from forward to backward."""
