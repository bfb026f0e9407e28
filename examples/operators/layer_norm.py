# SPDX-License-Identifier: MIT
"""One example for each operator of layer_norm; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% InvertibleLayerNormalizationGrad
x = np.array([[1, 2, 3, 6]], np.float32)
scale, bias = np.full(4, 2, np.float32), np.ones(4, np.float32)
y, _, inv_std = cto.layer_normalization(x, scale, bias)
dy = np.array([[1, 0, 0, 0]], np.float32)
dx, d_scale, d_bias = cto.invertible_layer_normalization_grad(dy, y, scale, bias, inv_std)
# From the output: x need not be kept.
print(dx.round(3))  # [[ 0.496 -0.42  -0.267  0.191]]

# %% LayerNormalization
x = np.array([[1, 2, 3, 6], [0, 0, 0, 4]], np.float32)
y, mean, inv_std = cto.layer_normalization(x, np.ones(4, np.float32), np.zeros(4, np.float32))
print(y.round(3))
# > [[-1.069 -0.535  0.     1.604]
# >  [-0.577 -0.577 -0.577  1.732]]
print(mean.ravel(), inv_std.ravel().round(3))  # [3. 1.] [0.535 0.577]

# %% LayerNormalizationGrad
x, scale = np.array([[1, 2, 3, 6]], np.float32), np.full(4, 2, np.float32)
_, mean, inv_std = cto.layer_normalization(x, scale)
dy = np.array([[1, 0, 0, 0]], np.float32)
dx, d_scale, d_bias = cto.layer_normalization_grad(dy, x, scale, mean, inv_std)
print(dx.round(3))  # [[ 0.496 -0.42  -0.267  0.191]]
print(d_scale.round(3), d_bias)  # [-1.069  0.     0.     0.   ] [1. 0. 0. 0.]

# %% SimplifiedLayerNormalization
x = np.array([[3, 4]], np.float32)
y, inv_std = cto.simplified_layer_normalization(x, np.ones(2, np.float32))
# Over the root of the mean square, 3.536.
print(y.round(3), inv_std.round(3))  # [[0.849 1.131]] [[0.283]]

# %% SimplifiedLayerNormalizationGrad
x, scale = np.array([[3, 4]], np.float32), np.ones(2, np.float32)
_, inv_std = cto.simplified_layer_normalization(x, scale)
dy = np.array([[1, 0]], np.float32)
dx, d_scale = cto.simplified_layer_normalization_grad(dy, x, scale, inv_std)
print(dx.round(3), d_scale.round(3))  # [[ 0.181 -0.136]] [0.849 0.   ]
