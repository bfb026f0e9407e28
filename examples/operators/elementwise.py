# SPDX-License-Identifier: MIT
"""One example for each operator of elementwise; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% BatchScale
x = np.array([1, 2], np.float32)
print(cto.batch_scale(x, scale_0=10.0, scale_1=0.5))
# > (array([10., 20.], dtype=float32), array([0.5, 1. ], dtype=float32), None)

# %% DivGrad
a = np.array([[1, 2], [3, 4]], np.float32)
b = np.array([2, 4], np.float32)  # broadcast to both rows
da, db = cto.div_grad(np.ones_like(a), a, b)
print(da)
# > [[0.5  0.25]
# >  [0.5  0.25]]
# Summed over the rows.
print(db)  # [-1.    -0.375]

# %% FakeQuant
x = np.array([-1, 0.1, 0.26, 100], np.float32)
y, mask = cto.fake_quant(x, 0.25, 0, quant_min=0, quant_max=255)
print(y)  # [ 0.    0.    0.25 63.75]
# False where it was clamped.
print(mask)  # [False  True  True False]

# %% FakeQuantGrad
mask = np.array([False, True, True, False])
print(cto.fake_quant_grad(np.full(4, 3, np.float32), mask))  # [0. 3. 3. 0.]

# %% IsFinite
print(cto.is_finite(np.array([1, np.inf, np.nan], np.float32)))  # [ True False False]

# %% Scale
x = np.array([1, 2], np.float32)
print(cto.scale(x, 4.0), cto.scale(x, 4.0, scale_down=True))  # [4. 8.] [0.25 0.5 ]

# %% ScaleInPlace
x = np.array([2, 4], np.float32)
print(cto.scale_in_place(x, np.array([0.5], np.float32)), x)  # [1. 2.] [1. 2.]

# %% ScaledSum
a, b = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
print(cto.scaled_sum(a, b, scale_0=2.0, scale_1=0.5))  # [ 7. 14.]
