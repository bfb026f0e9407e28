# SPDX-License-Identifier: MIT
"""One example for each operator of resize; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% ResizeGrad
x = np.zeros((1, 1, 1, 2), np.float32)  # only its shape counts
dy = np.array([[[[1, 0, 0, 0]]]], np.float32)  # of an output twice as wide
print(cto.resize_grad(dy, x, scales=(1, 1, 1, 2)))  # [[[[1. 0.]]]]
dy = np.array([[[[0, 1, 0, 0]]]], np.float32)
# Between the two pixels.
print(cto.resize_grad(dy, x, scales=(1, 1, 1, 2)))  # [[[[0.75 0.25]]]]
