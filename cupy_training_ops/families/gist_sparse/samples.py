# SPDX-License-Identifier: MIT
"""Sample inputs of the sparse codes.

A code may end before its array does; what is behind it is not compared (`code_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import BOOL, dtype_name
from ...samples import Generator, Sample
from .operators import OPS

# label, shape, offset, share of elements that are not zero; the others' are a half. A tile has
# 16,384 bytes: 1,024 elements of 16 bytes, 16,384 of one.
SHAPES: tuple[tuple[str, tuple[int, ...], int, float], ...] = (
    ("ordinary", (16, 64), 0, 0.5),
    ("odd", (3, 5, 7), 0, 0.5),
    ("empty", (0, 4), 0, 0.5),
    ("one", (1,), 0, 1.0),
    ("scalar", (), 0, 1.0),
    ("misaligned", (1003,), 1, 0.5),
    ("misaligned-full", (1003,), 1, 1.0),
    ("zeros", (5000,), 0, 0.0),
    ("full", (9000,), 0, 1.0),
    ("large", (5, 4099), 0, 0.3),
)


def _sparse(rng: Generator, shape: tuple[int, ...], dtype: Any, share: float) -> Any:
    """Return elements of random bits (-0, NaN, ...), of which about 1 - share are zero."""
    n = int(np.prod(shape))
    present = rng.random(n) < share
    if dtype == BOOL:
        return present.reshape(shape)
    elements = rng.integers(0, 256, (n, dtype.itemsize), dtype=np.uint8)
    elements[::7, -1] = 0x80
    return (elements * present[:, None]).view(dtype).reshape(shape)


def _numbers(rng: Generator, shape: tuple[int, ...], dtype: Any, share: float) -> Any:
    """Return random normal numbers, of which about 1 - share are zero and some -0."""
    values = rng.standard_normal(shape) * np.where(rng.random(shape) < share, 1.0, 0.0)
    return np.asarray(np.where(rng.random(shape) < 0.01 * share, -0.0, values)).astype(dtype)


def code_bytes(code: Any) -> Any:
    """Return the bytes of a code, whose number is in the first eight."""
    return code[: int(code[:8].view("<u8")[0])] if code.size else code


def as_bytes(y: Any) -> Any:
    """Return the bytes of y, so that NaN are compared bit by bit."""
    return y.reshape(-1).view(np.uint8)


def _inputs(name: str, encode: bool, rng: Generator, **size: Any) -> tuple[Any, ...]:
    """Return the elements of an encoder, or with encode False a decoder's code of such.

    size: shape, dtype and the share of elements that are not zero.
    """
    numbers = "Fp10" in name or "Msfp15" in name
    x = (_numbers if numbers else _sparse)(rng, **size)
    return (x,) if encode else (OPS[name.replace("Decoder", "Encoder")]()(x),)


def _samples(name: str) -> Iterator[Sample]:
    """Yield samples of the operator `name`: each of SHAPES in each type."""
    encode = "Encoder" in name
    compared = code_bytes if encode else as_bytes if name == "GistSparseDecoder" else None
    for dtype in OPS[name].types["T"]:
        for label, shape, offset, share in SHAPES:
            make = partial(_inputs, name, encode, shape=shape, dtype=dtype, share=share)
            attributes = {} if encode else {"to": dtype, "shape": shape}
            label = f"{dtype_name(dtype)}-{label}"
            yield Sample(name, label, make, attributes, offset, view=compared)
            if name == "GistSparseMsfp15Encoder":
                signs = {"keep_sign": True}
                yield Sample(name, f"{label}-signs", make, signs, offset, view=compared)


SAMPLES = {name: tuple(_samples(name)) for name in OPS}
