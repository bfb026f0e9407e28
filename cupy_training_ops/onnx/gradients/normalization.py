# SPDX-License-Identifier: MIT
"""Gradients of normalization, of softmax, and of dropout.

y = scale x^ + bias, x^ = (x - mean) inv_std      h = dy scale
dx = inv_std (h - mean of h - x^ (mean of h x^))    d_scale = sum of dy x^    d_bias = sum of dy

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ArgumentError
from .rules import BOOL, BY_BODY, INT64, ZERO, Site, Term, gradient, wide_type

ZERO |= {"Hardmax"}
BY_BODY |= {"MeanVarianceNormalization"}
EPSILON = 1e-5  # where a node says none


@gradient("BatchNormInternal")
def batch_norm_internal(site: Site) -> Sequence[Term | None]:
    """dx, d_scale and d_bias by one node, which reads the batch's mean and inv_std (outputs 3, 4).

    The running statistics have no gradient.
    """
    x, scale, _, old_mean, _ = site.inputs
    dtype = site.dtype(old_mean)
    statistics = site.extra_output(3, dtype), site.extra_output(4, dtype)
    epsilon = site.attribute("epsilon", EPSILON)
    operands = (site.dy, x, scale, *statistics)
    return site.owns(3, "BatchNormalizationGrad", *operands, epsilon=epsilon)


@gradient("BatchNormalization")
def batch_normalization(site: Site) -> Sequence[Term | None]:
    """In inference, by running statistics: dx = dy scale inv_std, inv_std = (var + epsilon)^-1/2.

    d_scale = sum of dy (x - mean) inv_std; d_bias = sum of dy; d_mean = -d_bias scale inv_std;
    d_var = -d_scale scale inv_std^2 / 2. Sums are over all axes but 1, in float32 for half types.
    """
    if site.attribute("training_mode", 0):
        raise ArgumentError("its gradient is known for running statistics: training_mode=0")
    wide = wide_type(site.dtype(site.inputs[0]))
    dy, x, scale, mean, var = (
        site.cast(site.dy, wide),
        *(site.cast(site.inputs[i], wide) for i in (0, 1, 3, 4)),
    )
    axes = site.ints(0, *range(2, site.rank(x)))
    each = (-1, *[1] * (site.rank(x) - 2))  # a channel's numbers beside x

    def sums(value: Term) -> Term:
        return site.op("ReduceSum", value, axes, keepdims=0)

    def by_channel(value: Term) -> Term:
        return site.op("Reshape", value, site.ints(*each))

    inv_std = 1 / site.op("Sqrt", var + site.attribute("epsilon", EPSILON))
    factor = scale * inv_std
    dx = dy * by_channel(factor) if site.wanted[0] else None
    d_scale = d_mean = d_var = None
    d_bias = sums(dy) if site.wanted[2] or site.wanted[3] else None
    if site.wanted[1] or site.wanted[4]:
        d_scale = sums(dy * (x - by_channel(mean))) * inv_std
        d_var = d_scale * factor * inv_std * -0.5 if site.wanted[4] else None
    if site.wanted[3]:
        d_mean = -(d_bias * factor) if d_bias else None
    return [dx, d_scale, d_bias, d_mean, d_var]


@gradient("LayerNormalization")
def layer_normalization(site: Site) -> Sequence[Term | None]:
    """dx, d_scale and d_bias by one node, which reads mean and inv_std (outputs 1, 2)."""
    x, scale, *bias = site.inputs
    dtype = wide_type(site.dtype(x))
    statistics = site.extra_output(1, dtype), site.extra_output(2, dtype)
    axis = site.attribute("axis", -1)
    operands = (site.dy, x, scale, *statistics)
    results = list(site.owns(3, "LayerNormalizationGrad", *operands, axis=axis))
    if bias and bias[0] and site.extents(bias[0]) != site.extents(scale):
        results[2] = site.reshape_like(results[2], bias[0])
    return results


@gradient("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(site: Site) -> Sequence[Term | None]:
    """dx and d_scale by one node, which reads inv_std (output 1).

    It takes a scale of the shape of a row, the axes that are normalised over; others are refused.
    """
    x, scale = site.inputs
    axis = site.attribute("axis", -1)
    row, own = (site.extents(each) for each in (x, scale))
    if own is not None and row is not None and own != row[axis:]:
        raise ArgumentError(f"its gradient needs a scale of shape {row[axis:]}, got {own}")
    if site.node.op_type == "RMSNormalization":
        site.replace_node(op_type="SimplifiedLayerNormalization")
    inv_std = site.extra_output(1, wide_type(site.dtype(x)))
    operands = (site.dy, x, scale, inv_std)
    return site.owns(2, "SimplifiedLayerNormalizationGrad", *operands, axis=axis)


@gradient("InstanceNormalization")
def instance_normalization(site: Site) -> Sequence[Term | None]:
    """dx, d_scale and d_bias, by rows (N, channels, rest): each is one channel of one sample."""
    x, scale, bias = site.inputs
    rows = site.dims((x, 0), (x, 1))
    n = site.op("ReduceProd", site.op("Shape", x, start=2, dtype=INT64), keepdims=1)
    shape = site.op("Concat", rows, n, axis=0)
    by_channel = site.op("Unsqueeze", scale, site.ints(1))
    dx, d_scale, d_bias = _by_rows(site, shape, n, by_channel)
    return [dx, _sum_by(site, d_scale, scale), _sum_by(site, d_bias, bias)]


@gradient("GroupNormalization")
def group_normalization(site: Site) -> Sequence[Term | None]:
    """dx, d_scale and d_bias, by rows (N, groups, channels of a group, rest): each is a group.

    Until opset 20 there is a scale for each group, later for each channel.
    """
    x, scale, bias = site.inputs
    groups = site.attribute("num_groups", 1)
    n = site.op("ReduceProd", site.op("Shape", x, start=2, dtype=INT64), keepdims=1)
    channels = site.op("Div", site.dims((x, 1)), site.ints(groups))
    shape = site.op("Concat", site.dims((x, 0)), site.ints(groups), channels, n, axis=0)
    length = site.op("Concat", channels, n, axis=0)
    own = channels if site.node.version >= 21 else site.ints(1)
    form = site.op("Concat", site.ints(groups), own, site.ints(1), axis=0)
    by_channel = site.op("Reshape", scale, form)
    dx, d_scale, d_bias = _by_rows(site, shape, length, by_channel)
    if site.node.version < 21:
        d_scale, d_bias = (site.op("ReduceSum", d, site.ints(2)) for d in (d_scale, d_bias))
    return [dx, _sum_by(site, d_scale, scale), _sum_by(site, d_bias, bias)]


def _by_rows(site: Site, shape: Term, length: Term, scale: Term) -> tuple[Term, Term, Term]:
    """Return dx in x's shape, and dy x^ and dy in `shape`, summed over the last axis (1 there).

    shape: a vector, x as (N, rows, ...), each row normalised over the axes from 2 on; length: a
    vector, the extents of these. scale: broadcasts to `shape` without N.
    """
    x = site.inputs[0]
    wide = wide_type(site.dtype(x))
    shaped = (site.op("Reshape", each, shape, allowzero=1) for each in (x, site.dy))
    rows, dy = (site.cast(each, wide) for each in shaped)
    ones = site.op("ConstantOfShape", length, value=np.ones(1, wide), dtype=wide)
    options = {"axis": 2, "epsilon": site.attribute("epsilon", EPSILON)}
    xhat, *statistics = site.ops(3, "LayerNormalization", rows, ones, **options)
    h = dy * site.cast(scale, wide)
    results = site.owns(3, "LayerNormalizationGrad", h, rows, ones, *statistics, axis=2)
    dx = site.cast(site.reshape_like(results[0], x), site.dtype(x))
    d_scale, d_bias = (
        site.op("ReduceSum", each, site.ints(-1), keepdims=1) for each in (dy * xhat, dy)
    )
    return dx, d_scale, d_bias


def _sum_by(site: Site, sums: Term, x: Term) -> Term:
    """Return sums of shape (N, channels..., 1) summed over N, in the shape and type of x."""
    total = site.op("ReduceSum", sums, site.ints(0), keepdims=0)
    return site.reshape_like(site.cast(total, site.dtype(x)), x)


@gradient("LpNormalization")
def lp_normalization(site: Site) -> Sequence[Term | None]:
    """y = x / n, n = the p-norm along an axis: dx = (dy - s (sum of dy y)) / n, 0 where n is 0.

    s = y for p = 2, sign(x) for p = 1. Half types are computed in float32.
    """
    dy, x, y = map(site.widened, (site.dy, site.inputs[0], site.outputs[0]))
    axes = site.ints(site.attribute("axis", -1))

    def total(value: Term) -> Term:
        return site.op("ReduceSum", value, axes, keepdims=1)

    if site.attribute("p", 2) == 1:
        norm, slope = total(site.op("Abs", x)), site.op("Sign", x)
    else:
        norm, slope = site.op("Sqrt", total(x * x)), y
    dx = (dy - slope * total(dy * y)) / norm
    dx = site.choose(site.compare("Equal", norm, 0), 0, dx)
    return [site.cast(dx, site.dtype(site.inputs[0]))]


@gradient("LRN")
def local_response(site: Site) -> Sequence[Term | None]:
    """y = x / d^beta, d = bias + alpha / size (sum of x^2 over neighbouring channels):
    dx = dy / d^beta - 2 alpha beta / size x (sum of dy y / d over the channels that x is beside).

    A sum over neighbouring channels is a mean of (size, 1) of the planes (channels, rest).
    Half types are computed in float32.
    """
    dy, x, y = map(site.widened, (site.dy, site.inputs[0], site.outputs[0]))
    size, alpha = site.attribute("size", 1), site.attribute("alpha", 1e-4)
    beta, bias = site.attribute("beta", 0.75), site.attribute("bias", 1.0)
    n = site.op("ReduceProd", site.op("Shape", x, start=2, dtype=INT64), keepdims=1)
    planes = site.op("Concat", site.dims((x, 0), 1, (x, 1)), n, axis=0)
    before, after = (size - 1) // 2, size // 2

    def mean(value: Term, before: int, after: int) -> Term:
        """Return value's mean over `size` channels: so many before, itself, so many after."""
        rows = site.op("Reshape", value, planes, allowzero=1)
        options: dict[str, Any] = {"kernel_shape": (size, 1), "pads": (before, 0, after, 0)}
        pooled = site.op("AveragePool", rows, count_include_pad=1, **options)
        return site.reshape_like(pooled, x)

    d = mean(x * x, before, after) * alpha + bias
    power = site.op("Pow", d, site.number(-beta, x))
    others = mean(dy * y / d, after, before)
    dx = dy * power - x * others * (2 * alpha * beta)
    return [site.cast(dx, site.dtype(site.inputs[0]))]


# ---- softmax and dropout -------------------------------------------------------------------------


@gradient("Softmax", "LogSoftmax")
def softmax(site: Site) -> Sequence[Term | None]:
    """dx = y (dy - sum of dy y); of LogSoftmax dx = dy - e^y (sum of dy).

    The sum is along `axis`; until opset 12 over all axes from `axis` on.
    """
    is_old = site.node.version < 13
    name = f"{site.node.op_type}Grad" + ("" if is_old else "_13")
    axis = site.attribute("axis", 1 if is_old else -1)
    return [site.own(name, site.dy, site.outputs[0], axis=axis)]


@gradient("Dropout")
def dropout(site: Site) -> Sequence[Term | None]:
    """dx = dy / (1 - ratio) where the mask (output 1) is True, else 0; dy without training_mode."""
    _, ratio, flag = (*site.inputs, None, None)[:3]
    if flag is None:
        return [site.dy]
    mask = site.extra_output(1, BOOL)
    return [site.own("DropoutGrad", site.dy, mask, ratio, flag)]
