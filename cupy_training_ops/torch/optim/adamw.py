# SPDX-License-Identifier: MIT
"""SGD, Adam, AdamW and Lamb as torch.optim.Optimizer subclasses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ...call.op import Op
from ...declare.schema import positive_or_zero
from ...errors import DtypeError, refuse, shown
from ...optimizers import state as states
from ...optimizers.state import BITS
from ...optimizers.steps import (
    AdamWCodedStepWithRates,
    AdamWCodedUpdateWithRates,
    AdamWStepWithRates,
    AdamWUpdateWithRates,
    AMSGradStepWithRates,
    AMSGradUpdateWithRates,
    LambStep,
    LambUpdate,
    MomentumStepWithRates,
    MomentumUpdateWithRates,
    SGDStepWithRates,
    SGDUpdateWithRates,
    check_limits,
    check_number,
)
from . import codes
from .base import Group, Optimizer, rate
from .part import Part, State, Update, is_distributed


class SGD(Optimizer):
    """`torch.optim.SGD`, with the norm of the gradients and clipping in its steps.

    params, lr, momentum, dampening, weight_decay, nesterov, maximize: as PyTorch's, in groups too;
    schedulers may write them. foreach and fused choose nothing. differentiable: only False.
    max_norm: what the norm of all gradients is clipped to. rounding_seed: of stochastic rounding to
    bfloat16 (AdamW says how), for groups with momentum.

    Momenta of half-precision parameters are float32. Its state dicts are those of
    `torch.optim.SGD`, and it loads that class's.
    """

    moments = ()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        max_norm: float | None = None,
        rounding_seed: int | None = None,
    ) -> None:
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "foreach": foreach,
            "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults, max_norm, rounding_seed)

    def _names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _check(self, group: Group) -> None:
        super()._check(group)
        if group["nesterov"] and not (group["momentum"] and group["dampening"] == 0):
            momentum, dampening = shown(group["momentum"]), shown(group["dampening"])
            got = f"momentum {momentum}, dampening {dampening}"
            refuse("SGD", "nesterov", "False without momentum or with dampening", got)
        if self.rounding_seed is not None and not group["momentum"]:
            refuse("SGD", "rounding_seed", "None, without momentum", shown(self.rounding_seed))

    def _update(self, group: Group, part: Part, *, is_measured: bool) -> Update:
        """Return the operator of SGD, or of momentum, and its numbers; is_measured: the operator
        also computes the norm of the part's gradients."""
        numbers = {
            "lr": rate(group["lr"]),
            "weight_decay": rate(group["weight_decay"]),
            "max_norm": self.max_norm,
        }
        attributes: dict[str, Any] = {"maximize": bool(group["maximize"])}
        kind: type[Op] = SGDStepWithRates if is_measured else SGDUpdateWithRates
        if part.moments:
            kind = MomentumStepWithRates if is_measured else MomentumUpdateWithRates
            numbers |= {"momentum": group["momentum"], "dampening": group["dampening"]}
            attributes["nesterov"] = bool(group["nesterov"])
            attributes["rounding_seed"] = self._seed_of(part)
        return self._update_by(kind, attributes, numbers)

    # ---- states: PyTorch's has a momentum, and no step -------------------------------------------

    def _check_state(self, parameter: Tensor, state: State) -> None:
        """Refuse a state without momentum, or one that does not fit; it may lack a step."""
        if "momentum_buffer" not in state:
            got = ", ".join(map(str, state))
            refuse("SGD", "state", "momentum_buffer", got)
        super()._check_state(parameter, {"step": 0, **state})

    def _count_states(self) -> None:
        """Add the steps that PyTorch's states lack: a momentum has been through one at least."""
        for parameter, state in list(self.state.items()):
            if state.get("momentum_buffer") is None:
                del self.state[parameter]
            elif "step" not in state:
                state["step"] = torch.ones((), dtype=torch.float32)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._count_states()

    def state_dict(self) -> dict[str, Any]:
        """As PyTorch's; a momentum that no step has written is None."""
        state_dict = super().state_dict()
        for key, own in state_dict["state"].items():
            momentum = own["momentum_buffer"] if own.pop("step") else None
            state_dict["state"][key] = {**own, "momentum_buffer": momentum}
        return state_dict


_CODED = (torch.float32, torch.float16, torch.bfloat16)
# The operator of Adam's step, by its moments ("numbers" in float32, these with AMSGrad's "largest",
# or "codes"), and by whether it computes the gradients' norm.
KINDS: dict[tuple[str, bool], type[Op]] = {
    ("numbers", False): AdamWUpdateWithRates,
    ("numbers", True): AdamWStepWithRates,
    ("largest", False): AMSGradUpdateWithRates,
    ("largest", True): AMSGradStepWithRates,
    ("codes", False): AdamWCodedUpdateWithRates,
    ("codes", True): AdamWCodedStepWithRates,
}


class Adam(Optimizer):
    """`torch.optim.Adam`, with the norm of the gradients and clipping in its steps.

    params, lr, betas, eps, weight_decay, amsgrad, maximize, decoupled_weight_decay: as PyTorch's,
    in groups too; schedulers may write them. foreach, fused and capturable choose nothing.
    differentiable: only False. max_norm: what the norm of all gradients is clipped to. state:
    '8bit' or '4bit' moments; None: float32. rounding_seed: of stochastic rounding to bfloat16.
    AdamW says more of these.
    """

    bits: int | None = None  # of codes of moments

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        max_norm: float | None = None,
        state: Literal["8bit", "4bit"] | None = None,
        rounding_seed: int | None = None,
    ) -> None:
        if state not in (None, *BITS):
            refuse(
                type(self).__name__,
                "state",
                f"None or {' or '.join(map(repr, BITS))}",
                shown(state),
            )
        self.bits = BITS.get(state or "")
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable, "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults, max_norm, rounding_seed)

    def __repr__(self) -> str:
        state = None if self.bits is None else f"{self.bits}bit"
        options = {"max_norm": self.max_norm, "state": state}
        if self.rounding_seed is not None:
            options["rounding_seed"] = self.rounding_seed
        lines = "".join(f"{name}: {value!r}\n" for name, value in options.items())
        return f"{super().__repr__()[:-1]}{lines})"

    def __getstate__(self) -> dict[str, Any]:
        with self._whole.lock:
            self._follow_layouts()
            return {**super().__getstate__(), "bits": self.bits}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set a pickled state; codes of an older version are encoded anew."""
        if state.pop("is_coded", False):  # a pickle of an older version
            state["bits"] = 8
        super().__setstate__(state)
        for parameter, own in self.state.items():
            if self.bits == 8 and codes.are_old(own, parameter):
                self._encode(parameter, own | codes.numbers_of(own, parameter))
        self._follow_layouts()  # so that parts know in which order codes are

    def _names(self, group: Group) -> tuple[str, ...]:
        return (*self.moments, "max_exp_avg_sq") if group["amsgrad"] else self.moments

    def _check(self, group: Group) -> None:
        super()._check(group)
        if group["amsgrad"] and self.bits is not None:
            refuse(type(self).__name__, "amsgrad", "False, with moments in codes", "True")

    def _update(self, group: Group, part: Part, *, is_measured: bool) -> Update:
        """Return the operator for the kind of the part's moments, and its numbers; is_measured: the
        operator also computes the norm of the part's gradients."""
        attributes: dict[str, Any] = {
            "max_norm_clip": math.inf,
            # 0: decay weights before the update; 2: add weight_decay * weights to the gradient.
            "weight_decay_mode": 0 if group["decoupled_weight_decay"] else 2,
            "maximize": bool(group["maximize"]),
            "rounding_seed": self._seed_of(part),
        }
        moments = "largest" if "max_exp_avg_sq" in part.moments else "numbers"
        if part.is_coded:
            moments, attributes["bits"] = "codes", self.bits
        beta1, beta2 = group["betas"]
        numbers = {
            "lr": rate(group["lr"]),
            "beta1": float(beta1),
            "beta2": float(beta2),
            "weight_decay": group["weight_decay"],
            "eps": group["eps"],
            "max_norm": self.max_norm,
        }
        return self._update_by(KINDS[moments, is_measured], attributes, numbers)

    def _first_state(self, parameter: Tensor, names: Sequence[str]) -> State:
        """Return a state with 0, or codes of 0, for the moments that are missing."""
        if self.bits is not None:
            self._refuse_uncoded(parameter)
            if parameter.numel() >= states.MIN_CODED:
                begun = codes.zeros(parameter, self.bits)
                return {**self.state.get(parameter, {}), "step": None, **begun}
        return super()._first_state(parameter, names)

    def _refuse_uncoded(self, parameter: Tensor) -> None:
        """Refuse a parameter of a dtype whose moments do not become codes."""
        name = type(self).__name__
        if parameter.dtype == torch.float64:
            refuse(name, "state", "None, where parameters are float64", f"'{self.bits}bit'")
        if parameter.dtype not in _CODED:
            dtype = str(parameter.dtype).removeprefix("torch.")
            expected = "float32, float16, bfloat16, whose moments become codes"
            raise DtypeError(f"{name}: params: expected {expected}, got {dtype}")

    # ---- states ----------------------------------------------------------------------------------

    def state_dict(self, *, coded: bool = False) -> dict[str, Any]:
        """As PyTorch's; moments in codes are decoded.

        coded: they stay codes, a quarter of the size or less; only this `load_state_dict` accepts
        them. Of DTensors and non-contiguous parameters they are decoded all the same.
        """
        with self._whole.lock:
            self._follow_layouts()
            state = super().state_dict()
            keys = [key for group in state["param_groups"] for key in group["params"]]
            for key, parameter in zip(keys, self._parameters(), strict=True):
                own = state["state"].get(key)
                if own and codes.are_codes(own) and not (coded and _is_plain(parameter)):
                    own |= codes.decode(own, parameter)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As PyTorch's; also loads states of its optimizers. Decoded moments get the same codes."""
        super().load_state_dict(_decode(type(self).__name__, state_dict, self._parameters()))

    def _adopt_state(self, state_dict: dict[str, Any]) -> None:
        """Give loaded moments this class's dtypes and layouts, then encode those that are to be."""
        super()._adopt_state(state_dict)
        for parameter, own in self.state.items():
            if "exp_avg" in own and not codes.are_codes(own):
                self._encode(parameter, own)

    def _gather(self) -> list[Part]:
        """Sort parameters into parts; codes of those that lie in another order now are encoded
        anew."""
        for part in self._parts or ():
            for parameter, state, before in part.relaid() if part.is_coded else ():
                self._encode(parameter, codes.decode(state, before))
        return super()._gather()

    def _follow_layouts(self) -> None:
        """Encode codes anew, as a step does, where parameters lie in another order now."""
        if self.bits is not None:
            with torch.no_grad():
                self._current()

    def _encode(self, parameter: Tensor, own: State) -> None:
        """Update a parameter's state by `own`, whose moments are float32, or become codes if this
        optimizer encodes moments of this size."""
        if self.bits is not None and parameter.numel() >= states.MIN_CODED:
            own = own | codes.encode(own, parameter, self.bits)
        self.state[parameter] |= own


class AdamW(Adam):
    """`torch.optim.AdamW`, with the norm of the gradients and clipping in its steps.

    params, lr, betas, eps, weight_decay, amsgrad, maximize: as PyTorch's, in groups too; schedulers
    may write them. lr may be a tensor on the parameters' device, which a captured step reads there.
    foreach, fused and capturable choose nothing. differentiable: only False. max_norm: what the
    norm of all gradients is clipped to, as by `clip_grad_norm_`.

    With max_norm one pass over the gradients computes their norm; one more unscales
    (GradScaler does not), clips and updates. Counts of steps are on the device, so that a step can
    be captured. Moments of half-precision parameters are float32. Its state dicts are those of
    `torch.optim.AdamW`, and it loads that class's. Parameters on the CPU are updated by NumPy.
    Gradients are read only. Where PyTorch would spread a NaN with clipping, the step is skipped.

    state: '8bit' keeps both moments in 2.02 bytes a parameter, '4bit' in 1.04 (`AdamCodedList` says
    how), for parameters of at most 32 bits; those of fewer than 4,096 elements stay float32. In
    state dicts all are float32, or codes where that is said.

    rounding_seed: bfloat16 parameters are rounded at random, up as often as they are nearer to what
    is above, by this seed, the step and the place in the parameter: no float32 copy is needed.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
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
        state: Literal["8bit", "4bit"] | None = None,
        rounding_seed: int | None = None,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad,
            maximize=maximize, foreach=foreach, capturable=capturable,
            differentiable=differentiable, fused=fused, decoupled_weight_decay=True,
            max_norm=max_norm, state=state, rounding_seed=rounding_seed,
        )  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a state of PyTorch's Adam has False
            group["decoupled_weight_decay"] = True


def _is_plain(parameter: Tensor) -> bool:
    """Return True if a parameter is contiguous and no DTensor."""
    return parameter.is_contiguous() and not is_distributed(parameter)


def _decode(optimizer: str, state_dict: dict[str, Any], parameters: list[Tensor]) -> dict[str, Any]:
    """Return a state_dict with the moments' codes decoded; optimizer: its name, for errors."""
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    state = dict(state_dict["state"])
    for key, parameter in zip(keys, parameters, strict=False):  # PyTorch refuses other numbers
        own = state.get(key, {})
        if codes.are_codes(own):
            state[key] = own | codes.numbers_of(own, parameter, optimizer)
    return {**state_dict, "state": state}


class Lamb(Optimizer):
    """LAMB as `torch.optim` would have it: see `cupy_training_ops.Lamb` for its formula.

    params, lr, betas, eps, weight_decay: as of PyTorch's AdamW. max_norm: what the norm of all
    gradients is clipped to. ratio_limits: least and largest factor |p| / |step| of a parameter's
    step. capturable: state dicts have the counts of steps on the device. A change of betas, eps,
    weight_decay or max_norm makes a new operator: schedulers should leave betas alone
    (`cycle_momentum=False`). Parameters are float32 or float64.
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
        # The operator accepts a negative one.
        check_number("Lamb", "weight_decay", positive_or_zero, group["weight_decay"])

    def _update(self, group: Group, part: Part, *, is_measured: bool) -> Update:
        """Return LAMB's operator with all options but lr as attributes; is_measured: it also
        computes the norm of the part's gradients."""
        (alpha, beta), (low, high) = group["betas"], group["ratio_limits"]
        attributes = {
            "alpha": alpha, "beta": beta, "lambda_": group["weight_decay"], "epsilon": group["eps"],
            "ratio_min": low, "ratio_max": high,
            "max_norm_clip": math.inf if self.max_norm is None else self.max_norm,
        }  # fmt: skip
        kind = LambStep if is_measured else LambUpdate
        return self._update_by(kind, attributes, {"lr": rate(group["lr"])})
