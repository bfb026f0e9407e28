# SPDX-License-Identifier: MIT
"""Sample inputs of the Gist codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ...dtypes import BOOL, FLOAT16, FLOATS, dtype_name, to_dtype
from ...samples import SHAPES, Generator, Sample
from .operators import OPS

SPECIALS = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-40, -1e-38, 1.2e-38, 2.0**-17,
     -(2.0**-17) * 1.001, 2.0**-16, 2.0**-25, 2.0**-24, 57344, -61439, 61440, 65504, 65520, 3e38,
     1.125 + 2.0**-12, 1.125 + 2.0**-50, 1.375 - 2.0**-50, 1.375, -1.984375]
)  # fmt: skip


def wide_range(rng: Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return random numbers of both signs, 2^-24 to 2^12 in size, a tenth of them zero."""
    values = rng.standard_normal(shape) * 2.0 ** rng.uniform(-24, 12, shape)
    return np.asarray(values * (rng.random(shape) > 0.1)).astype(dtype)


def special(rng: Generator, dtype: Any) -> Any:
    """Return a tile of 8 for each of SPECIALS, with it among random numbers, then all of them."""
    with np.errstate(over="ignore"):
        values = SPECIALS.astype(dtype)
    tiles = wide_range(rng, (values.size, 8), dtype)
    tiles[np.arange(values.size), rng.integers(0, 8, values.size)] = values
    return np.concatenate([tiles.ravel(), values])


def small(rng: Generator, dtype: Any) -> Any:
    """Return 256 tiles of 8 numbers near the smallest of float32 (or float16), a fifth zeros."""
    exponents = rng.integers(-150, -118, (256, 1)) - rng.integers(0, 9, (256, 8))
    values = rng.uniform(-2, 2, (256, 8)) * 2.0**exponents * (rng.random((256, 8)) > 0.2)
    return (values * (2.0**110 if dtype == FLOAT16 else 1)).astype(dtype)


def one_input(maker: Callable[..., Any], rng: Generator, **size: Any) -> tuple[Any, ...]:
    """Return a codec's inputs: maker(rng, **size) alone."""
    return (maker(rng, **size),)


def _numbers(rng: Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return random bools, or numbers of a wide range."""
    return np.asarray(rng.random(shape) < 0.5) if dtype == BOOL else wide_range(rng, shape, dtype)


def _codes(rng: Generator, n: int, dtype: Any) -> Any:
    """Return n random codes: any bits are valid, except that a bool is 0 or 1."""
    if dtype == BOOL:
        return rng.random(n) < 0.5
    bits = rng.integers(0, 2 ** (8 * dtype.itemsize), n, dtype=f"u{dtype.itemsize}")
    return bits.view(dtype)


def _encoder(name: str) -> Iterator[Sample]:
    """Yield an encoder's samples: each shape, special values, and the attributes of MSFP15."""
    for dtype in OPS[name].types["T"]:
        t = dtype_name(dtype)
        yield from of_shapes(name, dtype, partial(one_input, _numbers))
        if dtype != BOOL:
            make = partial(one_input, special, dtype=dtype)
            yield Sample(name, f"{t}-special", make)
            if "Msfp15" in name:
                yield Sample(name, f"{t}-special-nonfinite", make, {"keep_nonfinite": True})
                yield Sample(name, f"{t}-special-signs", make, {"keep_sign": True})
                options = {"keep_sign": True, "keep_nonfinite": True}
                yield Sample(name, f"{t}-special-signs-nonfinite", make, options)
                make = partial(one_input, wide_range, shape=(1003,), dtype=dtype)
                yield Sample(name, f"{t}-misaligned-signs", make, {"keep_sign": True}, 1)
                make = partial(one_input, small, dtype=dtype)
                yield Sample(name, f"{t}-small-signs", make, {"keep_sign": True})


def of_shapes(name: str, dtype: Any, make: Callable[..., Any]) -> Iterator[Sample]:
    """Yield a sample of each of SHAPES in one dtype, with the inputs make(rng, shape=, dtype=)."""
    for label, shape, offset in SHAPES:
        inputs = partial(make, shape=shape, dtype=dtype)
        yield Sample(name, f"{dtype_name(dtype)}-{label}", inputs, {}, offset)


def of_codes(decoder: Any, dtype: Any, n_flat: int) -> Iterator[Sample]:
    """Yield samples of the class `decoder` in one dtype: each of SHAPES, and one without a shape.

    n_flat: the number of codes of the latter.
    """
    name, t, code = decoder.name, dtype_name(dtype), to_dtype(decoder.inputs[0].type)
    for label, shape, offset in SHAPES:
        op = decoder(to=dtype, shape=shape)
        make = partial(one_input, _codes, n=op.codes(int(np.prod(shape))), dtype=code)
        yield Sample(name, f"{t}-{label}", make, op.attribute_values, offset)
    make = partial(one_input, _codes, n=n_flat, dtype=code)
    yield Sample(name, f"{t}-flat", make, {"to": dtype})


def _decoder(name: str) -> Iterator[Sample]:
    """Yield a decoder's samples: each shape in each dtype, and keep_nonfinite of MSFP15."""
    code = to_dtype(OPS[name].inputs[0].type)
    for dtype in OPS[name].types["T"]:
        yield from of_codes(OPS[name], dtype, 4096)
        if "Msfp15" in name:
            make = partial(one_input, _codes, n=4096, dtype=code)
            options = {"to": dtype, "keep_nonfinite": True}
            yield Sample(name, f"{dtype_name(dtype)}-nonfinite", make, options)


def _gradient(rng: Generator, shape: tuple[int, ...], dtype: Any) -> tuple[Any, ...]:
    """Return ReluGradFromBits' inputs: dY and random bits."""
    n = int(np.prod(shape))
    return wide_range(rng, shape, dtype), _codes(rng, -(-n // 8), np.dtype(np.uint8))


def _samples(name: str) -> Iterator[Sample]:
    """Yield the samples of the operator `name`."""
    if name == "ReluGradFromBits":
        return chain.from_iterable(of_shapes(name, dtype, _gradient) for dtype in FLOATS)
    return _encoder(name) if name == "ReluWithBits" or "Encoder" in name else _decoder(name)


SAMPLES = {name: tuple(_samples(name)) for name in OPS}
