# SPDX-License-Identifier: MIT
"""One example for each operator of padding; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% FlattenAndUnpad
x = np.array([[1, 2, 0], [3, 0, 0]], np.float32)  # two sequences, padded to three
rows, shape = cto.flatten_and_unpad(x, np.array([0, 1, 3]))
print(rows, shape)  # [1. 2. 3.] [2 3]

# %% PadAndUnflatten
rows = np.array([1, 2, 3], np.float32)
print(cto.pad_and_unflatten(rows, np.array([0, 1, 3]), (2, 3)))
# > [[1. 2. 0.]
# >  [3. 0. 0.]]

# %% SliceGrad
dy = np.array([[1, 2]], np.float32)  # of x[1:2, ::2]
print(cto.slice_grad(dy, (2, 4), (1, 0), (2, 4), steps=(1, 2)))
# > [[0. 0. 0. 0.]
# >  [1. 0. 2. 0.]]
