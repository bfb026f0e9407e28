# SPDX-License-Identifier: MIT
"""One example for each operator of pooling; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% AveragePool
x = np.array([[[1, 3, 5, 7]]], np.float32)
print(cto.average_pool(x, kernel_shape=(2,), strides=(2,)))  # [[[2. 6.]]]

# %% AveragePoolGrad
dy = np.array([[[1, 2, 3]]], np.float32)  # of windows that overlap
print(cto.average_pool_grad(dy, (1, 1, 4), kernel_shape=(2,)))  # [[[0.5 1.5 2.5 1.5]]]

# %% GlobalAveragePool
x = np.array([[[[1, 3], [5, 7]]]], np.float32)
print(cto.global_average_pool(x))  # [[[[4.]]]]

# %% MaxPool
x = np.array([[[[1, 2, 0], [4, 3, 5]]]], np.float32)
print(cto.max_pool(x, kernel_shape=(2, 2)))
# > (array([[[[4., 5.]]]], dtype=float32), array([[[[3, 5]]]]))

# %% MaxPoolGrad
dy, indices = np.array([[[[0.5, 2]]]], np.float32), np.array([[[[3, 5]]]])
print(cto.max_pool_grad(dy, indices, (1, 1, 2, 3), kernel_shape=(2, 2)))
# > [[[[0.  0.  0. ]
# >    [0.5 0.  2. ]]]]
