# SPDX-License-Identifier: MIT
"""One example for each operator of reduction; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% All
print(cto.all(np.array([True, True])), cto.all(np.array([True, False])))  # [ True] [False]

# %% IsAllFinite
gradients = [np.ones(3, np.float32), np.array([np.inf], np.float32)]
print(cto.is_all_finite(gradients[:1]), cto.is_all_finite(gradients))  # True False
print(cto.is_all_finite(gradients, isnan_only=True))  # True

# %% ReduceAllL2
print(cto.reduce_all_l2([np.array([3, 0], np.float16), np.array([4], np.float16)]))  # 5.0

# %% ReduceSumTraining
x = np.array([[1, 2], [3, 4]], np.float32)
print(cto.reduce_sum_training(x, (0,)))  # [[4. 6.]]
print(cto.reduce_sum_training(x, (0,), keepdims=False))  # [4. 6.]
