# SPDX-License-Identifier: MIT
"""One example for each operator of gather; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% GatherElementsGrad
indices = np.array([[0, 0], [2, 1]])  # y[i, j] = x[indices[i, j], j]
dy = np.array([[1, 2], [3, 4]], np.float32)
print(cto.gather_elements_grad(dy, (3, 2), indices))
# > [[1. 2.]
# >  [0. 4.]
# >  [3. 0.]]

# %% GatherGrad
ids = np.array([2, 0, 2])  # rows that were looked up in a table of four
dy = np.array([[1, 1], [2, 2], [3, 3]], np.float32)
# Row 2 was used twice.
print(cto.gather_grad((4, 2), ids, dy))
# > [[2. 2.]
# >  [0. 0.]
# >  [4. 4.]
# >  [0. 0.]]

# %% GatherNDGrad
indices = np.array([[0, 1], [2, 0], [0, 1]])  # positions in an array of shape (3, 2)
print(cto.gather_nd_grad((3, 2), indices, np.array([1, 2, 3], np.float32)))
# > [[0. 4.]
# >  [0. 0.]
# >  [2. 0.]]
