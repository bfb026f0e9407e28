# SPDX-License-Identifier: MIT
"""Functions that tests register, and what they saw."""

from __future__ import annotations

import numpy as np

import cupy_training_ops as cto
from cupy_training_ops import PythonOp, PythonOpGrad

X = np.arange(12, dtype=np.float32).reshape(3, 4)
FORWARD = {"input_convention": "d", "output_tensor_types": ["float32"]}
BACKWARD = {
    "output_convention": "d",
    "output_tensor_types": ["float32"],
    "output_tensor_requires_grads": [1],
}
seen: list = []  # what a function got


def watched(ctx, *arguments):
    """Gives back its first argument."""
    ctx.arguments = arguments
    seen[:] = [ctx, *arguments]
    return arguments[0]


def watched_backward(ctx, *gradients):
    seen[:] = [ctx, *gradients]
    return (gradients[0], *(None for _ in ctx.arguments[1:]))


def failing(*_):
    raise ZeroDivisionError("of its own")


cto.register_python_op("watched", watched, watched_backward)
cto.register_python_op("no backward", lambda _, x: x)
cto.register_python_op("fails", failing, failing)
cto.register_python_op("fails later", lambda _, x: x, failing)
cto.register_python_op("scaled", lambda ctx, x, k: (setattr(ctx, "k", k), x * k)[1],
                       lambda ctx, dy: (dy * ctx.k, None))  # fmt: skip
cto.register_triton_op("added", lambda a, b, scale=1: a + scale * b)
cto.register_triton_op("fails", failing)


def forward(name="watched", **attributes) -> PythonOp:
    return PythonOp(**{"func_name": name, **FORWARD, **attributes})


def backward(name="watched", **attributes) -> PythonOpGrad:
    return PythonOpGrad(**{"func_name": name, **BACKWARD, **attributes})
