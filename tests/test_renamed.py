# SPDX-License-Identifier: MIT
"""Other names than the declared ones: upstream's pass, those of earlier releases with a warning."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError
from cupy_training_ops.call.op import Op
from cupy_training_ops.declare.schema import Input, Output, attribute, real
from cupy_training_ops.registry import REGISTRY
from cupy_training_ops.testing.compare import assert_matches

LOGITS, LABEL = np.array([[1, 2, 3], [3, 1, 2]], np.float32), np.array([0, 2])
SPARSE = cto.get_op("SparseSoftmaxCrossEntropy")
CHANNELS = {"scale": 1.5, "mean": 0.25, "variance": 2.0}
IMAGES = np.arange(12, dtype=np.float32).reshape(2, 3, 2)


class Renamed(Op):
    """Y = X rate."""

    inputs = (Input("X", "float32", formerly=("x_old",)),)
    outputs = (Output("Y", "float32", formerly=("y_old",)),)
    rate = attribute(real, 1.0, formerly=("slope",))

    def infer(self, x):
        return (x,)

    @classmethod
    def cpu_function(cls):
        return lambda x, rate: x * np.float32(rate)


def test_upstreams_name_of_an_output_and_the_one_before() -> None:
    loss, none = SPARSE()(LOGITS, LABEL, outputs=("Y",))
    assert none is None
    op = SPARSE()
    for _ in range(2):  # each call says it, not only the first
        with pytest.warns(
            DeprecationWarning, match="SparseSoftmaxCrossEntropy: output is called Y now"
        ):
            before, none = op(LOGITS, LABEL, outputs=("output",))
        assert (float(before), none) == (float(loss), None)


def test_upstreams_names_of_inputs() -> None:
    per_channel = {name: np.full(3, value, np.float32) for name, value in CHANNELS.items()}
    op = cto.get_op("BatchNormalizationGrad")(epsilon=1e-5)
    expected = op(IMAGES, IMAGES, *per_channel.values())
    for results in (
        op(IMAGES, IMAGES, **per_channel),
        op(IMAGES, X=IMAGES, **per_channel),
        cto.batch_normalization_grad(IMAGES, IMAGES, epsilon=1e-5, **per_channel),
        op.bound(IMAGES, IMAGES, **per_channel | {"mean": ...})(mean=per_channel["mean"]),
    ):
        for pair in zip(results, expected, strict=True):
            assert_matches(*pair, 0)
    with pytest.raises(
        ArgumentError, match="saved_mean: expected one value, got one by another na"
    ):
        op(IMAGES, IMAGES, saved_mean=IMAGES[0, :, 0], **per_channel)
    assert cto.lookup("BatchNormalizationGrad", mean="float32").types["T2"] == np.float32


def test_upstreams_name_of_an_attribute_is_no_name_in_python() -> None:
    arrays = [np.full(3, n, np.float32) for n in (1, 2, 3, 4)]
    results = []
    for name in ("lambda_", "lambda"):
        copies = [x.copy() for x in arrays]
        cto.adam_optimizer(0.1, 1, *copies, **{name: 0.5})
        results.append(copies[0])
        assert cto.get_op("AdamOptimizer")(**{name: 0.5}).lambda_ == 0.5
    assert_matches(*results, 0)
    assert (results[0] != arrays[0]).all()
    with pytest.raises(ArgumentError, match="LambOptimizer: lambda_: expected one value"):
        cto.get_op("LambOptimizer")(**{"lambda": 1.0, "lambda_": 1.0})


def test_a_name_of_a_release_before_warns_wherever_it_is_given() -> None:
    x = np.ones(3, np.float32)
    for call in (
        lambda: Renamed()(x_old=x),
        lambda: Renamed(slope=1.0)(x),
        lambda: Renamed()(x, outputs=("y_old",)),
        lambda: Renamed().bound(x_old=x)(),
        lambda: Renamed().bound(...)(x_old=x),
        lambda: Renamed().workspace_nbytes(x_old=x) or x,
    ):
        with pytest.warns(DeprecationWarning, match="^Renamed: .* is called .* now$") as caught:
            assert_matches(call(), x)
        assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]


def test_the_names_of_now_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Renamed(rate=2.0)(X=np.ones(3, np.float32), outputs=("Y",))
        SPARSE()(LOGITS, LABEL, outputs=("Y",))


def test_help_says_the_other_names() -> None:
    text = " ".join((SPARSE.__doc__ + cto.get_op("BatchNormalizationGrad").__doc__).split())
    assert "formerly output" in text
    assert "variance in ONNX Runtime" in text


@pytest.mark.parametrize("cls", REGISTRY.values(), ids=lambda cls: f"{cls.name}-{cls.since}")
def test_no_name_stands_for_two(cls) -> None:
    for items in (cls.inputs + cls.attributes, cls.outputs):
        names = [n for i in items for n in (i.name, i.upstream, *i.formerly) if n]
        assert len(names) == len(set(names))
