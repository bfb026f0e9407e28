# SPDX-License-Identifier: MIT
"""Calls of convolutions that onnxruntime answers on the CPU too.

Left out: auto_pad of the gradient, which it takes for pads of 0; an empty batch, at which it ends;
float64 of the gradient, which it does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cupy_training_ops.dtypes import FLOAT16, FLOAT32, Dtype, dtype_name
from cupy_training_ops.families.conv.samples import CALLS, ORDINARY, TRANSPOSED, Call, inputs, terms
from cupy_training_ops.samples import Sample

LABELS = (
    "ordinary",
    "odd",
    "line",
    "volume",
    "depthwise",
    "depthwise-strided",
    "pointwise-strided",
    "untouched",
    "beside",
)
PADS_FOUND = ("same-upper", "same-lower", "valid")


def samples() -> Iterator[Sample]:
    """Each in float32; of the gradient also in float16, which goes through casts."""
    for call in (*(call for call in CALLS if call.label in LABELS), *ORDINARY):
        for name in ("Conv", "ConvGrad", "ConvTranspose"):
            yield _sample(name, call, FLOAT32)
        yield _sample("ConvGrad", call, FLOAT16)
    for call in (*(call for call in CALLS if call.label in PADS_FOUND), *TRANSPOSED):
        for name in ("ConvTranspose",) if call in TRANSPOSED else ("Conv", "ConvTranspose"):
            yield _sample(name, call, FLOAT32)


def _sample(name: str, call: Call, dtype: Dtype) -> Sample:
    convolution = call.convolution(name)
    make = partial(inputs, name=name, convolution=convolution, dtype=dtype)
    label = f"{dtype_name(dtype)}-{call.label}"
    return Sample(name, label, make, call.attributes, terms=terms(convolution))
