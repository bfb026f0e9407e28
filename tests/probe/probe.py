# SPDX-License-Identifier: MIT
"""One operator for each thing the frame does: scratch memory, aliases, several outputs, lists."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from cupy_training_ops.call.op import Op
from cupy_training_ops.call.view_ops import ViewOp
from cupy_training_ops.declare.facts import Struct, i32, i64
from cupy_training_ops.declare.schema import (
    Input,
    Output,
    Spec,
    attribute,
    integer,
    integers,
    real,
    shape,
)
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, INT64
from cupy_training_ops.errors import refuse
from cupy_training_ops.plan import (
    Config,
    Launch,
    Plan,
    Pointers,
    ScratchMemory,
    by_value,
    ceil_div,
    slots,
)
from cupy_training_ops.planning.fast_division import divisor

THREADS = 256
MAX_INPUTS = 4
EXTENTS = Struct("Extents", at=i64[MAX_INPUTS], count=i32)  # of probe.cu


class Probe(Op):
    source_folder = Path(__file__).parent

    @classmethod
    def cpu_function(cls):
        return getattr(sys.modules[cls.__module__], cls.function_name)


def one_launch(symbol: str, n: int, args: tuple, threads: int = THREADS, **launch) -> Plan:
    config = Config((ceil_div(n, threads),), (threads,))
    return Plan((Launch(symbol, config, args, **launch),))


class ProbeSum(Probe):
    """Y = sum of X, in two stages."""

    inputs = (Input("X", "float32"),)
    outputs = (Output("Y", "float32"),)

    def infer(self, x):
        return (Spec((1,), FLOAT32),)

    def plan(self, device, x, y):
        blocks = max(1, ceil_div(x.size, THREADS))
        scratch = ScratchMemory()
        ticket, partials = scratch.zeros(1, np.uint32), scratch.take(blocks, FLOAT32)
        args = (x, y, partials, ticket, x.size)
        launch = Launch("probe_sum", Config((blocks,), (THREADS,)), args)
        return scratch.plan(launch)


class ProbeAxpy(Probe):
    """Z = a X + Y, in place of Y."""

    inputs = (Input("X", "T"), Input("Y", "T"))
    outputs = (Output("Z", "T", aliases="Y"),)
    a = attribute(real, 2.0)
    types = {"T": (FLOAT32, FLOAT16)}  # noqa: RUF012

    def infer(self, x, y):
        if x.shape != y.shape:
            refuse(self.name, "Y", f"shape {x.shape} like X", f"shape {y.shape}")
        return (y,)

    def plan(self, device, x, y, z):
        return one_launch("probe_axpy", x.size, (x, z, self.a, x.size), slots=slots(T=x.dtype))


class ProbeHalves(Probe):
    """Low, High = the two halves of X; Sizes = their lengths; an unused optional second input."""

    inputs = (Input("X", "float32"), Input("Unused", "float32", optional=True))
    outputs = (
        Output("Low", "float32"),
        Output("High", "float32", may_alias=("Unused",)),
        Output("Sizes", "int64", memory="host"),
    )

    def infer(self, x, unused):
        sizes = np.array([x.size // 2, x.size - x.size // 2], INT64)
        return (Spec((sizes[0],), FLOAT32), Spec((sizes[1],), FLOAT32), sizes)

    def plan(self, device, x, unused, low, high, sizes):
        return one_launch("probe_halves", x.size, (x, low, high, x.size))


class ProbeJoin(Probe):
    """Y = the inputs behind each other in `shape`, at most MAX_INPUTS of them."""

    inputs = (
        Input("shape", "int64", memory="host", convert=shape),
        Input("Xs", "float32", variadic=True),
    )
    outputs = (Output("Y", "float32"),)

    def infer(self, shape_, xs):
        y = Spec(shape_, FLOAT32)
        if y.size != sum(x.size for x in xs):
            refuse(self.name, "shape", f"{sum(x.size for x in xs)} elements", str(shape_))
        return (y,)

    def plan(self, device, shape_, xs, y):
        config = Config((len(xs),), (THREADS,))
        args = (Pointers(xs, MAX_INPUTS), self.extents(xs), y)
        return Plan((Launch("probe_join", config, args),))

    def extents(self, xs):
        sizes = np.zeros(MAX_INPUTS, np.int64)
        sizes[: len(xs)] = [x.size for x in xs]
        return by_value(EXTENTS, at=sizes, count=len(xs))


class ProbeCut(ViewOp, Probe):
    """Ys = consecutive views of X."""

    inputs = (
        Input("X", "T"),
        Input("sizes", "int64", memory="host", convert=integers),
    )
    outputs = (Output("Ys", "T", variadic=True),)
    types = {"T": (FLOAT32, INT64)}  # noqa: RUF012

    def infer(self, x, sizes):
        return (tuple(Spec((n,), x.dtype) for n in sizes),)


class ProbeColumn(Probe):
    """Y = X modulo `columns`, as rows that are repeated are read."""

    inputs = (Input("X", "int64"),)
    outputs = (Output("Y", "int64"),)
    columns = attribute(integer)

    def infer(self, x):
        return (x,)

    def plan(self, device, x, y):
        return one_launch("probe_column", x.size, (x, y, x.size, divisor(self.columns)))


class ProbeOverrun(Probe):
    """Y = X shifted by one: reads one element past the end."""

    inputs = (Input("X", "float32"),)
    outputs = (Output("Y", "float32"),)

    def infer(self, x):
        return (x,)

    def plan(self, device, x, y):
        return one_launch("probe_overrun", x.size, (x, y, x.size))


def probe_sum(x):
    return np.array([x.sum()], np.float32)


def probe_axpy(x, y, *, a):
    return (a * x.astype(np.float32) + y.astype(np.float32)).astype(x.dtype)


def probe_halves(x, _unused):
    return x[: x.size // 2], x[x.size // 2 :]


def probe_join(shape_, xs):
    return np.concatenate([x.ravel() for x in xs]).reshape(shape_)
