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
    "axes by odd scales": (PLANES, {"scales": ODD[2:]}, {"axes": [3, 2], "mode": "linear"}),
    "one axis by an odd scale": (PLANES, {"scales": ODD[2:3]}, {"axes": [3], "mode": "linear"}),
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


UNKNOWN = {
    "scales": {"scales": ODD},
    "sizes": {"sizes": SIZES},
    "smaller": {"sizes": np.array([2, 1, 2, 2])},
    "same": {"sizes": np.array(PLANES)},
    "axes": {"scales": ODD[:1:-1], "axes": [3, 2]},
}


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic", "antialiased"])
@pytest.mark.parametrize("by", UNKNOWN)
def test_gradients_where_no_extents_are_known(mode, transformation, by, rng) -> None:
    ends = {n: UNKNOWN[by][n] for n in ("scales", "sizes") if n in UNKNOWN[by]}
    options = {"mode": mode, "coordinate_transformation_mode": transformation}
    if mode == "antialiased":
        options |= {"mode": "linear", "antialias": 1}
    elif mode == "cubic":
        options |= {"exclude_outside": 1, "cubic_coeff_a": -0.5}
    if "axes" in UNKNOWN[by]:
        options["axes"] = UNKNOWN[by]["axes"]
    arrays = inputs(PLANES, rng, **ends)
    how = {"opset": 19, "is_dynamic": True, "has_ranks": True, "trainable": [0]}
    check_gradients("Resize", arrays, rng, **how, **options)


def test_scales_and_sizes_may_be_fed(rng) -> None:
    """Gradients are those of the same scales, or sizes, as constants."""
    from onnx import TensorProto, helper

    arrays = inputs(PLANES, rng, sizes=SIZES)
    for mode in ("nearest", "cubic"):
        plain = model_of("Resize", arrays, mode=mode)
        fed = model_of("Resize", arrays, mode=mode)
        del fed.graph.initializer[1:]
        fed.graph.input.append(helper.make_tensor_value_info("in3", TensorProto.INT64, (4,)))
        weights = rng.standard_normal(SIZES)
        sessions = [
            cto.onnx.TrainingSession.from_model(each, loss="loss", optimizer="SGD")
            for each in (plain, fed)
        ]
        sessions[0].accumulate(weights)
        sessions[1].accumulate(y0_weights=weights, in3=SIZES)
        pair = [session.gradients["in0"] for session in sessions]
        np.testing.assert_allclose(*pair, rtol=0, atol=1e-14)


def test_a_pixel_that_is_not_finite_stays_its_own_where_pixels_are_nearest(rng) -> None:
    arrays = inputs(PLANES, rng, scales=ODD)
    model = model_of("Resize", arrays, is_dynamic=True, has_ranks=True)
    session = cto.onnx.TrainingSession.from_model(
        model, loss="loss", optimizer="SGD", trainable=["in0"]
    )
    weights = np.ones((1, 2, 5, 2))
    weights[0, 0, 0, 0] = np.nan
    session.accumulate(in0_shape=np.array(PLANES), y0_weights=weights)
    assert np.isnan(session.gradients["in0"]).sum() == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "linear", "is_dynamic": True}, "needs the rank"),
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
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 1, 3), (2, 1, 3, 2, 2)])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_gradients_of_affine_grids(size, align_corners, is_dynamic, rng) -> None:
    rank = len(size) - 2
    theta = rng.standard_normal((size[0], rank, rank + 1))
    options = {"opset": 20, "align_corners": align_corners}
    options |= {"is_dynamic": is_dynamic, "has_ranks": is_dynamic}
    check_gradients("AffineGrid", [theta, np.array(size)], rng, **options)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("extents", [(4, 5), (1, 3)])
@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_gradients_of_grids_are_those_of_pytorch(
    mode, padding, align_corners, extents, is_dynamic, rng
) -> None:
    """In images and beyond their borders, whose extents are known or not."""
    x, grid = rng.standard_normal((2, 3, *extents)), rng.uniform(-1.6, 1.6, (2, 3, 2, 2))
    options = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}
    ranks = {"is_dynamic": is_dynamic, "has_ranks": is_dynamic}
    model = model_of("GridSample", [x, grid], **ranks, **options)
    trained = ["in0", "in1"][: 1 if mode == "nearest" else 2]
    session = cto.onnx.TrainingSession.from_model(
        model, loss="loss", optimizer="SGD", trainable=trained
    )
    weights = rng.standard_normal((2, 3, 3, 2))
    shapes = {f"in{i}_shape": np.array(a.shape) for i, a in enumerate((x, grid)) if is_dynamic}
    session.accumulate(y0_weights=weights, **shapes)
    ours = [torch.tensor(array, requires_grad=True) for array in (x, grid)]
    y = torch.nn.functional.grid_sample(*ours, mode, padding, bool(align_corners))
    (y * torch.tensor(weights)).sum().backward()
    for name, tensor in zip(trained, ours, strict=False):
        np.testing.assert_allclose(session.gradients[name], tensor.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("shape", [(1, 2, 5), (1, 1, 3, 4, 2)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_gradients_of_grids_of_other_ranks(mode, shape, is_dynamic, rng) -> None:
    rank = len(shape) - 2
    grid = rng.uniform(-1.2, 1.2, (1, *[2] * rank, rank))
    if rank == 3 and mode == "cubic":
        grid = grid[:, :1, :1, :1]
    arrays = [rng.standard_normal(shape), grid]
    how = {"opset": 20, "is_dynamic": is_dynamic, "has_ranks": True, "trainable": [0, 1]}
    check_gradients("GridSample", arrays, rng, **how, mode=mode)


def test_a_grid_s_narrow_types(rng) -> None:
    arrays = [rng.standard_normal((1, 2, 3, 4)), rng.uniform(-0.9, 0.9, (1, 2, 2, 2))]
    check_types("GridSample", arrays, (1, 2, 2, 2), rng, opset=20)
