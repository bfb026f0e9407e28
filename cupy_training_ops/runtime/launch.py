# SPDX-License-Identifier: MIT
"""Ready launches: a plan bound to compiled kernels, arguments checked against their signatures."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from ..backend import Backend
from ..dtypes import ELEMENT_TYPES, element_type
from ..errors import CompileError
from ..plan import Launch, Plan, Pointers, Scratch
from ..schema import Spec
from .compiler import kernel
from .source import Parameter, Source

NULL = np.uint64(0)
_SCALARS = {row.c_type: row.dtype.type for row in ELEMENT_TYPES if row.dtype.kind != "c"}
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
    """The launches of a plan on one device; `run` takes the arrays in the order of `specs`."""

    def __init__(
        self,
        backend: Backend,
        device: int,
        source: Source,
        plan: Plan,
        specs: Mapping[str, Spec | None],
    ) -> None:
        self.workspace_nbytes = plan.workspace_nbytes
        self._backend = backend
        self._specs = specs
        self._index = {name: index for index, name in enumerate(specs)}
        self._constants: list[Any] = []
        self._late = any(
            isinstance(arg, Scratch | Pointers) for launch in plan.launches for arg in launch.args
        )
        with backend.on(device):
            self._launches = [
                (
                    kernel(backend, source, launch.slots, launch.symbol, device),
                    launch.config.grid,
                    launch.config.block,
                    launch.config.shared_nbytes,
                    self._picker(source.kernels[launch.symbol], launch),
                    launch,
                )
                for launch in plan.launches
            ]

    def run(self, arrays: Sequence[Any], workspace: Any) -> None:
        """Launch on the current device and stream."""
        values = (*arrays, *self._constants)
        for function, grid, block, shared_nbytes, pick, launch in self._launches:
            if _log is not None:
                _log.append(launch)
            args = pick(values)
            if self._late:
                args = tuple(self._resolved(arg, values, workspace) for arg in args)
            function(grid, block, args, shared_nbytes)

    def _resolved(self, arg: Any, values: Sequence[Any], workspace: Any) -> Any:
        """Scratch and pointer tables in terms of this call's workspace and arrays."""
        if isinstance(arg, Scratch):
            return self._backend.offset(workspace, arg.offset)
        if isinstance(arg, Pointers):
            addresses = np.zeros(arg.capacity, np.uint64)
            arrays = [values[self._index[name]] for name in arg.names]
            addresses[: len(arrays)] = [self._backend.pointer(array) for array in arrays]
            return addresses.view([("at", np.uint64, arg.capacity)])[0]
        return arg

    def _picker(
        self, parameters: tuple[Parameter, ...], launch: Launch
    ) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """A function from (arrays, constants) to the kernel's arguments."""
        if len(parameters) != len(launch.args):
            raise CompileError(
                f"{launch.symbol}: takes {len(parameters)} arguments, "
                f"the plan gives {len(launch.args)}"
            )
        pairs = zip(parameters, launch.args, strict=True)
        places = [self._place(launch, parameter, arg) for parameter, arg in pairs]
        return itemgetter(*places) if len(places) > 1 else lambda values: (values[places[0]],)

    def _place(self, launch: Launch, parameter: Parameter, arg: Any) -> int:
        """Where `values` holds this argument; constants are cast and appended."""
        spec = self._specs.get(arg) if isinstance(arg, str) else None
        if spec is not None:
            check_pointer(launch, parameter, spec.dtype)
            return self._index[arg]
        absent = isinstance(arg, str) and arg in self._specs
        self._constants.append(cast(launch, parameter, None if absent else arg))
        return len(self._index) + len(self._constants) - 1


def check_pointer(launch: Launch, parameter: Parameter, dtype: Any) -> None:
    """An array argument meets a pointer to the same element type, or `void*`."""
    expected = launch.slots.get(parameter.c_type, parameter.c_type)
    if not parameter.pointer or expected not in (element_type(dtype).c_type, "void"):
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
    elif (c_type := launch.slots.get(parameter.c_type, parameter.c_type)) in _SCALARS:
        return _exact(launch, parameter, _SCALARS[c_type], value)
    elif isinstance(value, np.void | Pointers):
        return value
    raise CompileError(
        f"{launch.symbol}: parameter {parameter.name} ({parameter.c_type}"
        f"{'*' if parameter.pointer else ''}) does not take {value!r}"
    )


def _exact(launch: Launch, parameter: Parameter, scalar: Any, value: Any) -> Any:
    """A scalar of the declared type: an integer as it is, a real number rounded, not infinite."""
    with contextlib.suppress(OverflowError, TypeError, ValueError), np.errstate(over="ignore"):
        if np.dtype(scalar).kind in "iub":
            result, fits = scalar(value), scalar(value) == value
        else:
            result = scalar(float(value))
            fits = math.isfinite(result) or not math.isfinite(value)
        if fits:
            return result
    raise CompileError(
        f"{launch.symbol}: parameter {parameter.name} ({parameter.c_type}) cannot hold {value!r}"
    )
