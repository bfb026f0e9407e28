# SPDX-License-Identifier: MIT
"""Fourier transforms of signals, whose last dimension has the real and the imaginary part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...dtypes import to_dtype
from ...errors import ArgumentError
from .shapes import extents, on_device
from .table import Array, Module, axis_of, in_float32, standard


@standard("DFT", since=17, until=19, host=(1,))
@in_float32
def dft_17(
    xp: Module,
    x: Array,
    dft_length: Any = None,
    *,
    axis: int = 1,
    inverse: bool = False,
    onesided: bool = False,
) -> Array:
    return _transform(xp, x, dft_length, axis, inverse, onesided)


@standard("DFT", since=20, host=(1, 2))
@in_float32
def dft(
    xp: Module,
    x: Array,
    dft_length: Any = None,
    axis: Any = None,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> Array:
    place = -2 if axis is None else _number(axis, "axis")
    return _transform(xp, x, dft_length, place, inverse, onesided)


def _transform(
    xp: Module, x: Array, dft_length: Any, axis: int, inverse: bool, onesided: bool
) -> Array:
    """Forward or back; a one-sided transform goes from real numbers to half a spectrum, and back
    from there."""
    place = axis_of(axis, x.ndim)
    if place == x.ndim - 1:
        raise ArgumentError(f"axis: expected one of the signal, got the last one, {axis}")
    z = _complex(x)
    n = None if dft_length is None else _number(dft_length, "dft_length")
    if n is not None and n < 1:
        raise ArgumentError(f"dft_length: expected at least 1, got {n}")
    if not onesided:
        y = (xp.fft.ifft if inverse else xp.fft.fft)(z, n, axis=place)
    elif inverse:
        return xp.fft.irfft(z, n, axis=place)[..., None].astype(x.dtype)
    else:
        y = xp.fft.rfft(_real(z), n, axis=place)
    return _parts(xp, y, x.dtype)


def _complex(x: Array) -> Array:
    """A signal without its last dimension; complex if that has two parts."""
    if x.shape[-1] not in (1, 2):
        raise ArgumentError(f"input: expected 1 or 2 as last extent, got shape {x.shape}")
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _real(z: Array) -> Array:
    if z.dtype.kind == "c":
        raise ArgumentError("onesided=1: expected a real signal, got a complex one")
    return z


def _parts(xp: Module, y: Array, dtype: Any) -> Array:
    return xp.stack([y.real, y.imag], axis=-1).astype(dtype, copy=False)


def _number(value: Any, name: str) -> int:
    if value.size != 1:
        raise ArgumentError(f"{name}: expected one integer, got shape {value.shape}")
    return int(value.reshape(-1)[0])


@standard("STFT", since=17, host=(1, 3))
@in_float32
def stft(
    xp: Module,
    signal: Array,
    frame_step: Any,
    window: Array = None,
    frame_length: Any = None,
    *,
    onesided: bool = True,
) -> Array:
    """The transform of each frame: signal[step i : step i + length] window."""
    if signal.ndim != 3:
        raise ArgumentError(f"signal: expected 3 dimensions, got shape {signal.shape}")
    z, step = _complex(signal), _number(frame_step, "frame_step")
    length = z.shape[1] if window is None else window.size
    if frame_length is not None:
        length = _number(frame_length, "frame_length")
    if step < 1 or not 0 < length <= z.shape[1]:
        words = f"a step of at least 1 and frames of 1 to {z.shape[1]}"
        raise ArgumentError(f"expected {words}, got {step} and {length}")
    if window is not None and window.shape != (length,):
        raise ArgumentError(f"window: expected shape ({length},), got {window.shape}")
    starts = np.arange(0, z.shape[1] - length + 1, step)
    frames = z[:, on_device(xp, starts[:, None] + np.arange(length))]
    if window is not None:
        frames = frames * window
    y = xp.fft.rfft(_real(frames)) if onesided else xp.fft.fft(frames)
    return _parts(xp, y, signal.dtype)


@standard("MelWeightMatrix", host=(0, 1, 2, 3, 4), grows=True)
def mel_weight_matrix(
    xp: Module,
    num_mel_bins: Any,
    dft_length: Any,
    sample_rate: Any,
    lower_edge_hertz: Any,
    upper_edge_hertz: Any,
    *,
    output_datatype: int = 1,
) -> Array:
    """Triangles over the bins of a spectrum, at equal distances on the mel scale,
    mel(f) = 2595 log10(1 + f / 700); corners are whole bins."""
    n, length = _number(num_mel_bins, "num_mel_bins"), _number(dft_length, "dft_length")
    rate = _number(sample_rate, "sample_rate")
    if n < 0 or length < 1 or rate < 1:
        raise ArgumentError(f"expected positive numbers, got {n}, {length} and {rate}")
    low, high = (
        2595 * math.log10(1 + float(edge.reshape(-1)[0]) / 700)
        for edge in (lower_edge_hertz, upper_edge_hertz)
    )
    mels = low + np.arange(n + 2) * ((high - low) / (n + 2))
    hertz = 700 * (10 ** (mels / 2595) - 1)
    corners = np.floor((length + 1) * hertz / rate)
    left, peak, right = corners[:-2], corners[1:-1], corners[2:]
    bins = np.arange(extents([length // 2 + 1, n])[0])[:, None]
    with np.errstate(all="ignore"):
        up = np.where(peak > left, (bins - left) / (peak - left), bins == peak)
        down = np.where(right > peak, (right - bins) / (right - peak), 0)
    rises = (bins >= left) & (bins <= peak)
    falls = (bins >= peak) & (bins < right) & (right > peak)
    weights = np.where(falls, down, np.where(rises, up, 0))
    return on_device(xp, weights.astype(to_dtype(output_datatype)))
