# SPDX-License-Identifier: MIT
"""One example for each operator of gist; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% GistBinarizeDecoder
x = np.array([-1.5, 0, 2.5], np.float32)
print(cto.gist_binarize_decoder(cto.gist_binarize_encoder(x), to="float32"))  # [0. 0. 1.]

# %% GistBinarizeEncoder
x = np.array([-1.5, 0, 2.5], np.float32)
print(cto.gist_binarize_encoder(x))  # [False False  True]

# %% GistPack16Decoder
codes = cto.gist_pack16_encoder(np.array([0.1, 1e6], np.float32))
print(cto.gist_pack16_decoder(codes, to="float32"))  # [0.09997559        inf]

# %% GistPack16Encoder
x = np.array([0.1, 1e6], np.float32)
y = cto.gist_pack16_encoder(x)
print(y, y.dtype)  # [0.1 inf] float16

# %% GistPack1Decoder
codes = np.array([0b10100000], np.uint8)
print(cto.gist_pack1_decoder(codes, to="float32", shape=(2, 2)))
# > [[1. 0.]
# >  [1. 0.]]

# %% GistPack1Encoder
x = np.array([[1, -1], [2, 0]], np.float32)
# Eight elements in a byte.
print([f"{byte:08b}" for byte in cto.gist_pack1_encoder(x)])  # ['10100000']

# %% GistPack8Decoder
x = np.array([0.1, 1, 1.1, 1e6], np.float32)
codes = cto.gist_pack8_encoder(x)
print(cto.gist_pack8_decoder(codes, to="float32"))  # [0.09375 1.      1.          inf]

# %% GistPack8Encoder
x = np.array([0.1, 1, 1.1, 1e6], np.float32)
print([f"{byte:08b}" for byte in cto.gist_pack8_encoder(x)])
# > ['00101110', '00111100', '00111100', '01111100']

# %% GistPackMsfp15Decoder
x = np.array([0.01, 0.1, 1, 1.1, -2, 0, 0, 3], np.float32)
codes = cto.gist_pack_msfp15_encoder(x)
# The largest sets the step for all eight: 1 / 16.
print(cto.gist_pack_msfp15_decoder(codes, to="float32"))
# > [ 0.     0.125  1.     1.125 -2.     0.     0.     3.   ]

# %% GistPackMsfp15Encoder
x = np.array([[1, 2, 3]], np.float32)
codes = cto.gist_pack_msfp15_encoder(x)
# A tile of eight bytes, padded with zeros.
print(codes)  # [ 16  32  48   0   0   0   0 128]
print(cto.gist_pack_msfp15_decoder(codes, to="float32", shape=(1, 3)))  # [[1. 2. 3.]]

# %% ReluGradFromBits
x = np.array([-1.5, 0.5, 2, 0], np.float32)
dy = np.array([10, 20, 30, 40], np.float32)
# All that a backward pass keeps of x is a bit an element.
print(cto.relu_grad_from_bits(dy, cto.gist_pack1_encoder(x)))  # [ 0. 20. 30.  0.]

# %% ReluWithBits
x = np.array([-1.5, 0.5, 2, 0], np.float32)
y, bits = cto.relu_with_bits(x)
print(y, f"{bits[0]:08b}")  # [0.  0.5 2.  0. ] 01100000
