# SPDX-License-Identifier: MIT
"""Steps of optimizers that are told a norm, if any, and of AdamW with rates new in each call.

Schedulers change rates, and nothing is planned anew. `AdamWMeasured` finds the norm first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..call.op import Op
from ..declare.schema import Input, Output, positive_or_zero
from ..device.source import Source
from ..errors import ArgumentError
from ..families.adam.facts import AdamRule
from ..families.adam.operators import AdamCodedList, AdamOptimizerList
from ..families.lamb.operators import LambOptimizer
from ..families.optimizer.operators import SGDOptimizerList
from ..plan import Device, Launch, Plan, Step, by_value
from ..planning.step import decay, not_negative
from .steps import NAMES, Measured, Told, inputs_of, outputs_of


def beta(value: object) -> float:
    """A number of at least 0, below 1."""
    number = decay(value)
    if number >= 1:
        raise ArgumentError(f"expected a number below 1, as biases are corrected, got {number}")
    return number


RATES = {  # the attributes in whose place they are
    "alpha": Input("beta1", "float64", memory="host", convert=beta, static=False),
    "beta": Input("beta2", "float64", memory="host", convert=beta, static=False),
    "lambda_": Input(
        "weight_decay", "float64", memory="host", convert=positive_or_zero, static=False
    ),
    "epsilon": Input("eps", "float64", memory="host", convert=not_negative, static=False),
}
_N = len(RATES)


def renamed(op: type[Op]) -> tuple[Input, ...]:
    """An operator's inputs by the names that they have here; its signal is told, not found."""
    found = (replace(item, name=NAMES.get(item.name, item.name)) for item in op.inputs)
    return tuple(
        replace(item, name="update_signal")
        if item.name == "is_finite"
        else replace(item, convert=positive_or_zero)
        if item.name == "lr"
        else item
        for item in found
    )


class SGDUpdate(Told, SGDOptimizerList):
    """weights = weights - lr gradients / d."""

    name = "SGD"
    update = SGDOptimizerList
    inputs = renamed(SGDOptimizerList)


class LambUpdate(Told, LambOptimizer):
    """weights = weights - lr ratio d."""

    name = "Lamb"
    update = LambOptimizer
    inputs: ClassVar[tuple[Input, ...]] = renamed(LambOptimizer)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(LambOptimizer)


class _Rated:
    """An operator whose rates are numbers of each call, in the place of attributes."""

    update_list: ClassVar[type[Op]]
    inputs: ClassVar[tuple[Input, ...]]

    def infer(self, *specs: Any) -> Any:
        """As without rates."""
        return super().infer(*specs[:-_N])  # type: ignore[misc]

    def plan(self, device: Device, *specs: Any) -> Plan:
        """The rule of the attributes, which are not used, becomes one of each call's rates."""
        n = len(self.inputs) - _N
        first, *others = specs[n : n + _N]
        layout = AdamRule.of().dtype
        rule = replace(first.then(_rule, *others), struct=layout)
        plan: Plan = super().plan(device, *specs[:n], *specs[n + _N :])  # type: ignore[misc]
        return replace(plan, steps=tuple(_with(step, rule, layout) for step in plan.steps))

    @classmethod
    def source(cls) -> Source:
        """The list's."""
        return cls.update_list.source()

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        """The list's, with rates for attributes."""
        update = cls.update_list.cpu_function()

        def step(*inputs: Any, **attributes: Any) -> object:
            rates = dict(zip(RATES, inputs[-_N:], strict=True))
            return update(*inputs[:-_N], **(attributes | rates))

        return step


class AdamWUpdate(_Rated, AdamOptimizerList):
    """weights = weights - lr ((m / c1) / (sqrt(v / c2) + eps) + weight_decay weights)."""

    name = "AdamW"
    update_list = AdamOptimizerList
    inputs = (*renamed(AdamOptimizerList), *RATES.values())
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamOptimizerList)


class AdamWCodedUpdate(_Rated, AdamCodedList):
    """The same, with moments in codes."""

    name = "AdamW"
    update_list = AdamCodedList
    inputs = (*renamed(AdamCodedList), *RATES.values())
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamCodedList)


class AdamWMeasured(Measured, AdamWUpdate):
    """The same, with the norm of the gradients, which clips, and skips where it is not finite."""

    name = "AdamW"
    update: ClassVar[type[Op]] = AdamWUpdate
    inputs = (*inputs_of(AdamOptimizerList), *RATES.values())
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamOptimizerList)


class AdamWCodedMeasured(Measured, AdamWCodedUpdate):
    """The same, with moments in codes."""

    name = "AdamW"
    update: ClassVar[type[Op]] = AdamWCodedUpdate
    inputs = (*inputs_of(AdamCodedList), *RATES.values())
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamCodedList)


@functools.lru_cache(64)
def _rule(alpha: float, beta: float, lambda_: float, epsilon: float) -> np.void:
    numbers = {"alpha": alpha, "beta": beta, "lambda_": lambda_, "epsilon": epsilon}
    return by_value(AdamRule, **numbers, correct_bias=True, decays_updated=False)


def _with(step: Step, rule: object, layout: np.dtype[Any]) -> Step:
    """A launch with another rule."""
    if not isinstance(step, Launch):
        return step
    args = tuple(rule if isinstance(a, np.void) and a.dtype == layout else a for a in step.args)
    return replace(step, args=args)
