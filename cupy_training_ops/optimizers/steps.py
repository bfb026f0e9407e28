# SPDX-License-Identifier: MIT
"""A step of training as one operator: norm and finiteness of the gradients, then the update.

So a step is checked as a whole before anything is launched. Operators do the work; what
they call R is `lr` here, and their norm and signal are arrays that the step itself writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..call.op import Op
from ..declare.schema import Input, Output, positive_or_zero
from ..device.source import Source
from ..families.adam.operators import AdamCodedList, AdamOptimizerList
from ..families.lamb.operators import LambOptimizer
from ..families.optimizer.operators import GradientNorm, SGDOptimizerList
from ..families.optimizer.reference import gradient_norm
from ..plan import Device, Launch, Plan

NAMES = {  # of the operators' inputs, where they have other ones
    "R": "lr",
    "T": "step",
    "moment1": "moment_1",
    "moment2": "moment_2",
    "global_gradient_norm": "gradient_norm",
    "update_signal": "is_finite",
}
MEASURED = ("gradient_norm", "is_finite")


def inputs_of(op: type[Op]) -> tuple[Input, ...]:
    """An operator's inputs, in its order."""
    renamed = (replace(item, name=NAMES.get(item.name, item.name)) for item in op.inputs)
    return tuple(
        Input(item.name, item.type, updated=True, shape="shape ()")
        if item.name in MEASURED
        else replace(item, convert=positive_or_zero)
        if item.name == "lr"
        else item
        for item in renamed
    )


def told(op: type[Op]) -> tuple[Input, ...]:
    """The same, of a step that is told what it does not measure."""
    pairs = zip(inputs_of(op), op.inputs, strict=True)
    return tuple(replace(old, name=new.name) if new.updated else new for new, old in pairs)


def outputs_of(op: type[Op]) -> tuple[Output, ...]:
    """An operator's outputs: its inputs' arrays."""
    return tuple(
        replace(item, aliases=NAMES.get(str(item.aliases), item.aliases)) for item in op.outputs
    )


def on_request(op: type[Op]) -> tuple[Output, ...]:
    """The same, each where it is asked for."""
    return tuple(replace(item, on_request=True) for item in outputs_of(op))


class Measured:
    """An operator that measures the gradients' norm before its own work."""

    update: ClassVar[type[Op]]
    inputs: ClassVar[tuple[Input, ...]]

    def plan(self, device: Device, *specs: Any) -> Plan:
        """The norm's launches are of another family."""
        found = self._measured(specs)
        measured = GradientNorm().plan(device, *found)
        family = GradientNorm.family
        launches = (replace(s, family=family) for s in measured.steps if isinstance(s, Launch))
        update: Plan = super().plan(device, *specs)  # type: ignore[misc]
        return replace(measured, steps=tuple(launches)).then(update)

    @classmethod
    def source(cls) -> Source:
        """The update's."""
        return cls.update.source()

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        """The update's, after the norm."""
        update = cls.update.cpu_function()

        def step(*inputs: Any, **attributes: Any) -> object:
            gradients, norm, is_finite = cls._measured(inputs)
            for array, found in zip((norm, is_finite), gradient_norm(gradients), strict=True):
                np.copyto(array, found)
            return update(*inputs, **attributes)

        return step

    @classmethod
    def _measured(cls, inputs: Sequence[Any]) -> list[Any]:
        """Gradients, norm and finiteness among the inputs."""
        names = [item.name for item in cls.inputs]
        return [inputs[names.index(name)] for name in ("gradients", *MEASURED)]


class Told:
    """An operator that takes the gradients' norm, which another call has measured.

    The next step is written where it is asked for: several calls may make one step.
    """

    update: ClassVar[type[Op]]

    @classmethod
    def source(cls) -> Source:
        """The operator's."""
        return cls.update.source()

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        """The operator's."""
        return cls.update.cpu_function()


class Norm(Told, GradientNorm):
    """The norm of the gradients, for steps that are told it."""

    name = "GradientNorm"
    update = GradientNorm
    detaches = True


class SGDStep(Measured, SGDOptimizerList):
    """weights = weights - lr gradients / d."""

    name = "SGD"
    update = SGDOptimizerList
    inputs = inputs_of(SGDOptimizerList)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(SGDOptimizerList)


class AdamToldStep(Told, AdamOptimizerList):
    """weights = weights - lr (m / c1) / (sqrt(v / c2) + epsilon)."""

    name = "Adam"
    update = AdamOptimizerList
    inputs = told(AdamOptimizerList)
    outputs: ClassVar[tuple[Output, ...]] = on_request(AdamOptimizerList)


class AdamStep(Measured, AdamOptimizerList):
    """The same, which finds the norm of the gradients first."""

    name = "Adam"
    update = AdamOptimizerList
    told: ClassVar[type[Op]] = AdamToldStep
    inputs = inputs_of(AdamOptimizerList)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamOptimizerList)


class AdamWToldStep(AdamToldStep):
    """weights = weights - lr ((m / c1) / (sqrt(v / c2) + epsilon) + lambda_ weights)."""

    name = "AdamW"


class AdamWStep(AdamStep):
    """The same, which finds the norm of the gradients first."""

    name = "AdamW"
    told: ClassVar[type[Op]] = AdamWToldStep


class AdamWCodedToldStep(Told, AdamCodedList):
    """AdamW with moments in codes."""

    name = "AdamW"
    update = AdamCodedList
    inputs = told(AdamCodedList)
    outputs: ClassVar[tuple[Output, ...]] = on_request(AdamCodedList)


class AdamWCodedStep(Measured, AdamCodedList):
    """The same, which finds the norm of the gradients first."""

    name = "AdamW"
    update = AdamCodedList
    told: ClassVar[type[Op]] = AdamWCodedToldStep
    inputs = inputs_of(AdamCodedList)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamCodedList)


class LambToldStep(Told, LambOptimizer):
    """weights = weights - lr ratio d."""

    name = "Lamb"
    update = LambOptimizer
    inputs = told(LambOptimizer)
    outputs: ClassVar[tuple[Output, ...]] = on_request(LambOptimizer)


class LambStep(Measured, LambOptimizer):
    """The same, which finds the norm of the gradients first."""

    name = "Lamb"
    update = LambOptimizer
    told: ClassVar[type[Op]] = LambToldStep
    inputs = inputs_of(LambOptimizer)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(LambOptimizer)
