# SPDX-License-Identifier: MIT
"""Gradients of Resize, and of what samples between pixels."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto

from .one_operator import check_gradients, check_types, model_of

torch = pytest.importorskip("torch")

PLANES, LINE = (1, 2, 3, 4), (2, 1, 5)
DOUBLE = np.array([1, 1, 2, 2], np.float32)
ODD = np.array([1, 1, 1.7, 0.6], np.float32)
SIZES = np.array([1, 2, 7, 3])
TRANSFORMATIONS = (
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel_symmetric",
)


def inputs(shape, rng, scales=None, sizes=None) -> list[np.ndarray | None]:
    ends = [None, scales] if sizes is None else [None, None, sizes]
    return [rng.standard_normal(shape), *ends]


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("by", ["double", "odd", "sizes"])
def test_gradients_of_planes(mode, transformation, by, rng) -> None:
    ends = {"double": {"scales": DOUBLE}, "odd": {"scales": ODD}, "sizes": {"sizes": SIZES}}[by]
    options = {"mode": mode, "coordinate_transformation_mode": transformation}
    check_gradients("Resize", inputs(PLANES, rng, **ends), rng, opset=19, trainable=[0], **options)


OTHERS = {
    "line": (LINE, {"scales": np.array([1, 1, 2.5], np.float32)}, {"mode": "linear"}),
    "axes": (PLANES, {"sizes": np.array([6, 5])}, {"axes": [-1, 1], "mode": "linear"}),
    "axes of planes": (PLANES, {"sizes": np.array([6, 5])}, {"axes": [2, 3], "mode": "linear"}),
    "axes by scales": (PLANES, {"scales": DOUBLE[2:]}, {"axes": [3, 2], "mode": "linear"}),
    "channels": (PLANES, {"sizes": np.array([1, 4, 3, 4])}, {"mode": "linear"}),
    "one pixel": (PLANES, {"sizes": np.array([1, 2, 1, 1])}, {"mode": "linear"}),
    "one of PyTorch's pixels": (
        PLANES,
        {"sizes": np.array([1, 2, 1, 6])},
        {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    ),
    "excluded": (PLANES, {"scales": ODD}, {"mode": "cubic", "exclude_outside": 1}),
    "another cubic": (PLANES, {"scales": DOUBLE}, {"mode": "cubic", "cubic_coeff_a": -0.5}),
    "antialiased": (PLANES, {"sizes": np.array([1, 2, 2, 2])}, {"mode": "linear", "antialias": 1}),
    "antialiased cubic": (PLANES, {"scales": ODD}, {"mode": "cubic", "antialias": 1}),
    "nothing": (PLANES, {"sizes": np.array(PLANES)}, {"mode": "linear"}),
    "ceil": (PLANES, {"scales": ODD}, {"nearest_mode": "ceil"}),
    "thrice, from end to end": (
        PLANES,
        {"scales": np.array([1, 1, 3, 1], np.float32)},
        {"coordinate_transformation_mode": "align_corners"},
    ),
    "twice, the next pixel": (
        PLANES,
        {"scales": DOUBLE},
        {"nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"},
    ),
    "floor": (
        PLANES,
        {"scales": DOUBLE},
        {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_gradients_of_other_attributes(name, rng) -> None:
    shape, ends, options = OTHERS[name]
    check_gradients("Resize", inputs(shape, rng, **ends), rng, opset=19, trainable=[0], **options)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_gradients_where_only_scales_are_known(mode, rng) -> None:
    arrays = inputs(PLANES, rng, scales=DOUBLE)
    options = {"mode": mode, "is_dynamic": True, "has_ranks": True, "trainable": [0]}
    check_gradients("Resize", arrays, rng, **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "cubic", "is_dynamic": True, "has_ranks": True}, "needs the extents of x and y"),
        ({"mode": "linear", "is_dynamic": True}, "needs the rank"),
        (
            {
                "coordinate_transformation_mode": "align_corners",
                "is_dynamic": True,
                "has_ranks": True,
            },
            "needs the extents of x and y",
        ),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, "tf_crop_and_resize"),
    ],
)
def test_what_is_not_known_is_refused(options, why, rng) -> None:
    arrays = inputs(PLANES, rng, scales=DOUBLE)
    arrays[1] = np.zeros(8, np.float32)
    with pytest.raises(cto.ArgumentError, match=why):
        cto.onnx.TrainingSession.from_model(model_of("Resize", arrays, **options), loss="loss")


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_gradients_are_those_of_pytorch(mode, rng) -> None:
    x, weights = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((2, 3, 8, 15))
    scales = np.array([1, 1, 2, 3], np.float32)
    options = {
        "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"},
        "bilinear": {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
        "bicubic": {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"},
    }[mode]
    model = model_of("Resize", [x, None, scales], nearest_mode="floor", **options)
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
    session.accumulate(weights)
    tensor = torch.tensor(x, requires_grad=True)
    y = torch.nn.functional.interpolate(tensor, scale_factor=(2, 3), mode=mode)
    (y * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(session.gradients["in0"], tensor.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_narrow_types(mode, rng) -> None:
    check_types("Resize", inputs(PLANES, rng, sizes=SIZES), tuple(SIZES), rng, mode=mode)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_gradients_of_grids_are_those_of_pytorch(mode, padding, align_corners, rng) -> None:
    """In images and beyond their borders."""
    x, grid = rng.standard_normal((2, 3, 4, 5)), rng.uniform(-1.6, 1.6, (2, 3, 2, 2))
    options = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}
    model = model_of("GridSample", [x, grid], **options)
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
    weights = rng.standard_normal((2, 3, 3, 2))
    session.accumulate(weights)
    ours = [torch.tensor(array, requires_grad=True) for array in (x, grid)]
    y = torch.nn.functional.grid_sample(*ours, mode, padding, bool(align_corners))
    (y * torch.tensor(weights)).sum().backward()
    for i, tensor in enumerate(ours[: 1 if mode == "nearest" else 2]):
        np.testing.assert_allclose(session.gradients[f"in{i}"], tensor.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 2, 5), (1, 1, 3, 4, 2)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_gradients_of_grids_of_other_ranks(mode, shape, rng) -> None:
    rank = len(shape) - 2
    grid = rng.uniform(-1.2, 1.2, (1, *[2] * rank, rank))
    if rank == 3 and mode == "cubic":
        grid = grid[:, :1, :1, :1]
    check_gradients("GridSample", [rng.standard_normal(shape), grid], rng, opset=20, mode=mode)


def test_a_grid_s_narrow_types(rng) -> None:
    arrays = [rng.standard_normal((1, 2, 3, 4)), rng.uniform(-0.9, 0.9, (1, 2, 2, 2))]
    check_types("GridSample", arrays, (1, 2, 2, 2), rng, opset=20)
