# SPDX-License-Identifier: MIT
"""The logger `cupy_training_ops`: what a call did at its first time, never in a call like it.

DEBUG: plans, and kernels from CuPy's cache. INFO: compilations with seconds, and fallbacks, which
compute the same with more time or memory. Nothing is shown until the caller asks for it:

    logging.basicConfig()
    logging.getLogger("cupy_training_ops").setLevel("DEBUG")
"""

from __future__ import annotations

import logging

LOG = logging.getLogger(__package__)
LOG.addHandler(logging.NullHandler())  # else Python shows warnings of programs without handlers
