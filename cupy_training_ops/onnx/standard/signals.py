# SPDX-License-Identifier: MIT
"""Fourier transforms of signals, windows, and weights of mel bands.

Complex numbers are two real ones along a last dimension.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...dtypes import HostArray, to_dtype
from ...errors import ArgumentError
from .shapes import extents, on_device
from .table import Array, Module, axis_of, in_float32, standard


@standard("DFT", since=17, until=19, host=(1,))
@in_float32
def dft_17(
    xp: Module,
    x: Array,
    length: Any = None,
    *,
    axis: int = 1,
    inverse: bool = False,
    onesided: bool = False,
) -> Array:
    """Return the Fourier transform of x along the attribute `axis`: DFT before opset 20.

    x: (..., 1) of real or (..., 2) of complex numbers. length: elements that are transformed, None
    for all. onesided: only the half spectrum of a real signal is computed, or (inverse) read.
    """
    return _dft(xp, x, length, axis, inverse, onesided)


@standard("DFT", since=20, host=(1, 2))
@in_float32
def dft(
    xp: Module,
    x: Array,
    length: Any = None,
    axis: Any = None,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> Array:
    """Return the Fourier transform of x along `axis`, by default the one before the last.

    x: (..., 1) of real or (..., 2) of complex numbers. length: elements that are transformed, None
    for all. onesided: only the half spectrum of a real signal is computed, or (inverse) read.
    """
    place = -2 if axis is None else int(axis.reshape(-1)[0])
    return _dft(xp, x, length, place, inverse, onesided)


def _dft(
    xp: Module, x: Array, length: Any, axis: int, is_inverse: bool, is_onesided: bool
) -> Array:
    """Return the Fourier transform of x along an axis, or the inverse one, complex as (..., 2).

    x: (..., 1) of real or (..., 2) of complex numbers. length: an array of one number, None for x's
    own. is_onesided: only the half spectrum of a real signal is computed, or (inverse) read.
    """
    place = axis_of(axis, x.ndim)
    if x.ndim < 2 or x.shape[-1] not in (1, 2) or place == x.ndim - 1:
        raise ArgumentError(f"expected (..., 1) or (..., 2) and an axis before, got {x.shape}")
    n = x.shape[place]
    if is_onesided and is_inverse:  # n / 2 + 1 bins of an even n
        n = 2 * (n - 1)
    if length is not None:
        (n,) = extents(length.reshape(-1))
    if n < 1:
        raise ArgumentError(f"dft_length: expected at least 1, got {n}")
    if is_onesided and x.shape[-1] != (2 if is_inverse else 1):
        word = "complex" if is_inverse else "real"
        raise ArgumentError(f"onesided: expected a {word} input, got shape {x.shape}")
    numbers = x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]
    if is_onesided and is_inverse:
        return xp.fft.irfft(numbers, n, place)[..., None].astype(x.dtype, copy=False)
    functions = {(False, False): "fft", (False, True): "rfft", (True, False): "ifft"}
    y = getattr(xp.fft, functions[bool(is_inverse), bool(is_onesided)])(numbers, n, place)
    return _in_two(xp, y, x.dtype)


def _in_two(xp: Module, y: Array, dtype: Any) -> Array:
    """Return complex numbers as real ones, (..., 2), of a type."""
    return xp.stack([y.real, y.imag], axis=-1).astype(dtype, copy=False)


@standard("STFT", since=17, host=(1, 3), grows=True)
@in_float32
def stft(
    xp: Module,
    x: Array,
    step: Any,
    window: Array = None,
    length: Any = None,
    *,
    onesided: bool = True,
) -> Array:
    """Return spectra (batch, frames, bins, 2) of frames of a signal (batch, length, 1 or 2).

    Frames begin `step` elements apart, and are multiplied by the window; `length` elements each, by
    default the window's.
    """
    if x.ndim != 3 or x.shape[2] not in (1, 2):
        raise ArgumentError(f"signal: expected (batch, length, 1 or 2), got {x.shape}")
    if onesided and x.shape[2] == 2:
        raise ArgumentError(f"onesided: expected a real signal, got shape {x.shape}")
    n = x.shape[1] if window is None else window.size
    if length is not None:
        n = int(length.reshape(-1)[0])
    if window is not None and window.shape != (n,):
        raise ArgumentError(f"window: expected shape ({n},), got {window.shape}")
    hop = int(step.reshape(-1)[0])
    if hop < 1 or not 1 <= n <= x.shape[1]:
        expected = f"a step of at least 1 and frames of 1 to {x.shape[1]}"
        raise ArgumentError(f"expected {expected}, got {hop} and {n}")
    starts = np.arange((x.shape[1] - n) // hop + 1) * hop
    frames = x[:, on_device(xp, starts[:, None] + np.arange(n))]
    if window is not None:
        frames = frames * window[:, None]
    return _dft(xp, frames, None, 2, False, onesided)


# ---- made of numbers on the host -----------------------------------------------------------------

WINDOWS = {  # a0 - a1 cos(2 pi i / n) + a2 cos(4 pi i / n)
    "BlackmanWindow": (0.42, 0.5, 0.08),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "HannWindow": (0.5, 0.5, 0.0),
}


def _register_window(name: str, terms: tuple[float, float, float]) -> None:
    """Put an operator into the table that makes a window of terms a0, a1, a2 (see WINDOWS)."""

    @standard(name, since=17, host=(0,), grows=True)
    def window(xp: Module, size: Any, *, output_datatype: int = 1, periodic: bool = True) -> Array:
        """Return a window of `size` elements, of period size, or size - 1 if not periodic."""
        (n,) = extents(size.reshape(-1))
        period = n if periodic else n - 1
        places = np.arange(n) * (2 * math.pi / max(period, 1))
        y = terms[0] - terms[1] * np.cos(places) + terms[2] * np.cos(2 * places)
        return on_device(xp, y.astype(to_dtype(output_datatype)))


for _name, _terms in WINDOWS.items():
    _register_window(_name, _terms)


@standard("MelWeightMatrix", since=17, host=(0, 1, 2, 3, 4), grows=True)
def mel_weight_matrix(
    xp: Module,
    n_bands: Any,
    length: Any,
    rate: Any,
    low: Any,
    high: Any,
    *,
    output_datatype: int = 1,
) -> Array:
    """Return the weight of each bin of a spectrum in each mel band, (bins, bands).

    A band is a triangle over three neighbouring corners, which are evenly spaced on the mel scale,
    2595 log10(1 + hertz / 700), and cut to whole bins. length: of the transform; rate: samples a
    second; low, high: hertz.
    """
    n, bins, hertz = (int(a.reshape(-1)[0]) for a in (n_bands, length, rate))
    edges = [float(a.reshape(-1)[0]) for a in (low, high)]
    if hertz < 1 or not 0 <= edges[0] <= edges[1] < math.inf:
        got = f"{hertz}, {edges[0]} and {edges[1]}"
        raise ArgumentError(f"expected a sample_rate above 0 and edges in order, got {got}")
    ends = [2595 * math.log10(1 + edge / 700) for edge in edges]
    extents((bins // 2 + 1, n))
    mels = ends[0] + np.arange(n + 2) * ((ends[1] - ends[0]) / (n + 2))
    corners = (bins + 1) * 700 * (10 ** (mels / 2595) - 1) // hertz
    weights = _triangles(corners.astype(np.int64), bins // 2 + 1)
    return on_device(xp, weights.astype(to_dtype(output_datatype)))


def _triangles(corners: HostArray, n: int) -> HostArray:
    """Return triangles (n bins, bands): band k rises from corner k to k + 1 and falls to k + 2.

    corners: bins, in order.
    """
    if corners.min() < 0 or corners[:-1].max() >= n:
        expected = f"edges within {n} bins"
        raise ArgumentError(f"lower_edge_hertz, upper_edge_hertz: expected {expected}")
    start, top, end = (corners[k : len(corners) - 2 + k] for k in range(3))
    i = np.arange(n)[:, None]
    rise, fall = np.maximum(top - start, 1), np.maximum(end - top, 1)
    up = np.where((i >= start) & (i <= top), (i - start) / rise, 0)
    down = np.where((i > top) & (i < end), (end - i) / fall, 0)
    return np.where(i == top, 1.0, up + down)
