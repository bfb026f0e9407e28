# SPDX-License-Identifier: MIT
"""One example for each operator of rotary; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% RotaryHalves
x = np.array([[[[1, 0, 0, 1]]]], np.float32)  # one of a batch, one head, one row: two pairs
angles = np.radians([[[90, 0, 90, 0]]])
cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
# The first and third element turn by 90 degrees, the others stay.
print(cto.rotary_halves(x, cos, sin).round(3))  # [[[[0. 0. 1. 1.]]]]

# %% RotaryHalvesGrad
angles = np.radians([[[90, 0, 90, 0]]])
cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
dy = np.array([[[[0, 0, 1, 1]]]], np.float32)
print(cto.rotary_halves_grad(dy, cos, sin).round(3))  # [[[[1. 0. 0. 1.]]]]
