# SPDX-License-Identifier: MIT
"""Fourier transforms, beside PyTorch and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper

import cupy_training_ops as cto


def call(name: str, *inputs: Any, version: int = 20, **attributes: Any) -> np.ndarray:
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(name, names, ["y"], **attributes)
    arrays = [x if x is None else np.asarray(x) for x in inputs]
    return cto.onnx.call(node, arrays, version=version)[0]


def pairs(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1)


@pytest.mark.parametrize("axis", [0, 1, -2, -3])
@pytest.mark.parametrize("length", [None, 4, 9])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
def test_whole_transforms(axis, length, inverse, parts, rng) -> None:
    x = rng.standard_normal((3, 6, parts))
    z = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    transform = torch.fft.ifft if inverse else torch.fft.fft
    expected = pairs(transform(torch.tensor(z), length, axis % 3).resolve_conj().numpy())
    np.testing.assert_allclose(call("DFT", x, length, axis, inverse=inverse), expected, atol=1e-12)
    old = call("DFT", x, length, version=17, inverse=inverse, axis=axis)
    np.testing.assert_allclose(old, expected, atol=1e-12)


@pytest.mark.parametrize("n", [5, 6])
def test_one_sided_transforms(n, rng) -> None:
    """From real numbers to half a spectrum, and back; float16 in float32."""
    x = rng.standard_normal((2, n, 1))
    half = call("DFT", x, onesided=1)
    np.testing.assert_allclose(half, pairs(np.fft.rfft(x[..., 0])), atol=1e-12)
    np.testing.assert_allclose(call("DFT", half, n, onesided=1, inverse=1), x, atol=1e-12)
    assert call("DFT", half, onesided=1, inverse=1).shape == (2, n - n % 2, 1)
    small = x.astype(np.float16)
    expected = pairs(np.fft.rfft(small[..., 0].astype(np.float64))).astype(np.float16)
    np.testing.assert_allclose(call("DFT", small, onesided=1), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_short_time_transforms(onesided, windowed, rng) -> None:
    x, window = rng.standard_normal((2, 23, 1)), rng.random(8)
    found = call("STFT", x, 3, window if windowed else None, 8, version=17, onesided=onesided)
    expected = torch.stft(
        torch.tensor(x[..., 0]),
        8,
        3,
        window=torch.tensor(window) if windowed else torch.ones(8, dtype=torch.float64),
        center=False,
        onesided=bool(onesided),
        return_complex=True,
    )
    np.testing.assert_allclose(found, pairs(expected.transpose(1, 2).numpy()), atol=1e-12)


def test_refusals(rng) -> None:
    x = rng.standard_normal((2, 6, 2))
    for words, inputs, attributes in (
        ("expected a real signal, got a complex one", (x,), {"onesided": 1}),
        ("expected one of the signal, got the last one", (x, None, -1), {}),
        ("dft_length: expected at least 1, got 0", (x, 0), {}),
        ("input: expected 1 or 2 as last extent", (x[..., None].repeat(3, -1),), {}),
    ):
        with pytest.raises(cto.ArgumentError, match=words):
            call("DFT", *inputs, **attributes)
    with pytest.raises(cto.ArgumentError, match=r"window: expected shape \(4,\), got \(3,\)"):
        call("STFT", x[..., :1], 1, np.ones(3), 4)
    with pytest.raises(cto.ArgumentError, match="frames of 1 to 6, got 1 and 7"):
        call("STFT", x[..., :1], 1, None, 7)


def test_mel_weights() -> None:
    """Triangles with a peak of 1, each of which falls where the next one rises."""
    w = call("MelWeightMatrix", 6, 64, 8000, np.float32(0), np.float32(4000), output_datatype=11)
    assert w.shape == (33, 6)
    assert w.dtype == np.float64
    np.testing.assert_array_equal(w.max(0), np.ones(6))
    peaks = w.argmax(0)
    for k in range(5):
        between = slice(peaks[k], peaks[k + 1] + 1)
        np.testing.assert_allclose(w[between, k] + w[between, k + 1], 1)
    mels = np.arange(8) * (2595 * np.log10(1 + 4000 / 700) / 8)
    np.testing.assert_array_equal(peaks, 65 * 700 * (10 ** (mels[1:7] / 2595) - 1) // 8000)
