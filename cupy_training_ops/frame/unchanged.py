# SPDX-License-Identifier: MIT
"""What bound calls rely on: arrays that stay what they were, and objects that are not copied."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NoReturn

from ..dtypes import dtype_name
from ..errors import refuse
from .call import Call
from .operator import Operator
from .prepared import Arrays


class Unchanged:
    """The dtypes and shapes of bound arrays of NumPy's, which can be set, and all of tensors.

    The memory of a CuPy array stays what it was, and no kernel looks at shapes.
    """

    def __init__(self, call: Call, arrays: Arrays) -> None:
        """arrays: the call's, the caller's outputs behind the others; None is not looked at."""
        pairs = zip(call.prepared.names, arrays, strict=False)
        self._backend, tensors = call.backend, call.backend.has_tensors
        looked_at = pairs if tensors or not call.backend.runs_kernels else ()
        self._named = {name: array for name, array in looked_at if array is not None}
        self._arrays, self._op = tuple(self._named.values()), call.prepared.op
        self._states = call.backend.states if tensors else _forms
        self._before = self._states(self._arrays)

    def refuse_others(self) -> None:
        """Refuse arrays whose dtype or shape is another now."""
        if self._arrays and self._states(self._arrays) != self._before:
            self._refuse()

    def _refuse(self) -> NoReturn:
        every = zip(self._named, self._states(self._arrays), self._before, strict=True)
        name, now, bound = next(each for each in every if each[1] != each[2])
        if self._backend.has_tensors:
            refuse(self._op, name, "the tensor as it was bound", "one of other memory or form")
        refuse(self._op, name, f"{_said(bound)}, as it was bound", _said(now))


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
