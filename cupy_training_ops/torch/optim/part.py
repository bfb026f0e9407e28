# SPDX-License-Identifier: MIT
"""Parts: parameters with one step count, bound to the operators that update them.

Each rank updates its local shard of a DTensor in place.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Mapping, Sequence
from operator import is_, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...call.bound import OpenCall, opened
from ...call.op import Op
from ...device.marks import Note, at_once
from ...device.tensor_guards import Watched, raise_versions, versions
from ...errors import ArgumentError
from ...optimizers.steps import MEASURED, Measured

# ---- a tensor's memory on this rank, and its elements in their order there -----------------------

Ranks = tuple[Any, ...]  # of PyTorch's process groups


def is_distributed(tensor: Tensor) -> bool:
    """Return True if a tensor is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def ranks_of(tensor: Tensor) -> Ranks:
    """Return the process groups over which a tensor is sharded; () if it is not."""
    if not is_distributed(tensor):
        return ()
    part: Any = tensor
    placed = enumerate(part.placements)
    return tuple(part.device_mesh.get_group(i) for i, place in placed if place.is_shard())


def local(tensor: Tensor) -> Tensor:
    """Return a DTensor's local shard, or the tensor; call it without grad mode."""
    if not is_distributed(tensor):
        return tensor
    part: Any = tensor
    shard: Tensor = part.to_local()
    return shard


def part_like(own: Tensor, like: Tensor) -> Tensor:
    """Return `own` as the local shard of a tensor that is distributed like `like`."""
    if not is_distributed(like):
        return own
    part: Any = like
    distributed: Tensor = type(part).from_local(
        own, part.device_mesh, part.placements, shape=part.shape, stride=part.stride()
    )
    return distributed


def in_memory_order(tensor: Tensor) -> Tensor:
    """View a dense tensor with its dimensions in memory order; return others unchanged."""
    if tensor.is_contiguous():
        return tensor
    strides = tensor.stride()
    view = tensor.permute(sorted(range(tensor.dim()), key=lambda d: -strides[d]))
    return view if view.is_contiguous() else tensor


def without_gaps(tensor: Tensor) -> Tensor:
    """View or copy a strided tensor as a contiguous one, its dimensions in any order."""
    if tensor.layout != torch.strided:
        return tensor
    return in_memory_order(tensor.resolve_neg()).contiguous()


def laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """Return a gradient with the strides of `like`, its parameter, copied if they differ, and its
    dimensions in memory order; one that is sparse or of another shape unchanged, to be refused."""
    if gradient.shape != like.shape or gradient.layout != torch.strided:
        return gradient
    if gradient.stride() != like.stride():
        gradient = torch.empty_like(like, dtype=gradient.dtype).copy_(gradient)
    return in_memory_order(gradient.resolve_neg())


State = dict[str, Any]

MOMENTS = {
    "exp_avg": "moment_1",
    "exp_avg_sq": "moment_2",
    "max_exp_avg_sq": "largest_moment_2",
    "momentum_buffer": "momenta",
}  # name in a state: name of an operator's input
MAX_CACHED = 16  # operators, and calls of a part


def zero_norm(like: Tensor) -> dict[str, Tensor]:
    """Allocate gradient_norm and is_finite for gradients of this dtype and device."""
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    norm = torch.zeros((), dtype=wide, device=like.device)
    return dict(zip(MEASURED, (norm, torch.zeros_like(norm, dtype=torch.bool)), strict=True))


class Update(NamedTuple):
    """An operator that updates a part, and its scalar inputs of this step by name, such as lr."""

    op: Op
    key: object  # of the bound call in a part's cache
    numbers: Mapping[str, Any]


class Count:
    """A count of steps on the device: `done`, the states' "step", and `next` = done + 1, which
    kernels read."""

    def __init__(self, n_done: int, device: torch.device) -> None:
        with torch.inference_mode(False):  # inference tensors have no versions
            self.next = torch.full((), n_done + 1, dtype=torch.int64, device=device)
            self.done = torch.full((), float(n_done), dtype=torch.float32, device=device)
        self._version = self.done._version

    def copy(self) -> Count:
        """Return a copy, without a wait for the device."""
        self.catch_up()
        count = object.__new__(Count)
        with torch.inference_mode(False):
            count.next, count.done = self.next.clone(), self.done.clone()
        count._version = count.done._version
        return count

    def catch_up(self) -> None:
        """Set `next` to done + 1 if the caller wrote into a state's "step"."""
        if self.done._version != self._version:
            self.next.copy_(self.done + 1)
            self._version = self.done._version

    def advance(self, scales: Mapping[str, Tensor | None]) -> Note:
        """Return a write that counts a step in which this rank updates no elements.

        scales: loss scale, norm, is_finite by name, tensors of one element or None. If one is not
        finite, or False, the step is skipped and not counted, as kernels do.
        """
        counts = torch.ones((), dtype=torch.bool, device=self.next.device)
        for tensor in scales.values():
            if tensor is not None:
                finite = tensor if tensor.dtype == torch.bool else tensor.isfinite()
                counts &= finite.to(counts.device, non_blocking=True).reshape(())
        count = functools.partial(torch.add, self.next, counts, out=self.next)
        return functools.partial(at_once, [count])

    def update_done(self) -> Note:
        """Return a write of done = next - 1, after a step that may have been skipped."""
        return functools.partial(torch.sub, self.next, 1, out=self.done)

    def note_own_write(self) -> None:
        """Remember that this step wrote `done`: for `catch_up` the caller did not."""
        self._version = self.done._version


class Part:
    """Parameters that one operator call updates, with their moments and step count.

    A step of the optimizer calls

        gradients        local shards of the parameters' gradients
        writes           check the call; return the functions that launch it
        finish           after the launches: raise the parameters' versions

    Calls are bound to the tensors' addresses: a part is replaced if one has other memory or form.
    place: index of the parameter group. names: of the states' tensors that are updated, as
    "exp_avg". count: of steps; None without names. In methods update is the operator with its
    numbers of this step, scales are {"loss_scale", "gradient_norm", "is_finite": a tensor or None}.
    """

    def __init__(
        self,
        place: int,
        parameters: Sequence[Tensor],
        names: Sequence[str],
        states: Sequence[State],
        count: Count | None,
    ) -> None:
        self.place, self.parameters, self.states = place, tuple(parameters), tuple(states)
        self.count = count
        self._versions: list[int] | None = None  # of the states, when `is_current` was last True
        self.is_shared = any(map(is_distributed, parameters))  # sharded over ranks
        # By name, one tensor for each parameter; coded ones are bytes of compressed moments.
        pairs = list(zip(states, parameters, strict=False))  # without names there are no states
        self.moments = {name: [_moment(name, *pair) for pair in pairs] for name in names}
        self.is_coded = any(own[0].dtype == torch.uint8 for own in self.moments.values())
        every = list(map(local, parameters))
        nonempty = [i for i, tensor in enumerate(every) if tensor.numel()]
        # Indices of parameters whose local shards have elements; None if all have.
        self._nonempty = None if len(nonempty) == len(every) else nonempty
        self._shards = [every[i] for i in nonempty]
        moments = {m: [local(tensors[i]) for i in nonempty] for m, tensors in self.moments.items()}
        # Tensors that calls are bound to, by the operator's input names.
        self._bound_lists = {"weights": list(map(in_memory_order, self._shards))}
        for name, tensors in moments.items():
            self._bound_lists[MOMENTS[name]] = list(map(in_memory_order, tensors))
        self._strided = [i for i, tensor in enumerate(self._shards) if not tensor.is_contiguous()]
        self._watched = Watched(every, list(itertools.chain.from_iterable(moments.values())))
        self._calls: dict[object, OpenCall] = {}
        self.measured: dict[str, Tensor] = {}  # MEASURED by name, if an operator computes them

    def is_current(self) -> bool:
        """Return True if parameters and moments are as they were, and the states still have the
        tensors of `moments` and `count`."""
        if not self._watched.are_same():
            return False
        # PyTorch replaces a DTensor's local shard, as in `Module.to`; without grad mode it is one.
        shards = map(local, self.parameters) if self.is_shared else ()
        if not all(map(is_, shards, self._watched.tensors)):
            return False
        now = versions(self.states)
        if now is not None and now == self._versions:
            return True
        self._versions = now if (has := self._has_states()) else None
        return has

    def _has_states(self) -> bool:
        """Return True if the tensors in the states are this part's, by identity: `load_state_dict`
        replaces them."""
        try:
            done = itertools.repeat(None if self.count is None else self.count.done)
            return all(map(is_, map(itemgetter("step"), self.states), done)) and all(
                all(map(is_, map(itemgetter(name), self.states), tensors))
                for name, tensors in self.moments.items()
            )
        except KeyError:
            return False

    def relaid(self) -> list[tuple[Tensor, State, Tensor]]:
        """Return (parameter, state, empty tensor with the parameter's strides of before) where the
        strides changed since the state's codes were written."""
        changed = []
        for i, (parameter, state) in enumerate(zip(self.parameters, self.states, strict=False)):
            are_same = all(state.get(name) is own[i] for name, own in self.moments.items())
            _, shape, strides, *_ = self._watched.before[i]
            own = local(parameter)
            if are_same and own.shape == shape and own.stride() != strides:
                before = torch.empty_strided(shape, strides, device=own.device)
                changed.append((parameter, state, before))
        return changed

    def gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return local shards of gradients, without empty ones, in the parameters' memory order."""
        own = list(map(local, gradients)) if self.is_shared else list(gradients)
        own = own if self._nonempty is None else [own[i] for i in self._nonempty]
        for i in self._strided:
            own[i] = laid_out(own[i], self._shards[i])
        return own

    def by_ranks(self, gradients: Sequence[Tensor]) -> dict[Ranks, list[Tensor]]:
        """Group gradients, as `gradients` returns them, by the process groups over which their
        tensors are sharded."""
        if not self.is_shared:
            return {(): list(gradients)}
        indices = range(len(self.parameters)) if self._nonempty is None else self._nonempty
        groups: dict[Ranks, list[Tensor]] = {ranks_of(p): [] for p in self.parameters}
        for i, gradient in zip(indices, gradients, strict=True):
            groups[ranks_of(self.parameters[i])].append(gradient)
        return groups

    def writes(
        self, update: Update, gradients: Sequence[Tensor], scales: Mapping[str, Tensor | None]
    ) -> tuple[Mapping[str, Any], list[Note]]:
        """Check an update and return (inputs, writes); nothing is written yet.

        inputs: of the operator, by name. writes: functions that launch it and count. The inputs
        have to stay alive until all writes are queued, as launches know only addresses. A gradient
        whose strides differ from its parameter's is copied.
        """
        if self.count is None:
            return self._update(update, gradients, scales) if gradients else ({}, [])
        self.count.catch_up()
        if gradients:
            inputs, writes = self._update(update, gradients, scales)
        else:
            inputs, writes = {}, [self.count.advance(scales)]
        return inputs, [*writes, self.count.update_done()]

    def finish(self) -> None:
        """Raise the parameters' versions for autograd; after this the count is up to date."""
        if self._shards:
            raise_versions(self.parameters)
        if self.count is not None:
            self.count.note_own_write()

    def _update(
        self, update: Update, gradients: Sequence[Tensor], scales: Mapping[str, Tensor | None]
    ) -> tuple[Mapping[str, Any], list[Note]]:
        """Bind and check the operator's call for parameters with elements; return (inputs, writes).

        Gradients of other strides are refused, then copied and checked again.
        """
        device = gradients[0].device
        numbers = {
            k: None if t is None else t.to(device, non_blocking=True) for k, t in scales.items()
        }
        inputs = {"gradients": gradients, **update.numbers, **numbers}
        call = self._calls.get(update.key) or self._bind_call(update, inputs)
        try:
            return inputs, [_checked_write(call, inputs)]
        except ArgumentError:
            pairs = enumerate(zip(gradients, self._shards, strict=True))
            strided = [g if i in self._strided else laid_out(g, like) for i, (g, like) in pairs]
            if all(map(is_, strided, gradients)):
                raise
            inputs = {**inputs, "gradients": strided}
            return inputs, [_checked_write(call, inputs)]

    def _bind_call(self, update: Update, inputs: Mapping[str, Any]) -> OpenCall:
        """Bind the operator to this part's tensors, and cache and return the call.

        inputs: what each call passes, of which only the names are used here. Weights and moments
        are updated in place; outputs that would write gradients or norms are not computed.
        """
        op = update.op
        closed: dict[str, Any] = dict(self._bound_lists)
        if self.count is not None:
            closed["step"] = self.count.next
        if isinstance(op, Measured):
            self.measured = self.measured or zero_norm(self._shards[0])  # one for all calls
            closed |= self.measured
        updated_inputs = {"gradients", *MEASURED}
        outputs = [output.name for output in op.outputs if output.aliases not in updated_inputs]
        call = opened(op.bound(**closed, **dict.fromkeys(inputs, ...), outputs=outputs)).trusting()
        if len(self._calls) >= MAX_CACHED:
            self._calls.clear()
        self._calls[update.key] = call
        return call


def _moment(name: str, state: State, parameter: Tensor) -> Tensor:
    """Return a state's moment; one that lies otherwise than its parameter is copied there first.

    A parameter may get other strides between steps, as by `to(memory_format=...)`.
    """
    moment: Tensor = state[name]
    own, like = local(moment), local(parameter)
    if own.shape == like.shape and own.stride() != like.stride():
        own = torch.empty_like(like, dtype=own.dtype).copy_(own)
        moment = state[name] = part_like(own, parameter)
    return moment


def _checked_write(call: OpenCall, inputs: Mapping[str, Any]) -> Note:
    """Check a call; return a function that launches it.

    Where tensors have to become CuPy arrays, which belong to the stream of the launch, that
    function makes the whole call, with its check.
    """
    checked = call.checked(**inputs)
    if inputs["gradients"][0].is_cuda and not checked.over_tensors:
        return functools.partial(call, **inputs)
    return checked.computed()
