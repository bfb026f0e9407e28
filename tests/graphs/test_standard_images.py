# SPDX-License-Identifier: MIT
"""Places between pixels, regions, windows and boxes: against PyTorch, and pixel by pixel."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import cupy_training_ops as cto

from .nodes import result, results

torch = pytest.importorskip("torch")
functional = torch.nn.functional
F = np.float32
TORCH_MODES = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


@pytest.mark.parametrize("mode", TORCH_MODES)
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("rank", [2, 3])
def test_grids_are_read_as_torch_does(mode: str, padding: str, align: int, rank: int, rng) -> None:
    if mode == "cubic" and rank == 3:
        return  # which PyTorch has not
    x = rng.standard_normal((2, 3, 4, 5, 6)[: rank + 2])
    grid = rng.uniform(-2.5, 2.5, (*(2, 3, 7, 2)[: rank + 1], rank))
    attributes = {"padding_mode": padding, "align_corners": align}
    actual = result("GridSample", x, grid, mode=mode, **attributes)
    exact = functional.grid_sample(
        torch.tensor(x), torch.tensor(grid), TORCH_MODES[mode], padding, bool(align)
    )
    np.testing.assert_allclose(actual, exact, rtol=1e-9, atol=1e-12)
    old = result("GridSample", x, grid, version=16, mode=TORCH_MODES[mode], **attributes)
    np.testing.assert_array_equal(old, actual)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_cubes_are_read_axis_by_axis(padding: str, rng) -> None:
    """A grid that goes along the axes is a product of lines, which a plane of one row gives."""
    x = rng.standard_normal((1, 1, 4, 5, 6))
    lines = [rng.uniform(-1.8, 1.8, n) for n in (2, 3, 4)]
    grid = np.stack(np.meshgrid(*lines, indexing="ij")[::-1], axis=-1)[None]
    actual = result("GridSample", x, grid, mode="cubic", padding_mode=padding)
    for axis, line in enumerate(lines):
        rows = np.moveaxis(x, 2 + axis, -1)
        flat = rows.reshape(1, -1, 1, rows.shape[-1])
        flat = np.repeat(flat, 9, axis=2)  # the same in each row
        places = np.stack([line, np.zeros_like(line)], axis=-1)[None, None]
        read = functional.grid_sample(
            torch.tensor(flat), torch.tensor(places), "bicubic", padding, False
        ).numpy()
        x = np.moveaxis(read.reshape(*rows.shape[:-1], len(line)), -1, 2 + axis)
    np.testing.assert_allclose(actual, x, rtol=1e-9, atol=1e-12)


def test_grids_over_other_types(rng) -> None:
    """Integers are computed as floats and cut; what is far outside is not read."""
    x, grid = rng.integers(-50, 50, (1, 2, 4, 5)), rng.uniform(-1, 1, (1, 3, 3, 2))
    exact = result("GridSample", x.astype(float), grid)
    np.testing.assert_array_equal(result("GridSample", x, grid), np.trunc(exact))
    near = result("GridSample", x.astype(float), grid, mode="nearest")
    actual = result("GridSample", x + 2**60, grid, mode="nearest", padding_mode="border")
    np.testing.assert_array_equal(actual - 2**60, near)
    for mode in ("nearest", "cubic"):
        both = result("GridSample", x + 1j * x[:, ::-1], grid, mode=mode)
        parts = [result("GridSample", y.astype(float), grid, mode=mode) for y in (x, x[:, ::-1])]
        np.testing.assert_allclose(both, parts[0] + 1j * parts[1])
    halves = result("GridSample", x.astype(np.float16), grid.astype(np.float16))
    assert halves.dtype == np.float16
    far = np.array([np.inf, -np.inf, 1e30, -1e30]).reshape(1, 1, 2, 2)
    np.testing.assert_array_equal(result("GridSample", np.full(x.shape, np.nan), far), 0)


def test_grids_that_do_not_fit_are_refused(rng) -> None:
    x = rng.standard_normal((2, 3, 4, 5))
    for shape in ((2, 4, 4, 3), (1, 4, 4, 2), (2, 4, 2)):
        with pytest.raises(cto.ArgumentError, match="grid: expected shape"):
            result("GridSample", x, np.zeros(shape))
    with pytest.raises(cto.ArgumentError, match="mode='bilinear' is not computed here"):
        result("GridSample", x, np.zeros((2, 4, 4, 2)), mode="bilinear")


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.filterwarnings("ignore:Since version")  # of one pixel
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 1, 3), (2, 3, 4, 1, 2)])
def test_affine_grids_are_those_of_torch(align: int, size: tuple[int, ...], rng) -> None:
    rank = len(size) - 2
    theta = rng.standard_normal((2, rank, rank + 1))
    actual = result("AffineGrid", theta, np.array(size), align_corners=align)
    exact = functional.affine_grid(torch.tensor(theta), size, align_corners=bool(align))
    np.testing.assert_allclose(actual, exact, rtol=1e-12, atol=1e-12)
    with pytest.raises(cto.ArgumentError, match="size: expected 4 or 5 extents, got 3"):
        result("AffineGrid", theta, np.array(size[:3]))
    with pytest.raises(cto.ArgumentError, match="expected a vector of extents"):
        result("AffineGrid", theta, np.array([size]))


# ---- regions -------------------------------------------------------------------------------------


def corners_of(x: np.ndarray, y: float, z: float) -> list[float]:
    """The four pixels around a place by their shares, as RoiAlign has it."""
    h, w = x.shape
    if not (-1 <= y <= h and -1 <= z <= w):
        return [0.0] * 4
    y, z = min(max(y, 0), h - 1), min(max(z, 0), w - 1)
    i, j = min(int(y), h - 1), min(int(z), w - 1)
    a, b = y - i, z - j
    down, right = min(i + 1, h - 1), min(j + 1, w - 1)
    pairs = [((1 - a) * (1 - b), x[i, j]), ((1 - a) * b, x[i, right])]
    pairs += [(a * (1 - b), x[down, j]), (a * b, x[down, right])]
    return [float(share * pixel) for share, pixel in pairs]


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("shift", ["half_pixel", "output_half_pixel"])
def test_regions_place_by_place(mode: str, ratio: int, shift: str, rng) -> None:
    x = rng.standard_normal((2, 3, 6, 8))
    rois = np.sort(rng.uniform(-3, 18, (4, 2, 2)), axis=1).reshape(4, 4)
    rois[3] = [5, 5, 4, 4]  # of no extent
    images, scale = np.array([0, 1, 1, 0]), 0.5
    actual = result(
        "RoiAlign", x, rois, images, mode=mode, output_height=2, output_width=3,
        sampling_ratio=ratio, spatial_scale=scale, coordinate_transformation_mode=shift,
    )  # fmt: skip
    off, least = (0.5, -np.inf) if shift == "half_pixel" else (0, 1)
    for r, channel in itertools.product(range(4), range(3)):
        left, top, right, bottom = rois[r] * scale - off
        cell = max(bottom - top, least) / 2, max(right - left, least) / 3
        ny, nx = (ratio or max(int(np.ceil(c)), 0) for c in cell)
        for i, j in itertools.product(range(2), range(3)):
            read = [
                corners_of(
                    x[images[r], channel],
                    top + (i + (a + 0.5) / ny) * cell[0],
                    left + (j + (b + 0.5) / nx) * cell[1],
                )
                for a, b in itertools.product(range(ny), range(nx))
            ]
            if mode == "avg":
                exact = sum(map(sum, read)) / max(ny * nx, 1)
            else:
                exact = max(map(max, read), default=0)
            np.testing.assert_allclose(actual[r, channel, i, j], exact, rtol=1e-9, atol=1e-12)


def test_old_regions_are_not_shifted(rng) -> None:
    x, rois = rng.standard_normal((1, 2, 5, 5)), np.array([[0, 0, 3, 4.0]])
    images = np.zeros(1, np.int64)
    new = {"coordinate_transformation_mode": "output_half_pixel"}
    np.testing.assert_array_equal(
        result("RoiAlign", x, rois, images, version=10, sampling_ratio=1),
        result("RoiAlign", x, rois, images, version=16, sampling_ratio=1, **new),
    )
    with pytest.raises(cto.ArgumentError, match="batch_indices: expected from 0 to 0, got 1"):
        result("RoiAlign", x, rois, images + 1)
    assert result("RoiAlign", x, rois[:0], images[:0], output_height=2).shape == (0, 2, 2, 1)
    with pytest.raises(cto.ArgumentError, match="extents of at least 0"):
        result("RoiAlign", x, rois, images, output_height=-2)
    with pytest.raises(cto.ArgumentError, match="sampling_ratio: expected at least 0, got -1"):
        result("RoiAlign", x, rois, images, sampling_ratio=-1)


def test_the_maxima_of_regions(rng) -> None:
    """Cells of 20 regions, each a part of rows and columns that may share its edges with others."""
    x = rng.standard_normal((2, 3, 9, 8)).astype(F)
    rois = np.concatenate(
        [rng.integers(0, 2, (20, 1)), rng.integers(-2, 5, (20, 2)), rng.integers(3, 12, (20, 2))], 1
    ).astype(F)
    actual = result("MaxRoiPool", x, rois, pooled_shape=[2, 3], spatial_scale=1.0)
    for r, (image, left, top, right, bottom) in enumerate(rois.astype(int)):
        height, width = max(bottom - top + 1, 1), max(right - left + 1, 1)
        for i, j in itertools.product(range(2), range(3)):
            rows = [max(top + i * height // 2, 0), top - (-(i + 1) * height // 2)]
            columns = [max(left + j * width // 3, 0), left - (-(j + 1) * width // 3)]
            part = (
                x[image, :, slice(*rows), slice(*columns)]
                if min(rows[1], columns[1]) > 0
                else x[:0]
            )
            exact = part.max(axis=(1, 2)) if part.size else 0
            np.testing.assert_array_equal(actual[r, :, i, j], exact)


@pytest.mark.parametrize("has_more", [False, True])
def test_deformed_convolutions_place_by_place(has_more: bool, rng) -> None:
    """Without offsets they are convolutions; with them, each value is read where they say."""
    x, w = rng.standard_normal((2, 4, 7, 6)), rng.standard_normal((6, 2, 3, 2))
    attributes: Any = {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 2]}
    attributes |= {"offset_group": 2 if has_more else 1}
    n = attributes["offset_group"]
    plain = torch.nn.functional.pad(torch.tensor(x), (0, 1, 1, 1))
    plain = functional.conv2d(plain, torch.tensor(w), None, (2, 1), 0, (1, 2), 2).numpy()
    shape = plain.shape[2:]
    zeros = np.zeros((2, n * 12, *shape))
    np.testing.assert_allclose(result("DeformConv", x, w, zeros, **attributes), plain, atol=1e-12)
    offset = rng.uniform(-2, 2, (2, n * 12, *shape))
    mask, bias = rng.uniform(0, 1, (2, n * 6, *shape)), rng.standard_normal(6)
    actual = result("DeformConv", x, w, offset, bias, mask, **attributes)
    padded = np.pad(x, [(0, 0), (0, 0), (3, 3), (3, 3)])
    exact = np.zeros_like(plain) + bias[:, None, None]
    for b, o, c in itertools.product(range(2), range(6), range(2)):
        channel = o // 3 * 2 + c
        g = channel // (4 // n)
        for i, j, k in itertools.product(range(shape[0]), range(shape[1]), range(6)):
            a, d = divmod(k, 2)
            y = 2 * i - 1 + a + offset[b, (g * 6 + k) * 2, i, j]
            z = j + 2 * d + offset[b, (g * 6 + k) * 2 + 1, i, j]
            y, z = np.clip(y, -2, 8), np.clip(z, -2, 7)
            u, v = int(np.floor(y)), int(np.floor(z))
            s, t = y - u, z - v
            part = padded[b, channel, u + 3 : u + 5, v + 3 : v + 5]
            value = np.array([1 - s, s]) @ part @ np.array([1 - t, t])
            exact[b, o, i, j] += value * w[o, c, a, d] * mask[b, g * 6 + k, i, j]
    np.testing.assert_allclose(actual, exact, rtol=1e-9, atol=1e-10)
    with pytest.raises(cto.ArgumentError, match="offset: expected"):
        result("DeformConv", x, w, offset[:, :-1], **attributes)
    for wrong, words in (
        ((None, mask[:, 1:]), "mask: expected shape"),
        ((bias[1:],), "B: expected"),
    ):
        with pytest.raises(cto.ArgumentError, match=words):
            result("DeformConv", x, w, offset, *wrong, **attributes)
    with pytest.raises(cto.ArgumentError, match="expected one rank of at least 3"):
        result("DeformConv", x, w[0], offset, **attributes)


# ---- windows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_windows_are_those_of_torch(p: int, rng) -> None:
    x = rng.standard_normal((2, 3, 8, 7))
    actual = result("LpPool", x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], p=p)
    padded = np.pad(np.abs(x), [(0, 0), (0, 0), (1, 1), (0, 1)])  # PyTorch's are signed for odd p
    exact = functional.lp_pool2d(torch.tensor(padded), p, (3, 2), (2, 1)).numpy()
    np.testing.assert_allclose(actual, exact, rtol=1e-9)
    actual = result("LpPool", x[..., 0], kernel_shape=[3], strides=[2], p=p, ceil_mode=1)
    exact = functional.lp_pool1d(
        torch.tensor(np.abs(np.pad(x[..., 0], [(0, 0)] * 2 + [(0, 1)]))), p, 3, 2
    )
    np.testing.assert_allclose(actual, exact, rtol=1e-9)
    exact = np.linalg.norm(x.reshape(2, 3, -1), p, axis=2)
    np.testing.assert_allclose(result("GlobalLpPool", x, p=p)[:, :, 0, 0], exact, rtol=1e-9)
    with pytest.raises(cto.ArgumentError, match="p: expected at least 1, got 0"):
        result("GlobalLpPool", x, p=0)


@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_responses_are_normalized_as_in_torch(size: int, rng) -> None:
    x = rng.standard_normal((2, 6, 3, 4))
    actual = result("LRN", x, size=size, alpha=0.25, beta=0.5, bias=1.5)
    exact = functional.local_response_norm(torch.tensor(x), size, 0.25, 0.5, 1.5)
    np.testing.assert_allclose(actual, exact, rtol=1e-9)


def test_an_even_window_has_more_behind(rng) -> None:
    x = rng.standard_normal((1, 5, 2))
    squares = np.pad(x**2, [(0, 0), (1, 2), (0, 0)])
    total = sum(squares[:, k : k + 5] for k in range(4))
    np.testing.assert_allclose(result("LRN", x, size=4, alpha=2.0), x / (1 + total / 2) ** 0.75)


@pytest.mark.parametrize("has_shape", [False, True])
def test_what_was_pooled_comes_back(has_shape: bool, rng) -> None:
    x = rng.standard_normal((2, 3, 6, 8))
    y, places = results("MaxPool", x, n=2, kernel_shape=[2, 2], strides=[2, 2])
    shape = (np.array([2, 3, 7, 9]),) if has_shape else ()
    actual = result("MaxUnpool", y, places, *shape, kernel_shape=[2, 2], strides=[2, 2])
    exact = np.where(np.isin(np.arange(x.size), places).reshape(x.shape), x, 0)
    if has_shape:
        exact = np.pad(exact, [(0, 0), (0, 0), (0, 1), (0, 1)])
    np.testing.assert_array_equal(actual, exact)
    with pytest.raises(cto.ArgumentError, match="I: expected from 0 to 287"):
        result("MaxUnpool", y, places + 200, kernel_shape=[2, 2], strides=[2, 2])
    with pytest.raises(cto.ArgumentError, match="output_shape: expected at least"):
        result("MaxUnpool", y, places, np.array([2, 3, 5, 9]), kernel_shape=[2, 2], strides=[2, 2])


def test_blocks_are_folded_as_in_torch(rng) -> None:
    attributes = {"strides": [2, 1], "pads": [1, 0, 1, 0], "dilations": [1, 2]}
    unfolded = functional.unfold(torch.zeros(2, 3, 7, 6), (3, 2), (1, 2), (1, 0), (2, 1))
    x = rng.standard_normal(unfolded.shape)
    actual = result("Col2Im", x, np.array([7, 6]), np.array([3, 2]), **attributes)
    exact = functional.fold(torch.tensor(x), (7, 6), (3, 2), (1, 2), (1, 0), (2, 1))
    np.testing.assert_allclose(actual, exact, rtol=1e-9, atol=1e-12)
    with pytest.raises(cto.ArgumentError, match="expected 16 blocks, got 15"):
        result("Col2Im", x[..., :-1], np.array([7, 6]), np.array([3, 2]), **attributes)


@pytest.mark.parametrize("shape", [(3, 9), (4, 2), (7, 5), (0, 3)])
def test_the_middle_is_cut_or_padded(shape: tuple[int, int], rng) -> None:
    x = rng.standard_normal((5, 2, 6))
    actual = result("CenterCropPad", x, np.array(shape), axes=[0, -1])
    exact = x
    for axis, n in ((0, shape[0]), (2, shape[1])):
        m = exact.shape[axis]
        if n < m:
            exact = np.take(exact, range((m - n) // 2, (m - n) // 2 + n), axis)
        else:
            pads = [(0, 0)] * 3
            pads[axis] = ((n - m) // 2, n - m - (n - m) // 2)
            exact = np.pad(exact, pads)
    np.testing.assert_array_equal(actual, exact)


# ---- boxes ---------------------------------------------------------------------------------------


def best_boxes(boxes: Any, scores: Any, most: int, share: float, least: float) -> list[Any]:
    """Boxes by corners (low, high): one after the other, beside all that were chosen."""
    rows = []
    for b, c in itertools.product(*map(range, scores.shape[:2])):
        chosen: list[int] = []
        for i in sorted(range(scores.shape[2]), key=lambda i: (-scores[b, c, i], i)):
            if scores[b, c, i] < least or len(chosen) == most:
                continue
            overlaps = []
            for k in chosen:
                sides = np.minimum(boxes[b, i, 1], boxes[b, k, 1])
                sides = np.maximum(sides - np.maximum(boxes[b, i, 0], boxes[b, k, 0]), 0)
                areas = [np.prod(boxes[b, j, 1] - boxes[b, j, 0]) for j in (i, k)]
                overlaps.append(sides.prod() / (sum(areas) - sides.prod()))
            if all(overlap <= share for overlap in overlaps):
                chosen.append(i)
        rows += [[b, c, i] for i in chosen]
    return rows


@pytest.mark.parametrize("by_centre", [0, 1])
@pytest.mark.parametrize("most", [2, 100])
def test_the_best_boxes_one_by_one(by_centre: int, most: int, rng) -> None:
    low = rng.integers(0, 12, (2, 30, 2))
    boxes = np.stack([low, low + rng.integers(1, 8, (2, 30, 2))], axis=2).astype(F)
    scores = (rng.integers(0, 20, (2, 3, 30)) / 20).astype(F)  # some are equal
    if by_centre:
        centre, size = boxes.mean(axis=2), boxes[:, :, 1] - boxes[:, :, 0]
        said = np.concatenate([centre, size], axis=2)
    else:  # any two opposite corners
        said = np.where(rng.integers(0, 2, (2, 30, 1, 2)), boxes, boxes[:, :, ::-1]).reshape(
            2, 30, 4
        )
    actual = result(
        "NonMaxSuppression", said, scores, np.array([most]), F([0.25]), F([0.3]),
        center_point_box=by_centre,
    )  # fmt: skip
    assert actual.dtype == np.int64
    np.testing.assert_array_equal(actual, best_boxes(boxes, scores, most, 0.25, F(0.3)))


def test_a_box_that_is_left_out_hides_none() -> None:
    """Each overlaps the next one alone."""
    boxes = F([[[0, 0, 4, 4], [2, 0, 6, 4], [4, 0, 8, 4]]])
    actual = result("NonMaxSuppression", boxes, F([[[0.9, 0.8, 0.7]]]), np.array([9]), F([0.25]))
    np.testing.assert_array_equal(actual, [[0, 0, 0], [0, 0, 2]])
    boxes = F([[[0, 0, 1, 5], [0, 3, 1, 8]]])  # 2 of 8 in common
    actual = result("NonMaxSuppression", boxes, F([[[0.9, 0.8]]]), np.array([9]), F([0.25]))
    assert len(actual) == 2


def test_no_boxes_are_wanted_unless_said(rng) -> None:
    boxes, scores = rng.uniform(0, 1, (1, 5, 4)).astype(F), rng.uniform(0, 1, (1, 2, 5)).astype(F)
    assert result("NonMaxSuppression", boxes, scores).shape == (0, 3)
    most = np.array([3])
    assert result("NonMaxSuppression", boxes[:, :0], scores[:, :, :0], most).shape == (0, 3)
    with pytest.raises(cto.ArgumentError, match="iou_threshold: expected from 0 to 1, got 2"):
        result("NonMaxSuppression", boxes, scores, most, F([2]))
    with pytest.raises(cto.ArgumentError, match="boxes, scores: expected"):
        result("NonMaxSuppression", boxes, scores[:, :, 1:], most)
