# SPDX-License-Identifier: MIT
"""One example for each operator of tensor; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% ConcatTraining
a, b = np.array([[1], [2]]), np.array([[3, 4], [5, 6]])
y, lengths = cto.concat_training([a, b], axis=1)
print(y)
# > [[1 3 4]
# >  [2 5 6]]
# On the host, for SplitTraining of the gradient.
print(lengths)  # [1 2]

# %% SplitTraining
dy = np.array([[1, 3, 4], [2, 5, 6]])
for part in cto.split_training(dy, (1, 2), axis=1):
    print(part)
# > [[1]
# >  [2]]
# > [[3 4]
# >  [5 6]]

# %% View
flat = np.arange(5.0)  # the gradients of two parameters, in one buffer
w, b = cto.view(flat, [(2, 2), (1,)])
w += 10
print(flat)  # [10. 11. 12. 13.  4.]
