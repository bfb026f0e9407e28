# SPDX-License-Identifier: MIT
"""Base class of operators: output rule, plan, NumPy function, checks of values."""

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
from .interop import ForeignArrays
from .prepared import Arguments, Prepared
from .run import Call


class Operator(Declares):
    """Base of `Op`: the methods that operators override, and what a call asks of one."""

    declaration: ClassVar[Declaration]  # the checked form of `Declares`
    workspaces: Workspaces
    mixes: ClassVar[bool] = False  # True: arrays of two libraries are not refused here

    @property
    def attribute_values(self) -> dict[str, object]:
        """Return the frozen attributes by name."""
        return {attribute.name: getattr(self, attribute.name) for attribute in self.attributes}

    def infer(self, *inputs: Any) -> tuple[Inferred, ...]:
        """Return what is known of each output before the call; refuse shapes that do not fit.

        inputs: for each declared input a Spec of an array, a tuple of Specs for a list, the
        converted value of a host input, Changing if that differs from call to call, or None.
        """
        raise NotImplementedError

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Return the steps of a call, and their scratch memory; a pure function of its arguments.

        device: properties of the GPU. specs: for each declared input a Spec, a tuple of Specs for a
        list, a host value, Changing or None; then for each output a Spec, a tuple or None.
        """
        raise NotImplementedError

    def check_numbers(self, *inputs: object) -> None:
        """Refuse changing numbers by a check that needs other inputs, too.

        inputs: for each declared input its Spec or Specs, host value, this call's number, or None.
        """

    @property
    def checks_numbers(self) -> bool:
        """Return True if `check_numbers` is overridden."""
        return type(self).check_numbers is not Operator.check_numbers

    def check_values(self, *inputs: object) -> None:
        """Refuse arrays by their elements. inputs: arrays, and converted host values. Runs last, if
        the attribute `check` is True, and waits for the device."""

    def supply(self, *inputs: object) -> object:
        """Return the value of a `supplied` input that the caller left out.

        Example: seed and offset of a dropout, drawn for each call. At most one input is
        `supplied`. inputs: arrays and host values. Not called if all outputs are empty.
        """
        raise NotImplementedError

    def supply_always(self) -> object:
        """Return a supplied input's value if it is the same in each call; None: call `supply`."""
        return None

    def placement(self) -> tuple[Backend, int]:
        """Return the backend and the device of a call without arrays."""
        raise ArgumentError(f"{self.name}: expected at least one array, got none")

    def own_call(self, prepared: Prepared) -> Call | None:
        """Return the operator's own kind of call; None: the CPU function or the plan."""
        return None

    @property
    def knows_tensors(self) -> bool:
        """Return True if tensors stay tensors; `check_values` needs CuPy arrays instead."""
        return self.takes_tensors and not self._looks_at_values

    def foreign_arrays(self, inputs: Arguments, out: Arguments) -> ForeignArrays:
        """Return new notes of the arrays of other libraries among a call's arguments."""
        return ForeignArrays(
            self.inputs,
            inputs,
            out,
            natively=self.knows_tensors,
            detaches=self.detaches,
            op="" if self.mixes else self.name,
        )

    @classmethod
    def source(cls) -> Source:
        """Return the family's CUDA source."""
        return load(cls.family, cls.source_folder)

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        """Return the NumPy function: the operator's name in snake case, in the family's module."""
        _, reference = home(cls.__module__)
        return getattr(importlib.import_module(reference), cls.function_name)  # type: ignore[no-any-return]

    def cpu_attributes(self) -> dict[str, object]:
        """Return keywords of the NumPy function: the attributes."""
        return self.attribute_values

    def checks(self) -> tuple[Callable[..., None], ...]:
        """Return the checks that read the values of arrays."""
        return (self.check_values,) if self._looks_at_values else ()

    @property
    def _looks_at_values(self) -> bool:
        """Return True if the operator has an attribute `check` that is True."""
        return bool(vars(self).get("check"))

    def prepared_call(
        self,
        inputs: Arguments,
        out: Arguments,
        outputs: Sequence[str] | None,
        foreign: ForeignArrays,
    ) -> tuple[Call, Arguments, Arguments]:
        """Return (the cached or new call, inputs, `out`), these as arrays of the call's backend.

        outputs: names to return; None: all. foreign: gets notes of other libraries' arrays.
        """
        raise NotImplementedError
