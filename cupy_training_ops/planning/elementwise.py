# SPDX-License-Identifier: MIT
"""Element-wise operators: one streaming launch from any number of arrays to arrays of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ..call.op import Op
from ..declare.schema import Changing, Input, Output, Spec, Tiles
from ..declare.type_rows import Types
from ..dtypes import FLOATS, Dtype, element_type, to_dtype
from ..errors import refuse
from ..facts import ELEMENTWISE_NBYTES as NBYTES
from ..facts import ELEMENTWISE_THREADS as THREADS
from ..plan import Config, Device, Launch, Plan, ceil_div
from ..rules.widening import round_number
from .fast_division import divisor

Number = float | Changing  # an option of a kernel


def type_slots(t: Dtype, nbytes: int = NBYTES) -> dict[str, str]:
    """Slots of algorithm/elementwise.cuh for elements of dtype `t`."""
    row = element_type(t)
    return {
        "T": row.c_type,
        "ACC": row.accumulator,
        "NBYTES": str(nbytes),
    }


def streaming_launch(
    symbol: str,
    arrays: Sequence[Spec | None],
    options: tuple[object, ...] = (),
    nbytes: int = NBYTES,
) -> Launch:
    """The launch of a kernel that takes the arrays, the first of type T, n, aligned, options."""
    present = [spec for spec in arrays if spec is not None]
    x = present[0]
    config = Config((ceil_div(x.nbytes, THREADS * nbytes),), (THREADS,))
    args = (*arrays, x.size, all(spec.aligned for spec in present), *options)
    return Launch(symbol, config, args, type_slots(x.dtype, nbytes))


def _number(value: Number, t: Dtype) -> Changing | np.generic:
    """An option in the type that is computed in; a Changing one is rounded at each call."""
    if isinstance(value, Changing):
        return value.then(partial(round_number, t=t))
    return round_number(value, t)


class ElementwiseOp(Op):
    """Every element of the outputs depends on the elements of the inputs at the same place.

    Subclasses declare inputs (the first of type T), outputs, `kernel` and `options`; the kernel
    takes the arrays in that order, n, aligned, the length of the `row` if any, and the options.
    """

    types: ClassVar[Types] = {"T": FLOATS}
    tiles: ClassVar[Tiles] = {}
    nbytes: ClassVar[int] = NBYTES

    def infer(self, *inputs: object) -> tuple[Spec | None, ...]:
        pairs = zip(self.inputs, inputs, strict=True)
        arrays = {item.name: spec for item, spec in pairs if isinstance(spec, Spec)}
        row = arrays.pop(self.row, None)
        (first, x), *others = arrays.items()
        for name, spec in others:
            if spec.shape != x.shape:
                refuse(self.name, name, f"shape {x.shape}, as {first}", f"{spec.shape}")
        if row is not None and (row.shape == () or row.shape != x.shape[-1:]):
            expected = f"rank 1 and the last extent of {first}, whose shape is {x.shape}"
            refuse(self.name, self.row, expected, f"shape {row.shape}")
        types = (x.dtype if o.type in self.types else to_dtype(o.type) for o in self.outputs)
        return tuple(Spec(x.shape, dtype) for dtype in types)

    @property
    def kernel(self) -> str:
        """The kernel's name, which a subclass states."""
        raise NotImplementedError

    def options(self, *inputs: Any) -> tuple[Number, ...]:
        """The kernel's last arguments, numbers from attributes and host inputs."""
        return ()

    def plan(self, device: Device, *specs: Any) -> Plan:
        inputs = specs[: len(self.inputs)]
        declared: tuple[Input | Output, ...] = (*self.inputs, *self.outputs)
        pairs = zip(declared, specs, strict=True)
        arrays = [spec for item, spec in pairs if item.memory == "device"]
        shape, t = inputs[0].shape, inputs[0].dtype
        columns = (divisor(shape[-1] if shape else 1),) if self.row else ()
        options = (*columns, *(_number(value, t) for value in self.options(*inputs)))
        return Plan((streaming_launch(self.kernel, arrays, options, self.nbytes),))
