# SPDX-License-Identifier: MIT
"""Pools by slices of a padded array, one for each place of the window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...dtypes import INT64
from ...errors import ArgumentError
from .elementwise import scalar
from .table import standard

Array = Any
Module = Any
Extents = Sequence[int]


class Window(NamedTuple):
    """A pool's geometry along its spatial axes."""

    kernel: Extents
    strides: Extents
    dilations: Extents
    pads: Sequence[tuple[int, int]]  # the second ones so far that the last window fits
    outputs: Extents
    after: Extents  # pads that are counted at the end

    @classmethod
    def of(cls, shape: Extents, kernel_shape: Extents, **said: Any) -> Window:
        """From a node's attributes and the extents of X."""
        d = len(kernel_shape)
        strides, dilations = said["strides"] or (1,) * d, said["dilations"] or (1,) * d
        spans = [(k - 1) * t + 1 for k, t in zip(kernel_shape, dilations, strict=True)]
        before, after = _pads(said["auto_pad"], said["pads"] or (0,) * 2 * d, shape, strides, spans)
        outputs, ends = [], []
        for n, s, span, b, a in zip(shape, strides, spans, before, after, strict=True):
            room = n + b + a - span
            m = room // s + 1
            if said["ceil_mode"] and room % s and m * s < n + b:
                m += 1
            outputs.append(m)
            ends.append((b, max((m - 1) * s + span - n - b, a)))
        return cls(kernel_shape, strides, dilations, ends, outputs, after)

    def cuts(self) -> Iterator[tuple[Any, ...]]:
        """The slice of a padded array for each place of the window."""
        for place in itertools.product(*map(range, self.kernel)):
            parts = zip(place, self.dilations, self.outputs, self.strides, strict=True)
            yield (..., *(slice(p * t, p * t + (m - 1) * s + 1, s) for p, t, m, s in parts))


def _pads(
    auto: str, pads: Extents, shape: Extents, strides: Extents, spans: Extents
) -> tuple[list[int], list[int]]:
    d = len(shape)
    if auto == "NOTSET":
        return list(pads[:d]), list(pads[d:])
    if auto == "VALID":
        return [0] * d, [0] * d
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise ArgumentError(f"no auto_pad {auto!r}")
    each = zip(shape, strides, spans, strict=True)
    whole = [max((-(-n // s) - 1) * s + span - n, 0) for n, s, span in each]
    less, more = [n // 2 for n in whole], [n - n // 2 for n in whole]
    return (less, more) if auto == "SAME_UPPER" else (more, less)


def _padded(xp: Module, x: Array, window: Window, value: Any) -> Array:
    return xp.pad(x, [(0, 0), (0, 0), *window.pads], constant_values=value)


@standard("MaxPool", takes_count=True, only={"storage_order": (0,)})
def max_pool(
    xp: Module,
    x: Array,
    *,
    n_outputs: int,
    kernel_shape: Extents,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Extents | None = None,
    pads: Extents | None = None,
    storage_order: int = 0,
    strides: Extents | None = None,
) -> Any:
    """Indices are those of the flat X, of the first largest element."""
    said: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads}
    said |= {"auto_pad": auto_pad, "ceil_mode": ceil_mode}
    window = Window.of(x.shape[2:], kernel_shape, **said)
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    padded = _padded(xp, x, window, least)
    parts = [padded[cut] for cut in window.cuts()]
    best = parts[0].copy()
    if n_outputs == 1:
        for part in parts[1:]:
            xp.maximum(best, part, out=best)
        return best
    places = _padded(xp, xp.arange(x.size, dtype=INT64).reshape(x.shape), window, -1)
    index = None
    for part, cut in zip(parts, window.cuts(), strict=True):
        place = places[cut]
        if index is None:
            index = place.copy()
            continue
        better = (part > best) | ((index < 0) & (place >= 0))
        best, index = xp.where(better, part, best), xp.where(better, place, index)
    return best, index


@standard("AveragePool")
def average_pool(
    xp: Module,
    x: Array,
    *,
    kernel_shape: Extents,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Extents | None = None,
    pads: Extents | None = None,
    strides: Extents | None = None,
) -> Array:
    said: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads}
    said |= {"auto_pad": auto_pad, "ceil_mode": ceil_mode}
    window = Window.of(x.shape[2:], kernel_shape, **said)
    padded = _padded(xp, x, window, 0)
    total = sum(padded[cut] for cut in window.cuts())
    return total / xp.asarray(_counts(x.shape[2:], window, count_include_pad).astype(x.dtype))


def _counts(shape: Extents, window: Window, with_pads: int) -> Any:
    """How many elements each mean is over."""
    ones = np.ones(shape)
    if with_pads:
        before = [b for b, _ in window.pads]
        ones = np.pad(ones, list(zip(before, window.after, strict=True)), constant_values=1)
        rest = [(0, e - a) for (_, e), a in zip(window.pads, window.after, strict=True)]
        ones = np.pad(ones, rest)
    else:
        ones = np.pad(ones, window.pads)
    return sum(ones[cut[1:]] if ones.ndim == 0 else ones[cut] for cut in window.cuts())


@standard("GlobalAveragePool")
def global_average_pool(xp: Module, x: Array) -> Array:
    return x.mean(axis=tuple(range(2, x.ndim)), keepdims=True)


@standard("GlobalMaxPool")
def global_max_pool(xp: Module, x: Array) -> Array:
    return x.max(axis=tuple(range(2, x.ndim)), keepdims=True)


@standard("MaxPoolGrad", host=(2,), grows=True)
def max_pool_grad(
    xp: Module,
    dy: Array,
    indices: Array,
    shape: Any,
    *,
    kernel_shape: Extents | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Extents | None = None,
    pads: Extents | None = None,
    storage_order: int = 0,
    strides: Extents | None = None,
) -> Array:
    """`shape` is X's, which a session finds."""
    n = int(np.prod(shape))
    dx = xp.zeros(n, dy.dtype)
    kept = indices.reshape(-1) >= 0
    xp.add.at(dx, indices.reshape(-1)[kept], dy.reshape(-1)[kept])
    return dx.reshape(tuple(int(m) for m in shape))


@standard("AveragePoolGrad", host=(1,), grows=True)
def average_pool_grad(
    xp: Module,
    dy: Array,
    shape: Any,
    *,
    kernel_shape: Extents,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Extents | None = None,
    pads: Extents | None = None,
    strides: Extents | None = None,
) -> Array:
    whole = tuple(int(m) for m in shape)
    said: dict[str, Any] = {"strides": strides, "dilations": dilations, "pads": pads}
    said |= {"auto_pad": auto_pad, "ceil_mode": ceil_mode}
    window = Window.of(whole[2:], kernel_shape, **said)
    counts = _counts(whole[2:], window, count_include_pad).astype(dy.dtype)
    dx = _padded(xp, xp.zeros(whole, dy.dtype), window, scalar(dy, 0))
    each = dy / xp.asarray(counts)
    for cut in window.cuts():
        dx[cut] += each
    inner = tuple(slice(b, b + n) for (b, _), n in zip(window.pads, whole[2:], strict=True))
    return dx[(..., *inner)]
