# SPDX-License-Identifier: MIT
"""Ready launches: a plan bound to compiled kernels, its arguments checked against their signatures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from ..dtypes import ELEMENT_TYPES, element_type
from ..errors import CompileError
from .compiler import Backend, kernel
from .plan import Launch, Plan, Scratch
from .source import Parameter, Source

NULL = np.uint64(0)
_SCALARS = {row.c_type: row.dtype.type for row in ELEMENT_TYPES}
_log: list[Launch] | None = None


@contextlib.contextmanager
def launch_log() -> Iterator[list[Launch]]:
    """Record every launch made inside the context, to prove which kernel ran."""
    global _log
    before, _log = _log, []
    try:
        yield _log
    finally:
        _log = before


class ReadyPlan:
    """The launches of a plan on one device; `run` takes the arrays in the order of `names`."""

    def __init__(
        self,
        backend: Backend,
        source: Source,
        plan: Plan,
        device: int,
        dtypes: Mapping[str, Any],
    ) -> None:
        self._constants: list[Any] = []
        self._names = tuple(dtypes)
        self._launches = [
            (
                kernel(backend, source, launch.slots, launch.symbol, device),
                launch.config.grid,
                launch.config.block,
                launch.config.shared_nbytes,
                self._picker(backend, source, launch, dtypes),
                launch,
            )
            for launch in plan.launches
        ]

    def run(self, arrays: Sequence[Any], workspace: Any, backend: Any) -> None:
        """Launch on the current device and stream."""
        values = (*arrays, *self._constants)
        for function, grid, block, shared_nbytes, pick, launch in self._launches:
            if _log is not None:
                _log.append(launch)
            args = pick(values)
            if workspace is not None:
                args = tuple(_placed(arg, workspace, backend) for arg in args)
            function(grid, block, args, shared_nbytes)

    def _picker(
        self, backend: Backend, source: Source, launch: Launch, dtypes: Mapping[str, Any]
    ) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """A function from (arrays, constants) to the kernel's arguments."""
        parameters = source.kernels[launch.symbol]
        if len(parameters) != len(launch.args):
            raise CompileError(
                f"{launch.symbol}: takes {len(parameters)} arguments, the plan gives {len(launch.args)}"
            )
        places = [
            self._place(launch, parameter, arg, dtypes)
            for parameter, arg in zip(parameters, launch.args, strict=True)
        ]
        return itemgetter(*places) if len(places) > 1 else lambda values: (values[places[0]],)

    def _place(
        self, launch: Launch, parameter: Parameter, arg: Any, dtypes: Mapping[str, Any]
    ) -> int:
        """Where `values` holds this argument; constants are cast and appended."""
        if isinstance(arg, str):
            check_pointer(launch, parameter, dtypes[arg])
            return self._names.index(arg)
        self._constants.append(cast(launch, parameter, arg))
        return len(self._names) + len(self._constants) - 1


def check_pointer(launch: Launch, parameter: Parameter, dtype: Any) -> None:
    """An array argument meets a pointer to the same element type."""
    expected = launch.slots.get(parameter.c_type, parameter.c_type)
    if not parameter.pointer or expected != element_type(dtype).c_type:
        raise CompileError(
            f"{launch.symbol}: parameter {parameter.name} is {expected}"
            f"{'*' if parameter.pointer else ''}, the plan gives an array of {dtype}"
        )


def cast(launch: Launch, parameter: Parameter, value: Any) -> Any:
    """A by-value argument in exactly the declared C type; None is the null pointer."""
    if parameter.pointer:
        if value is None:
            return NULL
        if isinstance(value, Scratch):
            return value
    elif isinstance(value, np.void):
        return value
    else:
        c_type = launch.slots.get(parameter.c_type, parameter.c_type)
        scalar = _SCALARS.get(c_type)
        if scalar is not None:
            return _exact(launch, parameter, scalar, value)
    raise CompileError(
        f"{launch.symbol}: parameter {parameter.name} ({parameter.c_type}"
        f"{'*' if parameter.pointer else ''}) does not take {value!r}"
    )


def _exact(launch: Launch, parameter: Parameter, scalar: Any, value: Any) -> Any:
    """A scalar of the declared type that still has the value it was made from."""
    with contextlib.suppress(OverflowError, TypeError, ValueError):
        result = scalar(value)
        if np.dtype(scalar).kind not in "iub" or result == value:
            return result
    raise CompileError(
        f"{launch.symbol}: parameter {parameter.name} ({parameter.c_type}) cannot hold {value!r}"
    )


def _placed(arg: Any, workspace: Any, backend: Any) -> Any:
    """Scratch arguments become pointers into this call's workspace."""
    return backend.offset(workspace, arg.offset) if isinstance(arg, Scratch) else arg
