# SPDX-License-Identifier: MIT
"""Base of the torch.optim.Optimizer subclasses: parts, norms, scales, states.

A part is a list of parameters that one launch updates: of one parameter group, dtype, device and
step count (`Part`, part.py). `place` is the index of its group in `param_groups`. A step calls

    _ready          parts with gradients; makes parts of parameters with a first gradient
    _update         the operator and its scalar inputs, by the subclass
    Part.writes     checks the operator's call (call/bound.py), returns functions that launch it
    Whole.write     calls these, of all parts (device/marks.py)
    Part.finish     raises the parameters' versions for autograd
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import is_, itemgetter
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from ...call.bound import OpenCall, opened
from ...call.op import Op
from ...declare.schema import finite, positive_or_zero
from ...device.marks import Note, Whole
from ...errors import refuse, shown
from ...families.optimizer.operators import GradientNorm
from ...optimizers.steps import MEASURED, Convert, check_betas, check_number, named
from ...planning.step import above_zero, not_negative, seed
from .part import (
    MAX_CACHED,
    MOMENTS,
    Count,
    Part,
    Ranks,
    State,
    Update,
    without_gaps,
    zero_norm,
)

Group = dict[str, Any]
Ready = list[tuple[Part, list[Tensor]]]  # parts with gradients, and these
Norm = dict[str, Tensor]  # "gradient_norm" and "is_finite", tensors of shape ()


# ---- numbers, states and norms -------------------------------------------------------------------


# The function that checks and converts an option of a parameter group.
_NUMBERS: dict[str, Convert] = {
    "lr": positive_or_zero,
    "momentum": positive_or_zero,
    "dampening": finite,
    "weight_decay": positive_or_zero,
    "eps": not_negative,
}


def rate(lr: Any) -> Any:
    """Read a learning rate that is a CPU tensor; return others unchanged."""
    return lr.item() if isinstance(lr, Tensor) and lr.device.type == "cpu" else lr


def check_numbers(optimizer: str, group: dict[str, Any]) -> None:
    """Refuse options of a group that are out of range, or that PyTorch refuses together."""
    if group.get("foreach") and group.get("fused"):
        refuse(optimizer, "fused", "foreach or fused, not both", "both")
    if group.get("foreach") and group.get("capturable") is False:
        for name in ("lr", "betas"):
            values = group.get(name)
            every = values if isinstance(values, list | tuple) else (values,)
            if any(isinstance(value, Tensor) for value in every):
                refuse(optimizer, name, "numbers, with foreach and not capturable", "a tensor")
    for name in _NUMBERS.keys() & group.keys():
        value = group[name]
        if isinstance(value, Tensor) and value.numel() != 1:
            refuse(optimizer, name, "one element", f"shape {tuple(value.shape)}")
        if not isinstance(value, Tensor) or value.device.type == "cpu":
            check_number(optimizer, name, _NUMBERS[name], rate(value))
    if "betas" in group:
        _check_betas(optimizer, group["betas"])


def _check_betas(optimizer: str, betas: Any) -> None:
    if isinstance(betas, list | tuple) and len({isinstance(b, Tensor) for b in betas}) > 1:
        refuse(optimizer, "betas", "two numbers or two tensors", "one of each")
    check_betas(optimizer, tuple(map(rate, betas)) if isinstance(betas, list | tuple) else betas)


class Norms:
    """Norms of lists of gradients; calls of each dtype and device are bound once."""

    def __init__(self) -> None:
        """Begin without bound calls; they are made for each list of gradients."""
        # By (ranks, dtype, device): the call, and the tensors that it writes.
        self._bound: dict[object, tuple[OpenCall, Norm]] = {}

    def of_all(self, ready: Ready) -> Norm:
        """Return the norm of all gradients, without a wait for the device."""
        gradients_of: dict[Ranks, list[Tensor]] = {}
        for part, gradients in ready:
            for ranks, members in part.by_ranks(gradients).items():  # in one order on all ranks
                gradients_of.setdefault(ranks, []).extend(members)
        norms = {ranks: self._each(ranks, members) for ranks, members in gradients_of.items()}
        whole = norms.get((), [])
        if len(norms) == len(whole) == 1:
            return whole[0]
        device = ready[0][0].parameters[0].device
        return _join(norms, device)

    def _each(self, ranks: Ranks, gradients: Sequence[Tensor]) -> list[Norm]:
        """Return this rank's norms, one for each dtype and device.

        ranks: the process groups over which the gradients' tensors are sharded.
        """
        kinds: dict[object, list[Tensor]] = {}
        for gradient in gradients:
            kind = kinds.setdefault((gradient.dtype, gradient.device), [])
            kind.append(without_gaps(gradient))
        return [self._of(ranks, members) for members in kinds.values()]

    def _of(self, ranks: Ranks, gradients: Sequence[Tensor]) -> Norm:
        """Return this rank's norm of gradients of one dtype and device; written again by the next
        call of the same kind."""
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


def _join(groups: dict[Ranks, list[Norm]], device: torch.device) -> Norm:
    """Return sqrt(sum of norm^2), in float64, where squares of float32 do not overflow.

    groups: this rank's norms, by the process groups over which their squares are all-reduced.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    for ranks, norms in groups.items():
        square = torch.zeros((), dtype=torch.float64, device=device)
        for norm in norms:
            number = norm["gradient_norm"].to(device, non_blocking=True)
            square += number.double().square()
        for group in ranks:
            sys.modules["torch.distributed"].all_reduce(square, group=group)
        total += square
    return {"gradient_norm": total.sqrt_(), "is_finite": total.isfinite()}


# ---- optimizers ----------------------------------------------------------------------------------


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Base of optimizers, whose steps update parts: parameters of one group with one step count."""

    moments: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")  # that each state must have
    _step_supports_amp_scaling = True  # GradScaler leaves unscaling and skipping to `step`
    gradient_norm: Tensor | None = None
    rounding_seed: int | None = None  # pickles of older versions have none

    def __init__(
        self,
        params: Any,
        defaults: Group,
        max_norm: float | None,
        rounding_seed: int | None = None,
    ) -> None:
        """params: as of torch.optim.Optimizer. defaults: options of groups that lack them.
        max_norm: what gradients are clipped to; None: they are not. rounding_seed: of stochastic
        rounding to bfloat16; None: to nearest."""
        if max_norm is not None:
            check_number(type(self).__name__, "max_norm", above_zero, max_norm)
        if rounding_seed is not None:
            check_number(type(self).__name__, "rounding_seed", seed, rounding_seed)
        self.max_norm, self.rounding_seed = max_norm, rounding_seed
        self._whole = Whole(type(self).__name__)
        self._forget()
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Group) -> None:
        """As PyTorch's; refuses options that the operator lacks."""
        self._check_all({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def _forget(self) -> None:
        """Reset what is derived from parameters and states."""
        self._parts: list[Part] | None = None
        self._waiting: list[tuple[int, Tensor]] = []  # (group, parameter) without a gradient so far
        # `_members`, states, and names by group, when parts were made: to notice others.
        self._gathered: tuple[list[Tensor | None], list[State], list[tuple[str, ...]]] = [], [], []
        self._counts: dict[int, Count] = {}  # by id of the tensor `done`, a state's "step"
        self._norms = Norms()
        self._operators: dict[object, Op] = {}  # by class and options

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("max_norm", "rounding_seed", "_whole")}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set a pickled state, also an older version's, after a check of its states and options."""
        for parameter, own in state["state"].items():
            if own:
                self._check_state(parameter, own)
        super().__setstate__(state)
        if "_whole" not in vars(self):  # in a pickle of an older version
            self._whole = Whole(type(self).__name__)
        self._forget()
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            self._check_all(group)

    # ---- implemented by subclasses ---------------------------------------------------------------

    def _update(self, group: Group, part: Part, *, is_measured: bool) -> Update:
        """Return the operator of a part's step, and its scalar inputs such as lr.

        is_measured: the operator also computes the gradient norm and clips by it.
        """
        raise NotImplementedError

    def _names(self, group: Group) -> tuple[str, ...]:
        """Return the names of the tensors that a step updates in the states of a group."""
        return self.moments

    def _check(self, group: Group) -> None:
        """Refuse options that the operator does not implement."""
        if group.get("differentiable"):
            refuse(type(self).__name__, "differentiable", "False", shown(group["differentiable"]))

    def _check_all(self, group: Group) -> None:
        """Check a group's options and numbers; a step checks the numbers itself."""
        self._check(group)
        check_numbers(type(self).__name__, group)

    def _seed_of(self, part: Part) -> int | None:
        """Return the seed of a part's roundings; None if its parameters are not bfloat16."""
        is_rounded = self.rounding_seed is not None and part.parameters[0].dtype == torch.bfloat16
        return self.rounding_seed if is_rounded else None

    def _update_by(
        self, kind: Any, attributes: Mapping[str, Any], numbers: Mapping[str, Any]
    ) -> Update:
        """Return the update by an operator that is made once.

        kind: its class. attributes: its options, hashable. numbers: its scalar inputs in this step.
        """
        key = (kind, *attributes.values())
        op = self._operators.get(key)
        if op is None:
            if len(self._operators) >= MAX_CACHED:
                self._operators.clear()
            op = self._operators[key] = named(kind, type(self).__name__)(**attributes)
        return Update(op, key, numbers)

    # ---- steps -----------------------------------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters that have gradients; nothing waits for the device.

        With `max_norm` gradients are clipped by their norm, which becomes `gradient_norm` (times
        the loss scale), and a step is skipped if that is not finite, or if a GradScaler has found
        an infinity; unscaling is part of the step. A step that raises has changed nothing, unless
        it was interrupted while it wrote: then steps and `state_dict` are refused until a state is
        loaded.
        """
        loss, has_gradients = None, torch.is_grad_enabled()
        try:
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            with torch.no_grad(), self._whole.lock:
                self._whole.refuse_torn()
                ready = list(self._ready())
                try:
                    if ready:
                        self._step(ready)
                except Exception:  # of a group's invalid options the first is named
                    for group in self.param_groups:
                        self._check_all(group)
                    raise
        finally:  # an interrupt within the contexts' own code leaves their mode
            torch._C._set_grad_enabled(has_gradients)
        return loss

    def _step(self, ready: Ready) -> None:
        """Prepare all updates, then launch all; a single part may compute the norm in its update.

        An update that is refused raises before any parameter is written.
        """
        scale, clips = self._scale(), self.max_norm is not None
        is_measured = clips and len(ready) == 1 and measures(*ready[0])  # norm by the update itself
        numbers: Mapping[str, Tensor | None] = {} if is_measured else dict.fromkeys(MEASURED)
        check = self._check if len(ready) == 1 else self._check_all  # numbers too, before any write
        for part, _ in ready:
            check(self.param_groups[part.place])
        if clips and not is_measured:
            numbers = self._norms.of_all(ready)
        inputs: list[object] = []  # alive until all is queued: launches know only addresses
        writes: list[Note] = []
        for part, gradients in ready:
            update = self._update(self.param_groups[part.place], part, is_measured=is_measured)
            own_inputs, own_writes = part.writes(
                update, gradients, {"loss_scale": scale, **numbers}
            )
            inputs.append(own_inputs)
            writes += own_writes
        self._whole.write(writes)
        for part, _ in ready:
            part.finish()
        if clips:
            self.gradient_norm = (ready[0][0].measured if is_measured else numbers)["gradient_norm"]

    def _scale(self) -> Tensor | None:
        """Return the divisor of gradients, grad_scale; infinite if the step is to be skipped.

        grad_scale / (found_inf == 0) needs no read of found_inf on the host.
        """
        grad_scale: Tensor | None = getattr(self, "grad_scale", None)  # set by GradScaler
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        if found_inf is None:
            return grad_scale
        are_finite = found_inf == 0
        return are_finite.float().reciprocal() if grad_scale is None else grad_scale / are_finite

    def _ready(self) -> Iterator[tuple[Part, list[Tensor]]]:
        """Yield (part, gradients), without parts that have none.

        A part is split if some of its parameters have no gradient.
        """
        self._current()
        if any(p.grad is not None for _, p in self._waiting):
            self._add_started()
        for part in list(self._parts or ()):
            gradients = [parameter.grad for parameter in part.parameters]
            n_missing = sum(map(is_, gradients, itertools.repeat(None)))  # how many are None
            if n_missing == len(gradients):
                continue
            if n_missing:
                part = self._split(part, gradients)
                gradients = [parameter.grad for parameter in part.parameters]
            yield part, part.gradients(gradients)

    def _split(self, part: Part, gradients: Sequence[Tensor | None]) -> Part:
        """Replace a part by two: parameters with gradients, which is returned, and without."""
        assert self._parts is not None
        at = self._parts.index(part)
        halves = []
        for has_gradients in (True, False):
            members = [i for i, g in enumerate(gradients) if (g is not None) == has_gradients]
            count = part.count if has_gradients or part.count is None else part.count.copy()
            states = [part.states[i] for i in members] if part.states else []
            parameters = [part.parameters[i] for i in members]
            halves.append(self._make(part.place, parameters, tuple(part.moments), states, count))
        self._parts[at : at + 1] = halves
        return halves[0]

    def _make(
        self,
        place: int,
        parameters: Sequence[Tensor],
        names: Sequence[str],
        states: Sequence[State],
        count: Count | None,
    ) -> Part:
        """Make a part whose states share one "step", the tensor count.done on the device.

        place: index of the group. names: of the states' tensors. count: None without names.
        """
        if count is not None:
            self._counts[id(count.done)] = count
            for state in states:
                state["step"] = count.done
        return Part(place, parameters, names, states, count)

    # ---- parts -----------------------------------------------------------------------------------

    def _current(self) -> list[Part]:
        """Return the parts; sort them again if groups, parameters or states became others."""
        parts = self._parts
        if parts is None or not (self._are_gathered() and all(p.is_current() for p in parts)):
            parts = self._parts = self._gather()
        return parts

    def _are_gathered(self) -> bool:
        """Return True if parameters, states and options are what `_gather` sorted."""
        members, states, names = self._gathered
        return (
            _same(self._members(), members)
            and _same(self.state.values(), states)
            and list(map(self._names, self.param_groups)) == names
        )

    def _members(self) -> list[Tensor | None]:
        """Return the parameters of all groups, and None behind those of each."""
        lists, ends = map(itemgetter("params"), self.param_groups), itertools.repeat((None,))
        return [*itertools.chain.from_iterable(map(itertools.chain, lists, ends))]

    def _parameters(self) -> list[Tensor]:
        return [*itertools.chain.from_iterable(group["params"] for group in self.param_groups)]

    def _gather(self) -> list[Part]:
        """Sort parameters into parts by group, dtypes, device and number of steps.

        Parameters without moments, as they had no gradient, go to `_waiting`. Those whose states
        share the "step" of a count stay together, apart from others with an equal number.
        """
        self._parts, self._waiting = None, []  # after an error all are sorted again
        # By what members of a part share: (index of the group, parameters, their states).
        members_of: dict[object, tuple[int, list[Tensor], list[State]]] = {}
        names = list(map(self._names, self.param_groups))
        for place, group in enumerate(self.param_groups):
            for p in group["params"]:
                state = self.state.get(p, {})
                if not names[place] or not state.keys() >= set(names[place]):
                    self._waiting.append((place, p))
                    continue
                step, kind = state["step"], (p.dtype, state[names[place][0]].dtype, p.device)
                is_counted = id(step) in self._counts
                key = place, kind, id(step) if is_counted else int(step), is_counted
                _, parameters, states = members_of.setdefault(key, (place, [], []))
                parameters.append(p)
                states.append(state)
        before, self._counts = self._counts, {}
        parts = []
        for place, parameters, states in members_of.values():
            count = self._count(states[0]["step"], parameters[0], before)
            parts.append(self._make(place, parameters, names[place], states, count))
        self._gathered = self._members(), list(self.state.values()), names
        return parts

    def _count(self, step: Any, parameter: Tensor, before: dict[int, Count]) -> Count:
        """Return the count whose tensor `done` is a state's "step", or a new one from its number.

        before: counts before `_gather`, by id of `done`. One that another part has is copied.
        """
        count = before.get(id(step))
        if count is None:
            return Count(int(step), parameter.device)
        return count.copy() if id(count.done) in self._counts else count

    def _add_started(self) -> None:
        """Add states and parts of parameters with a first gradient: none after an error."""
        assert self._parts is not None
        waiting, started = list[tuple[int, Tensor]](), list[tuple[int, Tensor]]()
        for place, p in self._waiting:
            (waiting if p.grad is None else started).append((place, p))
        # By what members of a part share: (parameters, their states).
        groups: dict[tuple[Any, ...], tuple[list[Tensor], list[State]]] = {}
        names = list(map(self._names, self.param_groups))
        for place, p in started:
            state = self._first_state(p, names[place]) if names[place] else {}
            kind = state[names[place][0]].dtype if names[place] else None
            key = place, p.dtype, kind, p.device, int(self.state.get(p, {}).get("step", 0))
            parameters, states = groups.setdefault(key, ([], []))
            parameters.append(p)
            states += [state] if names[place] else []
        parts, first = self._parts.copy(), dict[Tensor, State]()
        for (place, *_, n_done), (parameters, states) in groups.items():
            count = Count(n_done, parameters[0].device) if names[place] else None
            parts.append(self._make(place, parameters, names[place], states, count))
            first.update(zip(parameters, states, strict=False))  # without moments there are none
        self.state.update(first)
        gathered = self._members(), list(self.state.values()), names
        self._parts, self._waiting, self._gathered = parts, waiting, gathered

    def _first_state(self, parameter: Tensor, names: Sequence[str]) -> State:
        """Return a state with 0 for the moments that are missing; `_make` sets its "step"."""
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        with torch.inference_mode(False):  # such tensors can be written outside that mode too
            moments = {name: torch.zeros_like(parameter, dtype=dtype) for name in names}
        return {"step": None, **moments, **self.state.get(parameter, {})}

    # ---- states ----------------------------------------------------------------------------------

    def _check_state(self, parameter: Tensor, state: State) -> None:
        """Refuse a state that does not fit the parameter; codes are checked when decoded.

        state: "step", a number or tensor, and moments by name.
        """
        optimizer, expected = type(self).__name__, ("step", *self.moments)
        if not state.keys() >= set(expected):
            refuse(optimizer, "state", ", ".join(expected), ", ".join(map(str, state)))
        step = float(state["step"])
        if not 0 <= step < math.inf:
            refuse(optimizer, "state: step", "a number of steps", str(step))
        for name in MOMENTS:
            moment = state.get(name)
            if moment is None and name not in self.moments:
                continue
            if not isinstance(moment, Tensor):
                refuse(optimizer, f"state: {name}", "a tensor", shown(moment))
            if moment.shape != parameter.shape and moment.dtype != torch.uint8:
                words = f"{name} of shape {tuple(parameter.shape)}"
                refuse(optimizer, "state", words, str(tuple(moment.shape)))

    def state_dict(self) -> dict[str, Any]:
        """As PyTorch's: "step" is a tensor of each parameter, on the host unless capturable."""
        with self._whole.lock:
            self._whole.refuse_torn()
            saved = super().state_dict()
            hosts = {key: count.done.cpu() for key, count in self._counts.items()}
        capturable = {i for g in saved["param_groups"] if g.get("capturable") for i in g["params"]}
        state = {}
        for key, own in saved["state"].items():
            step = own.get("step")
            if isinstance(step, Tensor):
                count = step if key in capturable else hosts.get(id(step), step)
                own = {**own, "step": count.clone()}
            state[key] = own
        return {**saved, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As PyTorch's; also loads states of its optimizers. Moments stay float32."""
        for group in state_dict["param_groups"]:
            self._check_all({**self.defaults, **group})
        with self._whole.lock:
            before = self.state
            try:
                super().load_state_dict(state_dict)
                self._adopt_state(state_dict)
                with torch.no_grad():
                    self._current()
            except BaseException:  # some states may be the loaded ones, others not
                self._whole.is_torn |= self.state is not before
                raise
            self._whole.is_torn = False

    def _adopt_state(self, state_dict: dict[str, Any]) -> None:
        """Give the moments that were loaded this class's dtypes; parts lay them out."""
        saved = itertools.chain.from_iterable(g["params"] for g in state_dict["param_groups"])
        for key, parameter in zip(saved, self._parameters(), strict=True):
            saved_state = state_dict["state"].get(key, {})
            for name in MOMENTS.keys() & self.state.get(parameter, {}).keys():
                wide = torch.promote_types(parameter.dtype, torch.float32)
                if self.state[parameter][name].dtype != wide:
                    self.state[parameter][name] = saved_state[name].to(parameter.device, wide)


def measures(part: Part, gradients: Sequence[Tensor]) -> bool:
    """Return True if a part, the only one, can compute the norm of its gradients in its update."""
    return bool(gradients) and not part.is_shared


def _same(some: Any, others: Sequence[object]) -> bool:
    """Return True if two sequences have the same objects."""
    return len(some) == len(others) and all(map(is_, some, others))
