# SPDX-License-Identifier: MIT
"""One example for each operator of lamb; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% LambOptimizer
weights = [np.array([3, 4], np.float32)]  # of norm 5
gradients = [np.array([0.1, -0.1], np.float32)]
m, v = [np.zeros(2, np.float32)], [np.zeros(2, np.float32)]
cto.lamb_optimizer(
    R=0.01, step=1, weights=weights, gradients=gradients, moment1=m, moment2=v,
    outputs=("new_weights", "new_moment_1", "new_moment_2"),
)  # fmt: skip
# Moved by 0.01 times its norm, whatever the size of the gradient.
print(weights[0].round(4))  # [2.9646 4.0354]
