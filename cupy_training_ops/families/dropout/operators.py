# SPDX-License-Identifier: MIT
"""Dropout, its gradients, and both together with softmax.

Whether element i (row-major) is kept is a function of seed, offset, i and ratio, and of nothing
else: word i % 4 of block i / 4 of Philox 4x32-10 is compared with (1 - ratio) 2^32. The card, the
type and the form of the mask have no part in it. Kept elements are multiplied with 1 / (1 - ratio)
in float32 (float64 for float64) and rounded once; dropped ones are 0 whatever they were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ...call.checks import from_front
from ...declare.schema import Input, Output, Shape, Spec, Tiles, attribute, boolean, integer
from ...dtypes import BOOL
from ...errors import refuse
from ...plan import Device, Plan, ceil_div
from ...planning.fast_division import divisor
from ...planning.lines import Kernels, Lines
from .facts import LINE_THREADS
from .plan import OF_FORWARD, RATIO, SEED, STATE, TRAINING, Arrays, Drawing, State, WithRatio

WORD = np.dtype(np.uint32)
WORD_BITS = 32
AXIS_DOC = "from -rank to rank - 1; a row is everything from this axis on"
BITS = "rank 1, a word for every 32 elements"
BIT_DOC = "bit i % 32 of word i / 32 stands for element i"


def bitmask(shape: Shape) -> Spec:
    """Return the spec of a mask with a bit for each element of `shape`: 32 in a uint32 word."""
    return Spec((ceil_div(math.prod(shape), WORD_BITS),), WORD)


class _Elementwise(Drawing):
    """Base of forwards, y = f(data), whose last inputs are ratio, training_mode and state.

    `kernel` takes the arrays, the options of `elementwise`, and what Launches.draw_arguments gives.
    `has_bits`: the mask has a bit for an element, in place of a bool.
    """

    ratio_at, training_at, trains = -3, -2, False
    kernel: ClassVar[str]
    has_bits: ClassVar[bool] = False
    has_tiles: ClassVar[bool] = True  # whether blocks of its kernel take some

    def infer(self, data: Spec, *others: object) -> tuple[Spec, ...]:
        """Return the specs of output and mask: bools of data's shape, or bits."""
        mask = bitmask(data.shape) if self.has_bits else Spec(data.shape, BOOL)
        return Spec(data.shape, data.dtype), mask

    def plan(self, device: Device, data: Spec, *specs: Any) -> Plan:
        """Plan one launch from data to output and mask; specs: other inputs, then outputs."""
        *_, state, output, mask = specs
        return self.elementwise(device, (data, *specs), (data, output, mask), state)

    def elementwise(
        self,
        device: Device,
        specs: Sequence[object],
        arrays: Arrays,
        state: State,
        *options: object,
    ) -> Plan:
        """Plan one launch of `kernel`, and one that adds 1 to the offset of a state in memory.

        specs: all inputs and outputs of the call. arrays: those that the kernel takes, in order.
        options: the kernel's scalars before those of the draw.
        """
        launches = self.launches(device, specs)
        options = (*options, *launches.draw_arguments(state))
        launched = launches.by_tiles if self.has_tiles else launches.elementwise
        launch = launched(self.kernel, arrays, *options)
        return launches.then_advance(launch, state)


DATA = Input("data", "T", shape="any shape")
OUTPUT = Output("output", "T", may_alias=("data",), shape="shape of data")
MASK = Output("mask", "bool", shape="shape of data", doc="True where an element is kept")
BITMASK = Output("mask", "uint32", shape=BITS, doc=f"{BIT_DOC}, 1 where it is kept")


class Dropout(_Elementwise):
    """Dropout: output = data / (1 - ratio) where mask, else 0; mask is True with 1 - ratio.

    At ratio 0, and without training_mode, this is the identity: every element is kept, and nothing
    is drawn. An instance with a seed draws with offset 0 first and goes on by one at each call; the
    function with a seed always draws with offset 0. A graph that was captured with numbers draws
    the same mask at each replay; one with a state on the device reads it there, and draws another
    each time.

    Source: ONNX Dropout-13; onnxruntime/core/providers/cuda/nn/dropout_impl.cu.
    """

    domain = "ai.onnx"
    since = 12
    kernel = "dropout"
    inputs = (DATA, RATIO, TRAINING, STATE)
    outputs = (OUTPUT, MASK)
    bitwise_exact = True
    has_tiles = False


class BitmaskDropout(_Elementwise):
    """Dropout with a mask of bits: output = data / (1 - ratio) where its bit is 1, else 0.

    The bits are those of Dropout's mask for the same state; those past the last element are 0. When
    something is drawn, and from which state, is as in Dropout.

    Source: ONNX Runtime, onnxruntime/contrib_ops/cuda/math/bitmask_dropout.cc.
    """

    kernel = "bitmask_dropout"
    inputs = (DATA, RATIO, TRAINING, STATE)
    outputs = (OUTPUT, BITMASK)
    bitwise_exact = True
    has_bits = True


class _Biased(_Elementwise):
    """Base of dropout(data + bias) + residual."""

    def infer(self, data: Spec, *others: Any) -> tuple[Spec, ...]:
        """Check the shapes of bias and residual; return the specs of output and mask.

        others: bias, residual or None, then ratio, training_mode and state.
        """
        bias, residual = others[:2]
        if bias.shape not in (data.shape, data.shape[-1:]):
            expected = f"shape {data.shape[-1:]} or {data.shape}, data's last extent or its shape"
            refuse(self.name, "bias", expected, f"shape {bias.shape}")
        if residual is not None and residual.shape != data.shape:
            expected = f"shape {data.shape}, as data"
            refuse(self.name, "residual", expected, f"shape {residual.shape}")
        return super().infer(data)

    def plan(self, device: Device, data: Spec, *specs: Any) -> Plan:
        """Plan the launch; the kernel takes the bias's size too, by which rows repeat it.

        specs: bias, residual or None, ratio, training_mode, state, then output and mask.
        """
        bias, residual = specs[:2]
        *_, state, output, mask = specs
        arrays = (data, bias, residual, output, mask)
        return self.elementwise(device, (data, *specs), arrays, state, divisor(bias.size))


BIAS = Input("bias", "T", shape="shape (last extent of data,) or shape of data")
RESIDUAL = Input("residual", "T", optional=True, shape="shape of data", doc="added at the end")
SUM = Output("output", "T", may_alias=("data", "residual"), shape="shape of data")


class BiasDropout(_Biased):
    """Dropout of a sum: output = (data + bias) / (1 - ratio) where mask, else 0; + residual.

    Nothing is rounded in between. When something is drawn, and from which state, is as in Dropout,
    and so is the mask.

    Source: ONNX Runtime, onnxruntime/contrib_ops/cuda/math/bias_dropout.cc.
    """

    kernel = "bias_dropout"
    inputs = (DATA, BIAS, RESIDUAL, RATIO, TRAINING, STATE)
    outputs = (SUM, MASK)


class BitmaskBiasDropout(_Biased):
    """Dropout of a sum with a mask of bits: output = (data + bias) / (1 - ratio), or 0; + residual.

    As BiasDropout; the mask is BitmaskDropout's.

    Source: ONNX Runtime, onnxruntime/contrib_ops/cuda/math/bias_dropout.cc.
    """

    kernel = "bitmask_bias_dropout"
    inputs = (DATA, BIAS, RESIDUAL, RATIO, TRAINING, STATE)
    outputs = (SUM, BITMASK)
    has_bits = True


class BiasSoftmaxDropout(Drawing):
    """Dropout of a softmax: dropout_output = p / (1 - ratio) where mask, else 0.

    p = softmax(data + bias) over each row, as softmax_output has it; nothing is rounded in between.
    The bias has data's shape, with 1 for some extents before the axis: with is_inner_broadcast for
    the last of them, so that neighbouring rows share one of its rows, else for the first. A row of
    -inf alone, and one with inf or NaN, has a p of NaN. At ratio 0 every element is kept and
    nothing is drawn; there is no training_mode. The state is as in Dropout.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/bias_softmax_dropout.cc.
    """

    kernels = Kernels(
        short_rows="bias_softmax_dropout__short_rows",
        rows="bias_softmax_dropout__rows",
        columns="bias_softmax_dropout__columns",
    )
    inputs = (
        Input("data", "T", shape="rank 1 or more"),
        Input("bias", "T", shape="a shape that broadcasts to data's"),
        RATIO,
        STATE,
    )
    outputs = (
        Output("dropout_output", "T", may_alias=("data",), shape="shape of data"),
        MASK,
        Output("softmax_output", "T", may_alias=("data",), shape="shape of data"),
    )
    axis = attribute(integer, 1, doc=AXIS_DOC)
    is_inner_broadcast = attribute(boolean)
    seed = SEED
    ratio_at = -2

    def infer(self, data: Spec, bias: Spec, *others: object) -> tuple[Spec, ...]:
        """Check axis and bias; return the specs of dropout_output, mask and softmax_output.

        others: ratio and state, whose values do not matter here.
        """
        axis = from_front(self.name, self.axis, len(data.shape))
        if not _fits(bias.shape, data.shape, axis, self.is_inner_broadcast):
            which = "last" if self.is_inner_broadcast else "first"
            expected = f"shape {data.shape}, or 1 for the {which} of the extents before axis {axis}"
            refuse(self.name, "bias", expected, f"shape {bias.shape}")
        same = Spec(data.shape, data.dtype)
        return same, Spec(data.shape, BOOL), same

    def plan(self, device: Device, data: Spec, bias: Spec, *specs: Any) -> Plan:
        """Plan one launch over rows: softmax of data + bias, then dropout of each element.

        specs: ratio, state, then the three outputs, None where not wanted.
        """
        _, state, *outputs = specs
        launches = self.launches(device, (data, bias, *specs))
        lines = _rows(data.shape, self.axis)
        n_bias = bias.size // lines.length  # rows of the bias
        # Row r of data takes row r / shared of the bias (inner), or row r % shared.
        shared = divisor(lines.n_outer // n_bias if self.is_inner_broadcast else n_bias)
        options = (shared, self.is_inner_broadcast, *launches.draw_arguments(state))
        launch = launches.over_lines(
            self.kernels,
            (data, bias, *outputs),
            options,
            lines,
            fits=n_bias == lines.n_outer or lines.length * data.dtype.itemsize % 16 == 0,
            most=LINE_THREADS,
        )
        return launches.then_advance(launch, state)


def _fits(bias: Shape, data: Shape, axis: int, inner: bool) -> bool:
    """Return True if a bias of shape `bias` broadcasts to shape `data` as kernels expect it.

    A row is the extents from `axis` (counted from the front) on. Before it, the bias's extents of 1
    are the last ones where `inner` is set, else the first: for data (3, 4, 5) and axis 2, (3, 1, 5)
    is an inner one, (1, 4, 5) another.
    """
    if len(bias) > len(data):
        return False
    padded = (1,) * (len(data) - len(bias)) + bias
    before = [(b, d) for b, d in zip(padded[:axis], data[:axis], strict=True) if d != 1]
    repeats = [b != d for b, d in before]
    ordered = sorted(repeats, reverse=not inner)  # inner: False, then True
    broadcasts = all(b in (1, d) for b, d in zip(padded, data, strict=True))
    return broadcasts and padded[axis:] == data[axis:] and repeats == ordered


def _rows(shape: Shape, axis: int) -> Lines:
    """Return the rows of an array of `shape`, where all extents from `axis` on make one row."""
    axis %= len(shape)
    return Lines(math.prod(shape[:axis]), math.prod(shape[axis:]), 1)


DY = Input("dy", "T", shape="any shape")
DX = Output("dx", "T", may_alias=("dy",), shape="shape of dy")


class _Gradient(WithRatio):
    """Base of gradients whose inputs are dy, mask, ratio and training_mode."""

    ratio_at, training_at = -2, -1
    kernel: ClassVar[str]
    inputs: ClassVar[tuple[Input, ...]]
    outputs = (DX,)
    bitwise_exact = True

    def infer(self, dy: Spec, mask: Spec, *others: object) -> tuple[Spec, ...]:
        """Return the spec of dx; refuse a mask of the wrong size; others: ratio, training_mode."""
        n, unit = self.mask_size(dy)
        if mask.size != n:
            refuse(self.name, "mask", f"{n} {unit}", f"{mask.size}, of shape {mask.shape}")
        return (Spec(dy.shape, dy.dtype),)

    def mask_size(self, dy: Spec) -> tuple[int, str]:
        """Return the elements that a mask of `dy` must have, and words for them in an error."""
        return dy.size, "elements, as many as dy has"

    def plan(self, device: Device, dy: Spec, mask: Spec, *specs: Any) -> Plan:
        """Plan one launch of `kernel` on dy, mask and dx, with scale and keeps_all.

        specs: ratio, training_mode, then dx.
        """
        launches = self.launches(device, (dy, mask, *specs))
        arrays, options = (dy, mask, specs[-1]), (launches.scale, launches.keeps_all)
        return Plan((launches.elementwise(self.kernel, arrays, *options),))


class DropoutGrad(_Gradient):
    """Gradient of Dropout: dx = dy / (1 - ratio) where mask, else 0.

    This is a selection: an infinite or NaN dy under a False mask gives 0. At ratio 0, and where
    training_mode is False, the forward was the identity, and so is this, whatever the mask says.

    Source: ONNX Dropout-13, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/nn/dropout_grad.cc.
    """

    kernel = "dropout_grad"
    inputs = (
        DY,
        Input("mask", "bool", shape="as many elements as dy", doc="that of the forward"),
        RATIO,
        OF_FORWARD,
    )
    tiles: ClassVar[Tiles] = {}


class BitmaskDropoutGrad(_Gradient):
    """Gradient of BitmaskDropout: dx = dy / (1 - ratio) where the mask's bit is 1, else 0.

    Bits past the last element are ignored. A dropped element, ratio 0 and training_mode are as in
    DropoutGrad.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/nn/dropout_grad.cc.
    """

    kernel = "bitmask_dropout_grad"
    inputs = (DY, Input("mask", "uint32", shape=BITS, doc=BIT_DOC), RATIO, OF_FORWARD)
    tiles: ClassVar[Tiles] = {"dy": WORD_BITS, "dx": WORD_BITS}

    def mask_size(self, dy: Spec) -> tuple[int, str]:
        return bitmask(dy.shape).size, f"words, a bit for each of {dy.size} elements"


class SoftmaxDropoutGrad(WithRatio):
    """Gradient of BiasSoftmaxDropout by data: dx = softmax_y (g - sum of g softmax_y over the row).

    g = dy / (1 - ratio) where mask, else 0; at ratio 0 it is dy. All of it is in float32 (float64
    for float64), rounded once. softmax_y is used as it is. The gradient by the bias is the sum of
    dx over the rows that share one of its rows.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/softmax_dropout_grad.cc.
    """

    kernels = Kernels(
        short_rows="softmax_dropout_grad__short_rows",
        rows="softmax_dropout_grad__rows",
        columns="softmax_dropout_grad__columns",
    )
    inputs = (
        Input("dy", "T", shape="rank 1 or more"),
        Input("mask", "bool", shape="shape of dy", doc="that of the forward"),
        Input("softmax_y", "T", shape="shape of dy", doc="the forward's softmax_output"),
        RATIO,
    )
    outputs = (Output("dx", "T", may_alias=("dy", "softmax_y"), shape="shape of dy"),)
    axis = attribute(integer, doc=AXIS_DOC)
    ratio_at = -1

    def infer(self, dy: Spec, mask: Spec, y: Spec, ratio: object) -> tuple[Spec, ...]:
        """Check axis, mask and softmax_y; return the spec of dx."""
        from_front(self.name, self.axis, len(dy.shape))
        for name, spec in (("mask", mask), ("softmax_y", y)):
            if spec.shape != dy.shape:
                refuse(self.name, name, f"shape {dy.shape}, as dy", f"shape {spec.shape}")
        return (Spec(dy.shape, dy.dtype),)

    def plan(self, device: Device, dy: Spec, mask: Spec, y: Spec, *specs: Any) -> Plan:
        """Plan one launch over rows: dropout backwards, then softmax backwards.

        y: softmax_y. specs: ratio, then dx.
        """
        dx = specs[-1]
        launches = self.launches(device, (dy, mask, y, *specs))
        launch = launches.over_lines(
            self.kernels,
            (dy, mask, y, dx),
            (launches.scale, launches.keeps_all),
            _rows(dy.shape, self.axis),
            fits=True,
            most=LINE_THREADS,
        )
        return Plan((launch,))


OPS = {
    "BiasDropout": BiasDropout,
    "BiasSoftmaxDropout": BiasSoftmaxDropout,
    "BitmaskBiasDropout": BitmaskBiasDropout,
    "BitmaskDropout": BitmaskDropout,
    "BitmaskDropoutGrad": BitmaskDropoutGrad,
    "Dropout": Dropout,
    "DropoutGrad": DropoutGrad,
    "SoftmaxDropoutGrad": SoftmaxDropoutGrad,
}
