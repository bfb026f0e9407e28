# SPDX-License-Identifier: MIT
"""Operators that go between images and the windows that a kernel sees of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ArgumentError
from .shapes import extents, on_device
from .table import Array, Module, in_float32, standard


def _each(values: Sequence[int] | None, n: int, name: str, default: int = 1) -> tuple[int, ...]:
    """A number for each of n axes."""
    if values is None:
        return (default,) * n
    if len(values) != n or min(values) < default:
        raise ArgumentError(f"{name}: expected {n} integers from {default} on, got {values}")
    return tuple(values)


@standard("Col2Im", host=(1, 2), grows=True)
@in_float32
def col2im(
    xp: Module,
    x: Array,
    image_shape: Any,
    block_shape: Any,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """The sum of all blocks, each where it lies: of (N, C blocks, places) an image (N, C, ...)."""
    image, block = extents(image_shape), extents(block_shape)
    r = len(image)
    if len(block) != r or x.ndim != 3:
        words = f"a block of {r} axes and 3 dimensions"
        raise ArgumentError(f"expected {words}, got {block} and shape {x.shape}")
    dilation, stride = _each(dilations, r, "dilations"), _each(strides, r, "strides")
    pad = _each(pads, 2 * r, "pads", 0)
    wholes = [n + pad[i] + pad[i + r] for i, n in enumerate(image)]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, block, strict=True)]
    places = [(w - k) // s + 1 for w, k, s in zip(wholes, reach, stride, strict=True)]
    n_block = math.prod(block)
    if min(places) < 1 or x.shape[2] != math.prod(places) or x.shape[1] % max(n_block, 1):
        expected = f"(N, C {n_block}, {math.prod(places)})"
        raise ArgumentError(f"input: expected shape {expected}, got {x.shape}")
    parts = x.reshape(x.shape[0], x.shape[1] // n_block, n_block, *places)
    y = xp.zeros((*parts.shape[:2], *wholes), x.dtype)
    for k, corner in enumerate(itertools.product(*map(range, block))):
        window = tuple(
            slice(c * d, c * d + s * (n - 1) + 1, s)
            for c, d, s, n in zip(corner, dilation, stride, places, strict=True)
        )
        y[(slice(None), slice(None), *window)] += parts[:, :, k]
    inner = tuple(slice(pad[i], pad[i] + n) for i, n in enumerate(image))
    return xp.ascontiguousarray(y[(slice(None), slice(None), *inner)])


@standard("MaxUnpool", since=9, host=(2,), grows=True)
def max_unpool(
    xp: Module,
    x: Array,
    indices: Array,
    output_shape: Any = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Zeros, but for the elements of x at their indices in the flat result."""
    r = x.ndim - 2
    kernel, stride = _each(kernel_shape, r, "kernel_shape"), _each(strides, r, "strides")
    pad = _each(pads, 2 * r, "pads", 0)
    shape = list(x.shape[:2])
    for i in range(r):
        shape.append((x.shape[i + 2] - 1) * stride[i] - pad[i] - pad[i + r] + kernel[i])
    if output_shape is not None and list(output_shape) != shape:
        # The indices may be those of either shape then, which ONNX does not say.
        raise ArgumentError(f"output_shape: expected {tuple(shape)}, got {extents(output_shape)}")
    if indices.shape != x.shape:
        raise ArgumentError(f"I: expected shape {x.shape}, got {indices.shape}")
    y = xp.zeros(math.prod(extents(shape)), x.dtype)
    y[indices.reshape(-1)] = x.reshape(-1)
    return y.reshape(shape)


@standard("DeformConv", since=19)
@in_float32
def deform_conv(
    xp: Module,
    x: Array,
    w: Array,
    offset: Array,
    bias: Array = None,
    mask: Array = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """A convolution of pixels that lie beside their places by an offset, between which
    interpolation is linear; pixels outside are 0."""
    r, kernel = x.ndim - 2, w.shape[2:]
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise ArgumentError(f"kernel_shape: expected {kernel}, got {tuple(kernel_shape)}")
    dilation, stride = _each(dilations, r, "dilations"), _each(strides, r, "strides")
    pad = _each(pads, 2 * r, "pads", 0)
    out = [
        (x.shape[i + 2] + pad[i] + pad[i + r] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(r)
    ]
    n, c, n_taps = x.shape[0], x.shape[1], math.prod(kernel)
    shape = (n, offset_group * n_taps * r, *out)
    if offset.shape != shape or c % max(offset_group, 1) or w.shape[1] * group != c:
        expected = f"offsets of shape {shape} and {c} channels in groups"
        raise ArgumentError(f"expected {expected}, got {offset.shape} and weights {w.shape}")
    offset = offset.reshape(n, offset_group, n_taps, r, *out)
    at = offset + on_device(xp, _places(kernel, dilation, stride, pad, out).astype(x.dtype))
    columns = _interpolate(xp, x.reshape(n, offset_group, c // offset_group, -1), at, x.shape[2:])
    if mask is not None:
        columns = columns * mask.reshape(n, offset_group, 1, n_taps, *out)
    columns = columns.reshape(n, group, c // group * n_taps, math.prod(out))
    rows = w.reshape(group, w.shape[0] // group, -1)
    y = xp.matmul(rows, columns).reshape(n, w.shape[0], *out)
    return y if bias is None else y + bias.reshape(-1, *[1] * r)


def _places(
    kernel: Sequence[int],
    dilation: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    out: Sequence[int],
) -> Any:
    """The place of each tap of each output, without offsets: (taps, axes, outputs...)."""
    taps = np.stack(np.meshgrid(*map(np.arange, kernel), indexing="ij")).reshape(len(kernel), -1)
    outs = np.stack(np.meshgrid(*map(np.arange, out), indexing="ij"))
    each = (-1, *[1] * len(kernel))
    first = outs * np.reshape(stride, each) - np.reshape(pad[: len(kernel)], each)
    return first + (taps.T * np.array(dilation)).reshape(-1, len(kernel), *[1] * len(kernel))


def _interpolate(xp: Module, x: Array, at: Array, spatial: Sequence[int]) -> Array:
    """The values of images (N, groups, channels, pixels) at places (N, groups, taps, axes, ...)."""
    low = xp.floor(at)
    share = at - low
    low = low.astype(np.int64)
    total: Any = None
    for corner in itertools.product((0, 1), repeat=len(spatial)):
        flat: Any = 0
        weight: Any = 1
        for i, n in enumerate(spatial):
            pixel, t = low[:, :, :, i] + corner[i], share[:, :, :, i]
            inside = (pixel >= 0) & (pixel < n)
            weight = weight * xp.where(inside, t if corner[i] else 1 - t, t.dtype.type(0))
            flat = flat * n + xp.clip(pixel, 0, n - 1)
        taken = xp.take_along_axis(x, flat.reshape(*flat.shape[:2], 1, -1), axis=3)
        part = taken.reshape(*x.shape[:3], *flat.shape[2:]) * weight[:, :, None]
        total = part if total is None else total + part
    return total
