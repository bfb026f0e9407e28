# SPDX-License-Identifier: MIT
"""Sample inputs of the Gist codecs of numbers in few bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import FLOATS, dtype_name
from ...samples import Generator, Sample
from ..gist.samples import of_codes, of_shapes, one_input, special, wide_range
from .operators import OPS

# Of the largest number of a block, from float64's least to its greatest.
EXPONENTS = (-1074, -1030, -160, -149, -133, -126, -24, 0, 15, 100, 126, 127, 1000, 1023)


def _numbers(rng: Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return floats of a wide range; or integers from 0 to 15, a quarter of them times 7."""
    if dtype in FLOATS:
        return wide_range(rng, shape, dtype)
    return np.asarray(rng.integers(0, 16, shape) * rng.choice([1, 1, 1, 7], shape)).astype(dtype)


def scaled_blocks(rng: Generator, dtype: Any) -> Any:
    """Return blocks of 128 numbers of size 2^EXPONENTS, then six with zeros, inf, NaN, 464."""
    with np.errstate(all="ignore"):
        blocks = np.ldexp(rng.uniform(-2, 2, (len(EXPONENTS), 128)), np.c_[list(EXPONENTS)])
        blocks *= 2.0 ** -rng.integers(0, 30, blocks.shape)
        more = rng.standard_normal((6, 128))
        more[0], more[1], more[2] = 0, -0.0, np.inf
        more[3, 5], more[4, 77], more[5, 127] = np.nan, -np.inf, 464
        return np.concatenate([blocks, more]).ravel().astype(dtype)


def _encoder(name: str) -> Iterator[Sample]:
    """Yield an encoder's samples: each shape, special values, blocks of very different sizes."""
    for dtype in OPS[name].types["T"]:
        t = dtype_name(dtype)
        yield from of_shapes(name, dtype, partial(one_input, _numbers))
        if dtype in FLOATS:
            yield Sample(name, f"{t}-special", partial(one_input, special, dtype=dtype))
            yield Sample(name, f"{t}-scaled", partial(one_input, scaled_blocks, dtype=dtype))
        if "Int8" in name:
            for label, maker in (("special", special), ("scaled", scaled_blocks)):
                make = partial(one_input, maker, dtype=dtype)
                yield Sample(name, f"{t}-{label}-signs", make, {"keep_sign": True})


def _decoder(name: str) -> Iterator[Sample]:
    """Yield a decoder's samples in each dtype; 1088 and 1040: bytes of a tile."""
    for dtype in OPS[name].types["T"]:
        yield from of_codes(OPS[name], dtype, 3 * 1088 if "Int8" in name else 3 * 1040)


SAMPLES = {name: tuple(_encoder(name) if "Encoder" in name else _decoder(name)) for name in OPS}
