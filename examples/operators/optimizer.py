# SPDX-License-Identifier: MIT
"""One example for each operator of optimizer; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% GradientNorm
print(cto.gradient_norm([np.array([3, 0], np.float32), np.array([4], np.float32)]))
# > (array(5., dtype=float32), array(True))
print(cto.gradient_norm([np.array([3, np.inf], np.float32)]))
# > (array(inf, dtype=float32), array(False))

# %% InplaceClipGradNorm
gradients = [np.array([3, 0], np.float32), np.array([4], np.float32)]  # of norm 5
cto.inplace_clip_grad_norm(gradients, max_norm=1.0)
print(gradients[0].round(3), gradients[1].round(3))  # [0.6 0. ] [0.8]

# %% SGDOptimizer
w, g = np.array([1, 2], np.float32), np.array([10, 10], np.float32)
cto.sgd_optimizer(0.1, w, g, outputs=("NW",))  # NG would be the gradient's array
print(w, g)  # [0. 1.] [10. 10.]

# %% SGDOptimizerList
weights = [np.ones(2, np.float32), np.ones(1, np.float32)]
halves = [w.astype(np.float16) for w in weights]
gradients = [np.full_like(w, 300) for w in halves]  # computed with a loss scale of 100
cto.sgd_optimizer_list(0.1, weights, gradients, halves, loss_scale=100.0)
print(weights)  # [array([0.7, 0.7], dtype=float32), array([0.7], dtype=float32)]
# The same, rounded.
print(halves)  # [array([0.7, 0.7], dtype=float16), array([0.7], dtype=float16)]

# %% SGDOptimizerV2
weights, gradients = [np.ones(2, np.float32)], [np.full(2, 10, np.float32)]
cto.sgd_optimizer_v2(0.05, weights, gradients)
print(weights)  # [array([0.5, 0.5], dtype=float32)]
# Skipped.
print(cto.sgd_optimizer_v2(0.05, weights, gradients, False))
# > (array(False), (array([0.5, 0.5], dtype=float32),))
