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
    """Return the macros of algorithm/elementwise.cuh, for elements of dtype t.

    T: its C type. ACC: the C type it is computed in. NBYTES: `nbytes`, those of an array that a
    thread has.
    """
    types = element_type(t)
    return {
        "T": types.c_type,
        "ACC": types.accumulator,
        "NBYTES": str(nbytes),
    }


def streaming_launch(
    symbol: str,
    arrays: Sequence[Spec | None],
    options: tuple[object, ...] = (),
    nbytes: int = NBYTES,
) -> Launch:
    """Launch symbol(*arrays, n, aligned, *options); a thread has `nbytes` of the first array.

    n: elements of an array. aligned: all arrays begin at multiples of 16 bytes. T is the dtype of
    the first array.
    """
    present = [spec for spec in arrays if spec is not None]
    x = present[0]
    config = Config((ceil_div(x.nbytes, THREADS * nbytes),), (THREADS,))
    args = (*arrays, x.size, all(spec.aligned for spec in present), *options)
    return Launch(symbol, config, args, type_slots(x.dtype, nbytes))


def _number(value: Number, t: Dtype) -> Changing | np.generic:
    """Round an option to the accumulator of `t`; a Changing one is rounded at each call."""
    if isinstance(value, Changing):
        return value.then(partial(round_number, t=t))
    return round_number(value, t)


class ElementwiseOp(Op):
    """Base of operators y[i] = f(x[i], ...): all arrays have the shape of the first input.

    Subclasses declare inputs (the first of type T), outputs, `kernel` and `options`. `row` names an
    input that is one row, as a bias: y[i] = f(x[i], bias[i % columns]). The kernel takes
    (inputs, outputs, n, aligned, columns if there is a `row`, options).
    """

    types: ClassVar[Types] = {"T": FLOATS}
    tiles: ClassVar[Tiles] = {}
    nbytes: ClassVar[int] = NBYTES

    def infer(self, *inputs: object) -> tuple[Spec | None, ...]:
        """Return for each output a Spec with the first input's shape; refuse inputs of others."""
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
        """Return the kernel's name."""
        raise NotImplementedError

    def options(self, *inputs: Any) -> tuple[Number, ...]:
        """Return the kernel's last arguments: numbers from attributes and host inputs."""
        return ()

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Plan one launch over the device arrays among inputs and outputs (`specs`)."""
        inputs = specs[: len(self.inputs)]
        declared: tuple[Input | Output, ...] = (*self.inputs, *self.outputs)
        pairs = zip(declared, specs, strict=True)
        arrays = [spec for item, spec in pairs if item.memory == "device"]
        shape, t = inputs[0].shape, inputs[0].dtype
        columns = (divisor(shape[-1] if shape else 1),) if self.row else ()
        options = (*columns, *(_number(value, t) for value in self.options(*inputs)))
        return Plan((streaming_launch(self.kernel, arrays, options, self.nbytes),))
