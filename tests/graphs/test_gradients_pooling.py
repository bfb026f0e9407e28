# SPDX-License-Identifier: MIT
"""Gradients of pooling."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import cupy_training_ops as cto

from .one_operator import check_gradients, check_types, model_of

torch = pytest.importorskip("torch")

WINDOW = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
# A shape and attributes of windows.
WINDOWS = {
    "plain": ((2, 3, 5, 4), {"kernel_shape": [2, 2]}),
    "strides and pads": ((1, 2, 6, 4), WINDOW),
    "lines": ((2, 1, 7), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    "volumes": ((1, 1, 3, 4, 3), {"kernel_shape": [2, 2, 2], "strides": [1, 2, 1]}),
    "same, odd one behind": ((1, 2, 5, 4), {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER"}),
    "same, odd one before": ((1, 2, 5, 4), {"kernel_shape": [2, 3], "auto_pad": "SAME_LOWER"}),
    "valid": ((1, 2, 5, 4), {"kernel_shape": [2, 3], "auto_pad": "VALID", "strides": [2, 2]}),
    "dilations": ((1, 2, 7, 5), {"kernel_shape": [3, 2], "dilations": [2, 3]}),
}


def distinct(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Numbers no two of which are close, so that a small step changes no maximum."""
    return rng.permutation(np.linspace(-1, 1, int(np.prod(shape)))).reshape(shape)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("options", [{}, {"count_include_pad": 1}])
@pytest.mark.parametrize("name", WINDOWS)
def test_gradients_of_means(name, options, is_dynamic, rng) -> None:
    shape, attributes = WINDOWS[name]
    options = {**options, **attributes, "opset": 19, "is_dynamic": is_dynamic}
    check_gradients("AveragePool", [rng.standard_normal(shape)], rng, **options)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("n_others", [0, 1])
@pytest.mark.parametrize("name", WINDOWS)
def test_gradients_of_maxima(name, n_others, is_dynamic, rng) -> None:
    shape, attributes = WINDOWS[name]
    options = {**attributes, "n_others": n_others, "is_dynamic": is_dynamic}
    check_gradients("MaxPool", [distinct(shape, rng)], rng, **options)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((1, 2, 7), {"kernel_shape": [3], "strides": [2]}),
        ((1, 1, 6, 7), {"kernel_shape": [2, 3], "strides": [3, 2], "pads": [1, 0, 0, 1]}),
        ((1, 1, 1, 5), {"kernel_shape": [1, 2], "strides": [1, 3], "pads": [0, 0, 2, 1]}),
        ((1, 1, 8), {"kernel_shape": [3], "strides": [2], "dilations": [2]}),
        ((1, 1, 5), {"kernel_shape": [2], "strides": [2], "auto_pad": "SAME_UPPER"}),
        ((1, 1, 5), {"kernel_shape": [2], "strides": [2], "auto_pad": "VALID"}),
    ],
)
def test_gradients_of_norms_of_windows_that_end_behind_x(shape, attributes, p, rng) -> None:
    options = {**attributes, "p": p, "ceil_mode": 1}
    check_gradients("LpPool", [distinct(shape, rng)], rng, **options)


def test_ceil_mode_needs_extents(rng) -> None:
    options = {"kernel_shape": [2], "ceil_mode": 1, "is_dynamic": True}
    with pytest.raises(cto.ArgumentError, match="with ceil_mode needs the extents of X"):
        check_gradients("LpPool", [distinct((1, 1, 5), rng)], rng, **options)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in WINDOWS if name != "lines"])
def test_gradients_of_norms(name, p, is_dynamic, rng) -> None:
    shape, attributes = WINDOWS[name]
    options = {**attributes, "p": p, "is_dynamic": is_dynamic}
    check_gradients("LpPool", [distinct(shape, rng)], rng, **options)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4, 3), (1, 2, 5), (1, 1, 2, 2, 3), (2, 2)])
@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_gradients_of_whole_planes(op_type, shape, is_dynamic, rng) -> None:
    if op_type == "GlobalAveragePool" and len(shape) == 2:
        return
    check_gradients(op_type, [distinct(shape, rng)], rng, is_dynamic=is_dynamic)


def test_the_gradient_of_maxima_in_their_places(rng) -> None:
    indices = np.array([[[[1, 2], [12, 11]]], [[[21, 19], [24, 31]]]])
    options = {"kernel_shape": [2, 2], "strides": [2, 2]}
    check_gradients("MaxUnpool", [rng.standard_normal(indices.shape), indices], rng, **options)


def gradient_of(op_type: str, x: np.ndarray, weights: np.ndarray, **options: object) -> np.ndarray:
    model = model_of(op_type, [x], **options)
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
    session.accumulate(weights)
    return np.asarray(session.gradients["in0"])


@pytest.mark.parametrize("with_nan", [False, True])
def test_the_first_of_equal_maxima_has_the_gradient_as_in_pytorch(with_nan, rng) -> None:
    """In windows, and in planes: exporters write PyTorch's adaptive pool as a global one."""
    x = rng.integers(0, 2, (2, 2, 6, 5)) * 1.0
    if with_nan:
        x[0, 1, 2, 3] = np.nan
    for name, options, pool in (
        ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 1]}, (3, 2)),
        ("GlobalMaxPool", {}, None),
    ):
        tensor = torch.tensor(x, requires_grad=True)
        if pool:
            y = torch.nn.functional.max_pool2d(tensor, pool, (2, 1))
        else:
            y = torch.nn.functional.adaptive_max_pool2d(tensor, 1)
        weights = rng.standard_normal(y.shape)
        (y * torch.tensor(weights)).sum().backward()
        gradient = gradient_of(name, x, weights, **options)
        np.testing.assert_allclose(gradient, tensor.grad, rtol=0, atol=1e-14)


def test_two_pools_of_one_name_have_each_its_own_shape(rng) -> None:
    """The second one's x is smaller: a node that took the first one's shape would be wrong."""
    x = rng.standard_normal((1, 1, 6, 6))
    model = model_of("AveragePool", [x], kernel_shape=[3, 3])
    second = model.graph.node.add()
    second.CopyFrom(model.graph.node[0])
    for node in (model.graph.node[0], second):
        node.name = "pool"
    model.graph.node[0].output[0] = second.input[0] = "between"
    nodes = [model.graph.node[0], second, *model.graph.node[1:-1]]
    ordered = [type(second).FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(ordered)
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
    weights = rng.standard_normal((1, 1, 2, 2))
    session.accumulate(weights)
    tensor = torch.tensor(x, requires_grad=True)
    y = torch.nn.functional.avg_pool2d(torch.nn.functional.avg_pool2d(tensor, 3, 1), 3, 1)
    (y * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(session.gradients["in0"], tensor.grad, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("op_type", "options", "shape"),
    [
        ("MaxPool", WINDOW, (1, 2, 3, 4)),
        ("AveragePool", WINDOW, (1, 2, 3, 4)),
        ("LpPool", WINDOW, (1, 2, 3, 4)),
        ("GlobalAveragePool", {}, (1, 2, 1, 1)),
        ("GlobalMaxPool", {}, (1, 2, 1, 1)),
        ("GlobalLpPool", {}, (1, 2, 1, 1)),
    ],
)
def test_narrow_types(op_type, options, shape, rng) -> None:
    check_types(op_type, [distinct((1, 2, 6, 4), rng)], shape, rng, **options)


def test_a_mean_of_more_elements_than_float16_counts() -> None:
    """dx = 1 / 66049: a number of elements in float16 would be infinite."""
    x = np.ones((1, 1, 257, 257), np.float16)
    gradient = gradient_of("GlobalAveragePool", x, np.full((1, 1, 1, 1), 64, np.float16))
    np.testing.assert_allclose(gradient, 64 / 257**2, rtol=1e-3)


@pytest.mark.parametrize("op_type", ["AveragePool", "GlobalMaxPool", "MaxPool"])
def test_pools_of_bfloat16(op_type, rng) -> None:
    """Small whole numbers: the gradient is exact in float64 and here."""
    x = rng.permutation(16).reshape(1, 1, 4, 4)
    options = {} if op_type == "GlobalMaxPool" else {"kernel_shape": [2, 2], "strides": [2, 2]}
    weights = np.full((1, 1, 1, 1) if not options else (1, 1, 2, 2), 2.0)
    dtypes = (ml_dtypes.bfloat16, np.float64)
    gradients = [
        gradient_of(op_type, x.astype(t), weights.astype(t), opset=22, **options) for t in dtypes
    ]
    np.testing.assert_array_equal(gradients[0].astype(np.float64), gradients[1])
