# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gist share: cuda_src/gist/facts.cuh."""

BOX = 8  # elements that share an MSFP15 exponent, and bits of a Pack1 byte
THREADS = 128
# Bytes of decoded elements a thread has in flight, for codecs of single elements and for codecs of
# tiles: the fastest of a sweep on an H200.
ELEMENT_NBYTES = 32
TILE_NBYTES = 64
