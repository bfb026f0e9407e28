# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gist share: cuda_src/gist/facts.cuh."""

BOX = 8  # elements of a box: they share an exponent in MSFP15, and a byte of bits in Pack1
THREADS = 128  # threads of a block
# Bytes of decoded elements that a thread loads or stores together, where each element has a code
# of its own. 32 was the fastest of a sweep on an H200.
ELEMENT_NBYTES = 32
# Bytes of decoded elements that a thread loads or stores together, where a box of elements has one
# code. 64 was the fastest.
TILE_NBYTES = 64
