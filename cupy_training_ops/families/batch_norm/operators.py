# SPDX-License-Identifier: MIT
"""Batch normalisation in training, also with relu, and gradients; channels are walked in place.

Sums are in float32 (float64 for float64), in an order that follows from shapes and alignment.
Where the squared distances of a channel add up to more than that type's largest number, the
variance is infinite.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...call.op import Op
from ...declare.schema import (
    Input,
    LiesAs,
    Output,
    Spec,
    attribute,
    boolean,
    positive_or_zero,
    real,
)
from ...declare.type_rows import TypeRows, Types
from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ...errors import ArgumentError, refuse, shown
from ...plan import Device, Plan, by_value, slots
from ...planning.other_layouts import Copies
from .facts import MOMENTS, SLOPES, Rule
from .plan import GRADIENT, NORMALIZE, Call

# X; scale, bias and their gradients; statistics.
ROWS = TypeRows(
    "T T1 T2",
    "S S S",
    "float16 float16 float32",
    "float16 float32 float32",
    "bfloat16 bfloat16 float32",
    "bfloat16 float32 float32",
    S=(FLOAT32, FLOAT16, FLOAT64, BFLOAT16),
)
CHANNELS = "shape (C,)"
IMAGES = "shape (N, C, ...), or rank 1; C-contiguous, or with the channels last in memory"


def share(value: object) -> float:
    """Return an attribute's number; refuse one that is not from 0 to 1."""
    number = real(value)
    if not 0 <= number <= 1:
        raise ArgumentError(f"expected a number from 0 to 1, got {shown(value)}")
    return number


class _BatchNorm(Op):
    """Batch normalisation or its gradient: types, and checks of shapes."""

    types: ClassVar[Types] = ROWS

    def check_channels(self, x: Spec, per_channel: tuple[Spec, ...]) -> tuple[int]:
        """Return the shape (C,); refuse a scalar X, and others of per_channel.

        per_channel: the specs of all inputs that are to have that shape, as declared.
        """
        if not x.shape:
            refuse(self.name, "X", "arrays of at least one dimension", "a scalar")
        channels = (1 if len(x.shape) == 1 else x.shape[1],)
        inputs = [declared for declared in self.inputs if declared.shape == CHANNELS]
        for declared, spec in zip(inputs, per_channel, strict=True):
            if spec.shape != channels:
                expected = f"shape {channels}, as X has channels"
                refuse(self.name, declared.name, expected, f"shape {spec.shape}")
        return channels


def _rule(op: BatchNormInternal | BatchNormRelu) -> object:
    """Return the kernels' struct Rule: the attributes of `op`, and rest = 1 - momentum."""
    return by_value(
        Rule,
        epsilon=op.epsilon,
        momentum=op.momentum,
        rest=1 - op.momentum,
        unbiased=op.unbiased,
    )


class BatchNormInternal(_BatchNorm):
    """Batch normalisation: Y = scale (X - mean) inv_std + B, inv_std = 1 / sqrt(var + epsilon).

    Channels are along the second axis; an array of rank 1 is one channel. mean and var are those of
    the m elements of a channel of X, var the mean of squared distances. saved_mean and
    saved_inv_std are mean and inv_std, which the gradient takes. The running statistics become
    momentum times what they were plus (1 - momentum) times mean, and times var m / (m - 1), or var
    where `unbiased` is False, as ONNX has it. True is the default because upstream's CUDA kernel
    and PyTorch do so: a training goes on with the same numbers. With one element (m = 1) it is var,
    which is 0.

    Without elements (m = 0) running statistics stay as they are, saved_mean is 0 and saved_inv_std
    1 / sqrt(epsilon). With training_mode 0, Y is computed with input_mean and input_var, and there
    is no other output. An output that is not asked for is not written, nor is the input it would
    replace. NaN and infinities propagate over their channel. Variances do not cancel, whatever the
    mean; sums of float32 squares are infinite from 2^128.

    Memory: where a channel is more than a block holds, a workspace of 17 KB, 16 bytes a channel (32
    for float64) and 1/500 of X for partial sums, up to 1/20 where channels have few neighbouring
    elements.

    Source: ONNX BatchNormalization-14;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/nn/batch_norm_internal.cc.
    """

    inputs = (
        Input("X", "T", shape=IMAGES),
        Input("scale", "T1", shape=CHANNELS),
        Input("B", "T1", shape=CHANNELS),
        Input("input_mean", "T2", shape=CHANNELS),
        Input("input_var", "T2", shape=CHANNELS),
    )
    outputs = (
        Output("Y", "T", may_alias=("X",), shape="shape and layout of X"),
        Output(
            "running_mean",
            "T2",
            optional=True,
            aliases="input_mean",
            on_request=True,
            shape=CHANNELS,
        ),
        Output(
            "running_var", "T2", optional=True, aliases="input_var", on_request=True, shape=CHANNELS
        ),
        Output("saved_mean", "T2", optional=True, shape=CHANNELS),
        Output("saved_inv_std", "T2", optional=True, shape=CHANNELS),
    )
    lies_as = LiesAs({"X": "X", "Y": "X"}, alike=True)
    epsilon = attribute(positive_or_zero, 1e-5)
    momentum = attribute(share, 0.9, doc="what running statistics keep")
    training_mode = attribute(boolean, True, doc="False normalises by input_mean and input_var")
    unbiased = attribute(boolean, True, doc="running_var takes m / (m - 1) of the variance")

    def infer(self, x: Spec, *per_channel: Spec) -> tuple[Spec | None, ...]:
        """Return the specs of Y and four statistics (None without training_mode).

        per_channel: scale, B, input_mean and input_var.
        """
        channels = self.check_channels(x, per_channel)
        y, statistic = Spec(x.shape, x.dtype), Spec(channels, per_channel[-1].dtype)
        return y, *((statistic if self.training_mode else None,) * 4)

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan the call; specs: of inputs, then of outputs, None where not wanted."""
        x, scale, _, mean, _, y, *_ = specs
        return Call(
            device,
            kernels=NORMALIZE,
            types=(x.dtype, scale.dtype, mean.dtype),
            read=(x,),
            applied=(y,),
            arrays=specs,
            options=(_rule(self),),
            n_fields=MOMENTS,
            of_relu=(None,),
            sums=self.training_mode,
        ).plan()


class BatchNormalizationGrad(_BatchNorm):
    """Gradient: X_grad = scale saved_inv_std (dY - mean of dY - xhat mean of (dY xhat)).

    xhat = (X - saved_mean) saved_inv_std; scale_grad = sum of dY xhat, bias_grad = sum of dY, means
    and sums over the elements of a channel. saved_mean and saved_inv_std are BatchNormInternal's,
    and are used as they are; upstream calls the second `variance`, but reads it so. It is the
    gradient of training: where Y was computed with input_mean and input_var, it is another. epsilon
    has no influence.

    Without elements scale_grad and bias_grad are 0. NaN and infinities propagate over their
    channel.

    Memory: where a channel is more than a block holds, a workspace of 17 KB, 16 bytes a channel (32
    for float64) and 1/500 of X for partial sums, up to 1/20 where channels have few neighbouring
    elements. A dY that lies otherwise than X is copied there, as X lies, and so is an `out=`
    for X_grad.

    Source: ONNX BatchNormalization-14, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/nn/batch_norm_grad.cc.
    """

    inputs = (
        Input("dY", "T", shape="shape of X; C-contiguous, or with the channels last in memory"),
        Input("X", "T", shape=IMAGES),
        Input("scale", "T1", shape=CHANNELS),
        Input("saved_mean", "T2", upstream="mean", shape=CHANNELS),
        Input("saved_inv_std", "T2", upstream="variance", shape=CHANNELS),
    )
    outputs = (
        Output("X_grad", "T", may_alias=("dY", "X"), shape="shape of X; a new one in its layout"),
        Output("scale_grad", "T1", shape=CHANNELS),
        Output("bias_grad", "T1", shape=CHANNELS),
    )
    lies_as = LiesAs({"dY": "dY", "X": "X", "X_grad": "X"})
    epsilon = attribute(positive_or_zero, doc="not used")

    def infer(self, dy: Spec, x: Spec, *per_channel: Spec) -> tuple[Spec, ...]:
        """Return the specs of X_grad, scale_grad and bias_grad.

        per_channel: scale, saved_mean and saved_inv_std.
        """
        channels = self.check_channels(x, per_channel)
        if dy.shape != x.shape:
            refuse(self.name, "dY", f"shape {x.shape}, as X", f"shape {dy.shape}")
        of_scale = Spec(channels, per_channel[0].dtype)
        return Spec(x.shape, x.dtype), of_scale, of_scale

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan the call, with copies of dY and X_grad in X's layout where they have another.

        specs: of inputs, then of outputs, None where not wanted.
        """
        dy, x, scale, mean, inv_std, dx, *sums = specs
        copies = Copies("batch_norm__transpose", slots(T=x.dtype))
        dy = copies.source(dy, last=x.channels_last)
        dx = copies.optional_target(dx, last=x.channels_last)
        call = Call(
            device,
            kernels=GRADIENT,
            types=(x.dtype, scale.dtype, mean.dtype),
            read=(dy, x),
            applied=(dx,),
            arrays=(dy, x, scale, mean, inv_std, dx, *sums),
            options=(x.size // max(1, scale.size),),
            n_fields=SLOPES,
            of_relu=(None, None),
        )
        return copies.plan(call.plan())


class BatchNormRelu(_BatchNorm):
    """Batch normalisation and relu: Y = max(0, scale (X - mean) inv_std + B + residual).

    inv_std = 1 / sqrt(var + epsilon); mean, var and what the running statistics become are those of
    BatchNormInternal, but that the running statistics are always written in place. Without a
    residual nothing is added. Y is rounded once. NaN stays NaN; -0 becomes 0. An X without elements
    leaves the running statistics as they are.

    Memory: a workspace as BatchNormInternal's. Nothing is saved for the gradient but X, Y,
    saved_mean and saved_inv_std.

    Source: ONNX BatchNormalization-14, Add and Relu; a residual network's block.
    """

    domain = "cupy_training_ops"
    inputs = (
        Input("X", "T", shape=IMAGES),
        Input("scale", "T1", shape=CHANNELS),
        Input("B", "T1", shape=CHANNELS),
        Input("running_mean", "T2", updated=True, shape=CHANNELS),
        Input("running_var", "T2", updated=True, shape=CHANNELS),
        Input("residual", "T", optional=True, shape="shape and layout of X"),
    )
    outputs = (
        Output("Y", "T", may_alias=("X", "residual"), shape="shape and layout of X"),
        Output("saved_mean", "T2", shape=CHANNELS),
        Output("saved_inv_std", "T2", shape=CHANNELS),
    )
    lies_as = LiesAs({"X": "X", "residual": "X", "Y": "X"}, alike=True)
    epsilon = attribute(positive_or_zero, 1e-5)
    momentum = attribute(share, 0.9, doc="what running statistics keep")
    unbiased = attribute(boolean, True, doc="running_var takes m / (m - 1) of the variance")

    def infer(self, x: Spec, *others: Any) -> tuple[Spec, ...]:
        """Return the specs of Y, saved_mean and saved_inv_std; others: the inputs behind X."""
        *per_channel, residual = others
        channels = self.check_channels(x, tuple(per_channel))
        if residual is not None and residual.shape != x.shape:
            refuse(self.name, "residual", f"shape {x.shape}, as X", f"shape {residual.shape}")
        statistic = Spec(channels, per_channel[-1].dtype)
        return Spec(x.shape, x.dtype), statistic, statistic

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan the call; running statistics are inputs that are written in place.

        specs: of inputs, then of outputs, None where left out or not wanted.
        """
        x, scale, bias, mean, var, residual, y, *saved = specs
        return Call(
            device,
            kernels=NORMALIZE,
            types=(x.dtype, scale.dtype, mean.dtype),
            read=(x,),
            applied=(y,),
            arrays=(x, scale, bias, mean, var, y, mean, var, *saved),
            options=(_rule(self),),
            n_fields=MOMENTS,
            of_relu=(residual,),
            relu=True,
        ).plan()


class BatchNormReluGrad(_BatchNorm):
    """Gradient of BatchNormRelu: residual_grad = dZ = dY where Y > 0, else 0.

    X_grad = scale saved_inv_std (dZ - mean of dZ - xhat mean of (dZ xhat)), xhat = (X - saved_mean)
    saved_inv_std; scale_grad = sum of dZ xhat, bias_grad = sum of dZ, means and sums over the
    elements of a channel. Y, saved_mean and saved_inv_std are BatchNormRelu's. Where Y is NaN, dZ
    is dY, as PyTorch's gradient of relu.

    Without elements scale_grad and bias_grad are 0. NaN and infinities propagate over their
    channel, but those of dY where Y is 0.

    Memory: a workspace as BatchNormalizationGrad's. Leave residual_grad out by `outputs=` where
    nothing was added.

    Source: ONNX BatchNormalization-14, Add and Relu, gradients.
    """

    domain = "cupy_training_ops"
    inputs = (
        Input("dY", "T", shape="shape and layout of X"),
        Input("X", "T", shape=IMAGES),
        Input("Y", "T", shape="shape and layout of X"),
        Input("scale", "T1", shape=CHANNELS),
        Input("saved_mean", "T2", shape=CHANNELS),
        Input("saved_inv_std", "T2", shape=CHANNELS),
    )
    outputs = (
        Output("X_grad", "T", may_alias=("dY", "X", "Y"), shape="shape and layout of X"),
        Output("scale_grad", "T1", shape=CHANNELS),
        Output("bias_grad", "T1", shape=CHANNELS),
        Output("residual_grad", "T", may_alias=("dY", "X", "Y"), shape="shape and layout of X"),
    )
    lies_as = LiesAs(
        {"dY": "X", "X": "X", "Y": "X", "X_grad": "X", "residual_grad": "X"}, alike=True
    )

    def infer(self, dy: Spec, x: Spec, y: Spec, *per_channel: Spec) -> tuple[Spec, ...]:
        """Return the specs of X_grad, scale_grad, bias_grad and residual_grad.

        per_channel: scale, saved_mean and saved_inv_std.
        """
        channels = self.check_channels(x, per_channel)
        for name, spec in (("dY", dy), ("Y", y)):
            if spec.shape != x.shape:
                refuse(self.name, name, f"shape {x.shape}, as X", f"shape {spec.shape}")
        of_scale, of_x = Spec(channels, per_channel[0].dtype), Spec(x.shape, x.dtype)
        return of_x, of_scale, of_scale, of_x

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan the call; specs: of inputs, then of outputs, None where not wanted."""
        dy, x, y, scale, mean, inv_std, dx, *sums, residual_grad = specs
        return Call(
            device,
            kernels=GRADIENT,
            types=(x.dtype, scale.dtype, mean.dtype),
            read=(dy, x, y),
            applied=(dx, residual_grad),
            arrays=(dy, x, scale, mean, inv_std, dx, *sums),
            options=(x.size // max(1, scale.size),),
            n_fields=SLOPES,
            of_relu=(y, residual_grad),
            relu=True,
        ).plan()


OPS = {
    "BatchNormInternal": BatchNormInternal,
    "BatchNormRelu": BatchNormRelu,
    "BatchNormReluGrad": BatchNormReluGrad,
    "BatchNormalizationGrad": BatchNormalizationGrad,
}
