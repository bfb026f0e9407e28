# SPDX-License-Identifier: MIT
"""A step of training as one operator: norm and finiteness of the gradients, then the update.

So a step is checked as a whole before anything is launched. Operators do the work; what
they call R is `lr` here, and their norm and signal are arrays that the step itself writes.

    AdamWStep     finds the norm, then updates
    AdamWUpdate   is told a norm, which another call has found, or none
    ...WithRates  takes rates and betas as numbers of each call: schedulers plan nothing anew
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..call.op import Op
from ..declare.schema import Input, Output, positive_or_zero
from ..device.source import Source
from ..errors import ArgumentError, refuse, shown
from ..families.adam.facts import AdamRule
from ..families.adam.operators import AdamCodedList, AdamOptimizerList
from ..families.lamb.operators import LambOptimizer
from ..families.optimizer.operators import GradientNorm, SGDOptimizerList
from ..families.optimizer.reference import gradient_norm
from ..plan import Device, Launch, Plan, Step, by_value
from ..planning.step import decay, limit, not_negative

NAMES = {  # of the operators' inputs, where they have other ones
    "R": "lr",
    "T": "step",
    "moment1": "moment_1",
    "moment2": "moment_2",
    "global_gradient_norm": "gradient_norm",
    "update_signal": "is_finite",
}
MEASURED = ("gradient_norm", "is_finite")

# ---- numbers of a step ---------------------------------------------------------------------------

Convert = Callable[[Any], float]


def beta(value: object) -> float:
    """A number of at least 0, below 1."""
    number = decay(value)
    if number >= 1:
        raise ArgumentError(f"expected a number below 1, as biases are corrected, got {number}")
    return number


def check_number(optimizer: str, argument: str, convert: Convert, value: Any) -> float:
    """A number, refused by the caller's name for it, not by the operator's."""
    try:
        return convert(value)
    except ArgumentError as error:
        raise ArgumentError(f"{optimizer}: {argument}: {error}") from None


def _check_pair(optimizer: str, argument: str, convert: Convert, value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        refuse(optimizer, argument, "two numbers", shown(value))
    first, second = (check_number(optimizer, argument, convert, each) for each in value)
    return first, second


def check_betas(optimizer: str, value: Any) -> tuple[float, float]:
    """The decays of both moments."""
    return _check_pair(optimizer, "betas", beta, value)


def check_limits(optimizer: str, value: Any) -> tuple[float, float]:
    """The least and the greatest ratio."""
    low, high = _check_pair(optimizer, "ratio_limits", limit, value)
    if low > high:
        refuse(optimizer, "ratio_limits", "the lower one first", shown(value))
    return low, high


# ---- inputs and outputs of a step ----------------------------------------------------------------


def inputs_of(op: type[Op]) -> tuple[Input, ...]:
    """An operator's inputs, in its order, by the names that they have in a step."""
    renamed = (replace(item, name=NAMES.get(item.name, item.name)) for item in op.inputs)
    return tuple(
        replace(item, convert=positive_or_zero) if item.name == "lr" else item for item in renamed
    )


def measured_inputs(op: type[Op]) -> tuple[Input, ...]:
    """The inputs of an operator whose step first writes two of them: the norm and the signal."""
    return tuple(
        Input(item.name, item.type, updated=True, shape="shape ()")
        if item.name in MEASURED
        else item
        for item in inputs_of(op)
    )


def outputs_of(op: type[Op]) -> tuple[Output, ...]:
    """An operator's outputs: its inputs' arrays."""
    return tuple(
        replace(item, aliases=NAMES.get(str(item.aliases), item.aliases)) for item in op.outputs
    )


def on_request(op: type[Op]) -> tuple[Output, ...]:
    """An operator's outputs, each computed only if a call asks: several calls may make one step."""
    return tuple(replace(item, on_request=True) for item in outputs_of(op))


# ---- what a step does beside its operator's work -------------------------------------------------


class Update:
    """An operator of a family, which is told the norm of the gradients, if any."""

    operator: ClassVar[type[Op]]
    mixes = True  # tensors beside the arrays over others' memory

    @classmethod
    def source(cls) -> Source:
        """The operator's CUDA source."""
        return cls.operator.source()

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        """The operator's function on the CPU."""
        return cls.operator.cpu_function()


class Measured(Update):
    """An update that first writes the gradients' norm, and whether it is finite, to its inputs."""

    inputs: ClassVar[tuple[Input, ...]]

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Launches of the norm, which are of another family, then those of the update."""
        measured = GradientNorm().plan(device, *self._norm_arguments(specs))
        family = GradientNorm.family
        launches = (replace(s, family=family) for s in measured.steps if isinstance(s, Launch))
        update: Plan = super().plan(device, *specs)  # type: ignore[misc]
        return replace(measured, steps=tuple(launches)).then(update)

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        """A function that writes the norm and its finiteness, then calls the update's."""
        update = super().cpu_function()

        def step(*inputs: Any, **attributes: Any) -> object:
            gradients, norm, is_finite = cls._norm_arguments(inputs)
            for array, result in zip((norm, is_finite), gradient_norm(gradients), strict=True):
                np.copyto(array, result)
            return update(*inputs, **attributes)

        return step

    @classmethod
    def _norm_arguments(cls, inputs: Sequence[Any]) -> list[Any]:
        """Gradients, norm and finiteness among the inputs."""
        names = [item.name for item in cls.inputs]
        return [inputs[names.index(name)] for name in ("gradients", *MEASURED)]


RATES = {  # the attributes in whose place they are
    "alpha": Input("beta1", "float64", memory="host", convert=beta, static=False),
    "beta": Input("beta2", "float64", memory="host", convert=beta, static=False),
    "lambda_": Input(
        "weight_decay", "float64", memory="host", convert=positive_or_zero, static=False
    ),
    "epsilon": Input("eps", "float64", memory="host", convert=not_negative, static=False),
}
_N = len(RATES)


class WithRates(Update):
    """An update whose rates (beta1, eps, ...) are inputs of each call, not attributes."""

    inputs: ClassVar[tuple[Input, ...]]

    def infer(self, *specs: Any) -> Any:
        """The operator's outputs, from its own inputs: the rates stand behind them."""
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
    def cpu_function(cls) -> Callable[..., object]:
        """The operator's function on the CPU, called with the rates for its attributes."""
        update = super().cpu_function()

        def step(*inputs: Any, **attributes: Any) -> object:
            rates = dict(zip(RATES, inputs[-_N:], strict=True))
            return update(*inputs[:-_N], **(attributes | rates))

        return step


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


# ---- the operators -------------------------------------------------------------------------------


class NormUpdate(Update, GradientNorm):
    """The norm of the gradients, for updates that are told it."""

    name = "GradientNorm"
    operator = GradientNorm
    detaches = True


class SGDUpdate(Update, SGDOptimizerList):
    """weights = weights - lr gradients / d."""

    name = "SGD"
    operator = SGDOptimizerList
    inputs = inputs_of(SGDOptimizerList)
    outputs: ClassVar[tuple[Output, ...]] = on_request(SGDOptimizerList)


class SGDStep(Measured, SGDOptimizerList):
    """SGDUpdate, which first computes the norm of the gradients."""

    name = "SGD"
    operator = SGDOptimizerList
    inputs = measured_inputs(SGDOptimizerList)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(SGDOptimizerList)


class AdamUpdate(Update, AdamOptimizerList):
    """weights = weights - lr (m / c1) / (sqrt(v / c2) + epsilon)."""

    name = "Adam"
    operator = AdamOptimizerList
    inputs = inputs_of(AdamOptimizerList)
    outputs: ClassVar[tuple[Output, ...]] = on_request(AdamOptimizerList)


class AdamStep(Measured, AdamOptimizerList):
    """AdamUpdate, which first computes the norm of the gradients."""

    name = "Adam"
    operator = AdamOptimizerList
    update: ClassVar[type[Op]] = AdamUpdate
    inputs = measured_inputs(AdamOptimizerList)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamOptimizerList)


class AdamWUpdate(AdamUpdate):
    """weights = weights - lr ((m / c1) / (sqrt(v / c2) + epsilon) + lambda_ weights)."""

    name = "AdamW"


class AdamWStep(AdamStep):
    """AdamWUpdate, which first computes the norm of the gradients."""

    name = "AdamW"
    update: ClassVar[type[Op]] = AdamWUpdate


class AdamWCodedUpdate(Update, AdamCodedList):
    """AdamW with moments in codes."""

    name = "AdamW"
    operator = AdamCodedList
    inputs = inputs_of(AdamCodedList)
    outputs: ClassVar[tuple[Output, ...]] = on_request(AdamCodedList)


class AdamWCodedStep(Measured, AdamCodedList):
    """AdamWCodedUpdate, which first computes the norm of the gradients."""

    name = "AdamW"
    operator = AdamCodedList
    update: ClassVar[type[Op]] = AdamWCodedUpdate
    inputs = measured_inputs(AdamCodedList)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamCodedList)


class LambUpdate(Update, LambOptimizer):
    """weights = weights - lr ratio d."""

    name = "Lamb"
    operator = LambOptimizer
    inputs = inputs_of(LambOptimizer)
    outputs: ClassVar[tuple[Output, ...]] = on_request(LambOptimizer)


class LambStep(Measured, LambOptimizer):
    """LambUpdate, which first computes the norm of the gradients."""

    name = "Lamb"
    operator = LambOptimizer
    update: ClassVar[type[Op]] = LambUpdate
    inputs = measured_inputs(LambOptimizer)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(LambOptimizer)


class AdamWUpdateWithRates(WithRates, AdamOptimizerList):
    """weights = weights - lr ((m / c1) / (sqrt(v / c2) + eps) + weight_decay weights)."""

    name = "AdamW"
    operator = AdamOptimizerList
    inputs = (*inputs_of(AdamOptimizerList), *RATES.values())
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamOptimizerList)


class AdamWStepWithRates(Measured, AdamWUpdateWithRates):
    """AdamWUpdateWithRates, which first computes the norm of the gradients."""

    name = "AdamW"
    inputs = (*measured_inputs(AdamOptimizerList), *RATES.values())


class AdamWCodedUpdateWithRates(WithRates, AdamCodedList):
    """AdamW with moments in codes."""

    name = "AdamW"
    operator = AdamCodedList
    inputs = (*inputs_of(AdamCodedList), *RATES.values())
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamCodedList)


class AdamWCodedStepWithRates(Measured, AdamWCodedUpdateWithRates):
    """AdamWCodedUpdateWithRates, which first computes the norm of the gradients."""

    name = "AdamW"
    inputs = (*measured_inputs(AdamCodedList), *RATES.values())
