# SPDX-License-Identifier: MIT
"""One example for each operator of adam; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% AdamCodedList
weights = [np.ones(2, np.float32), np.full((1, 3), 2, np.float32)]
gradients = [np.full_like(w, 0.5) for w in weights]
m, v = ([np.zeros(w.size + 1, np.uint8) for w in weights] for _ in range(2))  # a block each
for step in (1, 2, 3):
    cto.adam_coded_list(0.1, step, weights, gradients, m, v)
print(weights[0].round(2), weights[1].round(2))  # [0.81 0.82] [[1.81 1.82 1.82]]
print(m[0].nbytes + v[0].nbytes)  # 6

# %% AdamOptimizer
w, g = np.array([1, 2], np.float32), np.array([0.5, -0.5], np.float32)
m, v = np.zeros_like(w), np.zeros_like(w)
step = np.array([1], np.int64)
cto.adam_optimizer(0.1, step, w, g, m, v)  # all but the gradient in place
print(w.round(3), m.round(3), step)  # [0.9 2.1] [ 0.05 -0.05] [2]

# %% AdamOptimizerList
weights = [np.ones(2, np.float32), np.full((1, 3), 2, np.float32)]
gradients = [np.full_like(w, 300) for w in weights]  # computed with a loss scale of 100
m, v = ([np.zeros_like(w) for w in weights] for _ in range(2))
norm, is_finite = cto.gradient_norm(gradients)
step = np.array([1], np.int64)  # a skipped step does not count
cto.adam_optimizer_list(
    0.1, step, weights, gradients, m, v,
    loss_scale=100.0, global_gradient_norm=norm, update_signal=is_finite, max_norm=1.0,
)  # fmt: skip
print(weights[0].round(4), weights[1].round(4))  # [0.9 0.9] [[1.9 1.9 1.9]]
# A tenth of a gradient that was clipped to a norm of 1 over all five.
print(m[0].round(4))  # [0.0447 0.0447]

# %% AdamWOptimizer
weights = [np.ones(2, np.float32), np.full(3, 2, np.float32)]
gradients = [np.full_like(w, 0.5) for w in weights]
m, v = ([np.zeros_like(w) for w in weights] for _ in range(2))
for step in (1, 2, 3):
    cto.adam_w_optimizer(0.1, step, weights, gradients, m, v, weight_decay=0.1)
print(weights[0].round(4), weights[1].round(4))  # [0.6733 0.6733] [1.6436 1.6436 1.6436]
