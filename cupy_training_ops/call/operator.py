# SPDX-License-Identifier: MIT
"""The operator as a call knows it beside its declaration: output rule, plan, NumPy function."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..backend import Backend
from ..declare.declaration import Declaration, Declares, home
from ..declare.schema import Inferred
from ..device.source import Source, load
from ..device.workspace import Workspaces
from ..errors import ArgumentError
from ..plan import Device, Plan
from .interop import Lent
from .prepared import Arguments, Prepared
from .run import Call


class Operator(Declares):
    """Base of `Op`: what an operator writes, and the values by which it is called."""

    declaration: ClassVar[Declaration]  # all of `Declares`, and what follows from them
    workspaces: Workspaces

    @property
    def attribute_values(self) -> dict[str, object]:
        """The frozen attributes by name."""
        return {attribute.name: getattr(self, attribute.name) for attribute in self.attributes}

    def infer(self, *inputs: Any) -> tuple[Inferred, ...]:
        """Output specs from input specs; refuses shapes that do not fit together."""
        raise NotImplementedError

    def plan(self, device: Device, *specs: Any) -> Plan:
        """The steps for these inputs and outputs: a pure function of what it is given."""
        raise NotImplementedError

    def check_numbers(self, *inputs: object) -> None:
        """Refuse numbers that change from call to call by more than `convert` can look at.

        inputs: as `infer` has them, with the numbers of this call in their places.
        """

    @property
    def checks_numbers(self) -> bool:
        """Return True if `check_numbers` does anything."""
        return type(self).check_numbers is not Operator.check_numbers

    def check_values(self, *inputs: object) -> None:
        """Refuse what arrays hold. Runs where the attribute `check` is True, after all other
        checks, and waits for the device."""

    def supply(self, *inputs: object) -> object:
        """Make the value of an input that the caller left out, and that the operator supplies.

        Example: seed and offset of a dropout, drawn for each call. At most one input is declared
        `supplied`. inputs: as the CPU function takes them. Not called if all outputs are empty.
        """
        raise NotImplementedError

    def supply_always(self) -> object:
        """The value of a supplied input if each call has the same one; None: call `supply`."""
        return None

    def placement(self) -> tuple[Backend, int]:
        """The backend and the device of a call without arrays."""
        raise ArgumentError(f"{self.name}: expected at least one array, got none")

    def own_call(self, prepared: Prepared) -> Call | None:
        """A way of its own to run; None for the CPU provider's function and plans."""
        return None

    @property
    def knows_tensors(self) -> bool:
        """Return True if tensors need not be adopted: `check_values` reads CuPy's arrays."""
        return self.takes_tensors and not self._looks_at_values

    def lend(self, inputs: Arguments, out: Arguments) -> Lent:
        """Arrays that other libraries lend to a call with these arguments."""
        return Lent(self.inputs, inputs, out, natively=self.knows_tensors, detaches=self.detaches)

    @classmethod
    def source(cls) -> Source:
        """The family's CUDA source."""
        return load(cls.family, cls.source_folder)

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        """The family's NumPy function, the operator's name in snake case."""
        _, reference = home(cls.__module__)
        return getattr(importlib.import_module(reference), cls.function_name)  # type: ignore[no-any-return]

    def cpu_attributes(self) -> dict[str, object]:
        """Keywords of the NumPy function: the attributes."""
        return self.attribute_values

    def checks(self) -> tuple[Callable[..., None], ...]:
        """Checks of each call that read the values of arrays."""
        return (self.check_values,) if self._looks_at_values else ()

    @property
    def _looks_at_values(self) -> bool:
        """Return True if the instance has an attribute `check` that is True; a method is none."""
        return bool(vars(self).get("check"))

    def prepared_call(
        self, inputs: Arguments, out: Arguments, outputs: Sequence[str] | None, lent: Lent
    ) -> tuple[Call, Arguments, Arguments]:
        """The call that fits, and its arguments in forms that have a backend."""
        raise NotImplementedError
