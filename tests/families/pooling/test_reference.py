# SPDX-License-Identifier: MIT
"""NumPy's pools against PyTorch, onnx.reference where it is installed, and laws."""

from __future__ import annotations

import numpy as np
import pytest
from references import References

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.testing.compare import assert_matches

pooling = References("pooling")

# extents, kernel, stride, pad, dilation, ceil_mode
POOLS = [
    ((11,), 3, 2, 1, 1, False),
    ((9, 7), 2, 2, 0, 1, False),
    ((10, 8), 3, 2, 1, 1, True),
    ((9, 12), 3, 1, 1, 2, False),
    ((9, 12), 3, 3, 1, 2, True),
    ((5, 6, 7), 3, 2, 1, 1, True),
    ((3, 2), 3, 2, 0, 1, True),
    ((5, 9), 2, 2, 1, 1, True),  # a last window would begin behind X and its first pads
]
IDS = [f"{len(p[0])}d-k{p[1]}s{p[2]}p{p[3]}d{p[4]}{'-ceil' * p[5]}" for p in POOLS]


def images(rng: np.random.Generator, *extents: int) -> np.ndarray:
    return rng.standard_normal((2, 3, *extents)).astype(np.float32)


def attributes(rank: int, kernel: int, stride: int, pad: int, ceil_mode: bool) -> dict:
    arguments = {"kernel_shape": (kernel,) * rank, "strides": (stride,) * rank}
    return arguments | {"pads": (pad,) * 2 * rank, "ceil_mode": ceil_mode}


@pytest.mark.parametrize(
    "pool", [p for p in POOLS if p[0] != (3, 2)], ids=lambda p: IDS[POOLS.index(p)]
)
def test_max_pool_is_pytorchs(rng, pool) -> None:
    torch = pytest.importorskip("torch", reason="compared with PyTorch")
    extents, kernel, stride, pad, dilation, ceil_mode = pool
    rank, x = len(extents), images(rng, *extents)
    function = getattr(torch.nn.functional, f"max_pool{rank}d")
    t = torch.tensor(x, requires_grad=True)
    y, indices = function(t, kernel, stride, pad, dilation, ceil_mode, return_indices=True)
    keywords = attributes(rank, kernel, stride, pad, ceil_mode) | {"dilations": (dilation,) * rank}
    result, places = cto.max_pool(x, **keywords)
    assert_matches(result, y.detach().numpy(), 0)
    planes = np.arange(6).reshape(2, 3, *(1,) * rank) * np.prod(extents)
    assert_matches(places, indices.numpy() + planes, 0)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    y.backward(torch.tensor(dy))
    assert_matches(cto.max_pool_grad(dy, places, x.shape, **keywords), t.grad.numpy())


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("pool", [p for p in POOLS if p[4] == 1])
def test_average_pool_is_pytorchs(rng, pool, include) -> None:
    torch = pytest.importorskip("torch", reason="compared with PyTorch")
    extents, kernel, stride, pad, _, ceil_mode = pool
    rank, x = len(extents), images(rng, *extents)
    function = getattr(torch.nn.functional, f"avg_pool{rank}d")
    t = torch.tensor(x, requires_grad=True)
    y = function(t, kernel, stride, pad, ceil_mode, include)
    keywords = attributes(rank, kernel, stride, pad, ceil_mode) | {"count_include_pad": include}
    assert_matches(cto.average_pool(x, **keywords), y.detach().numpy())
    dy = rng.standard_normal(y.shape).astype(np.float32)
    y.backward(torch.tensor(dy))
    assert_matches(cto.average_pool_grad(dy, x.shape, **keywords), t.grad.numpy())


NODES = [
    ((9, 8), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 2, 1]}),
    ((9, 8), {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 0, 1]}),
    ((9, 8), {"kernel_shape": [4, 3], "auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    ((9, 8), {"kernel_shape": [4, 3], "auto_pad": "SAME_LOWER", "strides": [1, 2]}),
    ((9, 8), {"kernel_shape": [4, 3], "auto_pad": "VALID", "strides": [2, 2]}),
    ((13,), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((5, 6, 4), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [1, 0, 0, 0, 1, 1]}),
]


def by_onnx(op: str, x: np.ndarray, **keywords: object) -> np.ndarray:
    """Results of onnx's own evaluator."""
    onnx = pytest.importorskip("onnx", reason="compared with onnx.reference")
    reference = pytest.importorskip("onnx.reference")
    node = onnx.helper.make_node(op, ["X"], ["Y"], **keywords)
    x_info, y_info = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "XY"
    )
    opsets = [onnx.helper.make_opsetid("", 19)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "pool", [x_info], [y_info]), opset_imports=opsets
    )
    return reference.ReferenceEvaluator(model).run(None, {"X": x})[0]


# For SAME_LOWER onnx.reference's MaxPool rounds extents down, and puts pads where SAME_UPPER does.
@pytest.mark.parametrize(
    ("extents", "keywords"), [node for node in NODES if node[1].get("auto_pad") != "SAME_LOWER"]
)
def test_max_pool_is_onnxs(rng, extents, keywords) -> None:
    x = images(rng, *extents)
    assert_matches(cto.max_pool(x, **keywords)[0], by_onnx("MaxPool", x, **keywords), 0)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(("extents", "keywords"), NODES)
def test_average_pool_is_onnxs(rng, extents, keywords, include) -> None:
    x, keywords = images(rng, *extents), keywords | {"count_include_pad": include}
    assert_matches(cto.average_pool(x, **keywords), by_onnx("AveragePool", x, **keywords))


def test_global_average_pool_is_onnxs(rng) -> None:
    x = images(rng, 4, 5, 3)
    assert_matches(cto.global_average_pool(x), by_onnx("GlobalAveragePool", x))


@pytest.mark.parametrize("order", [0, 1])
def test_indices_say_where(rng, order) -> None:
    x = images(rng, 4, 5, 6)
    y, indices = cto.max_pool(x, kernel_shape=(2, 3, 2), pads=(1,) * 6, storage_order=order)
    planes = x.reshape(2, 3, -1) if order == 0 else x.transpose(0, 1, 4, 3, 2).reshape(2, 3, -1)
    assert_matches(planes.ravel()[indices], y, 0)


def test_the_first_of_equal_ones_and_nan_before_all() -> None:
    x = np.array([[[2, 5, 5, 1, np.nan, 7, np.nan, 3]]], np.float32)
    y, indices = cto.max_pool(x, kernel_shape=(4,), strides=(4,))
    assert_matches(y, np.array([[[5, np.nan]]], np.float32), 0)
    assert indices.tolist() == [[[1, 4]]]


def test_windows_beside_x() -> None:
    x = np.ones((1, 1, 2), np.float32)
    y, indices = cto.max_pool(x, kernel_shape=(2,), pads=(2, 2))
    assert indices.tolist() == [[[-1, 0, 0, 1, -1]]]
    assert y.tolist() == [[[-np.inf, 1, 1, 1, -np.inf]]]
    dx = cto.max_pool_grad(np.ones_like(y), indices, x.shape, kernel_shape=(2,), pads=(2, 2))
    assert dx.tolist() == [[[2, 1]]]
    means = cto.average_pool(x, kernel_shape=(2,), pads=(2, 2))
    assert means.tolist() == [[[0, 1, 1, 1, 0]]]


def test_indices_of_other_windows_count_nowhere() -> None:
    dy, indices = np.ones((1, 1, 3), np.float32), np.array([[[2, -1, 99]]])
    dx = cto.max_pool_grad(dy, indices, (1, 1, 3), kernel_shape=(1,))
    assert dx.tolist() == [[[0, 0, 0]]]


def test_average_pool_grad_is_the_adjoint(rng) -> None:
    """<AveragePool(x), dy> = <x, AveragePoolGrad(dy)>, with dilations, which PyTorch lacks."""
    keywords = {
        "kernel_shape": (3, 2),
        "dilations": (2, 3),
        "pads": (1, 2, 2, 1),
        "strides": (2, 1),
    }
    x = images(rng, 9, 8).astype(np.float64)
    y = cto.average_pool(x, **keywords)
    dy = rng.standard_normal(y.shape)
    dx = cto.average_pool_grad(dy, x.shape, **keywords)
    np.testing.assert_allclose((y * dy).sum(), (x * dx).sum(), rtol=1e-12)


REFUSED = [
    ({"kernel_shape": (3,)}, r"MaxPool: X: expected .* 1 dimensions, as kernel_shape"),
    ({"kernel_shape": (2,) * 4}, "MaxPool: kernel_shape: expected 1 to 3 integers"),
    ({"kernel_shape": (2, 0)}, "MaxPool: kernel_shape: expected at least 1"),
    ({"kernel_shape": (9, 2)}, r"MaxPool: X: expected .* a window of \(9, 2\) fits into"),
    ({"kernel_shape": (2, 2), "pads": (1, 1)}, "MaxPool: pads: expected 4 integers"),
    (
        {"kernel_shape": (2, 2), "pads": (1,) * 4, "auto_pad": "VALID"},
        "MaxPool: pads: expected none beside auto_pad VALID",
    ),
    ({"kernel_shape": (2, 2), "pads": (2**31 - 1,) * 4}, r"MaxPool: X: expected fewer than 2\^31"),
]


@pytest.mark.parametrize(("keywords", "message"), REFUSED)
def test_refused(keywords, message) -> None:
    with pytest.raises(ArgumentError, match=message):
        cto.max_pool(np.zeros((1, 2, 5, 4), np.float32), **keywords)


def test_gradients_of_other_shapes_are_refused() -> None:
    dy, indices = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2, 4), np.int64)
    with pytest.raises(ArgumentError, match=r"AveragePoolGrad: dY: expected shape \(1, 2, 4\)"):
        cto.average_pool_grad(dy, (1, 2, 5), kernel_shape=(2,))
    with pytest.raises(ArgumentError, match=r"MaxPoolGrad: Indices: expected shape \(1, 2, 3\)"):
        cto.max_pool_grad(dy, indices, (1, 2, 4), kernel_shape=(2,))
    with pytest.raises(ArgumentError, match=r"GlobalAveragePool: X: expected .* with elements"):
        cto.global_average_pool(np.zeros((2, 3, 0), np.float32))
