# SPDX-License-Identifier: MIT
"""One example for each operator of interop; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto


# %% PythonOp
def forward(context, x, factor):
    return x * factor


cto.register_python_op("times", forward)
_, (y,) = cto.python_op(
    [np.array([1.0, 2.0])],
    func_name="times",
    input_convention="dc",  # an array, a constant
    input_float_scalars=[3.0],
    input_float_scalar_positions=[1],
    output_tensor_types=["float64"],
)
print(y)  # [3. 6.]


# %% PythonOpGrad
def forward(context, x):
    context.x = x
    return x**2


def backward(context, dy):
    return 2 * context.x * dy


cto.register_python_op("square", forward, backward)
declared = {"func_name": "square", "output_tensor_types": ["float64"]}
square = cto.PythonOp(input_convention="d", training_mode=True, **declared)
context, (y,) = square([np.array([1.0, 2.0])])
(dx,) = cto.python_op_grad(
    context, [np.ones(2)], output_convention="d", output_tensor_requires_grads=[1], **declared
)
print(y, dx)  # [1. 4.] [2. 4.]

# %% TritonOp
cto.register_triton_op("axpy", lambda x, y, a=1.0: a * x + y)
(z,) = cto.triton_op([np.ones(2), np.arange(2.0)], func_name="axpy", a=10.0)
print(z)  # [10. 11.]
