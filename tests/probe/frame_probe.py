# SPDX-License-Identifier: MIT
"""One operator for each thing that losses, optimizers and collectives ask of the frame."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import ClassVar

import numpy as np

from cupy_training_ops.call import backends
from cupy_training_ops.call.view_ops import DelegatingOp
from cupy_training_ops.declare.schema import (
    Changing,
    Input,
    Output,
    Spec,
    attribute,
    integer,
    one_of,
    real,
    single,
)
from cupy_training_ops.declare.type_rows import TypeRows
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT64
from cupy_training_ops.errors import refuse
from cupy_training_ops.families.dropout.plan import two_integers
from cupy_training_ops.plan import Config, Launch, Plan, Work, ceil_div, slots

from .probe import Probe, one_launch

THREADS = 128
ALPHA = 0.9


class ProbeEither(Probe):
    """Y = rate (1 - 0.9^step) X + seed + offset; the step goes on, and so does the offset."""

    inputs = (
        Input("X", "float32"),
        Input("rate", "R", memory="either", convert=real),
        Input("step", "int64", memory="either", convert=integer),
        Input("state", "uint64", memory="either", convert=two_integers, count=2, updated=True),
    )
    outputs = (
        Output("Y", "float32"),
        Output("new_step", "int64", memory="either", aliases="step", on_request=True),
    )
    types = {"R": (FLOAT32, FLOAT16, BFLOAT16, np.dtype(np.float64))}  # noqa: RUF012

    def infer(self, x, rate, step, state):
        is_number = isinstance(step, Changing)
        return x, step.then(lambda t: t + 1) if is_number else step

    def plan(self, device, x, rate, step, state, y, new_step):
        config = Config((1,), (THREADS,))
        return Plan((Launch("probe_either", config, (x, y, rate, step, state, new_step, x.size)),))


def probe_either(x, rate, step, state):
    t = int(np.ravel(step)[0])
    seed, offset = (int(n) for n in state)
    if isinstance(state, np.ndarray):
        state[1] += 1
    scale = float(np.ravel(rate)[0]) * (1 - ALPHA**t)
    y = (scale * x.astype(np.float64) + (seed + offset)).astype(np.float32)
    return y, np.full(np.shape(step), t + 1, np.int64)


class ProbeSupplied(ProbeEither):
    """ProbeEither at rate 1, with a state that the operator numbers where it is left out."""

    inputs = (
        ProbeEither.inputs[0],
        replace(ProbeEither.inputs[3], optional=True, supplied=True),
    )
    outputs = (Output("Y", "float32"),)
    types: ClassVar[dict] = {}

    def __init__(self):
        super().__init__()
        vars(self).update(numbers=itertools.count())

    def supply(self, x, state):
        return x.size, next(self.numbers)

    def infer(self, x, state):
        return (x,)

    def plan(self, device, x, state, y):
        args = (x, y, 1.0, 1, state, None, x.size)
        return Plan((Launch("probe_either", Config((1,), (THREADS,)), args),))


def probe_supplied(x, state):
    return probe_either(x, 1.0, 1, state)[0]


class ProbeDecay(Probe):
    """Y = X rate (1 - 0.9^step) + step; both are numbers that change from call to call."""

    inputs = (
        Input("X", "float32"),
        Input("rate", "float32", memory="host", convert=real, static=False),
        Input("step", "int32", memory="host", convert=integer, static=False, optional=True),
    )
    outputs = (Output("Y", "float32"), Output("new_step", "int64", memory="host"))
    prepared = 0

    def infer(self, x, rate, step):
        type(self).prepared += 1
        new_step = np.ones(1, INT64) if step is None else step.then(lambda t: [t + 1])
        return x, new_step

    def check_numbers(self, x, rate, step):
        if rate != rate:
            refuse(self.name, "rate", "a number", "nan")

    def plan(self, device, x, rate, step, y, new_step):
        decay = 0.0 if step is None else step.then(lambda t: 1 - ALPHA**t)
        args = (x, y, rate, decay, 0 if step is None else step, x.size)
        return one_launch("probe_decay", x.size, args, THREADS)


def probe_decay(x, rate, step=None):
    t = step or 0
    return (x.astype(np.float64) * rate * (1 - ALPHA**t)).astype(np.float32) + np.float32(t)


class ProbeRows(Probe):
    """Y = X + Z (X without Z), of three combinations of types."""

    inputs = (Input("X", "T"), Input("Z", "U", optional=True))
    outputs = (Output("Y", "T"),)
    types = TypeRows("T U", "float32 float32", "H float32", H=(FLOAT16, BFLOAT16))

    def infer(self, x, z):
        return (x,)

    def plan(self, device, x, z, y):
        binding = slots(T=x.dtype, U=FLOAT32 if z is None else z.dtype)
        return one_launch("probe_rows", x.size, (x, z, y, x.size), THREADS, slots=binding)


def probe_rows(x, z=None):
    return x.copy() if z is None else (x.astype(np.float32) + z.astype(np.float32)).astype(x.dtype)


class ProbeRead(Probe):
    """A number as a real and as a whole one, wherever it is; X says where the call runs."""

    inputs = (Input("X", "float32"), Input("value", "R", memory="either", convert=single))
    outputs = (Output("Y", "float64"), Output("Z", "int64"))
    types = {  # noqa: RUF012
        "R": tuple(map(np.dtype, ("float64", "bool", "int32", "uint32", "int64", "uint64")))
    }

    def infer(self, x, value):
        return Spec((1,), np.dtype(np.float64)), Spec((1,), INT64)

    def plan(self, device, x, value, y, z):
        return one_launch("probe_read", 1, (value, y, z))


def probe_read(x, value):  # noqa: ARG001 - where it runs
    actual = np.ravel(value)
    return actual[:1].astype(np.float64), actual[:1].astype(np.int64)


class ProbeCopy(Probe):
    """Y = X, by a step that is no kernel."""

    inputs = (Input("X", "float32"),)
    outputs = (Output("Y", "float32"),)

    def infer(self, x):
        return (x,)

    def plan(self, device, x, y):
        return Plan((Work("copy", (x, y)),))


def probe_copy(x):
    return x.copy()


class ProbeBorrow(Probe):
    """Y = 0 by the gradient family's kernel, joined with a copy of X by a kernel of our own."""

    inputs = (Input("X", "float32"),)
    outputs = (Output("Zeros", "float32"), Output("Y", "float32"))

    def infer(self, x):
        return x, x

    def plan(self, device, x, zeros, y):
        grid = (ceil_div(x.nbytes, 128 * 32),)
        binding = {"THREADS": "128", "NBYTES": "32"}
        clear = Launch(
            "zero_gradient", Config(grid, (128,)), (zeros, x.nbytes), binding, "gradient"
        )
        copy = Work("copy", (x, y))
        return Plan((clear,) if zeros else ()).then(Plan((copy,) if y else ()))


def probe_borrow(x):
    return np.zeros_like(x), x.copy()


class ProbeFill(Probe):
    """Y = value, of no array: on the host's backend or on the current GPU."""

    outputs = (Output("Y", "float32"),)
    n = attribute(integer)
    value = attribute(real, 1.0)
    provider = attribute(one_of("cpu", "cuda"), "cpu")

    def placement(self):
        on_gpu = self.provider == "cuda"
        backend = backends.cuda_backend() if on_gpu else backends.BACKENDS[np.ndarray]
        return backend, backend.current_device()

    def infer(self):
        return (Spec((self.n,), FLOAT32),)

    def plan(self, device, y):
        return one_launch("probe_fill", y.size, (y, self.value, y.size), THREADS)


def probe_fill(*, n, value, provider):  # noqa: ARG001 - where it runs
    return np.full(n, value, np.float32)


class ProbeDelegate(DelegatingOp):
    """What a Python callable makes of X and a number."""

    inputs = (
        Input("X", "float32"),
        Input("factor", "float64", memory="host", convert=real, static=False),
    )
    outputs = (Output("Y", "float32"), Output("Same", "float32"))
    function = staticmethod(lambda x, factor: (x * np.float32(factor), x))

    def infer(self, x, factor):
        return x, x

    def delegate(self, x, factor):
        return self.function(x, factor)


class ProbeShared(Probe):
    """Y = X in reverse order, by way of shared memory."""

    inputs = (Input("X", "float32"),)
    outputs = (Output("Y", "float32"),)

    def infer(self, x):
        return (x,)

    def plan(self, device, x, y):
        config = Config((1,), (THREADS,), x.nbytes)
        return Plan((Launch("probe_shared", config, (x, y, x.size)),))


def probe_shared(x):
    return x[::-1].copy()


class ProbeScale12(Probe):
    """Y = 2 X: the version for opset 12."""

    name = "ProbeScale"
    since, until = 12, 12
    inputs = (Input("X", "float32"),)
    outputs = (Output("Y", "float32"),)
    factor = attribute(real, 2.0)

    def infer(self, x):
        return (x,)

    def plan(self, device, x, y):
        return one_launch("probe_old_scale", x.size, (x, y, self.factor, x.size), THREADS)


class ProbeScale13(ProbeScale12):
    """Y = 3 X: from opset 13 on."""

    name = "ProbeScale"
    since, until = 13, None
    factor = attribute(real, 3.0)


def probe_scale(x, *, factor):
    return x * np.float32(factor)


OPS = {"ProbeScale": (ProbeScale12, ProbeScale13)}
