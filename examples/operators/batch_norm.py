# SPDX-License-Identifier: MIT
"""One example for each operator of batch_norm; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% BatchNormInternal
x = np.array([[[1, 2, 3]], [[4, 5, 6]]], np.float32)  # two images of one channel
one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
mean, var = np.zeros(1, np.float32), np.ones(1, np.float32)
y, mean, var, saved_mean, saved_inv_std = cto.batch_norm_internal(x, one, zero, mean, var)
print(y.ravel().round(3))  # [-1.464 -0.878 -0.293  0.293  0.878  1.464]
# The running statistics: 0.9 of what they were, 0.1 of the batch's 3.5.
print(mean.round(3), var.round(3))  # [0.35] [1.25]
# For the gradient.
print(saved_mean, saved_inv_std.round(3))  # [3.5] [0.586]

# %% BatchNormRelu
x = np.array([[[1, 2, 3]], [[4, 5, 6]]], np.float32)
one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
mean, var, residual = zero.copy(), one.copy(), np.full((2, 1, 3), 0.5, np.float32)
y, saved_mean, saved_inv_std = cto.batch_norm_relu(x, one, zero, mean, var, residual)
print(y.ravel().round(3))  # [0.    0.    0.207 0.793 1.378 1.964]
# The running statistics were updated in place.
print(mean.round(3), var.round(3))  # [0.35] [1.25]

# %% BatchNormReluGrad
x = np.array([[[1, 2, 3]], [[4, 5, 6]]], np.float32)
one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
y, mean, inv_std = cto.batch_norm_relu(x, one, zero, zero.copy(), one.copy())
dy = np.array([[[1, 0, 0]], [[1, 0, 0]]], np.float32)
dx, d_scale, d_bias, d_residual = cto.batch_norm_relu_grad(dy, x, y, one, mean, inv_std)
# Where y is 0, no gradient passes.
print(d_residual.ravel())  # [0. 0. 0. 1. 0. 0.]
print(dx.ravel().round(3))  # [-0.056 -0.072 -0.089  0.48  -0.123 -0.139]
print(d_scale.round(3), d_bias)  # [0.293] [1.]

# %% BatchNormalizationGrad
x = np.array([[[1, 2, 3]], [[4, 5, 6]]], np.float32)
one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
_, _, _, mean, inv_std = cto.batch_norm_internal(x, one, zero, zero.copy(), one.copy())
dy = np.array([[[1, 0, 0]], [[0, 0, 0]]], np.float32)
dx, d_scale, d_bias = cto.batch_normalization_grad(dy, x, one, mean, inv_std, epsilon=1e-5)
print(dx.ravel().round(3))  # [ 0.279 -0.223 -0.139 -0.056  0.028  0.112]
print(d_scale.round(3), d_bias)  # [-1.464] [1.]
