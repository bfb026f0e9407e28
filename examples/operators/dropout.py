# SPDX-License-Identifier: MIT
"""One example for each operator of dropout; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% BiasDropout
x, bias = np.zeros((2, 4), np.float32), np.array([1, 2, 3, 4], np.float32)
residual = np.full_like(x, 100)
y, mask = cto.bias_dropout(x, bias, residual, ratio=0.5, training_mode=True, seed=5)
print(y)
# > [[100. 104. 100. 100.]
# >  [102. 104. 100. 108.]]
print(mask)
# > [[False  True False False]
# >  [ True  True False  True]]

# %% BiasSoftmaxDropout
scores = np.zeros((2, 2, 4), np.float32)  # heads, queries, keys
bias = np.array([[[0, 0, 0, -np.inf]]], np.float32) + np.zeros((1, 2, 1), np.float32)
y, mask, p = cto.bias_softmax_dropout(scores, bias, 0.5, axis=2, is_inner_broadcast=False, seed=5)
# The last key is masked.
print(p[0].round(3))
# > [[0.333 0.333 0.333 0.   ]
# >  [0.333 0.333 0.333 0.   ]]
print(y[0].round(3))
# > [[0.    0.667 0.    0.   ]
# >  [0.667 0.667 0.    0.   ]]

# %% BitmaskBiasDropout
x, bias = np.zeros((2, 4), np.float32), np.array([1, 2, 3, 4], np.float32)
y, mask = cto.bitmask_bias_dropout(x, bias, ratio=0.5, training_mode=True, seed=5)
print(y)
# > [[0. 4. 0. 0.]
# >  [2. 4. 0. 8.]]
# The first element has the lowest bit.
print([f"{word:032b}" for word in mask])  # ['00000000000000000000000010110010']

# %% BitmaskDropout
x = np.arange(1, 9, dtype=np.float32)
y, mask = cto.bitmask_dropout(x, ratio=0.5, training_mode=True, seed=5)
print(y)  # [ 0.  4.  0.  0. 10. 12.  0. 16.]
# A word for 32 elements.
print([f"{word:032b}" for word in mask])  # ['00000000000000000000000010110010']

# %% BitmaskDropoutGrad
x = np.arange(1, 9, dtype=np.float32)
_, mask = cto.bitmask_dropout(x, ratio=0.5, training_mode=True, seed=5)
print(cto.bitmask_dropout_grad(np.ones_like(x), mask, ratio=0.5))  # [0. 2. 0. 0. 2. 2. 0. 2.]

# %% Dropout
x = np.arange(1, 9, dtype=np.float32)
y, mask = cto.dropout(x, ratio=0.5, training_mode=True, seed=5)
print(y)  # [ 0.  4.  0.  0. 10. 12.  0. 16.]
layer = cto.Dropout(seed=5)  # an instance draws anew at each call
for _ in range(2):
    print(layer(x, 0.5, True)[0])
# > [ 0.  4.  0.  0. 10. 12.  0. 16.]
# > [ 2.  4.  0.  0. 10.  0.  0.  0.]

# %% DropoutGrad
x = np.arange(1, 9, dtype=np.float32)
_, mask = cto.dropout(x, ratio=0.5, training_mode=True, seed=5)
print(cto.dropout_grad(np.ones_like(x), mask, ratio=0.5))  # [0. 2. 0. 0. 2. 2. 0. 2.]

# %% SoftmaxDropoutGrad
scores, bias = np.array([[0, 1, 2]], np.float32), np.zeros((1, 3), np.float32)
_, mask, p = cto.bias_softmax_dropout(scores, bias, 0.5, is_inner_broadcast=False, seed=5)
dy = np.array([[0, 1, 0]], np.float32)
print(mask)  # [[False  True False]]
print(cto.softmax_dropout_grad(dy, mask, p, 0.5, axis=1).round(3))  # [[-0.044  0.37  -0.326]]
