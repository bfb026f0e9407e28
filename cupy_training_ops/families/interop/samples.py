# SPDX-License-Identifier: MIT
"""Sample inputs of operators that run Python functions: one that is registered here.

PythonOpGrad has none: it is called with the context of a PythonOp, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ...callables.functions import register_python_op, register_triton_op
from ...dtypes import dtype_name
from ...samples import Generator, Sample, Shape
from ..control.samples import LISTS, arrays, type_of

NAME = "cupy_training_ops.testing.turned_round"


def turned_round(*values: Any) -> tuple[Any, ...]:
    """Return the arrays in reverse order, with a leading dimension of 1; nothing is computed."""
    return tuple(array[None] for array in reversed(values))


register_python_op(NAME, lambda _, *values: turned_round(*values))
register_triton_op(NAME, turned_round)


def _inputs(rng: Generator, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    return (arrays(rng, shapes),)


def _attributes(name: str, shapes: Sequence[Shape]) -> dict[str, Any]:
    """Return the attributes of a function that takes and returns arrays of these shapes."""
    n = len(shapes)
    if name == "TritonOp":
        return {"func_name": NAME, "num_outputs": n}
    types = tuple(dtype_name(type_of(i)) for i in range(n))
    return {
        "func_name": NAME,
        "input_convention": "d" * n,
        "output_tensor_types": types[::-1],
        "output_tensor_ranks": tuple(len(shape) + 1 for shape in reversed(shapes)),
    }


def _samples(name: str) -> Iterator[Sample]:
    """Yield a sample for each list of shapes, of the function turned_round."""
    for label, shapes, offset in LISTS:
        make = partial(_inputs, shapes=shapes)
        yield Sample(name, label, make, _attributes(name, shapes), offset)


SAMPLES = {
    "PythonOp": tuple(_samples("PythonOp")),
    "PythonOpGrad": (),
    "TritonOp": tuple(_samples("TritonOp")),
}
