# SPDX-License-Identifier: MIT
"""One example for each operator of softmax; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% LogSoftmax
x = np.array([[0, 0], [3, 1]], np.float32)
print(cto.log_softmax(x).round(3))
# > [[-0.693 -0.693]
# >  [-0.127 -2.127]]

# %% LogSoftmaxGrad
y = cto.log_softmax(np.array([[0, 1, 2]], np.float32))
dy = np.array([[1, 0, 0]], np.float32)
# A row is all dimensions from the axis on.
print(cto.log_softmax_grad(dy, y).round(3))  # [[ 0.91  -0.245 -0.665]]

# %% LogSoftmaxGrad_13
y = cto.log_softmax(np.array([[0, 1, 2]], np.float32))
dy = np.array([[1, 0, 0]], np.float32)
print(cto.log_softmax_grad_13(dy, y).round(3))  # [[ 0.91  -0.245 -0.665]]

# %% Softmax
x = np.array([[0, 0], [np.log(3), 0]], np.float32)
print(cto.softmax(x))
# > [[0.5  0.5 ]
# >  [0.75 0.25]]
print(cto.softmax(x, axis=0).round(3))
# > [[0.25 0.5 ]
# >  [0.75 0.5 ]]

# %% SoftmaxGrad
y = np.full((1, 2, 2), 0.25, np.float32)
dy = np.array([[[1, 0], [0, 0]]], np.float32)
# A row is all dimensions from axis 1 on: four elements.
print(cto.softmax_grad(dy, y))
# > [[[ 0.1875 -0.0625]
# >   [-0.0625 -0.0625]]]

# %% SoftmaxGrad_13
y = cto.softmax(np.array([[0, 1, 2]], np.float32))
dy = np.array([[1, 0, 0]], np.float32)
print(cto.softmax_grad_13(dy, y).round(3))  # [[ 0.082 -0.022 -0.06 ]]
