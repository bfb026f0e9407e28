# SPDX-License-Identifier: MIT
"""The base of optimizers of PyTorch's protocol: parts, norms, scales, states."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from ...call.bound import OpenCall, opened
from ...call.op import Op
from ...declare.schema import positive_or_zero
from ...device.marks import Note
from ...errors import refuse, shown
from ...families.optimizer.operators import GradientNorm
from ...optimizers.steps import MEASURED, Convert, check_betas, check_number
from ...optimizers.whole import Whole
from ...planning.step import above_zero, not_negative
from .part import MAX_KEPT, MOMENTS, Count, Part, Ranks, State, Update, without_gaps, zero_norm

Group = dict[str, Any]
Ready = list[tuple[Part, list[Tensor]]]  # parts with gradients
Told = dict[str, Tensor]  # the norm of gradients, and whether it is finite

REFUSED = ("amsgrad", "maximize", "differentiable", "momentum", "dampening", "nesterov")


# ---- numbers, states and norms -------------------------------------------------------------------


_NUMBERS: dict[str, Convert] = {
    "lr": positive_or_zero,
    "weight_decay": positive_or_zero,
    "eps": not_negative,
}


def rate(lr: Any) -> Any:
    """A learning rate as operators take it: a tensor of the host is read there."""
    return lr.item() if isinstance(lr, Tensor) and lr.device.type == "cpu" else lr


def check_numbers(optimizer: str, group: dict[str, Any]) -> None:
    """Refuse numbers out of their ranges, before a first step has them."""
    if group.get("foreach") and group.get("fused"):
        refuse(optimizer, "fused", "foreach or fused, not both", "both")
    for name in _NUMBERS.keys() & group.keys():
        value = group[name]
        if isinstance(value, Tensor) and value.numel() != 1:
            refuse(optimizer, name, "one element", f"shape {tuple(value.shape)}")
        if not isinstance(value, Tensor) or value.device.type == "cpu":
            check_number(optimizer, name, _NUMBERS[name], rate(value))
    if "betas" in group:
        _check_betas(optimizer, group["betas"])


def check_state(optimizer: str, parameter: Tensor, state: dict[str, Any]) -> None:
    """Refuse a parameter's state that is another's; codes are looked at where they are decoded."""
    expected = ("step", *MOMENTS)
    if not state.keys() >= set(expected):
        refuse(optimizer, "state", ", ".join(expected), ", ".join(map(str, state)))
    step = float(state["step"])
    if not 0 <= step < math.inf:
        refuse(optimizer, "state: step", "a number of steps", str(step))
    for name in MOMENTS:
        moment = state[name]
        if moment.shape != parameter.shape and moment.dtype != torch.uint8:
            words = f"{name} of shape {tuple(parameter.shape)}"
            refuse(optimizer, "state", words, str(tuple(moment.shape)))


def _check_betas(optimizer: str, betas: Any) -> None:
    check_betas(optimizer, tuple(map(rate, betas)) if isinstance(betas, list | tuple) else betas)


class Norms:
    """Norms of lists of tensors, each kind bound to its results once."""

    def __init__(self) -> None:
        self._bound: dict[object, tuple[OpenCall, Told]] = {}

    def of_all(self, ready: Ready) -> Told:
        """The norm of all gradients, and whether it is finite; nothing waits."""
        gradients_of: dict[Ranks, list[Tensor]] = {}
        for part, gradients in ready:
            for ranks, members in part.by_ranks(gradients).items():  # the same on each of them
                gradients_of.setdefault(ranks, []).extend(members)
        norms = {ranks: self._each(ranks, members) for ranks, members in gradients_of.items()}
        whole = norms.get((), [])
        if len(norms) == len(whole) == 1:
            return whole[0]
        device = ready[0][0].parameters[0].device
        return _join(norms, device)

    def _each(self, ranks: Ranks, gradients: Sequence[Tensor]) -> list[Told]:
        """Norms of each type on each device, on this rank."""
        kinds: dict[object, list[Tensor]] = {}
        for gradient in gradients:
            kind = kinds.setdefault((gradient.dtype, gradient.device), [])
            kind.append(without_gaps(gradient))
        return [self._of(ranks, members) for members in kinds.values()]

    def _of(self, ranks: Ranks, gradients: Sequence[Tensor]) -> Told:
        """The norm of gradients of one dtype on one device, and whether it is finite."""
        first = gradients[0]
        key = ranks, first.dtype, first.device
        if key not in self._bound:
            results = zero_norm(first)
            out = tuple(results.values())
            call = opened(GradientNorm().bound(gradients=..., out=out)).trusting()
            self._bound[key] = call, results
        call, results = self._bound[key]
        call(gradients=gradients)
        return results


def _join(groups: dict[Ranks, list[Told]], device: torch.device) -> Told:
    """Return the norm of all gradients, sqrt(sum of norm^2), and whether it is finite.

    groups: norms of some gradients each, by the groups of ranks over which squares are added. In
    float64, which holds the squares of float32.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    for ranks, norms in groups.items():
        square = torch.zeros((), dtype=torch.float64, device=device)
        for told in norms:
            norm = told["gradient_norm"].to(device, non_blocking=True)
            square += norm.double().square()
        for group in ranks:
            sys.modules["torch.distributed"].all_reduce(square, group=group)
        total += square
    return {"gradient_norm": total.sqrt_(), "is_finite": total.isfinite()}


# ---- optimizers ----------------------------------------------------------------------------------


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Steps over parts: parameters of one group that were updated in the same steps."""

    has_moments: ClassVar[bool] = True
    _step_supports_amp_scaling = True  # GradScaler leaves unscaling and skipping to a step
    gradient_norm: Tensor | None = None

    def __init__(self, params: Any, defaults: Group, max_norm: float | None) -> None:
        if max_norm is not None:
            check_number(type(self).__name__, "max_norm", above_zero, max_norm)
        self.max_norm = max_norm
        self._whole = Whole(type(self).__name__)
        self._forget()
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Group) -> None:
        """As PyTorch's; a group whose options the operator does not have is refused."""
        self._check_all({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def _forget(self) -> None:
        """Forget all that follows from parameters and states."""
        self._parts: list[Part] | None = None
        self._waiting: list[tuple[int, Tensor]] = []  # parameters that had no gradient yet
        self._known: tuple[list[Tensor], list[State]] = [], []
        self._counts: dict[int, Count] = {}  # by the tensors of the states that have them
        self._norms = Norms()
        self._operators: dict[object, Op] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "max_norm": self.max_norm, "_whole": self._whole}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for parameter, own in state["state"].items():
            if self.has_moments and own:
                check_state(type(self).__name__, parameter, own)
        super().__setstate__(state)
        if "_whole" not in vars(self):  # in a pickle of an older version
            self._whole = Whole(type(self).__name__)
        self._forget()
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            self._check_all(group)

    # ---- what a class of optimizers writes -------------------------------------------------------

    def _update(self, group: Group, *, is_measured: bool) -> Update:
        """The operator of a group's step, and what it takes beside gradients and scales."""
        raise NotImplementedError

    def _check(self, group: Group) -> None:
        """Refuse what the operator does not do."""
        for name in REFUSED:
            if group.get(name):
                refuse(type(self).__name__, name, "what is false or 0", shown(group[name]))

    def _check_all(self, group: Group) -> None:
        """Check a group's options and its numbers; a step checks the numbers itself."""
        self._check(group)
        check_numbers(type(self).__name__, group)

    def _operator(self, key: object, make: Callable[[], Op]) -> Op:
        """One of this optimizer's own, which is made once; few are kept."""
        op = self._operators.get(key)
        if op is None:
            if len(self._operators) >= MAX_KEPT:
                self._operators.clear()
            op = self._operators[key] = make()
        return op

    # ---- steps -----------------------------------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters that have gradients; nothing waits for the device.

        With `max_norm` the gradients are clipped to it by the norm of all, which `gradient_norm`
        then is (with its loss scale), and a step whose norm is not finite is skipped. So is one
        where a GradScaler found an infinity, which unscales in the same pass. A step that is
        refused has changed nothing. After one that was interrupted while it wrote, steps and
        `state_dict` are refused until a state is loaded.
        """
        loss, has_gradients = None, torch.is_grad_enabled()
        try:
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            with torch.no_grad(), self._whole.lock:
                self._whole.refuse_torn()
                self._step_or_refuse(list(self._ready()))
        finally:  # an interrupt within the contexts' own code leaves their mode
            torch._C._set_grad_enabled(has_gradients)
        return loss

    def _step_or_refuse(self, ready: Ready) -> None:
        """Update parts; where that fails, refuse a group's numbers first, by their names there."""
        try:
            if ready:
                self._step(ready)
        except Exception:
            for group in self.param_groups:
                self._check_all(group)
            raise

    def _step(self, ready: Ready) -> None:
        """Check all updates, then write all; a single part may measure the norm as it updates."""
        scale, clips = self._scale(), self.max_norm is not None
        is_measured = clips and len(ready) == 1 and measures(*ready[0])
        numbers: Mapping[str, Tensor | None] = {} if is_measured else dict.fromkeys(MEASURED)
        if clips and not is_measured:
            numbers = self._norms.of_all(ready)
        check = self._check if len(ready) == 1 else self._check_all  # before the first is updated
        inputs: list[object] = []  # alive until all is written: launches know only addresses
        writes: list[Note] = []
        for part, gradients in ready:
            check(group := self.param_groups[part.place])
            update = self._update(group, is_measured=is_measured)
            own_inputs, own_writes = part.writes(
                update, gradients, {"loss_scale": scale, **numbers}
            )
            inputs.append(own_inputs)
            writes += own_writes
        self._whole.write(writes)
        for part, _ in ready:
            part.finish()
        if clips:
            self.gradient_norm = ready[0][0].norm if is_measured else numbers["gradient_norm"]

    def _scale(self) -> Tensor | None:
        """The divisor of gradients; infinite where the step is to be skipped."""
        grad_scale: Tensor | None = getattr(self, "grad_scale", None)  # while GradScaler steps
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        if found_inf is None:
            return grad_scale
        are_finite = found_inf == 0
        return are_finite.float().reciprocal() if grad_scale is None else grad_scale / are_finite

    def _ready(self) -> Iterator[tuple[Part, list[Tensor]]]:
        """Yield (part, gradients); a part is taken apart where some parameters have none."""
        self._current()
        self._begin([(place, p) for place, p in self._waiting if p.grad is not None])
        for part in list(self._parts or ()):
            given = [parameter.grad for parameter in part.parameters]
            n_missing = sum(map(is_, given, itertools.repeat(None)))
            if n_missing == len(given):
                continue
            if n_missing:
                part = self._take_apart(part, given)
                given = [parameter.grad for parameter in part.parameters]
            yield part, part.gradients(given)

    def _take_apart(self, part: Part, gradients: Sequence[Tensor | None]) -> Part:
        """Divide a part into one whose parameters have gradients, which is returned, and one whose
        have none. Both take its place among the parts."""
        assert self._parts is not None
        at = self._parts.index(part)
        divided = []
        for has_gradients in (True, False):
            members = [i for i, g in enumerate(gradients) if (g is not None) == has_gradients]
            count = part.count if has_gradients or part.count is None else part.count.copy()
            states = [part.states[i] for i in members] if part.states else []
            parameters = [part.parameters[i] for i in members]
            divided.append(self._make(part.place, parameters, states, count))
        self._parts[at : at + 1] = divided
        return divided[0]

    def _make(
        self, place: int, parameters: Sequence[Tensor], states: Sequence[State], count: Count | None
    ) -> Part:
        """Make a part, and put its count of steps into all of its states."""
        if count is not None:
            self._counts[id(count.made)] = count
            for state in states:
                state["step"] = count.made
        return Part(place, parameters, states, count)

    # ---- parts -----------------------------------------------------------------------------------

    def _current(self) -> list[Part]:
        """Return the parts; gathered again where groups or states are others than then."""
        parts = self._parts
        if parts is None or not self._are_known() or not all(part.is_of() for part in parts):
            parts = self._parts = self._gather()
        return parts

    def _are_known(self) -> bool:
        parameters, states = self._known
        return _same(self._parameters(), parameters) and _same(self.state.values(), states)

    def _parameters(self) -> list[Tensor]:
        return [*itertools.chain.from_iterable(group["params"] for group in self.param_groups)]

    def _gather(self) -> list[Part]:
        """Sort parameters into parts: of one group, dtypes, device and number of steps each.

        A parameter without moments, which had no gradient yet, waits in `_waiting`. Parameters
        whose states have the tensor of a known count stay together, apart from equal numbers.
        """
        self._waiting = []
        members_of: dict[object, tuple[int, list[Tensor], list[State]]] = {}
        for place, group in enumerate(self.param_groups):
            for p in group["params"]:
                state = self.state.get(p, {})
                if "exp_avg" not in state:
                    self._waiting.append((place, p))
                    continue
                step, kind = state["step"], (p.dtype, state["exp_avg"].dtype, p.device)
                is_counted = id(step) in self._counts
                key = place, kind, id(step) if is_counted else int(step), is_counted
                _, parameters, states = members_of.setdefault(key, (place, [], []))
                parameters.append(p)
                states.append(state)
        before, self._counts = self._counts, {}
        parts = [
            self._make(
                place, parameters, states, self._count(states[0]["step"], parameters[0], before)
            )
            for place, parameters, states in members_of.values()
        ]
        self._known = self._parameters(), list(self.state.values())
        return parts

    def _count(self, step: Any, parameter: Tensor, known: dict[int, Count]) -> Count:
        """The count of a state's steps: the known one of its tensor, or a new one with its number.

        A known count that another part has by now is copied.
        """
        count = known.get(id(step))
        if count is None:
            return Count(int(step), parameter.device)
        return count.copy() if id(count.made) in self._counts else count

    def _begin(self, started: Sequence[tuple[int, Tensor]]) -> None:
        """Make states and parts for parameters with their first gradient; an error changes none."""
        if not started:
            return
        assert self._parts is not None
        identities = {id(p) for _, p in started}
        waiting = [(place, p) for place, p in self._waiting if id(p) not in identities]
        alike: dict[tuple[Any, ...], list[Tensor]] = {}
        for place, p in started:
            alike.setdefault((place, p.dtype, p.device), []).append(p)
        parts, first = self._parts.copy(), dict[Tensor, State]()
        for (place, *_), parameters in alike.items():
            count = Count(0, parameters[0].device) if self.has_moments else None
            states = [self._first_state(p) for p in parameters] if self.has_moments else []
            parts.append(self._make(place, parameters, states, count))
            first.update(zip(parameters, states, strict=False))  # without moments there are none
        self.state.update(first)
        known = self._parameters(), list(self.state.values())
        self._parts, self._waiting, self._known = parts, waiting, known

    def _first_state(self, parameter: Tensor) -> State:
        """A parameter's state with moments of 0; its count of steps is put in by `_make`."""
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        moments = {name: torch.zeros_like(parameter, dtype=dtype) for name in MOMENTS}
        return {**self.state.get(parameter, {}), "step": None, **moments}

    # ---- states ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As PyTorch's: the number of steps is each parameter's own tensor.

        It is on the host, which waits, unless the parameter's group is capturable.
        """
        with self._whole.lock:
            self._whole.refuse_torn()
            saved = super().state_dict()
            hosts = {key: count.made.cpu() for key, count in self._counts.items()}
        capturable = {i for g in saved["param_groups"] if g.get("capturable") for i in g["params"]}
        state = {}
        for key, own in saved["state"].items():
            step = own.get("step")
            if isinstance(step, Tensor):
                made = step if key in capturable else hosts.get(id(step), step)
                own = {**own, "step": made.clone()}
            state[key] = own
        return {**saved, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As PyTorch's, also of its own optimizers; moments of 32 bits stay so."""
        for group in state_dict["param_groups"]:
            self._check_all({**self.defaults, **group})
        with self._whole.lock:
            before = self.state
            try:
                super().load_state_dict(state_dict)
                self._take(state_dict)
            except BaseException:
                self._whole.is_torn |= self.state is not before
                raise
            self._whole.is_torn = False

    def _take(self, state_dict: dict[str, Any]) -> None:
        """Take the state that PyTorch has loaded, with moments in the types they have here."""
        saved = itertools.chain.from_iterable(g["params"] for g in state_dict["param_groups"])
        for key, parameter in zip(saved, self._parameters(), strict=True):
            saved_state = state_dict["state"].get(key, {})
            for name in MOMENTS.keys() & saved_state.keys():
                wide = torch.promote_types(parameter.dtype, torch.float32)
                if saved_state[name].dtype != parameter.dtype:
                    self.state[parameter][name] = saved_state[name].to(parameter.device, wide)
        self._current()


def measures(part: Part, gradients: Sequence[Tensor]) -> bool:
    """Return True if a part's own step measures the norm of all gradients."""
    return bool(gradients) and not part.is_shared


def _same(some: Any, others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
