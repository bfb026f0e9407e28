# SPDX-License-Identifier: MIT
"""Which kernels compute a convolution or its gradients; see cuda_src/conv/conv.cu.

The arrays are those of the ordinary convolution X -> Y: of a transposed one X and Y change places.
All arrays of a call, a bias too, are of one type.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...plan import Device, Plan
from ...rules.widening import computed_in
from .extents import Convolution
from .facts import AXES
from .plan_depthwise import depthwise, depthwise_weight, goes_by_lines, is_depthwise
from .plan_direct import direct_plan
from .plan_gathered import SUMS_NBYTES, image_product, weight_sums
from .plan_launches import Wanted, bias_gradient, copies_of
from .plan_model import can_stage, staged_image, staged_weight
from .plan_staged import staged_plan
from .plan_variants import (
    BIAS_ITEMSIZE,
    image_has_lines,
    image_variant,
    spread_residues,
    weight_kernel,
    weight_variant,
)


def plan_wanted(device: Device, convolution: Convolution, wanted: Wanted, *, tf32: int = 0) -> Plan:
    """Plan the results that `wanted` has: by direct, depthwise, staged or gathering kernels.

    wanted: the arrays of the call; dw, db and image are computed where they are not None. Arrays
    with channels last that no kernel reads so are copied first. Where both an image and W's
    gradient read staged arrays, each is staged once.

    tf32: products of TF32 for each of float32, on tensor cores: 1 or 3, or 0, exact. Three are for
    staged arrays; others are multiplied exactly.

    A bias is added to each channel of an image, also where no element of Y reaches.
    """
    conv = convolution.padded_to(AXES)
    x, y, w, image, dw = wanted.x, wanted.y, wanted.w, wanted.image, wanted.dw
    if not wanted.sums and (image is None or not image.size):
        return Plan()
    if wanted.is_gradient:
        direct = direct_plan(device, conv, wanted, tf32)
        if direct is not None:
            return direct
    is_last = wanted.has_channels_last and not can_stage(device, conv, wanted.dtype, tf32)
    if is_last and not goes_by_lines(conv, x, y, image):
        copies = copies_of(wanted.dtype)
        of_x = copies.source(x)
        copied = replace(
            wanted,
            x=of_x,
            y=of_x if y is x else copies.source(y),
            w=None if w is None else copies.source(w),
            image=copies.optional_target(image),
            dw=copies.optional_target(dw),
        )
        return copies.plan(plan_wanted(device, convolution, copied, tf32=tf32))
    is_staged = image is not None and dw is not None and staged_weight(device, conv, wanted, tf32)
    if is_staged and staged_image(device, conv, wanted, tf32):
        return staged_plan(device, conv, wanted, tf32)
    of_weights = Wanted(x, y, dw=dw, db=wanted.db)
    if image is None:
        return _weight_plan(device, conv, of_weights, tf32)
    of_image = replace(wanted, x=wanted.source, y=wanted.source, dw=None, db=None)
    plan = _image_plan(device, conv, of_image, tf32)
    return plan.then(_weight_plan(device, conv, of_weights, tf32)) if wanted.sums else plan


def _image_plan(device: Device, conv: Convolution, wanted: Wanted, tf32: int) -> Plan:
    """Plan a convolution or its data gradient alone: depthwise, staged or gathered.

    wanted: `source`, W and bias are read, `target` is written. tf32: products of TF32 for each of
    float32: 1, 3, or 0 (exact).
    """
    read, written, is_gradient = wanted.source, wanted.target, wanted.is_gradient
    if not written.size:
        return Plan()
    if is_depthwise(conv):
        return depthwise(device, conv, wanted)
    if staged_image(device, conv, wanted, tf32):
        return staged_plan(device, conv, wanted, tf32)
    # With residues spread, where that fits, a gradient has stride 1 and more channels.
    walked = spread_residues(conv) if is_gradient and wanted.bias is None else conv
    lines = walked is conv and image_has_lines(device, conv, read, written, tf32)
    how = {"is_gradient": is_gradient, "lines": lines}
    variant = image_variant(device, walked, wanted.dtype, tf32, **how)
    return image_product(device, walked, variant, wanted, conv)


def _weight_plan(device: Device, conv: Convolution, wanted: Wanted, tf32: int) -> Plan:
    """Plan the gradients of W and a bias alone: direct, staged, depthwise or gathered.

    wanted: x and y (dY) are read, dw and db written, each None if not computed. tf32: products of
    TF32 for each of float32: 1, 3, or 0 (exact). They are zeros where there is nothing to sum.
    Kernels of 2-byte types, and conv__weight_lines, sum the bias beside W.
    """
    direct = direct_plan(device, conv, wanted, tf32)
    if direct is not None:
        return direct
    if staged_weight(device, conv, wanted, tf32):
        return staged_plan(device, conv, wanted, tf32)
    of_w = math.prod(conv.w_shape) * computed_in(wanted.dtype).itemsize
    if is_depthwise(conv) and of_w <= SUMS_NBYTES:
        return depthwise_weight(device, conv, wanted)
    lines = weight_kernel(device, conv, wanted.x, wanted.y, tf32) == "conv__weight_lines"
    variant = weight_variant(device, conv, wanted.dtype, tf32, lines=lines)
    if lines or wanted.dtype.itemsize == BIAS_ITEMSIZE:
        return weight_sums(device, conv, variant, wanted)
    plan = Plan() if wanted.db is None else bias_gradient(device, wanted.y, wanted.db)
    if wanted.dw is None:
        return plan
    return weight_sums(device, conv, variant, replace(wanted, db=None)).then(plan)
