# SPDX-License-Identifier: MIT
"""Functions of the table on a GPU, which CuPy computes, beside the same by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupy_training_ops.onnx.standard import find

from .nodes import results

pytestmark = pytest.mark.gpu
F, Q = np.float32, np.uint8
FLAGS = np.array([True, False, True])
RNN = [(5, 3, 4), (2, 6, 4), (2, 6, 6), (2, 12), np.array([5, 2, 0], np.int32), (2, 3, 6)]
GRU = [(5, 3, 4), (2, 18, 4), (2, 18, 6), (2, 36), np.array([5, 2, 0], np.int32), (2, 3, 6)]
LSTM = [(5, 3, 4), (2, 24, 4), (2, 24, 6), (2, 48), np.array([5, 2, 0], np.int32), (2, 3, 6)]
BOTH = {"direction": "bidirectional"}
CODES = np.arange(24, dtype=Q).reshape(4, 6)
IMAGE = np.arange(192, dtype=Q).reshape(2, 4, 6, 4)
FILTERS = np.arange(144, dtype=np.int8).reshape(6, 4, 3, 2)
BOXES = np.array([[[0, 0, 4, 4], [1, 0, 5, 4], [0, 4, 1, 8], [3, 3, 4, 4]]], F)
SCORES = np.array([[[0.5, 0.75, 0.75, 0.25], [1, 0.5, 0.25, 0.75]]], F)
ROIS = np.array([[0, 0, 5, 4], [1, 1, 2, 3], [2, 2, 1, 1]], F)
STEPS = np.array([[1, -9, 40, 3]], np.int32)

# An operator, its inputs and attributes: a tuple is the shape of random numbers. Inputs that the
# host reads stay there.
CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("BitShift", [STEPS.T, STEPS], {"direction": "RIGHT"}),
    ("BitShift", [CODES, CODES], {"direction": "LEFT"}),
    ("BitwiseXor", [CODES, CODES[:1]], {}),
    ("BitCast", [(3, 4)], {"to": 6}),
    ("CumProd", [(3, 4), np.array(1)], {"exclusive": 1, "reverse": 1}),
    ("Acosh", [1 + np.arange(5.0)], {}),
    ("Compress", [(3, 4), FLAGS], {"axis": 1}),
    ("Unique", [CODES % 5], {"sorted": 0}),
    ("Unique", [np.array([[3, 1], [0, 2], [3, 1.0]])], {"axis": 0}),
    ("ReverseSequence", [(4, 3, 2), np.array([4, 1, 2])], {}),
    ("Det", [(2, 4, 4)], {}),
    ("TensorScatter", [(2, 5, 3), (2, 2, 3), np.array([4, 0])], {"mode": "circular"}),
    ("CenterCropPad", [(5, 4), np.array([3, 9])], {}),
    ("QuantizeLinear", [(4, 6), np.full((2, 6), 0.01, F), CODES[:2]], {"axis": 0, "block_size": 2}),
    ("DequantizeLinear", [CODES, np.full(6, 0.5, F), CODES[0]], {}),
    ("DynamicQuantizeLinear", [(3, 4)], {}),
    ("MatMulInteger", [CODES, CODES.T, CODES[0, 1], CODES[1, :4]], {}),
    ("ConvInteger", [IMAGE, FILTERS, CODES[0, 3]], {"pads": [1, 0, 1, 1], "strides": [2, 1]}),
    ("QLinearConv", [IMAGE, F(0.5), Q(9), FILTERS, np.full(6, 0.25, F), np.zeros(6, np.int8),
                     F(512), Q(128)], {}),
    ("RNN", RNN, BOTH),
    ("GRU", GRU, BOTH | {"clip": 0.5}),
    ("GRU", GRU[:4], BOTH | {"linear_before_reset": 1}),
    ("LSTM", [*LSTM, (2, 3, 6), (2, 18)], BOTH),
    ("LSTM", LSTM[:3], BOTH | {"activations": ["HardSigmoid", "Relu", "Elu"] * 2}),
    ("GridSample", [(2, 3, 5, 6), (2, 3, 4, 2)], {"mode": "cubic", "padding_mode": "reflection"}),
    ("GridSample", [(2, 3, 5, 6), (2, 3, 4, 2)], {"mode": "nearest", "align_corners": 1}),
    ("GridSample", [(2, 3, 3, 5, 6), (2, 2, 3, 4, 3)], {"padding_mode": "border"}),
    ("AffineGrid", [(2, 2, 3), np.array([2, 1, 4, 5])], {}),
    ("RoiAlign", [(1, 3, 6, 7), ROIS, np.zeros(3, np.int64)], {"output_height": 2}),
    ("RoiAlign", [(1, 3, 6, 7), ROIS, np.zeros(3, np.int64)], {"mode": "max", "sampling_ratio": 2}),
    ("MaxRoiPool", [(1, 3, 6, 7), np.pad(ROIS, [(0, 0), (1, 0)])], {"pooled_shape": [2, 3]}),
    ("DeformConv", [(2, 4, 7, 6), (6, 2, 3, 2), (2, 12, 5, 5), (6,), (2, 6, 5, 5)], {"group": 2}),
    ("LpPool", [(2, 3, 8, 7)], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "p": 3}),
    ("GlobalLpPool", [(2, 3, 4, 5)], {}),
    ("LRN", [(2, 6, 3, 4)], {"size": 4}),
    ("MaxUnpool", [(1, 1, 2, 2), np.array([[[[1, 7], [8, 14]]]])], {"kernel_shape": [2, 2],
                                                                   "strides": [2, 2]}),
    ("Col2Im", [(1, 12, 12), np.array([5, 4]), np.array([2, 2])], {}),
    ("NonMaxSuppression", [BOXES, SCORES, np.array([3]), F([0.3]), F([0.25])], {}),
    ("DFT", [(3, 8, 2)], {"inverse": 1}),
    ("DFT", [(3, 8, 1)], {"onesided": 1}),
    ("DFT", [(3, 8, 2), np.array(15)], {"onesided": 1, "inverse": 1}),
    ("STFT", [(2, 30, 1), np.array(3), (8,)], {}),
    ("RandomUniformLike", [(3, 4), np.array([2**63 + 5, 7], np.uint64)], {}),
    ("RandomNormal", [np.array([5, 7], np.uint64)], {"shape": [3, 4]}),
    ("Multinomial", [(3, 4), np.array([5, 0], np.uint64)], {"sample_size": 9}),
    ("Resize", [(1, 2, 9, 8), None, None, np.array([1, 2, 4, 5])], {"mode": "cubic",
                                                                 "antialias": 1}),
    ("Resize", [(1, 1, 6, 8), F([0, 0, 0.25, -0.125, 1, 1, 0.75, 1.25]), None,
                np.array([1, 1, 5, 7])], {"mode": "linear", "extrapolation_value": 7.0,
                                          "coordinate_transformation_mode": "tf_crop_and_resize"}),
]  # fmt: skip
COUNTS = {"Unique": 4, "DynamicQuantizeLinear": 3, "LSTM": 3, "GRU": 2, "RNN": 2}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_gpu_computes_what_numpy_does(case: Any, rng) -> None:
    import cupy

    op, said, attributes = case
    inputs = [rng.uniform(-1, 1, x) if isinstance(x, tuple) else x for x in said]
    inputs = [x.astype(F) if getattr(x, "dtype", None) == np.float64 else x for x in inputs]
    version = 28
    item = find(op, version)
    assert item is not None
    on_gpu = [x if x is None or k in item.host else cupy.asarray(x) for k, x in enumerate(inputs)]
    n = COUNTS.get(op, 1)
    for actual, expected in zip(
        results(op, *on_gpu, version=version, n=n, **attributes),
        results(op, *inputs, version=version, n=n, **attributes),
        strict=True,
    ):
        assert isinstance(actual, cupy.ndarray)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(actual.get(), expected, rtol=2e-5, atol=2e-5)
