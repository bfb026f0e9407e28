# SPDX-License-Identifier: MIT
"""What bound calls rely on: arrays that stay what they were, and objects that are not copied."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NoReturn

from ..dtypes import dtype_name
from ..errors import refuse
from .call import Call
from .prepared import Arrays


class Unchanged:
    """The dtypes and shapes of bound arrays of NumPy's, which can be set.

    The memory of a CuPy array stays what it was, and no kernel looks at shapes.
    """

    def __init__(self, call: Call, arrays: Arrays) -> None:
        """arrays: the call's, the caller's outputs behind the others; None is not looked at."""
        pairs = zip(call.prepared.names, arrays, strict=False)
        looked_at = () if call.backend.runs_kernels else pairs
        self._named = {name: array for name, array in looked_at if array is not None}
        self._arrays, self._op = tuple(self._named.values()), call.prepared.op
        self._forms = list(map(_form, self._arrays))

    def refuse_others(self) -> None:
        """Refuse arrays whose dtype or shape is another now."""
        if self._arrays and list(map(_form, self._arrays)) != self._forms:
            self._refuse()

    def _refuse(self) -> NoReturn:
        every = zip(self._named.items(), self._forms, strict=True)
        name, now, bound = next((n, _form(a), was) for (n, a), was in every if _form(a) != was)
        refuse(self._op, name, f"{_said(bound)}, as it was bound", _said(now))


class AtAddresses:
    """What knows arrays by their addresses, which a copy's arrays would not have."""

    _op: Any

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self._op.name}: a bound call holds its arrays where they are and cannot be pickled "
            f"or copied; bind again"
        )


_form = attrgetter("dtype", "shape")


def _said(form: Any) -> str:
    return f"{dtype_name(form[0])} of shape {form[1]}"
