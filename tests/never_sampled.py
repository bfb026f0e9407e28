# SPDX-License-Identifier: MIT
"""Kernels that no sample launches, and why; with the others of their source they are compiled."""

NEVER_SAMPLED = {
    f"adasum_all_reduce__{part}": "a group of one rank has nothing to combine"
    for part in ("dots", "scales", "combine")
}
