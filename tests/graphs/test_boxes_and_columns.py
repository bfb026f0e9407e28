# SPDX-License-Identifier: MIT
"""Boxes that overlap, cells of boxes, and windows of images: beside PyTorch, ONNX's reference, and
loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional

import cupy_training_ops as cto


def node_of(name: str, inputs: tuple[Any, ...], **attributes: Any) -> onnx.NodeProto:
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    return helper.make_node(name, names, ["y"], **attributes)


def call(name: str, *inputs: Any, version: int = 19, **attributes: Any) -> np.ndarray:
    arrays = [x if x is None else np.asarray(x) for x in inputs]
    return cto.onnx.call(node_of(name, inputs, **attributes), arrays, version=version)[0]


def reference(name: str, *inputs: Any, **attributes: Any) -> np.ndarray:
    node = node_of(name, inputs, **attributes)
    feeds = {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}
    return ReferenceEvaluator(node).run(None, feeds)[0]


# ---- boxes ---------------------------------------------------------------------------------------


def chosen(boxes: np.ndarray, scores: np.ndarray, most: int, iou: float, least: float) -> list:
    """The rows by a loop over boxes, the best first."""
    rows = []
    for image, by_class in enumerate(scores):
        corners = np.sort(boxes[image].reshape(-1, 2, 2), axis=1)
        for cls, score in enumerate(by_class):
            own: list[int] = []
            for k in np.argsort(-score, kind="stable"):
                is_free = all(overlap(corners[k], corners[j]) <= iou for j in own)
                if len(own) < most and score[k] > least and is_free:
                    own.append(k)
            rows += [(image, cls, k) for k in own]
    return rows


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    sides = np.minimum(a[1], b[1]) - np.maximum(a[0], b[0])
    common = max(sides[0], 0) * max(sides[1], 0)
    return common / (np.prod(a[1] - a[0]) + np.prod(b[1] - b[0]) - common)


@pytest.mark.parametrize("most", [0, 1, 3, 50])
@pytest.mark.parametrize(("iou", "least"), [(0.5, 0.2), (0.1, -1.0), (0.0, 0.5), (1.0, 0.0)])
def test_boxes_without_much_overlap(most, iou, least, rng) -> None:
    boxes = rng.random((2, 20, 4)).astype(np.float32)
    scores = rng.random((2, 3, 20)).astype(np.float32)
    limits = np.array([most]), np.float32(iou), np.float32(least)
    found = call("NonMaxSuppression", boxes, scores, *limits)
    assert found.shape[1] == 3
    assert found.dtype == np.int64
    assert list(map(tuple, found)) == chosen(boxes, scores, most, iou, least)


def test_boxes_by_their_centres(rng) -> None:
    low, sides = rng.random((2, 1, 9, 2)).astype(np.float32)
    scores = rng.random((1, 1, 9)).astype(np.float32)
    limits = np.array(9), np.float32(0.3)
    corners = np.concatenate([low, low + sides], -1)
    centres = np.concatenate([low + sides / 2, sides], -1)
    expected = call("NonMaxSuppression", corners, scores, *limits)
    found = call("NonMaxSuppression", centres, scores, *limits, center_point_box=1)
    np.testing.assert_array_equal(found, expected)


def test_no_box_and_other_shapes() -> None:
    boxes, scores = np.zeros((1, 0, 4), np.float32), np.zeros((1, 2, 0), np.float32)
    assert call("NonMaxSuppression", boxes, scores, np.array(3)).shape == (0, 3)
    with pytest.raises(cto.ArgumentError, match="expected shapes"):
        call("NonMaxSuppression", boxes, np.zeros((1, 2, 1), np.float32), np.array(3))


@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
def test_cells_of_boxes(ratio, mode, rng) -> None:
    """Some of which reach beyond the image."""
    x = rng.standard_normal((2, 3, 7, 9))
    low = rng.uniform(-4, 10, (6, 2))
    rois = np.concatenate([low, low + rng.uniform(0.1, 12, (6, 2))], 1)
    images = rng.integers(0, 2, 6)
    options = {"output_height": 2, "output_width": 3, "sampling_ratio": ratio}
    options |= {"spatial_scale": 0.7, "coordinate_transformation_mode": mode}
    expected = reference("RoiAlign", x, rois, images, **options)
    found = call("RoiAlign", x, rois, images, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    if mode == "output_half_pixel":
        del options["coordinate_transformation_mode"]
        old = call("RoiAlign", x, rois, images, version=10, **options)
        np.testing.assert_array_equal(old, found)
    with pytest.raises(cto.ArgumentError, match="mode='max' is not computed here"):
        call("RoiAlign", x, rois, images, mode="max")


# ---- windows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "options"),
    [
        ((2, 3), {}),
        ((3, 2), {"strides": [2, 1], "pads": [1, 0, 1, 0]}),
        ((2, 2), {"dilations": [2, 3], "strides": [1, 2], "pads": [0, 2, 0, 2]}),
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_blocks_are_summed(block, options, dtype, rng) -> None:
    image = (6, 7)
    given = {
        "dilation": options.get("dilations", 1),
        "padding": options.get("pads", [0, 0])[:2],
        "stride": options.get("strides", 1),
    }
    ones = functional.unfold(torch.ones(1, 1, *image), block, **given)
    x = rng.standard_normal((2, 3 * block[0] * block[1], ones.shape[2])).astype(dtype)
    expected = functional.fold(torch.tensor(x.astype(np.float64)), image, block, **given)
    found = call("Col2Im", x, np.array(image), np.array(block), **options)
    assert found.dtype == dtype
    rtol = 1e-6 if dtype == np.float64 else 2e-3
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)
    with pytest.raises(cto.ArgumentError, match="input: expected shape"):
        call("Col2Im", x[:, :, 1:], np.array(image), np.array(block), **options)


def test_pools_are_undone(rng) -> None:
    x = torch.tensor(rng.standard_normal((2, 3, 6, 8)))
    y, indices = functional.max_pool2d(x, 2, 2, return_indices=True)
    expected = functional.max_unpool2d(y, indices, 2, 2)
    flat = indices + 48 * torch.arange(6).reshape(2, 3, 1, 1)
    options = {"kernel_shape": [2, 2], "strides": [2, 2]}
    found = call("MaxUnpool", y.numpy(), flat.numpy(), **options)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(cto.ArgumentError, match="output_shape: expected"):
        call("MaxUnpool", y.numpy(), flat.numpy(), np.array([2, 3, 7, 8]), **options)


def test_a_kernel_without_offsets_is_a_convolution(rng) -> None:
    x, w, bias = (rng.standard_normal(n) for n in ((2, 4, 7, 8), (6, 2, 3, 2), (6,)))
    options = {"strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 2], "group": 2}
    padded = functional.pad(torch.tensor(x), (0, 1, 1, 1))
    expected = functional.conv2d(
        padded, torch.tensor(w), torch.tensor(bias), stride=(2, 1), dilation=(1, 2), groups=2
    )
    offset = np.zeros((2, 2 * 6 * 2, *expected.shape[2:]))
    found = call("DeformConv", x, w, offset, bias, offset_group=2, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("masked", [False, True])
def test_a_kernel_with_offsets(masked, rng) -> None:
    """By a loop over taps and outputs; some taps lie beyond an end, and count in part."""
    x, w = rng.standard_normal((1, 2, 5, 6)), rng.standard_normal((3, 2, 2, 2))
    offset = rng.uniform(-2, 2, (1, 2 * 4 * 2, 4, 5))
    mask = rng.random((1, 2 * 4, 4, 5)) if masked else None
    expected = np.zeros((1, 3, 4, 5))
    wide = np.pad(x, ((0, 0), (0, 0), (9, 9), (9, 9)))
    for c, k, i, j in np.ndindex(2, 4, 4, 5):
        place = 8 * c + 2 * k  # the offsets of channel c, which is a group of its own
        r = i + k // 2 + offset[0, place, i, j] + 9
        s = j + k % 2 + offset[0, place + 1, i, j] + 9
        a, b = int(r), int(s)
        corners = wide[0, c, a : a + 2, b : b + 2]
        value = np.array([a + 1 - r, r - a]) @ corners @ np.array([b + 1 - s, s - b])
        share = 1 if mask is None else mask[0, 4 * c + k, i, j]
        expected[0, :, i, j] += w[:, c, k // 2, k % 2] * value * share
    found = call("DeformConv", x, w, offset, None, mask, offset_group=2)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    with pytest.raises(cto.ArgumentError, match="expected offsets of shape"):
        call("DeformConv", x, w, offset)
