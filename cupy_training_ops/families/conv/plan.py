# SPDX-License-Identifier: MIT
"""Launches of convolutions and their gradients; see cuda_src/conv.

Four plans, which `Plan.then` joins. The arrays are those of the ordinary convolution X -> Y: of a
transposed one X and Y change places. An array is of one type, the same in a call; a bias too.
"""

from __future__ import annotations

import functools
import math

from ...declare.schema import Spec
from ...plan import Device, LaunchError, Plan
from ...rules.widening import computed_in
from .extents import Convolution
from .facts import AXES
from .plan_depthwise import depthwise, depthwise_weight, goes_by_lines, is_depthwise
from .plan_direct import both_direct, direct_image, direct_weight, directly
from .plan_image import Arrays, image_product
from .plan_launches import Copies, bias_gradient, have_channels_last
from .plan_model import can_stage, staged_image, staged_weight
from .plan_staged import Wanted, staged_plan
from .plan_variants import (
    BIAS_ITEMSIZE,
    image_has_lines,
    image_variant,
    spread_residues,
    weight_kernel,
    weight_variant,
)
from .plan_weight import SUMS_NBYTES, weight_sums
from .plan_weight import Arrays as WeightArrays

MAX_POSITION = 2**31 - 1


def forward(
    device: Device,
    convolution: Convolution,
    x: Spec,
    w: Spec,
    bias: Spec | None,
    y: Spec,
    *,
    tf32: bool = False,
) -> Plan:
    """Y from X and W, with a bias for each filter."""
    return _image_plan(device, convolution, (x, w, bias, y), tf32=tf32, is_gradient=False)


def data_gradient(
    device: Device,
    convolution: Convolution,
    y: Spec,
    w: Spec,
    bias: Spec | None,
    x: Spec,
    *,
    tf32: bool = False,
) -> Plan:
    """X from Y and W, with a bias for each channel; what no element of Y reaches is the bias."""
    return _image_plan(device, convolution, (y, w, bias, x), tf32=tf32, is_gradient=True)


def weight_gradient(
    device: Device,
    convolution: Convolution,
    x: Spec,
    y: Spec,
    w: Spec | None,
    bias: Spec | None = None,
    *,
    tf32: bool = False,
) -> Plan:
    """The wanted gradients of W and a bias, from X and Y; zeros where there is nothing to sum."""
    conv = _with_three_axes(convolution)
    if w is None and bias is None:
        return Plan()
    direct = directly(
        device, conv, y, tf32, lambda stands: direct_weight(device, conv, (x, stands, w, bias))
    )
    if direct is not None:
        return direct
    if staged_weight(device, conv, (x, y, w), tf32):
        return _staged_weight(device, conv, (x, y, w, bias), tf32)
    of_w = math.prod(conv.w_shape) * computed_in(y.dtype).itemsize
    if is_depthwise(conv) and of_w <= SUMS_NBYTES:
        return depthwise_weight(device, conv, (x, y, w, bias))
    lines = weight_kernel(device, conv, x, y, tf32) == "conv__weight_lines"
    variant = weight_variant(device, conv, y.dtype, tf32, lines=lines)
    if lines or y.dtype.itemsize == BIAS_ITEMSIZE:
        return weight_sums(device, conv, variant, (x, y, w, bias))
    plan = Plan() if bias is None else bias_gradient(device, y, bias)
    if w is None:
        return plan
    return weight_sums(device, conv, variant, (x, y, w, None)).then(plan)


def _staged_weight(device: Device, conv: Convolution, arrays: WeightArrays, tf32: bool) -> Plan:
    x, y, w, bias = arrays
    if w is None and bias is None:
        return Plan()
    return staged_plan(device, conv, y.dtype, tf32, Wanted(x, y, dw=w, db=bias))


def gradients(
    device: Device,
    convolution: Convolution,
    inputs: tuple[Spec, Spec, Spec],
    image: Spec | None,
    w: Spec | None,
    bias: Spec | None = None,
    *,
    is_gradient: bool = True,
    tf32: bool = False,
) -> Plan:
    """The wanted ones of an image, W and a bias, from (X, Y, W), which are staged once."""
    x, y, of_w = inputs
    conv = _with_three_axes(convolution)
    results = image, w, bias
    if is_gradient:
        direct = directly(
            device,
            conv,
            y,
            tf32,
            lambda stands: both_direct(device, conv, (x, stands, of_w), results),
        )
        if direct is not None:
            return direct
    is_last = have_channels_last(*inputs, image, w) and not can_stage(device, conv, y.dtype)
    if is_last and not goes_by_lines(conv, x, y, image):
        copies = Copies(y.dtype)
        copied = (copies.source(x), copies.source(y), copies.source(of_w))
        written = copies.optional_target(image), copies.optional_target(w), bias
        of_copies = functools.partial(gradients, is_gradient=is_gradient, tf32=tf32)
        return copies.plan(of_copies(device, convolution, copied, *written))
    read = y if is_gradient else x
    if image is None:
        return weight_gradient(device, convolution, x, y, w, bias, tf32=tf32)
    is_staged = staged_weight(device, conv, (x, y, of_w, image, w), tf32) and w is not None
    if is_staged and staged_image(device, conv, (read, image, x, y, of_w, w), tf32):
        wanted = Wanted(x, y, of_w, image, None, is_gradient, w, bias)
        return staged_plan(device, conv, y.dtype, tf32, wanted)
    image_plan = data_gradient if is_gradient else forward
    plan = image_plan(device, convolution, read, of_w, None, image, tf32=tf32)
    return plan.then(weight_gradient(device, convolution, x, y, w, bias, tf32=tf32))


def _image_plan(
    device: Device, convolution: Convolution, arrays: Arrays, *, tf32: bool, is_gradient: bool
) -> Plan:
    """A convolution or its data gradient."""
    conv, (read, w, bias, written) = _with_three_axes(convolution), arrays
    if not written.size:
        return Plan()
    if is_gradient:
        direct = directly(
            device,
            conv,
            read,
            tf32,
            lambda stands: direct_image(device, conv, (stands, w, bias, written)),
        )
        if direct is not None:
            return direct
    is_last = have_channels_last(read, w, written)
    is_last = is_last and not can_stage(device, conv, written.dtype)
    if is_last and not goes_by_lines(conv, read, written):
        copies = Copies(written.dtype)
        arrays = (copies.source(read), copies.source(w), bias, copies.target(written))
        plan = _image_plan(device, convolution, arrays, tf32=tf32, is_gradient=is_gradient)
        return copies.plan(plan)
    if is_depthwise(conv):
        return depthwise(device, conv, arrays, is_gradient=is_gradient)
    if staged_image(device, conv, (read, written, w), tf32):
        wanted = Wanted(read, read, w, written, bias, is_gradient)
        return staged_plan(device, conv, written.dtype, tf32, wanted)
    walked = spread_residues(conv) if is_gradient and arrays[2] is None else conv
    lines = walked is conv and image_has_lines(device, conv, read, written, tf32)
    how = {"is_gradient": is_gradient, "lines": lines}
    variant = image_variant(device, walked, written.dtype, tf32, **how)
    return image_product(device, walked, variant, arrays, is_gradient=is_gradient, of=conv)


def _with_three_axes(convolution: Convolution) -> Convolution:
    """Add axes of extent 1 up to three; refuse positions beyond 32 bits."""
    conv = convolution.padded_to(AXES)
    axes = zip(
        conv.image, conv.output, conv.kernel, conv.strides, conv.dilations, conv.pads, strict=True
    )
    for image, output, kernel, stride, dilation, pad in axes:
        reach = (kernel - 1) * dilation
        if max(image + pad, output * stride) + reach > MAX_POSITION:
            raise LaunchError(f"extents {convolution.image} with pads {convolution.pads}")
    return conv
