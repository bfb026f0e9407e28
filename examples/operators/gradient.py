# SPDX-License-Identifier: MIT
"""One example for each operator of gradient; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% InPlaceAccumulator
total = np.array([1, 2], np.float32)
y = cto.in_place_accumulator(total, np.array([0.5, 0.5], np.float16))
print(total, y is total)  # [1.5 2.5] True

# %% InPlaceAccumulatorList
totals = [np.zeros(2, np.float32), np.ones(1, np.float32)]
for _ in range(3):  # batches
    gradients = [np.ones(2, np.float16), np.ones(1, np.float16)]
    cto.in_place_accumulator_list(totals, gradients)
print(totals)  # [array([3., 3.], dtype=float32), array([4.], dtype=float32)]

# %% InPlaceAccumulatorV2
total, g = np.array([1, 2], np.float32), np.array([5, 5], np.float32)
print(cto.in_place_accumulator_v2(total, g))  # (array([ True]), array([6., 7.], dtype=float32))
cto.in_place_accumulator_v2(total, g, True)  # the first batch of a step: no zeros needed
print(total)  # [5. 5.]

# %% MixedPrecisionScale
gradients = [np.array([100, 200], np.float16), np.array([[300]], np.float16)]
scale = np.array([0.01], np.float32)  # one over the loss scale
print(cto.mixed_precision_scale(scale, gradients, to="float32"))
# > (array([1., 2.], dtype=float32), array([[3.]], dtype=float32))
print(cto.mixed_precision_scale(scale, gradients, to="float32", fuse_outputs=True)[0])  # [1. 2. 3.]

# %% ZeroGradient
g = np.array([1, np.nan], np.float32)
cto.zero_gradient(g, np.array([True]))  # the signal only orders a graph of operators
print(g)  # [0. 0.]
