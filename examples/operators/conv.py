# SPDX-License-Identifier: MIT
"""One example for each operator of conv; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% Conv
x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
w = np.array([[[[0, 0], [0, 1]]]], np.float32)
# The pixel to the lower right.
print(cto.conv(x, w)[0, 0])
# > [[4. 5.]
# >  [7. 8.]]
y = cto.conv(x, w, np.array([100], np.float32), pads=(0, 0, 1, 1), strides=(2, 2))
print(y[0, 0])
# > [[104. 100.]
# >  [100. 100.]]

# %% ConvGrad
x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
w = np.array([[[[1, 2], [3, 4]]]], np.float32)
dx, dw, db = cto.conv_grad(np.ones_like(cto.conv(x, w)), x, w)
# By how many weights each pixel was multiplied.
print(dx[0, 0])
# > [[ 1.  3.  2.]
# >  [ 4. 10.  6.]
# >  [ 3.  7.  4.]]
print(dw[0, 0], db)
# > [[ 8. 12.]
# >  [20. 24.]] [4.]

# %% ConvTranspose
x = np.array([[[[1, 2], [3, 4]]]], np.float32)
w = np.array([[[[1, 1], [1, 0]]]], np.float32)
print(cto.conv_transpose(x, w, strides=(2, 2))[0, 0])
# > [[1. 1. 2. 2.]
# >  [1. 0. 2. 0.]
# >  [3. 3. 4. 4.]
# >  [3. 0. 4. 0.]]

# %% ConvTransposeGrad
x = np.array([[[[1, 2], [3, 4]]]], np.float32)
w = np.array([[[[1, 1], [1, 0]]]], np.float32)
y = cto.conv_transpose(x, w, strides=(2, 2))
dx, dw, db = cto.conv_transpose_grad(np.ones_like(y), x, w, strides=(2, 2))
print(dx[0, 0])
# > [[3. 3.]
# >  [3. 3.]]
print(dw[0, 0], db)
# > [[10. 10.]
# >  [10. 10.]] [16.]
