# SPDX-License-Identifier: MIT
"""One example for each operator of gist_sparse; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% GistSparseDecoder
x = np.array([0, 1.5, 0, -0.0] * 100, np.float32)
code = cto.gist_sparse_encoder(x)
y = cto.gist_sparse_decoder(code, to="float32", shape=(400,))
print(y[:4], y.tobytes() == x.tobytes())  # [ 0.   1.5  0.  -0. ] True

# %% GistSparseEncoder
x = np.zeros(1000, np.float32)
x[::10] = 3
code = cto.gist_sparse_encoder(x)
# The array has room for x as it is; the code ends where its first eight bytes say.
print(code.size, code[:8].view(np.int64))  # 4016 [560]

# %% GistSparseFp10Decoder
x = np.array([0, 0.1, 0, 1.1] * 100, np.float32)
code = cto.gist_sparse_fp10_encoder(x)
print(cto.gist_sparse_fp10_decoder(code, to="float32", shape=(400,))[:4])
# > [0.        0.1015625 0.        1.125    ]

# %% GistSparseFp10Encoder
x = np.zeros(1000, np.float32)
x[::10] = 3
code = cto.gist_sparse_fp10_encoder(x)
print(code[:8].view(np.int64))  # [304]

# %% GistSparseMsfp15Decoder
x = np.array([0, 0.1, 0, 1.1] * 100, np.float32)
code = cto.gist_sparse_msfp15_encoder(x)
print(cto.gist_sparse_msfp15_decoder(code, to="float32", shape=(400,))[:4])
# > [0.      0.09375 0.      1.09375]

# %% GistSparseMsfp15Encoder
x = np.zeros(1000, np.float32)
x[::10] = 3
code = cto.gist_sparse_msfp15_encoder(x)
print(code[:8].view(np.int64))  # [272]
