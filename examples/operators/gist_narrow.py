# SPDX-License-Identifier: MIT
"""One example for each operator of gist_narrow; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% GistBlockE4m3Decoder
x = np.array([0.001, 0.1, 1, 1.1, -300], np.float32)
codes = cto.gist_block_e4m3_encoder(x)
print(cto.gist_block_e4m3_decoder(codes, to="float32"))
# > [ 1.953125e-03  1.015625e-01  1.000000e+00  1.125000e+00 -2.880000e+02]

# %% GistBlockE4m3Encoder
x = np.array([1, -1, 480], np.float32)
codes = cto.gist_block_e4m3_encoder(x)
# 16 bytes of scales, of which the first block's is 2^1, then a code each.
print(codes[:4], codes[16:])  # [1 0 0 0] [ 48 176 119]

# %% GistBlockE5m2Decoder
x = np.array([0.001, 0.1, 1, 1.1, -300], np.float32)
codes = cto.gist_block_e5m2_encoder(x)
print(cto.gist_block_e5m2_decoder(codes, to="float32"))
# > [ 9.765625e-04  9.375000e-02  1.000000e+00  1.000000e+00 -3.200000e+02]

# %% GistBlockE5m2Encoder
x = np.array([1, -1, 2], np.float32)
codes = cto.gist_block_e5m2_encoder(x)
# The scale is 2^-14, so that 2 is the format's 2^15.
print(codes[:2].view(np.int16), codes[16:])  # [-14] [116 244 120]

# %% GistFp10Decoder
x = np.array([0.1, 1.1, -2], np.float32)
codes = cto.gist_fp10_encoder(x)
print(cto.gist_fp10_decoder(codes, to="float32"))  # [ 0.1015625  1.125     -2.       ]

# %% GistFp10Encoder
x = np.array([1, -2, 1e6, 3], np.float32)
codes = cto.gist_fp10_encoder(x)
# Three codes in a word, the first in its lowest bits.
print([f"{word:032b}" for word in codes])
# > ['00011111000011000000000011110000', '00000000000000000000000100001000']

# %% GistIndex4Decoder
codes = np.array([0x21, 0x0F], np.uint8)
print(cto.gist_index4_decoder(codes, to="int64", shape=(3,)))  # [ 1  2 15]

# %% GistIndex4Encoder
x = np.array([1, 2, 15], np.int64)
print([f"{byte:02x}" for byte in cto.gist_index4_encoder(x)])  # ['21', '0f']

# %% GistInt8Decoder
x = np.array([0.001, 0.1, 1, 1.1, -1.27], np.float32)
codes = cto.gist_int8_encoder(x)
print(cto.gist_int8_decoder(codes, to="float32").round(4))
# > [ 0.      0.1001  1.001   1.1011 -1.2712]

# %% GistInt8Encoder
x = np.array([1, -1, 127], np.float32)
codes = cto.gist_int8_encoder(x)
# 64 bytes of scales, of which the first block's is the bfloat16 1, then a code each.
print(codes[:2], codes[64:].view(np.int8))  # [128  63] [  1  -1 127]
