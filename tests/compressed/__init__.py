# SPDX-License-Identifier: MIT
"""PyTorch's saved tensors as codes: gradients, what else PyTorch does, launches."""
