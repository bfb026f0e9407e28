# SPDX-License-Identifier: MIT
"""The protocol of an operator beside its declaration: its output rule, its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from ..backend import Backend
from ..declare.declaration import Declaration
from ..declare.schema import Inferred, Input
from ..device.source import Source
from ..device.workspace import Workspaces
from ..plan import Device, Plan
from .interop import Lent
from .prepared import Arguments, Prepared
from .run import Call


class Operator(Protocol):
    """An operator with its attributes; `Op` is the one class that is one."""

    declaration: ClassVar[Declaration]
    name: ClassVar[str]
    inputs: ClassVar[tuple[Input, ...]]

    @property
    def workspaces(self) -> Workspaces: ...

    @property
    def attribute_values(self) -> dict[str, object]: ...

    @property
    def knows_tensors(self) -> bool: ...

    def infer(self, *inputs: Any) -> tuple[Inferred, ...]:
        """Output specs from what planning may know of the inputs."""

    def plan(self, device: Device, *specs: Any) -> Plan:
        """The steps for these inputs and outputs."""

    def source(self) -> Source:
        """The CUDA source with its kernels."""

    def checks(self) -> tuple[Callable[..., None], ...]:
        """Checks of each call that read the values of arrays."""

    @property
    def checks_numbers(self) -> bool: ...

    def check_numbers(self, *inputs: Any) -> None:
        """Refuse numbers that change from call to call."""

    def supply(self, *inputs: object) -> object:
        """The value that one call takes for an input that the caller left to the operator."""

    def supply_always(self) -> object:
        """That value where it is the same at each call."""

    def placement(self) -> tuple[Backend, int]:
        """The backend and device of a call without arrays."""

    def own_call(self, prepared: Prepared) -> Call | None:
        """A way of its own to run, or None for provider and kernels."""

    def prepared_call(
        self, inputs: Arguments, out: Arguments, outputs: Sequence[str] | None, lent: Lent
    ) -> tuple[Call, Arguments, Arguments]:
        """The call that fits, and its arguments in forms that have a backend."""

    def cpu_function(self) -> Callable[..., object]:
        """The NumPy function that computes it."""

    def cpu_attributes(self) -> dict[str, object]:
        """Keywords of the NumPy function."""
