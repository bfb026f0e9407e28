# SPDX-License-Identifier: MIT
"""Calls of pools that onnxruntime answers on the CPU too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.families.pooling.samples import CALLS, SAMPLES, inputs
from cupy_training_ops.samples import Sample

# Of "beside" onnxruntime refuses pads as wide as a window; AveragePool has dilations from opset 19,
# later than the session's.
LABELS = (
    "ordinary",
    "odd",
    "uneven",
    "line",
    "volume",
    "dilated",
    "ceil",
    "same-upper",
    "same-lower",
    "valid",
    "untouched",
    "large",
)


def samples() -> Iterator[Sample]:
    """Each in float32."""
    for name in ("AveragePool", "MaxPool"):
        of_calls = {sample.label.partition("-")[2]: sample for sample in SAMPLES[name]}
        for call in CALLS:
            if call.label in LABELS and (name, call.label) != ("AveragePool", "dilated"):
                make = partial(inputs, name=name, call=call, dtype=FLOAT32)
                yield Sample(name, call.label, make, of_calls[call.label].attributes)
    for sample in SAMPLES["GlobalAveragePool"]:
        if sample.label.startswith("float32") and "empty" not in sample.label:
            yield sample
