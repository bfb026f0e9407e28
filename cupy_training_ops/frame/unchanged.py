# SPDX-License-Identifier: MIT
"""What bound calls rely on: arrays that stay what they were, and objects that are not copied."""

from __future__ import annotations

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
        self._op, self._names, self._arrays = call.prepared.op, call.prepared.names, arrays
        self._forms = None if call.backend.runs_kernels else _forms(arrays)

    def refuse_others(self) -> None:
        """Refuse arrays whose dtype or shape is another now."""
        if self._forms is not None and _forms(self._arrays) != self._forms:
            self._refuse(self._forms)

    def _refuse(self, forms: list[Any]) -> NoReturn:
        every = zip(self._names, _forms(self._arrays), forms, strict=False)
        name, now, bound = next(row for row in every if row[1] != row[2])
        refuse(self._op, name, f"{_said(bound)}, as it was bound", _said(now))


class AtAddresses:
    """What knows arrays by their addresses, which a copy's arrays would not have."""

    _op: Any

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self._op.name}: a bound call holds its arrays where they are and cannot be pickled "
            f"or copied; bind again"
        )


def _forms(arrays: Arrays) -> list[Any]:
    return [None if a is None else (a.dtype, a.shape) for a in arrays]


def _said(form: Any) -> str:
    return f"{dtype_name(form[0])} of shape {form[1]}"
