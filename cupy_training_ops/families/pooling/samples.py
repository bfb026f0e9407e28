# SPDX-License-Identifier: MIT
"""Sample inputs of pools and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, Dtype, dtype_name
from ...samples import Generator, Sample, Shape
from .windows import Windows, windows_of

NAMES = ("AveragePool", "AveragePoolGrad", "MaxPool", "MaxPoolGrad")
DEFAULTS: Mapping[str, Any] = {
    "strides": None,
    "dilations": None,
    "pads": None,
    "auto_pad": "NOTSET",
    "ceil_mode": False,
}


class Call(NamedTuple):
    """A pool: shape of X, window, attributes of both kinds, of max pools and of average pools.

    offset: elements that arrays begin off alignment.
    """

    label: str
    x: Shape
    kernel: Shape
    attributes: Mapping[str, Any] = {}
    dtypes: tuple[Dtype, ...] = FLOATS
    offset: int = 0
    of_max: Mapping[str, Any] = {}
    of_average: Mapping[str, Any] = {}

    def windows(self) -> Windows:
        """Return the windows, which all four operators share."""
        return windows_of("", self.x, self.kernel, **{**DEFAULTS, **self.attributes})


# In "beside" some windows have no element of X, in "untouched" some elements are in no window;
# rows of "whole" are whole vectors.
CALLS = (
    Call("ordinary", (2, 3, 8, 8), (2, 2), {"strides": (2, 2)}),
    Call(
        "odd",
        (2, 3, 9, 7),
        (3, 3),
        {"strides": (2, 2), "pads": (1, 1, 1, 1)},
        (FLOAT16, FLOAT32),
        of_average={"count_include_pad": True},
    ),
    Call(
        "uneven",
        (1, 5, 7, 10),
        (3, 2),
        {"strides": (1, 3), "pads": (0, 1, 2, 0)},
        (BFLOAT16,),
        of_max={"storage_order": 1},
    ),
    Call("line", (3, 4, 13), (4,), {"strides": (3,), "pads": (1, 2)}, (BFLOAT16,)),
    Call(
        "volume",
        (2, 3, 5, 4, 6),
        (2, 3, 2),
        {"strides": (2, 1, 2), "pads": (1, 0, 0, 0, 1, 1)},
        (BFLOAT16, FLOAT32),
        of_max={"storage_order": 1},
    ),
    Call(
        "dilated",
        (1, 3, 9, 12),
        (3, 2),
        {"dilations": (2, 5), "pads": (1, 1, 1, 1)},
        (FLOAT16, FLOAT64),
    ),
    Call(
        "ceil",
        (2, 2, 8, 10),
        (3, 3),
        {"strides": (2, 3), "pads": (0, 1, 1, 1), "ceil_mode": True},
        (FLOAT32,),
        of_average={"count_include_pad": True},
    ),
    Call("same-upper", (1, 3, 8, 7), (2, 3), {"auto_pad": "SAME_UPPER"}, (FLOAT64,)),
    Call(
        "same-lower",
        (1, 3, 8, 7),
        (2, 3),
        {"auto_pad": "SAME_LOWER", "strides": (1, 2)},
        (FLOAT16,),
        of_average={"count_include_pad": True},
    ),
    Call("valid", (1, 3, 8, 7), (4, 3), {"auto_pad": "VALID"}, (BFLOAT16,)),
    Call("untouched", (2, 3, 11, 8), (2, 2), {"strides": (3, 4)}, (FLOAT64,)),
    Call("beside", (2, 3, 4), (2,), {"pads": (3, 4)}, (FLOAT64,)),
    Call("empty", (0, 3, 6, 5), (3, 3), {}, (FLOAT16,)),
    Call("one", (1, 1, 1), (1,), {}, (FLOAT64,)),
    Call("misaligned", (2, 3, 6, 7), (3, 3), {"pads": (1, 1, 1, 1)}, (FLOAT16,), 1),
    Call("large", (2, 5, 17, 21), (3, 3), {"strides": (2, 1)}, (FLOAT32,)),
    Call(
        "whole",
        (1, 2, 9, 16),
        (3, 3),
        {"strides": (2, 2), "pads": (1, 1, 1, 1)},
        (FLOAT16, FLOAT32),
    ),
)

# label, shape of X; "long" is summed by blocks
PLANES: tuple[tuple[str, Shape, int], ...] = (
    ("ordinary", (2, 5, 8, 8), 0),
    ("odd", (3, 3, 5, 7), 0),
    ("line", (2, 3, 11), 0),
    ("volume", (2, 3, 4, 3, 5), 0),
    ("empty", (2, 0, 3, 4), 0),
    ("one", (1, 1, 1, 1), 0),
    ("misaligned", (2, 3, 5, 5), 1),
    ("large", (3, 2, 67, 61), 0),
)


def _normal(rng: Generator, shape: Shape, dtype: Any) -> Any:
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def _few(rng: Generator, shape: Shape, dtype: Any) -> Any:
    """Return random integers from -3 to 3, so that the largest is seldom alone."""
    return rng.integers(-3, 4, shape).astype(dtype)


def _gradients(rng: Generator, call: Call, dtype: Any) -> tuple[Any, ...]:
    """Return AveragePoolGrad's inputs for call's windows: random dY, and the shape of X."""
    return _normal(rng, call.windows().y_shape, dtype), call.x


def _max_gradients(rng: Generator, call: Call, dtype: Any) -> tuple[Any, ...]:
    """Return random dY, Indices and the shape of X.

    call: shape of X, windows and storage order. An index is of a random element of its window,
    clipped to X, so that some are of no element.
    """
    windows = call.windows()
    dy = _normal(rng, windows.y_shape, dtype)
    steps = windows.numbers(call.of_max.get("storage_order", 0))
    planes = np.arange(math.prod(call.x[:2])).reshape(*call.x[:2], *(1,) * len(windows.image))
    indices = np.broadcast_to(planes * math.prod(windows.image), dy.shape).astype(np.int64)
    for i, (axis, step) in enumerate(zip(windows.axes, steps, strict=True)):
        taps = rng.integers(0, axis.kernel, dy.shape) * axis.dilation
        at = np.arange(axis.output) * axis.stride - axis.pad
        places = at.reshape(-1, *(1,) * (len(steps) - i - 1)) + taps
        indices = indices + np.clip(places, 0, axis.image - 1) * step
    return dy, indices, call.x


def inputs(rng: Generator, name: str, call: Call, dtype: Any) -> tuple[Any, ...]:
    """Return the inputs of the operator `name` for the X and windows of `call`."""
    if name.endswith("Grad"):
        return (_max_gradients if name == "MaxPoolGrad" else _gradients)(rng, call, dtype)
    return ((_few if name == "MaxPool" else _normal)(rng, call.x, dtype),)


def _samples(name: str) -> Iterator[Sample]:
    """Yield a sample of each of CALLS in each of its dtypes."""
    for call in CALLS:
        own = call.of_max if name.startswith("Max") else call.of_average
        attributes = {"kernel_shape": call.kernel, **call.attributes, **own}
        for dtype in call.dtypes:
            make = partial(inputs, name=name, call=call, dtype=dtype)
            label = f"{dtype_name(dtype)}-{call.label}"
            yield Sample(name, label, make, attributes, call.offset)


def _plane(rng: Generator, shape: Shape, dtype: Any) -> tuple[Any, ...]:
    return (_normal(rng, shape, dtype),)


def _plane_samples() -> Iterator[Sample]:
    """Yield samples of GlobalAveragePool: each of PLANES in each dtype."""
    for label, shape, offset in PLANES:
        for dtype in FLOATS:
            make = partial(_plane, shape=shape, dtype=dtype)
            yield Sample("GlobalAveragePool", f"{dtype_name(dtype)}-{label}", make, offset=offset)


SAMPLES = {
    **{name: tuple(_samples(name)) for name in NAMES},
    "GlobalAveragePool": tuple(_plane_samples()),
}
