# SPDX-License-Identifier: MIT
"""One example for each operator of activation; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% BiasFastGeluGrad_dX
x, bias = np.array([[-1, 0], [1, 2]], np.float32), np.array([1, -1], np.float32)
dx = cto.bias_fast_gelu_grad_dx(np.ones_like(x), x, bias)
print(dx.round(3))
# > [[ 0.5   -0.083]
# >  [ 1.086  1.083]]
# The gradient of the bias.
print(dx.sum(axis=0).round(3))  # [1.586 1.   ]

# %% BiasGelu
x, bias = np.array([[-1, 0], [1, 2]], np.float32), np.array([1, -1], np.float32)
print(cto.bias_gelu(x, bias).round(3))
# > [[ 0.    -0.159]
# >  [ 1.954  0.841]]

# %% BiasGeluGrad_dX
x, bias = np.array([[-1, 0], [1, 2]], np.float32), np.array([1, -1], np.float32)
dx = cto.bias_gelu_grad_dx(np.ones_like(x), x, bias)
print(dx.round(3))
# > [[ 0.5   -0.083]
# >  [ 1.085  1.083]]
# The gradient of the bias.
print(dx.sum(axis=0).round(3))  # [1.585 1.   ]

# %% FastGeGlu
gate, value = np.array([-3, -1, 0, 1, 3], np.float32), np.full(5, 2, np.float32)
print(cto.fast_ge_glu(gate, value).round(3))  # [-0.007 -0.318  0.     1.682  5.993]

# %% FastGeGluGrad
gate, value = np.array([-1, 1], np.float32), np.full(2, 3, np.float32)
of_gate, of_value = cto.fast_ge_glu_grad(np.ones_like(gate), gate, value)
print(of_gate.round(3), of_value.round(3))  # [-0.249  3.249] [-0.159  0.841]

# %% FastGelu
x = np.array([-3, -1, 0, 1, 3], np.float32)
print(cto.fast_gelu(x).round(3))  # [-0.004 -0.159  0.     0.841  2.996]
# Of x + 2.
print(cto.fast_gelu(x, np.full(5, 2, np.float32)).round(3))  # [-0.159  0.841  1.955  2.996  5.   ]

# %% FastGeluGrad
x = np.array([-3, -1, 0, 1, 3], np.float32)
print(cto.fast_gelu_grad(np.ones_like(x), x).round(3))  # [-0.012 -0.083  0.5    1.083  1.012]

# %% Gelu
x = np.array([-3, -1, 0, 1, 3], np.float32)
print(cto.gelu(x).round(3))  # [-0.004 -0.159  0.     0.841  2.996]

# %% GeluGrad
x = np.array([-3, -1, 0, 1, 3], np.float64)
print(cto.gelu_grad(np.ones(5), x).round(3))  # [-0.012 -0.083  0.5    1.083  1.012]
# The slope of Gelu there, by a small difference.
step = 1e-6
print(((cto.gelu(x + step) - cto.gelu(x - step)) / (2 * step)).round(3))
# > [-0.012 -0.083  0.5    1.083  1.012]

# %% LeakyReluGrad
y = np.array([-0.1, 0, 2], np.float32)  # what LeakyRelu gave
dy = np.array([10, 10, 10], np.float32)
print(cto.leaky_relu_grad(dy, y, alpha=0.1))  # [ 1.  1. 10.]

# %% QuickGelu
x = np.array([-3, -1, 0, 1, 3], np.float32)
print(cto.quick_gelu(x).round(3))  # [-0.018 -0.154  0.     0.846  2.982]
# SiLU.
print(cto.quick_gelu(x, alpha=1.0).round(3))  # [-0.142 -0.269  0.     0.731  2.858]

# %% QuickGeluGrad
x = np.array([-3, -1, 0, 1, 3], np.float32)
# Of SiLU.
print(cto.quick_gelu_grad(np.ones_like(x), x, alpha=1.0).round(3))
# > [-0.088  0.072  0.5    0.928  1.088]

# %% ReluGrad
x = np.array([-1, 0, 2], np.float32)
dy = np.array([10, 20, 30], np.float32)
print(cto.relu_grad(dy, x))  # [ 0.  0. 30.]
cto.relu_grad(dy, x, out=dy)  # in the memory of dy
print(dy)  # [ 0.  0. 30.]

# %% SigmoidGrad
y = np.array([0.1, 0.5, 0.9])  # what Sigmoid gave
print(cto.sigmoid_grad(np.ones(3), y))  # [0.09 0.25 0.09]

# %% SwiGlu
gate, value = np.array([-3, -1, 0, 1, 3], np.float32), np.full(5, 2, np.float32)
print(cto.swi_glu(gate, value).round(3))  # [-0.285 -0.538  0.     1.462  5.715]

# %% SwiGluGrad
gate, value = np.array([-1, 1], np.float32), np.full(2, 3, np.float32)
of_gate, of_value = cto.swi_glu_grad(np.ones_like(gate), gate, value)
print(of_gate.round(3), of_value.round(3))  # [0.217 2.783] [-0.269  0.731]

# %% SwiGluHalves
both = np.array([[-1, 3, 2, 1]], np.float32)  # a row: two gates, then what they multiply
print(cto.swi_glu_halves(both).round(3))  # [[-0.538  2.858]]

# %% SwiGluHalvesGrad
both = np.array([[-1, 3, 2, 1]], np.float32)
print(cto.swi_glu_halves_grad(np.ones((1, 2), np.float32), both).round(3))
# > [[ 0.145  1.088 -0.269  2.858]]

# %% TanhGrad
y = np.tanh([-2, 0, 2])
print(cto.tanh_grad(np.ones(3), y).round(3))  # [0.071 1.    0.071]
