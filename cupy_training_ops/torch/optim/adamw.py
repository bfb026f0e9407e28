# SPDX-License-Identifier: MIT
"""SGD, AdamW and Lamb as torch.optim.Optimizer subclasses."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from ...errors import DtypeError, refuse, shown
from ...optimizers.steps import (
    AdamWCodedStepWithRates,
    AdamWCodedUpdateWithRates,
    AdamWStepWithRates,
    AdamWUpdateWithRates,
    LambStep,
    LambUpdate,
    SGDStep,
    SGDUpdate,
    check_limits,
)
from . import codes
from .base import Group, Optimizer, rate
from .part import State, Update, is_distributed


class SGD(Optimizer):
    """`torch.optim.SGD` without momentum and weight decay, with clipping in its steps.

    params, lr, max_norm: as of AdamW. It has no state. momentum, weight_decay: only 0.
    """

    has_moments = False

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        max_norm: float | None = None,
    ) -> None:
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "foreach": foreach,
            "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults, max_norm)

    def _check(self, group: Group) -> None:
        super()._check(group)
        if group["weight_decay"]:
            refuse("SGD", "weight_decay", "0", shown(group["weight_decay"]))

    def _update(self, group: Group, *, is_measured: bool) -> Update:
        numbers = {"lr": rate(group["lr"]), "max_norm": self.max_norm}
        kind = SGDStep if is_measured else SGDUpdate
        return Update(self._operator(kind, kind), key=is_measured, numbers=numbers)


_CODED = (torch.float32, torch.float16, torch.bfloat16)
KINDS: dict[tuple[bool, bool], Any] = {  # by (moments are codes, the step computes the norm)
    (False, False): AdamWUpdateWithRates,
    (False, True): AdamWStepWithRates,
    (True, False): AdamWCodedUpdateWithRates,
    (True, True): AdamWCodedStepWithRates,
}


class AdamW(Optimizer):
    """`torch.optim.AdamW`, with the norm of the gradients and clipping in its steps.

    params, lr, betas, eps, weight_decay: as PyTorch's, in groups too; schedulers may write them. lr
    may be a tensor on the parameters' device, which a captured step reads there. max_norm: what the
    norm of all gradients is clipped to, as by `clip_grad_norm_`.

    With max_norm one pass over the gradients computes their norm; one more unscales
    (GradScaler does not), clips and updates. Counts of steps are on the device, so that a step can
    be captured. Moments of half-precision parameters are float32. Its state dicts are those of
    `torch.optim.AdamW`, and it loads that class's. Parameters on the CPU are updated by NumPy.
    Gradients are read only. Where PyTorch would spread a NaN with clipping, the step is skipped.

    state: '8bit' keeps both moments in 2.02 bytes a parameter (`AdamCodedList` says how), for
    parameters of at most 32 bits; in state dicts they are float32, or codes where that is said.
    Weights whose first moment is below 1/256 of the largest in its block of 128 hardly move.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        max_norm: float | None = None,
        state: Literal["8bit"] | None = None,
    ) -> None:
        if state not in (None, "8bit"):
            refuse("AdamW", "state", "None or '8bit'", shown(state))
        self.is_coded = state is not None
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable, "fused": fused, "decoupled_weight_decay": True,
        }  # fmt: skip
        super().__init__(params, defaults, max_norm)

    def __repr__(self) -> str:
        options = {"max_norm": self.max_norm, "state": "8bit" if self.is_coded else None}
        lines = "".join(f"{name}: {value!r}\n" for name, value in options.items())
        return f"{super().__repr__()[:-1]}{lines})"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "is_coded": self.is_coded}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a state of PyTorch's Adam has False
            group["decoupled_weight_decay"] = True

    def _update(self, group: Group, *, is_measured: bool) -> Update:
        kind = KINDS[self.is_coded, is_measured]
        op = self._operator(kind, lambda: kind(max_norm_clip=math.inf))
        beta1, beta2 = group["betas"]
        numbers = {
            "lr": rate(group["lr"]),
            "beta1": float(beta1),
            "beta2": float(beta2),
            "weight_decay": group["weight_decay"],
            "eps": group["eps"],
            "max_norm": self.max_norm,
        }
        return Update(op, key=is_measured, numbers=numbers)

    def _first_state(self, parameter: Tensor) -> State:
        if not self.is_coded:
            return super()._first_state(parameter)
        if parameter.dtype == torch.float64:
            refuse("AdamW", "state", "None, where parameters are float64", "'8bit'")
        if parameter.dtype not in _CODED:
            dtype = str(parameter.dtype).removeprefix("torch.")
            expected = "float32, float16, bfloat16, whose moments become codes"
            raise DtypeError(f"AdamW: params: expected {expected}, got {dtype}")
        begun = {name: codes.zeros(parameter) for name in codes.SIGNED}
        return {**self.state.get(parameter, {}), "step": None, **begun}

    def state_dict(self, *, coded: bool = False) -> dict[str, Any]:
        """As PyTorch's; moments in codes are decoded.

        coded: they stay codes, a quarter of the size; only this `load_state_dict` accepts them. Of
        DTensors and non-contiguous parameters they are decoded all the same.
        """
        with self._whole.lock:
            state = super().state_dict()
            if self.is_coded:
                keys = [key for group in state["param_groups"] for key in group["params"]]
                for key, parameter in zip(keys, self._parameters(), strict=True):
                    if coded and _is_plain(parameter):
                        continue
                    own = state["state"].get(key, {})
                    for name in codes.SIGNED.keys() & own.keys():
                        signed = codes.SIGNED[name]
                        own[name] = codes.decode(own[name], parameter, signed=signed)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As PyTorch's; also loads states of its optimizers. Decoded moments get the same codes."""
        super().load_state_dict(_decode(state_dict, self._parameters()))

    def _adopt_state(self, state_dict: dict[str, Any]) -> None:
        super()._adopt_state(state_dict)
        if self.is_coded:
            for parameter, own in self.state.items():
                for name in codes.SIGNED.keys() & own.keys():
                    signed = codes.SIGNED[name]
                    own[name] = codes.encode(own[name], parameter, signed=signed)


def _is_plain(parameter: Tensor) -> bool:
    """Return True if a parameter is contiguous and no DTensor."""
    return parameter.is_contiguous() and not is_distributed(parameter)


def _decode(state_dict: dict[str, Any], parameters: list[Tensor]) -> dict[str, Any]:
    """Return a state_dict with the moments' codes decoded."""
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    state = dict(state_dict["state"])
    for key, parameter in zip(keys, parameters, strict=False):  # PyTorch refuses other numbers
        for name, signed in codes.SIGNED.items():
            moment = state.get(key, {}).get(name)
            if moment is not None and moment.dtype == torch.uint8:
                numbers = codes.numbers(moment, parameter, signed=signed)
                state[key] = {**state[key], name: numbers}
    return {**state_dict, "state": state}


class Lamb(Optimizer):
    """LAMB as `torch.optim` would have it: see `cupy_training_ops.Lamb` for its formula.

    params, lr, betas, eps, weight_decay, max_norm: as of AdamW; ratio_limits as of
    `cupy_training_ops.Lamb`. A change of betas, eps, weight_decay or max_norm makes a new operator:
    schedulers should leave betas alone (`cycle_momentum=False`). Parameters are float32 or float64.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        *,
        ratio_limits: tuple[float, float] = (-math.inf, math.inf),
        capturable: bool = False,
        max_norm: float | None = None,
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "ratio_limits": ratio_limits, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults, max_norm)

    def _check(self, group: Group) -> None:
        super()._check(group)
        check_limits("Lamb", group["ratio_limits"])

    def _update(self, group: Group, *, is_measured: bool) -> Update:
        (alpha, beta), (low, high) = group["betas"], group["ratio_limits"]
        attributes = {
            "alpha": alpha, "beta": beta, "lambda_": group["weight_decay"], "epsilon": group["eps"],
            "ratio_min": low, "ratio_max": high,
            "max_norm_clip": math.inf if self.max_norm is None else self.max_norm,
        }  # fmt: skip
        kind, key = LambStep if is_measured else LambUpdate, (is_measured, *attributes.values())
        op = self._operator(key, lambda: kind(**attributes))
        return Update(op, key, {"lr": rate(group["lr"])})
