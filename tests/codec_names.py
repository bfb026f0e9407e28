# SPDX-License-Identifier: MIT
"""Names of codecs that tests run over."""

from __future__ import annotations

from cupy_training_ops import CODECS
from cupy_training_ops.dtypes import FLOAT32

FLOAT_CODECS = tuple(name for name, codec in CODECS.items() if FLOAT32 in codec.dtypes)
SIGN_CODECS = ("binarize", "pack1")
SPARSE_CODECS = tuple(name for name, codec in CODECS.items() if codec.leaves_room)
VALUE_CODECS = tuple(name for name in FLOAT_CODECS if name not in SIGN_CODECS)
