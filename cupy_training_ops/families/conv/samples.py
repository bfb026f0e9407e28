# SPDX-License-Identifier: MIT
"""Sample inputs of convolutions, transposed ones and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, Dtype, dtype_name
from ...samples import Generator, Sample, Shape
from .extents import Attributes, Convolution

NAMES = ("Conv", "ConvGrad", "ConvTranspose", "ConvTransposeGrad")


class Call(NamedTuple):
    """A sampled convolution, of each dtype; of transposed operators x is the shape of Y."""

    label: str
    x: Shape  # (N, C, ...)
    filters: int
    kernel: Shape
    attributes: Mapping[str, Any] = {}
    dtypes: tuple[Dtype, ...] = FLOATS
    offset: int = 0  # elements by which arrays start off a 16-byte boundary
    last: bool = False  # all arrays have their channels last

    def convolution(self, name: str) -> Convolution:
        """Return the ordinary convolution that belongs to the operator of this name."""
        w = (self.filters, self.x[1] // self.attributes.get("group", 1), *self.kernel)
        of_result = ("output_padding", "output_shape")  # of a transposed one
        ordinary = {k: v for k, v in self.attributes.items() if k not in of_result}
        convolution = Attributes.of(name, ordinary).convolution(self.x, w)
        if "Transpose" not in name:
            return convolution
        return Attributes.of(name, self.attributes).transposed_convolution(convolution.y_shape, w)


# Every option once. "large" ends inside tiles of images, filters and lines of its product; of
# "untouched" some elements are read by no output, of "beside" some outputs read only padding.
CALLS = (
    Call("ordinary", (2, 8, 8, 8), 16, (3, 3), {"pads": (1, 1, 1, 1)}),
    Call(
        "odd",
        (3, 5, 7, 9),
        7,
        (3, 2),
        {"pads": (1, 0, 2, 1), "strides": (2, 1), "dilations": (1, 2)},
        (FLOAT16,),
    ),
    Call("line", (3, 6, 13), 4, (4,), {"group": 2, "pads": (1, 2)}, (BFLOAT16,)),
    Call(
        "volume",
        (2, 3, 5, 4, 6),
        4,
        (2, 3, 2),
        {"strides": (2, 1, 2), "pads": (1, 0, 0, 0, 1, 1)},
        (FLOAT32,),
    ),
    Call("depthwise", (2, 9, 7, 16), 9, (3, 3), {"group": 9, "pads": (1,) * 4}, FLOATS),
    Call(
        "depthwise-strided",
        (2, 5, 9, 8),
        10,
        (3, 3),
        {"group": 5, "strides": (2, 2), "pads": (1, 1, 1, 1)},
        (FLOAT16,),
    ),
    Call(
        "depthwise-wide",
        (2, 3, 9, 14),
        6,
        (4, 7),
        {"group": 3, "pads": (2, 3, 1, 3)},
        (FLOAT16, FLOAT32),
    ),
    Call("depthwise-pairs", (2, 3, 7, 10), 3, (5, 5), {"group": 3, "pads": (2,) * 4}),
    Call("pointwise", (2, 12, 4, 6), 20, (1, 1), {}, (FLOAT16, BFLOAT16)),
    Call("pointwise-long", (3, 40, 4, 7), 150, (1, 1), {}, (FLOAT16, BFLOAT16)),
    Call("pointwise-strided", (2, 12, 5, 7), 9, (1, 1), {"strides": (2, 2)}, (FLOAT32,)),
    Call("same-upper", (1, 3, 8, 7), 4, (4, 3), {"auto_pad": "SAME_UPPER"}, (FLOAT32,)),
    Call(
        "same-lower",
        (1, 3, 8, 7),
        4,
        (4, 3),
        {"auto_pad": "SAME_LOWER", "strides": (1, 2)},
        (BFLOAT16,),
    ),
    Call("valid", (1, 3, 8, 7), 4, (4, 3), {"auto_pad": "VALID"}, (FLOAT64,)),
    Call("untouched", (2, 3, 11, 8), 5, (2, 2), {"strides": (3, 4)}, (FLOAT16,)),
    Call(
        "spread",
        (2, 6, 8, 9),
        10,
        (5, 2),
        {"group": 2, "strides": (2, 3), "pads": (2, 1, 1, 0)},
        (FLOAT32, FLOAT16),
    ),
    Call("patches", (2, 2, 8, 16), 10, (2, 2), {"strides": (2, 4)}, (FLOAT16,)),
    Call("beside", (2, 3, 4), 5, (2,), {"pads": (3, 4)}, (FLOAT64,)),
    Call("empty", (0, 3, 6, 5), 4, (3, 3), {}, (FLOAT16,)),
    Call("no-extent", (2, 3, 0, 4), 4, (2, 2), {"pads": (1, 0, 1, 0)}, (FLOAT32,)),
    Call("one", (1, 1, 1), 1, (1,), {}, (FLOAT32,)),
    Call("misaligned", (2, 9, 6, 7), 11, (3, 3), {"pads": (1, 1, 1, 1)}, (FLOAT16,), 1),
    Call("large", (2, 17, 5, 17), 70, (2, 3), {"pads": (1, 1, 0, 1)}, (FLOAT32, FLOAT16)),
    Call("staged", (2, 20, 6, 7), 40, (3, 3), {"pads": (1, 1, 1, 1)}, (FLOAT16, BFLOAT16)),
    Call(
        "staged-strided",
        (1, 48, 7, 8),
        144,
        (3, 2),
        {"group": 2, "pads": (1, 0, 2, 1), "strides": (2, 1), "dilations": (1, 2)},
        (FLOAT16, BFLOAT16),
    ),
    Call(
        "staged-tf32",
        (2, 24, 6, 8),
        20,
        (3, 3),
        {"pads": (1, 1, 1, 1), "allow_tf32": True},
        (FLOAT32,),
    ),
    Call(
        "staged-tf32x3",
        (2, 18, 7, 6),
        36,
        (2, 3),
        {"pads": (1, 0, 1, 1), "tf32x3": True},
        (FLOAT32,),
    ),
    Call(
        "channels-last",
        (2, 20, 6, 7),
        40,
        (3, 3),
        {"pads": (1,) * 4},
        (FLOAT16, FLOAT32),
        last=True,
    ),
    Call(
        "first-layer",
        (2, 3, 10, 36),
        32,
        (5, 3),
        {"strides": (2, 2), "pads": (2, 1, 2, 1), "allow_tf32": True},
        (FLOAT16, BFLOAT16, FLOAT32),
    ),
    Call(
        "channels-last-depthwise",
        (2, 40, 9, 7),
        40,
        (3, 3),
        {"group": 40, "strides": (2, 1), "pads": (1, 0, 1, 1)},
        (FLOAT16, BFLOAT16, FLOAT32),
        last=True,
    ),
    Call(
        "channels-last-walks",
        (1, 16, 16, 5),
        16,
        (3, 3),
        {"group": 16, "pads": (1, 0, 2, 1)},
        (FLOAT16, BFLOAT16, FLOAT32),
        last=True,
    ),
    Call(
        "channels-last-wide",
        (1, 16, 6, 7),
        16,
        (5, 5),
        {"group": 16, "pads": (2,) * 4},
        (FLOAT16, BFLOAT16, FLOAT32),
        last=True,
    ),
    Call("channels-last-few", (2, 5, 6, 7), 4, (3, 2), {}, (FLOAT64,), last=True),
    Call("tf32", (2, 9, 8, 7), 10, (3, 3), {"allow_tf32": True}, (FLOAT32,)),
)
# As many of each type: types of samples are drawn alike for operators that share kernels.
ORDINARY = (
    Call(
        "before-alone",
        (2, 3, 8, 7),
        5,
        (3, 3),
        {"pads": (2, 0, 0, 1), "strides": (2, 3)},
        (FLOAT32,),
    ),
    Call("wide", (1, 2, 12, 9), 3, (7, 5), {"pads": (3, 2, 3, 2)}, (FLOAT16,)),
)
TRANSPOSED = (
    Call(
        "output-padding",
        (2, 3, 7, 9),
        4,
        (3, 3),
        {"strides": (2, 3), "output_padding": (1, 2), "pads": (1, 0, 1, 1)},
        (FLOAT32,),
    ),
    Call(
        "output-shape",
        (2, 3, 9, 8),
        4,
        (3, 4),
        {"strides": (2, 2), "output_shape": (8, 7)},
        (FLOAT16,),
    ),
)


def normal(rng: Generator, shape: Shape, dtype: Any) -> Any:
    """Return an array of normally distributed numbers."""
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def inputs(
    rng: Generator,
    name: str,
    convolution: Convolution,
    dtype: Dtype,
    bias: bool = True,
    last: bool = False,
) -> tuple[Any, ...]:
    """Return the inputs of operator `name`: (X, W, B), (X, W) without a bias, or (dY, X, W).

    convolution: has the shapes; of a transposed operator X and dY change places. last: as views of
    arrays whose channels are last in memory.
    """
    x, y = convolution.x_shape, convolution.y_shape
    if "Transpose" in name:
        x, y = y, x
    x, y, w = (normal(rng, shape, dtype) for shape in (x, y, convolution.w_shape))
    if last:
        x, y, w = (np.moveaxis(np.moveaxis(a, 1, -1).copy(), -1, 1) for a in (x, y, w))
    if name.endswith("Grad"):
        return y, x, w
    return (x, w, normal(rng, y.shape[1:2], dtype)) if bias else (x, w)


def terms(convolution: Convolution) -> int:
    """Return an upper bound of the terms in each sum of the convolution and its gradients."""
    kernel = math.prod(convolution.kernel)
    places = max(math.prod(convolution.output), math.prod(convolution.image))
    widest = max(convolution.group_channels, convolution.group_filters)
    return max(1, convolution.batch * places, kernel * widest)


def _samples(name: str) -> Iterator[Sample]:
    """Yield the samples of the operator of this name: each of its calls, in each of its dtypes."""
    for call in (*CALLS, *(TRANSPOSED if "Transpose" in name else ORDINARY)):
        convolution = call.convolution(name)
        for dtype in call.dtypes:
            make = partial(
                inputs,
                name=name,
                convolution=convolution,
                dtype=dtype,
                bias=call.label != "pointwise",
                last=call.last,
            )
            label = f"{dtype_name(dtype)}-{call.label}"
            n = terms(convolution)
            yield Sample(name, label, make, call.attributes, call.offset, terms=n)


SAMPLES = {name: tuple(_samples(name)) for name in NAMES}
