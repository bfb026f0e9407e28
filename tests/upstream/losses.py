# SPDX-License-Identifier: MIT
"""Calls of softmax and cross-entropy operators that onnxruntime answers on the CPU too.

Left out: reduction "none" of the operators with classes last, which are summed there; labels
that are ignored without an ignore_index, and those out of range, at which its kernels read out of
bounds; weights that sum to 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, INT64, dtype_name, element_type
from cupy_training_ops.families.cross_entropy.samples import FORMS, REDUCTIONS, Call, Form
from cupy_training_ops.families.softmax import samples as softmax
from cupy_training_ops.samples import Generator, Sample

Shape = tuple[int, ...]
INT32 = np.dtype(np.int32)

# shape and axis
LINES: tuple[tuple[Shape, int], ...] = (((37, 64), -1), ((3, 5, 7), 1), ((4, 2, 128), 0))
# Shapes of scores with the label that is ignored.
SCORES: tuple[tuple[Shape, int | None], ...] = (
    ((8, 23), None),
    ((19, 101), 3),
    ((3, 5, 4, 2), 1),
)
# T, TOut beside float32 alone. float16 and float64 go through a decomposition into other nodes.
OTHER_TYPES = ((FLOAT64, None), (FLOAT16, FLOAT32), (FLOAT32, FLOAT16))


def samples() -> Iterator[Sample]:
    """Those of both families."""
    for name, (shape, axis) in itertools.product(softmax.OPS, LINES):
        make = partial(softmax.inputs, name=name, shape=shape, dtype=FLOAT32, axis=axis)
        label = f"{'x'.join(map(str, shape))}-axis={axis}"
        yield Sample(name, label, make, {"axis": axis})
    for form in FORMS:
        if not form.name.endswith("CrossEntropyLossAndGrad"):
            yield from _losses(form)


def _losses(form: Form) -> Iterator[Sample]:
    reductions = ("mean", "sum") if form.classes_last else REDUCTIONS
    for (shape, ignore), reduction in itertools.product(SCORES, reductions):
        used = ignore if form.has_ignore and not form.dense else None
        for weighted in (False,) if form.dense else (False, True):
            yield _sample(Call(form, shape, reduction=reduction, weighted=weighted, ignore=used))
    if form.classes_last:
        return
    yield _sample(Call(form, (8, 23), label=INT32))
    for t, t_out in OTHER_TYPES if form.ignore_input else OTHER_TYPES[:1]:
        yield _sample(Call(form, (19, 101), t, t_out, ignore=3))
    if form.name.endswith("InternalGrad"):
        for shape in ((8, 23), (3, 5, 4, 2)):
            yield _sample(Call(form, shape, bias=True))


def _sample(call: Call) -> Sample:
    attributes: dict[str, Any] = {k: v for k, v in call.attributes.items() if v is not None}
    if "output_type" in attributes:
        attributes["output_type"] = element_type(attributes["output_type"]).onnx
    shape = "x".join(map(str, call.shape))
    types = [dtype_name(t) for t in (call.t, call.t_out, call.label) if t not in (None, INT64)]
    words = [*types, shape, call.reduction]
    words += [f"ignore={call.ignore}", *(w for w in ("weighted", "bias") if getattr(call, w))]
    return Sample(call.form.name, "-".join(words), partial(_made, call=call), attributes)


def _made(rng: Generator, call: Call) -> tuple[Any, ...]:
    """Inputs up to the last that is there; weights of at least 0.1."""
    inputs = list(call.make(rng))
    while inputs[-1] is None:
        inputs.pop()
    if call.weighted:
        at = 3 if call.form.gradient else 2
        inputs[at] = rng.uniform(0.1, 2, inputs[at].shape).astype(inputs[at].dtype)
    return tuple(inputs)
