# SPDX-License-Identifier: MIT
"""Resize's filters, crops and policies: beside PyTorch, and beside formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import cupy_training_ops as cto

torch = pytest.importorskip("torch")


def resize(x: np.ndarray, sizes: list[int] | None = None, **options: Any) -> np.ndarray:
    """The array resized by these sizes; roi and scales among the options are inputs, too."""
    roi = np.array(options.pop("roi", []), np.float32)
    scales = np.array(options.pop("scales", []), np.float32)
    node = helper.make_node("Resize", ["x", "roi", "scales", "sizes"], ["y"], **options)
    wanted = None if sizes is None else np.array(sizes)
    return cto.onnx.call(node, [x, roi, scales, wanted], version=19)[0]


@pytest.mark.parametrize("sizes", [(3, 4), (5, 13), (1, 2), (9, 2)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_a_wider_filter(mode, sizes, rng) -> None:
    """PyTorch leaves out what is beyond an end, and has -0.5 as cubic coefficient."""
    x = rng.standard_normal((2, 3, 7, 9))
    actual = resize(
        x, [2, 3, *sizes], mode=mode, antialias=1, exclude_outside=1, cubic_coeff_a=-0.5
    )
    expected = torch.nn.functional.interpolate(
        torch.tensor(x), sizes, mode=f"bi{mode}", antialias=True, align_corners=False
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_a_part_is_cut_out(m, rng) -> None:
    """Outputs beyond the pixels have the extrapolation's value."""
    x = rng.standard_normal((4, 6))
    start, end = (0.2, -0.1), (0.7, 1.3)
    actual = resize(
        x,
        [m, 6],
        roi=[*start, *end],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=9.0,
    )
    places = []
    for n, k, a, b in zip(x.shape, (m, 6), start, end, strict=True):
        middle = [(a + b) / 2]
        at = np.array(middle) if k == 1 else np.linspace(np.float32(a), np.float32(b), k)
        places.append(at * (n - 1))
    for i, r in enumerate(places[0]):
        for j, c in enumerate(places[1]):
            inside = 0 <= r <= 3 and 0 <= c <= 5
            column = [np.interp(r, range(4), x[:, k]) for k in range(6)]
            expected = np.interp(c, range(6), column) if inside else 9
            np.testing.assert_allclose(actual[i, j], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("policy", "sizes", "expected"),
    [
        ("not_larger", [3, 30], (3, 5)),
        ("not_smaller", [3, 30], (20, 30)),
        ("not_smaller", [5, 3], (5, 8)),
        ("stretch", [3, 30], (3, 30)),
    ],
)
def test_a_policy_keeps_the_ratio(policy, sizes, expected, rng) -> None:
    """4 x 6 in a box, or around one; 4.5 is 5, and 7.5 is 8."""
    x = rng.standard_normal((1, 4, 6))
    actual = resize(x, sizes, axes=[1, -1], keep_aspect_ratio_policy=policy)
    assert actual.shape[1:] == expected


def test_refusals(rng) -> None:
    x = rng.standard_normal((4, 6))
    with pytest.raises(cto.ArgumentError, match="roi: expected 4 numbers, got 2"):
        resize(x, [2, 2], roi=[0, 1], coordinate_transformation_mode="tf_crop_and_resize")
    with pytest.raises(cto.ArgumentError, match="sizes: expected 2 numbers, got 1"):
        resize(x, [2])
    with pytest.raises(cto.ArgumentError, match="scales: expected 1 numbers, got 2"):
        resize(x, scales=[1, 2], axes=[0])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_no_pixels_cannot_be_resized_to_some(mode, rng) -> None:
    x = rng.standard_normal((1, 2, 0, 4))
    with pytest.raises(cto.ArgumentError, match="X: expected pixels along axis 2"):
        resize(x, [1, 2, 3, 4], mode=mode)
    assert resize(x, [1, 2, 0, 3], mode=mode).shape == (1, 2, 0, 3)
    assert resize(x[:0, :, 1:], [0, 2, 0, 3], mode=mode).shape == (0, 2, 0, 3)
