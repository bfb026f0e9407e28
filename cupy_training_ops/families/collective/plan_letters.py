# SPDX-License-Identifier: MIT
"""Messages between two ranks: what is checked ahead of them, and shapes that come ahead."""

from __future__ import annotations

from functools import partial
from typing import Any, Self, cast

import numpy as np

from ...backend import Backend
from ...call import backends
from ...call.arguments import adopt
from ...call.checks import convert_value
from ...call.prepared import Arguments
from ...declare.schema import (
    Input,
    Output,
    Spec,
    attribute,
    flag,
    integer,
    one_of,
    optional,
    shape,
)
from ...dtypes import Dtype, to_dtype
from ...errors import ArgumentError, ProviderError, refuse, shown
from ...plan import Plan, Work
from . import queue
from .messages import agree_each_time, letter, next_description, shapes_in
from .plan import Collective, Rows, Specs, once_per_group, table


def dtypes(value: object) -> tuple[Dtype, ...]:
    """Dtypes, or their ONNX type numbers: a sequence with one for each array."""
    if not isinstance(value, list | tuple | np.ndarray):
        raise ArgumentError(f"expected a sequence of dtypes, got {shown(value)}")
    return tuple(to_dtype(item) for item in value)


def shapes(value: object) -> tuple[tuple[int, ...], ...]:
    """Shapes: a sequence with one for each array."""
    if not isinstance(value, list | tuple):
        raise ArgumentError(f"expected a sequence of shapes, got {shown(value)}")
    return tuple(map(shape, value))


def true(value: object) -> bool:
    """True."""
    if not flag(value):
        raise ArgumentError("expected True, got False")
    return True


SIGNAL = Input("InputSignal", "bool", memory="host", convert=true)
REMOTE = Input("Remote", "int64", memory="host", convert=integer)
DONE = Output("OutputSignal", "bool", memory="host", shape="()")


class Letter(Collective):
    """A message between two ranks."""

    tag = attribute(integer, doc="of the message, the same on both ranks")
    element_types = attribute(dtypes, doc="one for each array")

    def check_remote(self, rank: int) -> None:
        """Refuse a rank that does not exist, or is this one."""
        own, n = self.group.rank, self.group.size
        if not 0 <= rank < n or rank == own:
            refuse(self.name, "Remote", f"another rank than {own}, below {n}", str(rank))

    def check_types(self, specs: Specs) -> None:
        """Refuse arrays whose dtypes are not `element_types`."""
        if len(specs) != len(self.element_types):
            expected = f"{len(specs)}, one for each array"
            refuse(self.name, "element_types", expected, str(len(self.element_types)))
        for i, (spec, dtype) in enumerate(zip(specs, self.element_types, strict=True)):
            if spec.dtype != dtype:
                refuse(self.name, f"element_types[{i}]", f"{spec.dtype}, as the array", f"{dtype}")

    def letter(self, specs: Specs, rows: Rows, receiver: int, sender: int) -> Plan:
        """The plan of a message, queued once both ranks have described it in the same words."""
        text, group, op = letter("cuda", self.tag, specs), self.group, self.name
        agree = partial(agree_each_time, group, op, (receiver, sender), text)
        calls = queue.Calls(group, op, self.ranks, rows, agree, each_time=True)
        return Plan((Work("call", (calls, table(specs), table(specs))),))


class Receiver(Letter):
    """A message whose shapes are those of `out=`, given, or still to come."""

    shapes = attribute(optional(shapes), None, doc="None: as the message says")
    arrays = attribute(one_of("cupy", "numpy"), "cupy", doc="whose arrive without out=")

    def __call__(self, /, *inputs: object, out: object = None, **keywords: Any) -> Any:
        given = out[1] if isinstance(out, tuple) and len(out) == 2 else None
        arrays = given if isinstance(given, tuple) and all(a is not None for a in given) else ()
        if arrays:
            results = [adopt(self.name, f"out (Data[{i}])", a) for i, a in enumerate(arrays)]
            library = "numpy" if isinstance(results[0], np.ndarray) else "cupy"
            op = self._with(tuple(array.shape for array in results), library)
            return op._receive(inputs, out, keywords)
        if self.shapes is None:
            op = self._with(self._next_shapes(inputs, keywords), self.arrays)
            return op._receive(inputs, out, keywords)
        return self._receive(inputs, out, keywords)

    def _receive(self, inputs: Arguments, out: object, keywords: dict[str, Any]) -> Any:
        return super().__call__(*inputs, out=out, **keywords)

    def _with(self, shapes: tuple[tuple[int, ...], ...], arrays: str) -> Self:
        """This operator for messages of these shapes."""
        values = {**self.attribute_values, "shapes": shapes, "arrays": arrays}
        key = type(self), self.tag, self.element_types, shapes, arrays
        return once_per_group(self.group, key, partial(type(self), **values))

    def _next_shapes(
        self, inputs: Arguments, keywords: dict[str, object]
    ) -> tuple[tuple[int, ...], ...]:
        """The shapes of the next message."""
        pairs = zip(self.inputs, (*inputs, None, None), strict=False)
        signal, remote = (keywords.get(item.name, value) for item, value in pairs)
        self.group.require_open(self.name)
        for item, value in zip(self.inputs, (signal, remote), strict=True):
            if value is None:
                refuse(self.name, item.name, "a value", "None")
        rank = self._checked_remote(signal, remote)
        where = "cuda" if self.placement()[0].runs_kernels else "cpu"
        text = next_description(self.group, self.name, rank)
        shapes = shapes_in(text)
        specs = list(map(Spec, shapes, self.element_types))
        own = letter(where, self.tag, specs)
        if own != text:  # an error, there too
            self.group.exchange(self.name, (self.group.rank, rank), own)
        return shapes

    def _checked_remote(self, signal: object, remote: object) -> int:
        convert_value(self.name, SIGNAL, signal)
        rank = cast(int, convert_value(self.name, REMOTE, remote))
        self.check_remote(rank)
        return rank

    def placement(self) -> tuple[Backend, int]:
        is_numpy = self.arrays == "numpy"
        backend = backends.BACKENDS[np.ndarray] if is_numpy else backends.cuda_backend()
        try:
            return backend, backend.current_device()
        except RuntimeError as error:  # CUDA's
            remedy = "arrays='numpy' receives on the host"
            raise ProviderError(f"{self.name}: no GPU answers ({error}); {remedy}") from None
