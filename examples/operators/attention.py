# SPDX-License-Identifier: MIT
"""One example for each operator of attention; docs/operators/attention.md shows them."""

import numpy as np

import cupy_training_ops as cto

# %% FlashAttention
q = np.array([[[[1, 0], [0, 2]]]], np.float32)  # one of a batch, one head, two queries
k = np.array([[[[0, 0], [0, np.log(3)]]]], np.float32)
v = np.array([[[[0, 4], [4, 0]]]], np.float32)
y, lse = cto.flash_attention(q, k, v, scale=0.5)
print(y)
# > [[[[2. 2.]
# >    [3. 1.]]]]
print(lse.round(3))  # [[[0.693 1.386]]]
# Causal: the first query sees the first key alone.
y, _ = cto.flash_attention(q, k, v, scale=0.5, is_causal=True)
print(y)
# > [[[[0. 4.]
# >    [3. 1.]]]]

# %% FlashAttentionGrad
q = np.array([[[[0, 2]]]], np.float32)
k = np.array([[[[0, 0], [0, np.log(3)]]]], np.float32)
v = np.array([[[[0, 4], [4, 0]]]], np.float32)
y, lse = cto.flash_attention(q, k, v, scale=0.5)
dy = np.array([[[[1, 0]]]], np.float32)
dq, dk, dv, _ = cto.flash_attention_grad(dy, q, k, v, y, lse, scale=0.5)
print(dq.round(3), dk.round(3), dv, sep="\n")
# > [[[[0.    0.412]]]]
# > [[[[ 0.   -0.75]
# >    [ 0.    0.75]]]]
# > [[[[0.25 0.  ]
# >    [0.75 0.  ]]]]
