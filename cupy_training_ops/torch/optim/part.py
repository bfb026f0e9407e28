# SPDX-License-Identifier: MIT
"""Parameters that were updated in the same steps, bound to the operators that update them.

Of a tensor that is divided over ranks, each updates its own part, where that lies in memory.
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
    """Return True if a tensor is divided over ranks: a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def ranks_of(tensor: Tensor) -> Ranks:
    """The groups of ranks among which a tensor is taken apart; none where it is whole."""
    if not is_distributed(tensor):
        return ()
    part: Any = tensor
    placed = enumerate(part.placements)
    return tuple(part.device_mesh.get_group(i) for i, place in placed if place.is_shard())


def local(tensor: Tensor) -> Tensor:
    """The memory of this rank; gradients are not recorded."""
    if not is_distributed(tensor):
        return tensor
    part: Any = tensor
    own: Tensor = part.to_local()
    return own


def part_like(own: Tensor, like: Tensor) -> Tensor:
    """`own` as this rank's part of a tensor that is distributed as `like` is."""
    if not is_distributed(like):
        return own
    part: Any = like
    distributed: Tensor = type(part).from_local(
        own, part.device_mesh, part.placements, shape=part.shape, stride=part.stride()
    )
    return distributed


def in_memory_order(tensor: Tensor) -> Tensor:
    """A dense tensor's view whose dimensions are in the order of memory; others as they are."""
    if tensor.is_contiguous():
        return tensor
    strides = tensor.stride()
    view = tensor.permute(sorted(range(tensor.dim()), key=lambda d: -strides[d]))
    return view if view.is_contiguous() else tensor


def without_gaps(tensor: Tensor) -> Tensor:
    """View or copy a tensor so that its elements lie together, in any order; sparse ones stay."""
    if tensor.layout != torch.strided:
        return tensor
    return in_memory_order(tensor.resolve_neg()).contiguous()


def laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """A gradient as the elements of its memory, in the order of `like`'s; a copy if it differs."""
    if gradient.shape != like.shape or gradient.layout != torch.strided:
        return gradient
    if gradient.stride() != like.stride():
        gradient = torch.empty_like(like, dtype=gradient.dtype).copy_(gradient)
    return in_memory_order(gradient.resolve_neg())


State = dict[str, Any]

MOMENTS = {"exp_avg": "moment_1", "exp_avg_sq": "moment_2"}  # in a state, and of an operator
MAX_KEPT = 16  # operators, and calls of a part


def zero_norm(like: Tensor) -> dict[str, Tensor]:
    """Zeros for the norm of gradients of this dtype and device, and for whether it is finite."""
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    norm = torch.zeros((), dtype=wide, device=like.device)
    return dict(zip(MEASURED, (norm, torch.zeros_like(norm, dtype=torch.bool)), strict=True))


class Update(NamedTuple):
    """An operator that updates a part, and the numbers that each of its steps takes."""

    op: Op
    key: object  # of the operator, among those that update a part
    numbers: Mapping[str, Any]


class Count:
    """Steps counted on the device: `made`, the states' "step", and `next` = made + 1, kernels'."""

    def __init__(self, n_made: int, device: torch.device) -> None:
        self.next = torch.full((), n_made + 1, dtype=torch.int64, device=device)
        self.made = torch.full((), float(n_made), dtype=torch.float32, device=device)
        self._version = self.made._version

    def copy(self) -> Count:
        """Return another count of as many steps, without a wait for the device."""
        self.catch_up()
        count = object.__new__(Count)
        count.next, count.made = self.next.clone(), self.made.clone()
        count._version = count.made._version
        return count

    def catch_up(self) -> None:
        """Set `next` to made + 1 where somebody else wrote into `made`, a state's "step"."""
        if self.made._version != self._version:
            self.next.copy_(self.made + 1)
            self._version = self.made._version

    def go_on(self, told: Mapping[str, Tensor | None]) -> Note:
        """Return a write that counts a step of which this rank has no elements.

        told: scale, norm, signal. Where one is not finite, or False, kernels skip the step, and it
        does not count.
        """
        is_made = torch.ones((), dtype=torch.bool, device=self.next.device)
        for tensor in told.values():
            if tensor is not None:  # a scale, a norm, a signal
                finite = tensor if tensor.dtype == torch.bool else tensor.isfinite()
                is_made &= finite.to(is_made.device, non_blocking=True).reshape(())
        count = functools.partial(torch.add, self.next, is_made, out=self.next)
        return functools.partial(at_once, [count])

    def follow(self) -> Note:
        """Return a write of made = next - 1, after a step that may have been skipped."""
        return functools.partial(torch.sub, self.next, 1, out=self.made)

    def take_version(self) -> None:
        """Note that `made` was written by us: `catch_up` has nothing to do."""
        self._version = self.made._version


class Part:
    """Parameters of one group, their moments, and the count of their steps."""

    def __init__(
        self,
        place: int,
        parameters: Sequence[Tensor],
        states: Sequence[State],
        count: Count | None,
    ) -> None:
        self.place, self.parameters, self.states = place, tuple(parameters), tuple(states)
        self.count = count
        self._versions: list[int] | None = None  # of the states, as they were found to have these
        self.is_shared = any(map(is_distributed, parameters))  # other ranks have parts of it
        names = () if count is None else MOMENTS
        self.moments = {name: [state[name] for state in states] for name in names}
        self._bind()

    def _bind(self) -> None:
        """Note where in memory all tensors are now; what was bound elsewhere is forgotten."""
        whole = [local(parameter) for parameter in self.parameters]
        used = [i for i, tensor in enumerate(whole) if tensor.numel()]
        self._used = None if len(used) == len(whole) else used
        self._whole = [whole[i] for i in used]
        self._lists = {"weights": [in_memory_order(tensor) for tensor in self._whole]}
        moments = {m: [local(tensors[i]) for i in used] for m, tensors in self.moments.items()}
        for name, tensors in moments.items():
            self._lists[MOMENTS[name]] = [in_memory_order(tensor) for tensor in tensors]
        self._odd = [i for i, tensor in enumerate(self._whole) if not tensor.is_contiguous()]
        self._watched = Watched(self._whole, [t for tensors in moments.values() for t in tensors])
        self._calls: dict[object, OpenCall] = {}
        self.norm: Tensor | None = None  # where a step measures it

    def is_of(self) -> bool:
        """Return True if the states have the moments that are bound, and their count."""
        now = versions(self.states)
        if now is not None and now == self._versions:
            return True
        self._versions = now if (has := self._has_states()) else None
        return has

    def _has_states(self) -> bool:
        """Each state has the very tensors of `count` and `moments`, as loading puts others
        there."""
        try:
            made = itertools.repeat(None if self.count is None else self.count.made)
            return all(map(is_, map(itemgetter("step"), self.states), made)) and all(
                all(map(is_, map(itemgetter(name), self.states), tensors))
                for name, tensors in self.moments.items()
            )
        except KeyError:
            return False

    def gradients(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of tensors that have elements here, as memory of this rank."""
        if not self._watched.are_same():
            self._bind()
        own = list(map(local, given)) if self.is_shared else list(given)
        own = own if self._used is None else [own[i] for i in self._used]
        for i in self._odd:
            own[i] = laid_out(own[i], self._whole[i])
        return own

    def by_ranks(self, gradients: Sequence[Tensor]) -> dict[Ranks, list[Tensor]]:
        """The gradients, by the groups of ranks that have other parts of the same tensors."""
        if not self.is_shared:
            return {(): list(gradients)}
        used = range(len(self.parameters)) if self._used is None else self._used
        groups: dict[Ranks, list[Tensor]] = {ranks_of(p): [] for p in self.parameters}
        for i, gradient in zip(used, gradients, strict=True):
            groups[ranks_of(self.parameters[i])].append(gradient)
        return groups

    def writes(
        self, update: Update, gradients: Sequence[Tensor], told: Mapping[str, Tensor | None]
    ) -> tuple[Mapping[str, Any], list[Note]]:
        """Check an update and return its writes: refused here, where nothing was written yet.

        Returns the inputs, too: the caller keeps them alive, as launches know only addresses. A
        gradient whose memory has another order than its parameter's is copied.
        """
        if self.count is None:
            return self._update(update, gradients, told) if gradients else ({}, [])
        self.count.catch_up()
        if gradients:
            inputs, writes = self._update(update, gradients, told)
        else:
            inputs, writes = {}, [self.count.go_on(told)]
        return inputs, [*writes, self.count.follow()]

    def finish(self) -> None:
        """Let autograd know that parameters were written, and `Count` that a step wrote `made`."""
        if self._whole:
            raise_versions(self.parameters)
        if self.count is not None:
            self.count.take_version()

    def _update(
        self, update: Update, gradients: Sequence[Tensor], told: Mapping[str, Tensor | None]
    ) -> tuple[Mapping[str, Any], list[Note]]:
        """The update of parameters with elements."""
        device = gradients[0].device
        numbers = {
            k: None if t is None else t.to(device, non_blocking=True) for k, t in told.items()
        }
        inputs = {"gradients": gradients, **update.numbers, **numbers}
        call = self._calls.get(update.key) or self._bind_call(update, inputs)
        try:
            return inputs, [_checked_write(call, inputs)]
        except ArgumentError:
            pairs = enumerate(zip(gradients, self._whole, strict=True))
            laid = [g if i in self._odd else laid_out(g, like) for i, (g, like) in pairs]
            if all(map(is_, laid, gradients)):
                raise
            inputs = {**inputs, "gradients": laid}
            return inputs, [_checked_write(call, inputs)]

    def _bind_call(self, update: Update, given: Mapping[str, Any]) -> OpenCall:
        """The operator over this part, with what each step gives left open."""
        op = update.op
        closed: dict[str, Any] = dict(self._lists)
        if self.count is not None:
            closed["step"] = self.count.next
        if isinstance(op, Measured):
            closed |= (measured := zero_norm(self._whole[0]))
            self.norm = measured["gradient_norm"]
        updated_inputs = {"gradients", *MEASURED}
        outputs = [output.name for output in op.outputs if output.aliases not in updated_inputs]
        call = opened(op.bound(**closed, **dict.fromkeys(given, ...), outputs=outputs)).trusting()
        if len(self._calls) >= MAX_KEPT:
            self._calls.clear()
        self._calls[update.key] = call
        return call


def _checked_write(call: OpenCall, given: Mapping[str, Any]) -> Note:
    """Check a call; return what writes, which refuses nothing any more."""
    made = call.checked(**given)
    if given["gradients"][0].is_cuda and not (call.is_native and made.over_tensors):
        return functools.partial(call, **given)
    return made.computed()
