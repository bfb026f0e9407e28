# SPDX-License-Identifier: MIT
"""Calls of layer normalisations that onnxruntime answers on the CPU too.

Left out: rows of one element, which its gradients refuse; float64, for which they are chosen and
then fail; a scale of 0 of the invertible one, which makes all of X_grad NaN there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from cupy_training_ops.dtypes import FLOAT16, FLOAT32
from cupy_training_ops.families.layer_norm import samples as samples_of
from cupy_training_ops.samples import Generator, Sample

Shape = tuple[int, ...]

# shape and axis
ROWS: tuple[tuple[Shape, int], ...] = (
    ((4, 20, 128), -1),
    ((4, 20, 16, 8), -2),
    ((37, 65), 1),
    ((3, 5, 7), 0),
)
# T and V beside float32 alone, which go through casts or a decomposition into other nodes.
MIXED = {
    "LayerNormalizationGrad": ((FLOAT16, FLOAT16), (FLOAT32, FLOAT16), (FLOAT16, FLOAT32)),
    "SimplifiedLayerNormalizationGrad": ((FLOAT16, FLOAT16), (FLOAT32, FLOAT16)),
    "InvertibleLayerNormalizationGrad": ((FLOAT16, FLOAT16),),
}


def samples() -> Iterator[Sample]:
    """Those of the family."""
    for name, (shape, axis) in itertools.product(samples_of.OPS, ROWS):
        make = partial(_inputs, name=name, shape=shape, types=(FLOAT32, FLOAT32), axis=axis)
        label = f"{'x'.join(map(str, shape))}-axis={axis}"
        yield Sample(name, label, make, {"axis": axis})
    for name, actual in MIXED.items():
        for types in actual:
            make = partial(_inputs, name=name, shape=(37, 64), types=types, axis=-1)
            yield Sample(name, "-".join(str(t) for t in types), make)


def _inputs(
    rng: Generator, name: str, shape: Shape, types: tuple[Any, Any], axis: int
) -> tuple[Any, ...]:
    """A scale of at least 0.5: from Y, x^ has the digits that it leaves."""
    actual = list(samples_of.inputs(rng, name, shape, types, axis))
    place = 2 if name.endswith("Grad") else 1
    before = actual[place]
    actual[place] = rng.uniform(0.5, 2, before.shape).astype(before.dtype)
    return tuple(actual)
