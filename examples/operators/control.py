# SPDX-License-Identifier: MIT
"""One example for each operator of control; the page of each shows it."""

import numpy as np

import cupy_training_ops as cto

# %% Group
x, y = np.zeros(2), np.ones((2, 2))
print(cto.group([x, y]))  # [ True]

# %% PassThrough
x, y = np.zeros(2), np.ones((2, 2))
print(cto.pass_through([x, y])[1] is y)  # True

# %% RecordEvent
x = np.arange(3.0)
(y,) = cto.record_event(5, [x])  # on a GPU: behind what is queued so far on the current stream
print(y is x)  # True
cto.wait_event(5, [x])  # one record is for one wait

# %% WaitEvent
x = np.arange(3.0)
cto.record_event(6, [x])
(y,) = cto.wait_event(6, [x])  # on a GPU: what follows on this stream is behind the record
print(y is x)  # True
try:
    cto.wait_event(6, [x], timeout=0.1)  # the record is taken
except cto.OpError as error:
    print(error)  # WaitEvent: event 6: expected a RecordEvent within 0.1 s, got none


# %% YieldOp
def square(x):
    """y = x^2, whose gradient is asked for by whoever computes the loss."""
    (dy,) = yield cto.YieldOp(full_shape_outputs=[0])([x * x])
    return 2 * x * dy


step = cto.SplitStep(square)
(y,) = step.run_forward(np.array([1.0, 2.0]))
print(y)  # [1. 4.]
print(step.run_backward(np.ones(2)))  # [2. 4.]
