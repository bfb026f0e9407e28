# SPDX-License-Identifier: MIT
"""Operators that draw random numbers, from a state: a uint64 array [seed, numbers drawn so far].

    number k of a seed = mix(mix(seed) + (k + 1) STEP), which is SplitMix64

A session appends the state to a node's inputs, and each run updates it; a node that runs by itself
has none, and draws by its attribute `seed`, or by the operating system's random bits.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

import math
import secrets
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Dtype, to_dtype
from ...errors import ArgumentError
from .shapes import extents
from .table import Array, Module, standard, wide

# Index of the state among the inputs, by operator.
DRAWN: Mapping[str, int] = {
    "Bernoulli": 1,
    "Multinomial": 1,
    "RandomNormal": 0,
    "RandomNormalLike": 1,
    "RandomUniform": 0,
    "RandomUniformLike": 1,
}
STEP = np.uint64(0x9E3779B97F4A7C15)
FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
BITS = {FLOAT64: 53, FLOAT32: 24, FLOAT16: 11, BFLOAT16: 8}  # of a type's significand


def seed_bits(seed: float) -> int:
    """Return the 64 bits of a seed, which ONNX has as a float, as an integer."""
    return int(struct.unpack("<Q", struct.pack("<d", seed))[0])


def _mix(z: Array) -> Array:
    """Return SplitMix64's hash of uint64 numbers."""
    for shift, factor in zip(SHIFTS[:2], FACTORS, strict=True):
        z = (z ^ (z >> shift)) * factor
    return z ^ (z >> SHIFTS[2])


def _uniform(xp: Module, state: Any, seed: float | None, n: int, dtype: Dtype) -> Array:
    """Return n uniform numbers in [0, 1), as float64, all of them exact in `dtype`.

    state: uint64 [seed, numbers drawn so far], updated in place; None: of `seed`, or at random.
    """
    if state is None:
        own = secrets.randbits(64) if seed is None else seed_bits(seed)
        state = xp.asarray(np.array([own, 0], np.uint64))
    k = xp.arange(n).astype(np.uint64) + state[1:] + np.uint64(1)
    z = _mix(_mix(state[:1]) + k * STEP)
    state[1:] += np.uint64(n)
    bits = BITS[dtype]  # the upper bits, as a fraction
    return (z >> np.uint64(64 - bits)).astype(FLOAT64) * 2.0**-bits


def _type(dtype: int | None, other: Any) -> Dtype:
    """Return the type of ONNX's number `dtype`, or `other` if it is None; refuse integers."""
    result = other if dtype is None else to_dtype(dtype)
    if result not in BITS:
        raise ArgumentError(f"dtype: expected a type of floats, got {result}")
    return result


def _draw_uniform(
    xp: Module,
    shape: Sequence[int],
    state: Any,
    seed: float | None,
    dtype: Dtype,
    low: float,
    high: float,
) -> Array:
    """Return uniform numbers of a shape and type, from low to high.

    state: uint64 [seed, numbers drawn so far], updated in place; None: of `seed`, or at random.
    """
    u = _uniform(xp, state, seed, math.prod(shape), dtype).reshape(tuple(shape))
    return (low + u * (high - low)).astype(dtype)


def _draw_normal(
    xp: Module,
    shape: Sequence[int],
    state: Any,
    seed: float | None,
    dtype: Dtype,
    mean: float,
    scale: float,
) -> Array:
    """Return normal numbers, mean + scale sqrt(-2 log(1 - u)) cos(2 pi v) (Box-Muller).

    state: uint64 [seed, numbers drawn so far], updated in place; None: of `seed`, or at random.
    """
    n = math.prod(shape)
    numbers = _uniform(xp, state, seed, 2 * n, FLOAT64)
    radius = xp.sqrt(-2 * xp.log(1 - numbers[:n]))
    normal = radius * xp.cos(2 * math.pi * numbers[n:])
    return (mean + scale * normal).reshape(tuple(shape)).astype(dtype)


@standard("RandomUniform", grows=True, updates=(0,))
def random_uniform(
    xp: Module,
    state: Any = None,
    *,
    shape: Sequence[int],
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Array:
    """Return uniform numbers from low to high, of `shape`, float32 without a dtype."""
    return _draw_uniform(xp, extents(shape), state, seed, _type(dtype, FLOAT32), low, high)


@standard("RandomUniformLike", updates=(1,))
def random_uniform_like(
    xp: Module,
    x: Array,
    state: Any = None,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Array:
    """Return uniform numbers from low to high, of x's shape, and type without a dtype."""
    return _draw_uniform(xp, x.shape, state, seed, _type(dtype, x.dtype), low, high)


@standard("RandomNormal", grows=True, updates=(0,))
def random_normal(
    xp: Module,
    state: Any = None,
    *,
    shape: Sequence[int],
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Array:
    """Return normal numbers of a shape; scale: standard deviation. dtype: float32 without one."""
    return _draw_normal(xp, extents(shape), state, seed, _type(dtype, FLOAT32), mean, scale)


@standard("RandomNormalLike", updates=(1,))
def random_normal_like(
    xp: Module,
    x: Array,
    state: Any = None,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Array:
    """Return normal numbers of x's shape; scale: standard deviation. dtype: x's without one."""
    return _draw_normal(xp, x.shape, state, seed, _type(dtype, x.dtype), mean, scale)


@standard("Bernoulli", since=15, updates=(1,))
def bernoulli(
    xp: Module,
    x: Array,
    state: Any = None,
    *,
    dtype: int | None = None,
    seed: float | None = None,
) -> Array:
    """Return 1 with the probability x, else 0."""
    u = _uniform(xp, state, seed, x.size, FLOAT64).reshape(x.shape)
    return (u < x).astype(x.dtype if dtype is None else to_dtype(dtype))


@standard("Multinomial", since=7, grows=True, updates=(1,))
def multinomial(
    xp: Module,
    x: Array,
    state: Any = None,
    *,
    dtype: int = 6,
    sample_size: int = 1,
    seed: float | None = None,
) -> Array:
    """Return classes (batch, sample_size), of probability softmax(x); x: (batch, classes)."""
    if x.ndim != 2 or not x.shape[1]:
        raise ArgumentError(f"expected shape (batch, classes), got {x.shape}")
    if to_dtype(dtype).name not in ("int32", "int64"):
        raise ArgumentError(f"dtype: expected int32 or int64, got {to_dtype(dtype)}")
    batch, size = extents((x.shape[0], sample_size))
    weights = xp.exp(wide(x) - wide(x).max(axis=1, keepdims=True)).astype(FLOAT64)
    ends = xp.cumsum(weights, axis=1)
    u = _uniform(xp, state, seed, batch * size, FLOAT64).reshape(batch, size)
    places = u * ends[:, -1:]
    return (ends[:, None, :-1] <= places[:, :, None]).sum(axis=2).astype(to_dtype(dtype))
