# SPDX-License-Identifier: MIT
"""A step of training as one operator: norm and finiteness of the gradients, then the update.

So a step is checked as a whole before anything is launched. The classes derive from the public
operators, such as AdamOptimizerList, and rename their inputs: R is `lr` here (see NAMES).

    AdamWStep     writes the gradients' norm to its inputs gradient_norm and is_finite, then updates
    AdamWUpdate   updates; reads a norm that another call wrote, if it gets one
    ...WithRates  has rates and betas as inputs of each call: new values need no new plan

In formulas m and v are the moments, c1 = 1 - beta1^step and c2 = 1 - beta2^step correct their bias,
and d is what gradients are divided by: the loss scale, or more to clip them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..call.op import Op
from ..declare.schema import Input, Output, finite, positive_or_zero
from ..device.source import Source
from ..errors import ArgumentError, refuse, shown
from ..families.adam.operators import AdamCodedList, AdamLargestList, AdamOptimizerList
from ..families.lamb.operators import LambOptimizer
from ..families.optimizer.operators import GradientNorm, SGDMomentumList, SGDOptimizerList
from ..families.optimizer.reference import gradient_norm
from ..plan import Device, Launch, Plan, Step
from ..planning.step import decay, limit, not_negative

NAMES = {  # of the operators' inputs, where they have other ones
    "R": "lr",
    "T": "step",
    "moment1": "moment_1",
    "moment2": "moment_2",
    "global_gradient_norm": "gradient_norm",
    "update_signal": "is_finite",
}
MEASURED = ("gradient_norm", "is_finite")  # inputs of an update that a step itself writes

# ---- numbers of a step ---------------------------------------------------------------------------

Convert = Callable[[Any], float]  # checks an argument; ArgumentError without its name


def beta(value: object) -> float:
    """A number of at least 0, below 1."""
    number = decay(value)
    if number >= 1:
        raise ArgumentError(f"expected a number below 1, as biases are corrected, got {number}")
    return number


def check_number(optimizer: str, argument: str, convert: Convert, value: Any) -> float:
    """Return convert(value); an ArgumentError names the optimizer's class and the argument."""
    try:
        return convert(value)
    except ArgumentError as error:
        raise ArgumentError(f"{optimizer}: {argument}: {error}") from None


def _check_pair(optimizer: str, argument: str, convert: Convert, value: Any) -> tuple[float, float]:
    """Return convert(number) of both numbers of a pair; refuse others in the argument's name."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        refuse(optimizer, argument, "two numbers", shown(value))
    first, second = (check_number(optimizer, argument, convert, each) for each in value)
    return first, second


def check_betas(optimizer: str, value: Any) -> tuple[float, float]:
    """Return (beta1, beta2), the decays of both moments, each in [0, 1)."""
    return _check_pair(optimizer, "betas", beta, value)


def check_limits(optimizer: str, value: Any) -> tuple[float, float]:
    """Return Lamb's ratio_limits (least, greatest), none of them NaN."""
    low, high = _check_pair(optimizer, "ratio_limits", limit, value)
    if low > high:
        refuse(optimizer, "ratio_limits", "the lower one first", shown(value))
    return low, high


# ---- inputs and outputs of a step ----------------------------------------------------------------


def inputs_of(op: type[Op]) -> tuple[Input, ...]:
    """Return an operator's inputs, in its order, renamed by NAMES; lr has to be at least 0."""
    renamed = (replace(item, name=NAMES.get(item.name, item.name)) for item in op.inputs)
    return tuple(
        replace(item, convert=positive_or_zero) if item.name == "lr" else item for item in renamed
    )


def measured_inputs(op: type[Op]) -> tuple[Input, ...]:
    """Return `inputs_of(op)` with the norm and its finiteness as arrays that the step writes."""
    return tuple(
        Input(item.name, item.type, updated=True, shape="shape ()")
        if item.name in MEASURED
        else item
        for item in inputs_of(op)
    )


def outputs_of(op: type[Op]) -> tuple[Output, ...]:
    """Return an operator's outputs; the inputs that they overwrite are renamed by NAMES."""
    return tuple(
        replace(item, aliases=NAMES.get(str(item.aliases), item.aliases)) for item in op.outputs
    )


def on_request(op: type[Op]) -> tuple[Output, ...]:
    """Return `outputs_of(op)`, each written only if a call names it in `outputs`.

    Several updates may make one step, of which one writes the new count.
    """
    return tuple(replace(item, on_request=True) for item in outputs_of(op))


# ---- what a step does beside its operator's work -------------------------------------------------


class Update:
    """Base of updates: source and CPU function are those of `operator`, the public one."""

    operator: ClassVar[type[Op]]
    mixes = True  # takes PyTorch tensors beside CuPy arrays

    @classmethod
    def source(cls) -> Source:
        """Return the operator's CUDA source."""
        return cls.operator.source()

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        """Return the operator's function on the CPU, of NumPy arrays."""
        return cls.operator.cpu_function()


class Measured(Update):
    """Base of steps: first the gradients' norm, and True if it is finite, are written to the inputs
    gradient_norm and is_finite; then the update reads them.

    Subclasses have `update`, the class of the update alone, for a norm that another call wrote.
    """

    inputs: ClassVar[tuple[Input, ...]]

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Return launches of the norm, which are of another family, then those of the update.

        specs: of the step's inputs, in order.
        """
        measured = GradientNorm().plan(device, *self._norm_arguments(specs))
        family = GradientNorm.family
        launches = (replace(s, family=family) for s in measured.steps if isinstance(s, Launch))
        update: Plan = super().plan(device, *specs)  # type: ignore[misc]
        return replace(measured, steps=tuple(launches)).then(update)

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        """Return a function of the step's inputs: it writes the norm and its finiteness into two of
        them, then calls the update's."""
        update = super().cpu_function()

        def step(*inputs: Any, **attributes: Any) -> object:
            gradients, norm, is_finite = cls._norm_arguments(inputs)
            for array, result in zip((norm, is_finite), gradient_norm(gradients), strict=True):
                np.copyto(array, result)
            return update(*inputs, **attributes)

        return step

    @classmethod
    def _norm_arguments(cls, inputs: Sequence[Any]) -> list[Any]:
        """Return [gradients, gradient_norm, is_finite] among the inputs, arrays or specs."""
        names = [item.name for item in cls.inputs]
        return [inputs[names.index(name)] for name in ("gradients", *MEASURED)]


def _rate(name: str, convert: Convert) -> Input:
    """Declare an input `name`, a number that each call passes anew; convert: checks it."""
    return Input(name, "float64", memory="host", convert=convert, static=False)


DECAY = _rate("weight_decay", positive_or_zero)
ADAM_RATES = {  # inputs by the operator's attribute that they replace
    "alpha": _rate("beta1", beta),
    "beta": _rate("beta2", beta),
    "lambda_": DECAY,
    "epsilon": _rate("eps", not_negative),
}
SGD_RATES = {  # as ADAM_RATES
    "momentum": _rate("momentum", positive_or_zero),
    "dampening": _rate("dampening", finite),
    "weight_decay": DECAY,
}


class WithRates(Update):
    """Base of updates whose rates (beta1, eps, ...) are inputs of each call, not attributes.

    The rates are the last inputs. `rule`, the operator's method, makes the struct that kernels get
    from the rates and the other attributes.
    """

    inputs: ClassVar[tuple[Input, ...]]
    rates: ClassVar[Mapping[str, Input]]  # by the attribute that they replace

    def infer(self, *specs: Any) -> Any:
        """Return the operator's inferred outputs, from the inputs ahead of the rates."""
        return super().infer(*specs[: -len(self.rates)])  # type: ignore[misc]

    def plan(self, device: Device, *specs: Any) -> Plan:
        """Return the operator's plan with its struct of attributes replaced by `rule(rates)`.

        specs: of the inputs; the last are those of the rates, values that each call fills in.
        """
        n = len(self.inputs) - len(self.rates)
        # The kernels' argument becomes a value that each call computes from its rates.
        first, *others = specs[n : n + len(self.rates)]
        layout = self.rule().dtype  # type: ignore[attr-defined]
        rule = replace(first.then(functools.lru_cache(64)(self.rule), *others), struct=layout)  # type: ignore[attr-defined]
        plan: Plan = super().plan(device, *specs[:n], *specs[n + len(self.rates) :])  # type: ignore[misc]
        return replace(plan, steps=tuple(_with(step, rule, layout) for step in plan.steps))

    @classmethod
    def cpu_function(cls) -> Callable[..., object]:
        """Return the operator's function on the CPU, called with the rates for its attributes."""
        update, n = super().cpu_function(), len(cls.rates)

        def step(*inputs: Any, **attributes: Any) -> object:  # the last n inputs are rates
            rates = dict(zip(cls.rates, inputs[-n:], strict=True))
            return update(*inputs[:-n], **(attributes | rates))

        return step


def _with(step: Step, rule: object, layout: np.dtype[Any]) -> Step:
    """Return a launch with `rule` in place of the argument that is a struct of this layout.

    Other steps are returned as they are.
    """
    if not isinstance(step, Launch):
        return step
    args = tuple(rule if isinstance(a, np.void) and a.dtype == layout else a for a in step.args)
    return replace(step, args=args)


# ---- the operators -------------------------------------------------------------------------------


class NormUpdate(Update, GradientNorm):
    """GradientNorm as a call of its own, ahead of several updates that read its result."""

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


class MomentumUpdate(Update, SGDMomentumList):
    """weights = weights - lr b with b = momentum b + (1 - dampening) gradients / d."""

    name = "SGD"
    operator = SGDMomentumList
    inputs = inputs_of(SGDMomentumList)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(SGDMomentumList)


class MomentumStep(Measured, SGDMomentumList):
    """MomentumUpdate, which first computes the norm of the gradients."""

    name = "SGD"
    operator = SGDMomentumList
    update: ClassVar[type[Op]] = MomentumUpdate
    inputs = measured_inputs(SGDMomentumList)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(SGDMomentumList)


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


class AMSGradUpdate(Update, AdamLargestList):
    """AdamUpdate with the largest second moments."""

    name = "Adam"
    operator = AdamLargestList
    inputs = inputs_of(AdamLargestList)
    outputs: ClassVar[tuple[Output, ...]] = on_request(AdamLargestList)


class AMSGradStep(Measured, AdamLargestList):
    """AMSGradUpdate, which first computes the norm of the gradients."""

    name = "Adam"
    operator = AdamLargestList
    update: ClassVar[type[Op]] = AMSGradUpdate
    inputs = measured_inputs(AdamLargestList)
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamLargestList)


class AMSGradWUpdate(AMSGradUpdate):
    """AdamWUpdate with the largest second moments."""

    name = "AdamW"


class AMSGradWStep(AMSGradStep):
    """AdamWStep with the largest second moments."""

    name = "AdamW"
    update: ClassVar[type[Op]] = AMSGradWUpdate


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


def uncoded(op: Op) -> AdamWStep:
    """Return the step of moments that are no codes, with the same attributes."""
    attributes = {k: v for k, v in op.attribute_values.items() if k != "bits"}
    return AdamWStep(**attributes)


class LambUpdate(Update, LambOptimizer):
    """weights = weights - lr ratio direction, ratio = |weights| / |direction| of each array."""

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


class SGDUpdateWithRates(WithRates, SGDOptimizerList):
    """SGDUpdate, whose weight decay is an input."""

    name = "SGD"
    operator = SGDOptimizerList
    rates: ClassVar[Mapping[str, Input]] = {"weight_decay": DECAY}
    inputs = (*inputs_of(SGDOptimizerList), DECAY)
    outputs: ClassVar[tuple[Output, ...]] = on_request(SGDOptimizerList)


class SGDStepWithRates(Measured, SGDUpdateWithRates):
    """SGDUpdateWithRates, which first computes the norm of the gradients."""

    inputs = (*measured_inputs(SGDOptimizerList), DECAY)


class MomentumUpdateWithRates(WithRates, SGDMomentumList):
    """MomentumUpdate, whose rates are inputs."""

    name = "SGD"
    operator = SGDMomentumList
    rates = SGD_RATES
    inputs = (*inputs_of(SGDMomentumList), *SGD_RATES.values())
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(SGDMomentumList)


class MomentumStepWithRates(Measured, MomentumUpdateWithRates):
    """MomentumUpdateWithRates, which first computes the norm of the gradients."""

    inputs = (*measured_inputs(SGDMomentumList), *SGD_RATES.values())


class AdamWUpdateWithRates(WithRates, AdamOptimizerList):
    """AdamWUpdate, whose rates are inputs."""

    name = "AdamW"
    operator = AdamOptimizerList
    rates = ADAM_RATES
    inputs = (*inputs_of(AdamOptimizerList), *ADAM_RATES.values())
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamOptimizerList)


class AdamWStepWithRates(Measured, AdamWUpdateWithRates):
    """AdamWUpdateWithRates, which first computes the norm of the gradients."""

    inputs = (*measured_inputs(AdamOptimizerList), *ADAM_RATES.values())


class AMSGradUpdateWithRates(WithRates, AdamLargestList):
    """AdamWUpdateWithRates with the largest second moments."""

    name = "AdamW"
    operator = AdamLargestList
    rates = ADAM_RATES
    inputs = (*inputs_of(AdamLargestList), *ADAM_RATES.values())
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamLargestList)


class AMSGradStepWithRates(Measured, AMSGradUpdateWithRates):
    """AMSGradUpdateWithRates, which first computes the norm of the gradients."""

    inputs = (*measured_inputs(AdamLargestList), *ADAM_RATES.values())


class AdamWCodedUpdateWithRates(WithRates, AdamCodedList):
    """AdamWUpdateWithRates with moments in codes."""

    name = "AdamW"
    operator = AdamCodedList
    rates = ADAM_RATES
    inputs = (*inputs_of(AdamCodedList), *ADAM_RATES.values())
    outputs: ClassVar[tuple[Output, ...]] = outputs_of(AdamCodedList)


class AdamWCodedStepWithRates(Measured, AdamWCodedUpdateWithRates):
    """AdamWCodedUpdateWithRates, which first computes the norm of the gradients."""

    inputs = (*measured_inputs(AdamCodedList), *ADAM_RATES.values())


@functools.cache
def named(kind: Any, name: str) -> Any:
    """Return a subclass of the operator `kind` with this name in messages; cached."""
    if kind.name == name:
        return kind
    return type(kind.__name__, (kind,), {"name": name, "__doc__": kind.__doc__})
