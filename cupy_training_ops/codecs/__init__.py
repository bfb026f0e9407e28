# SPDX-License-Identifier: MIT
"""Compressed arrays: the table of codecs, `Packed` in memory and on disk, measured errors.

A codec is an encoder and a decoder of arrays, most of them lossy; codes are the encoded array.
"""

from __future__ import annotations

from .packed import Packed, compress
from .table import CODECS, get_codec

__all__ = ["CODECS", "Packed", "compress", "get_codec"]
