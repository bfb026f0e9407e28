# SPDX-License-Identifier: MIT
"""What the frame asks of an operator: its declaration, its output rule, its plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from ..backend import Backend
from ..declare.schema import Attribute, Inferred, Output, Tiles
from ..declare.type_rows import Types
from ..plan import Device, Plan
from ..runtime.launch import Planned
from ..runtime.workspace import Workspaces
from .call import Call
from .prepared import Prepared
from .renamed import Others


class Operator(Planned, Protocol):
    """An operator with its attributes; `Op` is the one class that is one."""

    outputs: ClassVar[tuple[Output, ...]]
    attributes: ClassVar[tuple[Attribute, ...]]
    other_outputs: ClassVar[Others]
    types: ClassVar[Types]
    tiles: ClassVar[Tiles]
    row: ClassVar[str]
    no_out: ClassVar[str]
    detaches: ClassVar[bool]
    runs_empty: ClassVar[bool]

    @property
    def workspaces(self) -> Workspaces: ...

    @property
    def attribute_values(self) -> dict[str, object]: ...

    def infer(self, *inputs: Any) -> tuple[Inferred, ...]:
        """Output specs from what planning may know of the inputs."""

    def plan(self, device: Device, *specs: Any) -> Plan:
        """The steps for these inputs and outputs."""

    def checks(self) -> tuple[Callable[..., None], ...]:
        """What is checked at each call, by the values of arrays."""

    @property
    def checks_numbers(self) -> bool: ...

    def check_numbers(self, *inputs: Any) -> None:
        """Refuse numbers that change from call to call."""

    def supply(self, *inputs: Any) -> object:
        """The value that one call takes for an input that the caller left to the operator."""

    def placement(self) -> tuple[Backend, int]:
        """The backend and device of a call without arrays."""

    def own_call(self, prepared: Prepared) -> Call | None:
        """A way of its own to run, or None for provider and kernels."""

    def cpu_function(self) -> Callable[..., object]:
        """The NumPy function that computes it."""

    def cpu_attributes(self) -> dict[str, object]:
        """What the NumPy function takes by keyword."""
