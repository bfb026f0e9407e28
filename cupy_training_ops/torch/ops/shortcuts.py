# SPDX-License-Identifier: MIT
"""From an operator's arguments to its launches, past the operator's body."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...call.backends import TENSORS
from ...call.run import KernelCall
from ...declare.schema import Spec
from ..coding import ALIGNED
from . import launching
from .launching import Launcher, Ready, Taking, launch, launch_first
from .recent import Run, exact

_MANY = 1024  # kinds of calls of an operator that are remembered
_UNKNOWN: Any = object()
# Which results are asked for; those behind the first may come as slices of one tensor.
EVERY, FIRST, JOINED = range(3)


class Shortcuts:
    """Runs a body, and for the next call of the same kind what that body has launched.

    The body is one that hands its own tensors to one operator, and gives back what comes, as it
    is; a call in which it makes other tensors is not remembered. All that is not a tensor is part
    of the kind, but for numbers that change from call to call: at this place a tuple, as the
    operator has it once it is checked.
    """

    def __init__(self, body: Callable[..., Any], changing: int | None = None) -> None:
        self._body, self.changing = body, changing
        self._known: dict[object, Launcher | None] = {}

    def is_of(self, body: Callable[..., Any]) -> bool:
        """True if results are the body's."""
        return self._body is body

    def __call__(self, arguments: Sequence[Any], which: int = EVERY) -> Any:
        """The results of the body that are asked for."""
        kind, addresses = self._kind(arguments, which)
        if kind is None:
            return self._run(arguments, which)
        known = self._known.get(kind, _UNKNOWN)
        if known is None:
            return self._run(arguments, which)
        if known is _UNKNOWN:
            return self._learn(kind, arguments, which)
        return known(arguments, (), addresses)

    def straight(self, arguments: Sequence[Any], which: int) -> Run | None:
        """The function that runs calls whose tensors are like these, if it is known."""
        kind, addresses = self._kind(arguments, which)
        launch = None if kind is None else self._known.get(kind)
        if launch is None or not all(at % ALIGNED == 0 for at in addresses):
            return None
        return launch

    def _kind(self, arguments: Sequence[Any], which: int) -> tuple[object, list[int]]:
        """Values that a launch depends on (None: not remembered), and addresses of tensors.

        A 0 behind them is the address of all that are left out.
        """
        key: list[object] = [TENSORS.get(Tensor), which]
        addresses: list[int] = []
        others: list[object] = []
        has_none = False
        for value in arguments:
            if isinstance(value, Tensor):
                if not value.is_contiguous() or value.is_neg():
                    return None, addresses
                at = launching.address(value)
                if not at:
                    return None, addresses
                key += (value.dtype, value.shape, value.device, at % ALIGNED == 0)
                addresses.append(at)
            else:
                has_none = has_none or value is None
                key.append(len(others))  # where it is
                others.append(value)
        if has_none:
            addresses.append(0)
        if self.changing is not None and isinstance(arguments[self.changing], tuple):
            others.pop()  # the last
        known = exact(others)
        return None if known is None else (*key, known), addresses

    def _run(self, arguments: Sequence[Any], which: int) -> Any:
        results = self._body(launch_first if which == FIRST else launch, *arguments)
        return joined(results) if which == JOINED else results

    def _learn(self, kind: object, arguments: Sequence[Any], which: int) -> Any:
        """The results, while what is launched is noted."""
        # A tensor that is given twice is two arguments, which others may tell apart.
        given = [value.detach() if isinstance(value, Tensor) else value for value in arguments]
        launched = []

        def noted(op: Any, *inputs: Any, outputs: Sequence[str] | None = None) -> Any:
            outputs = (op.outputs[0].name,) if which == FIRST else outputs
            found = launch(op, *inputs, outputs=outputs)
            launched.append((found, inputs, launching.ready_of(op, inputs, outputs)))
            return found

        results = self._body(noted, *given)
        if len(self._known) >= _MANY:
            self._known.clear()
        is_all = len(launched) == 1 and _are_same(results, launched[0][0])
        longer = functools.partial(self, which=which)
        past = _past(given, *launched[0][1:], self.changing, which, longer) if is_all else None
        self._known[kind] = past
        return joined(results) if which == JOINED else results


def joined(results: Any) -> Any:
    """Results as launches make them that join: what autograd keeps follows from forms alone, since
    a checkpointed region that is run again has to keep as much."""
    if not isinstance(results, tuple):
        return results
    first, *others = results
    specs = [Spec(tuple(each.shape), launching.OURS[each.dtype]) for each in others]
    return results if launching.joined(specs) is None else (first, torch.stack(others))


def _are_same(results: Any, others: Any) -> bool:
    """Return True if they are the same tensors."""
    if not isinstance(results, tuple) or not isinstance(others, tuple):
        return results is others
    return len(results) == len(others) and all(a is b for a, b in zip(results, others, strict=True))


def _past(
    given: Sequence[Any],
    inputs: Sequence[Any],
    ready: Ready | None,
    changing: int | None,
    which: int,
    longer: Callable[[Sequence[Any]], Any],
) -> Launcher | None:
    """A launcher over the arguments; None where the body did more than hand them on, or slices."""
    if ready is None:
        return None
    tensors = [i for i, value in enumerate(given) if isinstance(value, Tensor)]
    spots = {id(given[place]): spot for spot, place in enumerate(tensors)}
    has_none = any(value is None for value in given)
    if has_none:
        spots[id(None)] = len(tensors)  # where there is a 0
    padded = (*inputs, *[None] * len(ready.arrays))
    slices: list[tuple[int, int]] = []  # of spots: bytes from where they begin
    found: list[int] = []
    for each in [padded[place] for place in ready.arrays]:
        spot = spots.get(id(each))
        if spot is None:
            part = _slice_of(each, [given[place] for place in tensors])
            if part is None:
                return None
            spot = len(tensors) + has_none + len(slices)
            slices.append(part)
        found.append(spot)
    made = _make(given, inputs, ready.call, changing)
    # Nothing is made like what is left out, nor like a slice.
    places = [*tensors, *[None] * (has_none + len(slices))]
    arrays, n_given = [places[spot] for spot in found], len(tensors) + has_none
    how: dict[str, Any] = {"parts": slices, "joins": which == JOINED}
    taking = Taking(longer, has_none, changing)
    return launching.launcher(ready.call, arrays, found, n_given, made, taking=taking, **how)


def _slice_of(part: Any, given: Sequence[Tensor]) -> tuple[int, int] | None:
    """Which tensor alone has the memory of another, and how many bytes from where it begins."""
    if not (isinstance(part, Tensor) and part.numel() and part.is_contiguous()) or part.is_neg():
        return None
    start = part.data_ptr()
    found = [
        (spot, start - whole.data_ptr())
        for spot, whole in enumerate(given)
        if whole.data_ptr() <= start and start + part.nbytes <= whole.data_ptr() + whole.nbytes
    ]
    return found[0] if len(found) == 1 else None


def _make(
    given: Sequence[Any], inputs: Sequence[Any], call: KernelCall, changing: int | None
) -> Callable[[Sequence[Any]], Sequence[object]]:
    """The launches' numbers: those of this call, but for what changes."""
    known = call.ready.values(call.values(tuple(inputs))) if call.changing else []
    place = next((i for i in call.changing if inputs[i] is given[changing or 0]), None)
    if changing is None or place is None:
        return lambda _: known
    values = call.ready.values_but(known, place)
    return lambda arguments: values(arguments[changing])
