# SPDX-License-Identifier: MIT
"""Launches of convolutions and their gradients; see cuda_src/conv.

The arrays are those of the ordinary convolution X -> Y: of a transposed one X and Y change places.
An array is of one type, the same in a call; a bias too.
"""

from __future__ import annotations

import functools
import math

from ...declare.schema import Spec
from ...plan import Device, Plan
from ...rules.widening import computed_in
from .extents import Convolution
from .facts import AXES
from .plan_depthwise import depthwise, depthwise_weight, goes_by_lines, is_depthwise
from .plan_direct import direct_plan
from .plan_gathered import SUMS_NBYTES, image_product, weight_sums
from .plan_launches import bias_gradient, copies_of, have_channels_last
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


def image_plan(
    device: Device,
    convolution: Convolution,
    read: Spec,
    w: Spec,
    bias: Spec | None,
    written: Spec,
    *,
    is_gradient: bool = False,
    tf32: bool = False,
) -> Plan:
    """Y from X and W, or its data gradient, X from Y and W; with a bias for each channel.

    What no element of Y reaches is the bias.
    """
    conv = convolution.padded_to(AXES)
    if not written.size:
        return Plan()
    wanted = Wanted(read, read, w, written, bias, is_gradient)
    if is_gradient:
        direct = direct_plan(device, conv, wanted, tf32)
        if direct is not None:
            return direct
    is_last = have_channels_last(read, w, written)
    is_last = is_last and not can_stage(device, conv, written.dtype)
    if is_last and not goes_by_lines(conv, read, written):
        copies = copies_of(written.dtype)
        copied = (copies.read(read), copies.read(w), bias, copies.written_as(written))
        plan = image_plan(device, convolution, *copied, is_gradient=is_gradient, tf32=tf32)
        return copies.plan(plan)
    arrays = read, w, bias, written
    if is_depthwise(conv):
        return depthwise(device, conv, arrays, is_gradient=is_gradient)
    if staged_image(device, conv, (read, written, w), tf32):
        return staged_plan(device, conv, wanted, tf32)
    walked = spread_residues(conv) if is_gradient and bias is None else conv
    lines = walked is conv and image_has_lines(device, conv, read, written, tf32)
    how = {"is_gradient": is_gradient, "lines": lines}
    variant = image_variant(device, walked, written.dtype, tf32, **how)
    return image_product(device, walked, variant, arrays, is_gradient=is_gradient, unspread=conv)


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
    conv = convolution.padded_to(AXES)
    if w is None and bias is None:
        return Plan()
    wanted = Wanted(x, y, dw=w, db=bias)
    direct = direct_plan(device, conv, wanted, tf32)
    if direct is not None:
        return direct
    if staged_weight(device, conv, (x, y, w), tf32):
        return staged_plan(device, conv, wanted, tf32)
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


def gradients(
    device: Device,
    convolution: Convolution,
    inputs: tuple[Spec, Spec, Spec],
    image: Spec | None,
    dw: Spec | None,
    db: Spec | None = None,
    *,
    is_gradient: bool = True,
    tf32: bool = False,
) -> Plan:
    """The wanted ones of an image, dW and dB, from (X, Y, W), which are staged once."""
    x, y, w = inputs
    conv = convolution.padded_to(AXES)
    wanted = Wanted(x, y, w, image, None, is_gradient, dw, db)
    if is_gradient:
        direct = direct_plan(device, conv, wanted, tf32)
        if direct is not None:
            return direct
    is_last = have_channels_last(*inputs, image, dw) and not can_stage(device, conv, y.dtype)
    if is_last and not goes_by_lines(conv, x, y, image):
        copies = copies_of(y.dtype)
        copied = (copies.read(x), copies.read(y), copies.read(w))
        written = copies.written(image), copies.written(dw), db
        of_copies = functools.partial(gradients, is_gradient=is_gradient, tf32=tf32)
        return copies.plan(of_copies(device, convolution, copied, *written))
    if image is None:
        return weight_gradient(device, convolution, x, y, dw, db, tf32=tf32)
    read = y if is_gradient else x
    is_staged = staged_weight(device, conv, (x, y, w, image, dw), tf32) and dw is not None
    if is_staged and staged_image(device, conv, (read, image, x, y, w, dw), tf32):
        return staged_plan(device, conv, wanted, tf32)
    of_image = functools.partial(image_plan, is_gradient=is_gradient, tf32=tf32)
    plan = of_image(device, convolution, read, w, None, image)
    return plan.then(weight_gradient(device, convolution, x, y, dw, db, tf32=tf32))
