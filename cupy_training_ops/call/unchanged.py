# SPDX-License-Identifier: MIT
"""What bound calls rely on: arrays that stay what they were, and objects that are not copied."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NoReturn

from ..device.alike import Watched, state
from ..dtypes import dtype_name
from ..errors import refuse
from .foreign import Lent, is_tensor, refuse_gradients
from .operator import Operator
from .prepared import Arrays
from .run import Call


class Unchanged:
    """The dtypes and shapes of bound arrays of NumPy's, which can be set, and all of tensors.

    The memory of a CuPy array stays what it was, and no kernel looks at shapes. Of an array that
    stands for a tensor, the tensor is looked at.
    """

    def __init__(self, call: Call, arrays: Arrays, lent: Lent) -> None:
        """arrays: the call's, the caller's outputs behind the others; None is not looked at."""
        named = zip(call.prepared.names, arrays, strict=False)
        given = {name: array for name, array in named if array is not None}
        owners = {name: lent.owner(array) for name, array in given.items()}
        tensors = {name: owner for name, owner in owners.items() if is_tensor(owner)}
        own = () if call.backend.runs_kernels else given
        others = {name: given[name] for name in own if given[name] is owners[name]}
        self._op, self._names = call.prepared.op, (*others, *tensors)
        self._arrays, self._tensors = tuple(others.values()), Watched(tuple(tensors.values()))
        self._before = _forms(self._arrays)

    def are_same(self) -> bool:
        """Whether all are what they were."""
        if self._arrays and _forms(self._arrays) != self._before:
            return False
        return self._tensors.are_same()

    def refuse_others(self) -> None:
        """Refuse arrays whose dtype or shape is another now."""
        if not self.are_same():
            self._refuse()

    def refuse_gradients(self) -> None:
        """Refuse tensors whose gradients a result would silently not have."""
        tensors = self._tensors.tensors
        refuse_gradients(self._op, self._names[len(self._arrays) :], tensors)

    def _refuse(self) -> NoReturn:
        now = [*_forms(self._arrays), *map(state, self._tensors.tensors)]
        every = zip(self._names, now, [*self._before, *self._tensors.before], strict=True)
        place, (name, found, bound) = next(
            (i, each) for i, each in enumerate(every) if each[1] != each[2]
        )
        if place >= len(self._arrays):
            refuse(self._op, name, "the tensor as it was bound", "one of other memory or form")
        refuse(self._op, name, f"{_said(bound)}, as it was bound", _said(found))


class AtAddresses:
    """What knows arrays by their addresses, which a copy's arrays would not have."""

    _op: Operator

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self._op.name}: a bound call holds its arrays where they are and cannot be pickled "
            f"or copied; bind again"
        )


_form = attrgetter("dtype", "shape")


def _forms(arrays: Arrays) -> list[object]:
    return list(map(_form, arrays))


def _said(form: Any) -> str:
    return f"{dtype_name(form[0])} of shape {form[1]}"
