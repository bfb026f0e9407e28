# SPDX-License-Identifier: MIT
"""Gradient bookkeeping: accumulating, clearing, scaling between precisions.

Sums and products are computed in float32, or in float64 where an input is float64, and rounded
once; beyond the range of their type they become infinite. NaN and infinities propagate. Subnormal
float32 sums and products become zero.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np

from ...call.op import Op
from ...declare.schema import Inferred, Input, Output, Spec, Tiles, attribute, boolean, dtype, flag
from ...declare.type_rows import Types
from ...dtypes import BOOL, FIXED_SIZE, FLOAT32, FLOATS, Dtype
from ...errors import refuse
from ...plan import Config, Device, Launch, Plan, ceil_div, slots
from ...planning.multi_tensor import batches
from ...planning.step import refuse_none, refuse_other_shapes
from .facts import CAPACITY, CHUNK_NBYTES, NBYTES, THREADS

DONE = np.ones(1, BOOL)

UPDATE_SIGNAL = Input(
    "update_signal",
    "bool",
    memory="host",
    optional=True,
    convert=flag,
    doc="True where it is left out",
)


def _launch(
    symbol: str, grid: int, args: tuple[object, ...], t: Dtype = FLOAT32, value: Dtype = FLOAT32
) -> Launch:
    """Plan a launch of `symbol` in `grid` blocks; t, value: the kernels' types T and VALUE."""
    binding = slots(T=t, VALUE=value, CAPACITY=CAPACITY, CHUNK_NBYTES=CHUNK_NBYTES)
    return Launch(symbol, Config((grid,), (THREADS,)), args, binding)


def _wider(a: Spec, b: Spec) -> int:
    """Return the bytes of an element of the wider array."""
    return max(a.dtype.itemsize, b.dtype.itemsize)


def _blocks(a: Spec, b: Spec) -> int:
    """Return the blocks of a launch over two arrays of the same size."""
    return ceil_div(a.size * _wider(a, b), THREADS * NBYTES)


class InPlaceAccumulator(Op):
    """Gradient accumulation: new_sum = old_sum + value, in place of old_sum.

    An `out=` of its own leaves old_sum as it is. With update_signal=False new_sum is old_sum: in
    place nothing is launched, into `out=` it is copied.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/optimizer/gradient_control.cc.
    """

    inputs = (
        Input("old_sum", "T", shape="any shape"),
        Input("value", "T_GRAD", shape="shape of old_sum"),
        UPDATE_SIGNAL,
    )
    outputs = (
        Output("new_sum", "T", aliases="old_sum", may_alias=("value",), shape="shape of old_sum"),
    )
    types: ClassVar[Types] = {"T": FLOATS, "T_GRAD": FLOATS}
    tiles: ClassVar[Tiles] = {}

    def infer(self, old_sum: Spec, value: Spec, update_signal: bool | None) -> tuple[Spec, ...]:
        refuse_other_shapes(self.name, "value", value, "old_sum", old_sum)
        return (old_sum,)

    def plan(
        self, device: Device, old_sum: Spec, value: Spec, update_signal: bool | None, new_sum: Spec
    ) -> Plan:
        """Plan the sum; if update_signal is False, a copy of old_sum unless that is in place."""
        update = update_signal is not False
        if not update and new_sum.in_place:
            return Plan(())
        args = (old_sum, value if update else None, new_sum, old_sum.size)
        grid = _blocks(old_sum, value)
        return Plan((_launch("in_place_accumulator", grid, args, old_sum.dtype, value.dtype),))


class InPlaceAccumulatorV2(Op):
    """Gradient accumulation: accumulation_buffer_out = accumulation_buffer + value, or value alone.

    With overwrite_flag the buffer becomes the value, rounded to T; its former value does not
    matter. An `out=` of its own leaves the buffer as it is; an `outputs=` without
    accumulation_buffer_out does not.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/optimizer/gradient_control.cc.
    """

    inputs = (
        Input("accumulation_buffer", "T", shape="any shape"),
        Input("value", "T_GRAD", shape="shape of accumulation_buffer"),
        Input(
            "overwrite_flag",
            "bool",
            memory="host",
            optional=True,
            convert=flag,
            doc="False where it is left out",
        ),
    )
    outputs = (
        Output("updated_flag", "bool", memory="host", shape="shape (1,)", doc="always True"),
        Output(
            "accumulation_buffer_out",
            "T",
            aliases="accumulation_buffer",
            may_alias=("value",),
            shape="shape of accumulation_buffer",
        ),
    )
    types: ClassVar[Types] = {"T": FLOATS, "T_GRAD": FLOATS}
    tiles: ClassVar[Tiles] = {}

    def infer(self, buffer: Spec, value: Spec, overwrite_flag: bool | None) -> tuple[Inferred, ...]:
        refuse_other_shapes(self.name, "value", value, "accumulation_buffer", buffer)
        return (DONE, buffer)

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan one launch, which reads no buffer that is overwritten.

        specs: the inputs as declared, then updated_flag and the array for the sums.
        """
        buffer, value, overwrite_flag, *_, sums = specs
        args = (None if overwrite_flag else buffer, value, sums, buffer.size)
        grid = _blocks(buffer, value)
        return Plan((_launch("in_place_accumulator_v2", grid, args, buffer.dtype, value.dtype),))


class InPlaceAccumulatorList(Op):
    """Gradient accumulation over a parameter list: new_sums[i] = old_sums[i] + values[i], in place.

    Each pair is treated as by InPlaceAccumulator, with one launch for every 108 pairs that have
    elements.

    Source: this package; ONNX Runtime runs InPlaceAccumulator once for each parameter.
    """

    domain = "cupy_training_ops"
    inputs = (
        Input("old_sums", "T", variadic=True, shape="any shapes", doc="at least one array"),
        Input("values", "T_GRAD", variadic=True, shape="shapes of old_sums"),
        UPDATE_SIGNAL,
    )
    outputs = (
        Output(
            "new_sums",
            "T",
            variadic=True,
            aliases="old_sums",
            may_alias=("values",),
            shape="shapes of old_sums",
        ),
    )
    types: ClassVar[Types] = {"T": FLOATS, "T_GRAD": FLOATS}

    def infer(
        self, old_sums: tuple[Spec, ...], values: tuple[Spec, ...], update_signal: bool | None
    ) -> tuple[Inferred, ...]:
        """Return the specs of new_sums, those of old_sums; refuse values of other shapes."""
        refuse_other_shapes(self.name, "values", values, "old_sums", old_sums)
        return (old_sums,)

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan a launch for each batch of arrays, without those that stay as they are in place.

        specs: old_sums, values, update_signal and new_sums.
        """
        old_sums, values, update_signal, new_sums = specs
        update = update_signal is not False
        written = [update or not new_sum.in_place for new_sum in new_sums]
        sizes = [s.size if w else 0 for s, w in zip(old_sums, written, strict=True)]
        t, value = old_sums[0], values[0]
        launches = []
        for batch in batches(sizes, CHUNK_NBYTES // _wider(t, value), CAPACITY):
            pointers = map(batch.pointers, (old_sums, values, new_sums))
            args = (*pointers, batch.sizes, len(batch.members), update)
            grid = batch.n_chunks
            launches.append(_launch("in_place_accumulator_list", grid, args, t.dtype, value.dtype))
        return Plan(tuple(launches))


class ZeroGradient(Op):
    """Clears a gradient: zero_gradient = 0, all bytes, in place of old_gradient.

    NaN and infinities are cleared like anything else. An `out=` of its own leaves old_gradient as
    it is.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/optimizer/gradient_control.cc.
    """

    inputs = (
        Input("old_gradient", "T1", shape="any shape"),
        Input(
            "reset_signal",
            "T2",
            not_accessed=True,
            shape="any shape",
            doc="not read; it orders execution in a graph of operators",
        ),
    )
    outputs = (
        Output("zero_gradient", "T1", aliases="old_gradient", shape="shape of old_gradient"),
    )
    types: ClassVar[Types] = {"T1": FLOATS, "T2": FIXED_SIZE}
    tiles: ClassVar[Tiles] = {}
    bitwise_exact = True

    def infer(self, old_gradient: Spec, reset_signal: Spec) -> tuple[Spec, ...]:
        return (old_gradient,)

    def plan(self, device: Device, old_gradient: Spec, reset_signal: Spec, zero: Spec) -> Plan:
        """Plan one launch that zeroes bytes."""
        grid = ceil_div(zero.nbytes, THREADS * NBYTES)
        return Plan((_launch("zero_gradient", grid, (zero, zero.nbytes)),))


class MixedPrecisionScale(Op):
    """Scaling between precisions: Y[i] = S X[i], rounded to `to`, for every tensor of a list.

    With fuse_outputs there is one Y of rank 1: the results one after the other. There is one launch
    for every 108 tensors that have elements.

    Source: ONNX Runtime, orttraining/orttraining/training_ops/cuda/math/mixed_precision_scale.cc.
    """

    inputs = (
        Input("S", "ScaleT", shape="one element, any shape", doc="read where it is"),
        Input("X", "SrcT", variadic=True, shape="any shapes", doc="at least one array"),
    )
    outputs = (
        Output("Y", "DstT", variadic=True, shape="shapes of X, or with fuse_outputs one of rank 1"),
    )
    to = attribute(dtype, type="DstT")
    fuse_outputs = attribute(boolean, False, doc="one output for all tensors")
    types: ClassVar[Types] = {"SrcT": FLOATS, "ScaleT": (FLOAT32,), "DstT": FLOATS}

    def infer(self, s: Spec, xs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...]]:
        """Return the specs of Y: one fused array of rank 1, or one for each of X."""
        if s.size != 1:
            refuse(self.name, "S", "one element", f"shape {s.shape}")
        refuse_none(self.name, "X", xs)
        if self.fuse_outputs:
            return ((Spec((sum(x.size for x in xs),), self.to),),)
        return (tuple(Spec(x.shape, self.to) for x in xs),)

    def plan(self, device: Device, s: Spec, xs: tuple[Spec, ...], ys: tuple[Spec, ...]) -> Plan:
        """Plan a launch for each batch of the arrays xs, scaled by the number in s.

        ys: an array for each of xs, or with fuse_outputs one that has the results end to end.
        """
        sizes = [x.size for x in xs]
        starts = list(itertools.accumulate(sizes, initial=0))
        kernel = "mixed_precision_scale__fused" if self.fuse_outputs else "mixed_precision_scale"
        launches = []
        for batch in batches(sizes, CHUNK_NBYTES // _wider(xs[0], ys[0]), CAPACITY):
            y = (ys[0], batch.starts(starts)) if self.fuse_outputs else (batch.pointers(ys),)
            args = (s, batch.pointers(xs), *y, batch.sizes, len(batch.members))
            launches.append(_launch(kernel, batch.n_chunks, args, self.to, xs[0].dtype))
        return Plan(tuple(launches))


OPS = {
    "InPlaceAccumulator": InPlaceAccumulator,
    "InPlaceAccumulatorList": InPlaceAccumulatorList,
    "InPlaceAccumulatorV2": InPlaceAccumulatorV2,
    "MixedPrecisionScale": MixedPrecisionScale,
    "ZeroGradient": ZeroGradient,
}
