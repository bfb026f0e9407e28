# SPDX-License-Identifier: MIT
"""PyTorch's tensors beside those of before: what of them may change, read of hundreds at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

Tensors = Sequence[Any]
Check = Callable[[Tensors], bool]


def like(tensors: Tensors) -> Check:
    """Return a check of as many other tensors: True if they are like these but for their memory.

    Alike are type, dtype, shape, strides, device and what else PyTorch dispatches by.
    """
    guards = _guards(tensors)
    if guards is None:
        kinds, forms = list(map(type, tensors)), list(map(_form, tensors))
        return lambda others: list(map(type, others)) == kinds and list(map(_form, others)) == forms

    def check(others: Tensors) -> bool:
        try:
            return bool(guards(*others))
        except TypeError:  # there are more or fewer
            return False

    return check


def _guards(tensors: Tensors) -> Callable[..., bool] | None:
    """Guards of a private class of PyTorch's, ten times sooner; None where it is not there."""
    try:
        kind = sys.modules["torch"]._C._dynamo.guards.TensorGuards
        check = kind(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        serves = check(*tensors) is True
    except Exception:  # whatever a private class raises that has become another
        return None
    return check if serves else None


def _form(tensor: Any) -> object:
    shape = tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.layout
    return *shape, tensor.is_neg(), tensor.is_conj()


def state(tensor: Any) -> object:
    """The address of a tensor's elements, and how they are read: equal if nothing has changed."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of PyTorch's own tensors, in elements: NumPy's and CuPy's may be 0."""
    inner = accumulate((max(extent, 1) for extent in reversed(shape[1:])), mul, initial=1)
    return tuple(inner)[::-1] if shape else ()


def addresses(tensors: Tensors) -> list[int]:
    """Addresses of the first elements."""
    return list(map(sys.modules["torch"].Tensor.data_ptr, tensors))


def raise_versions(tensors: Tensors) -> None:
    """Tell PyTorch that tensors were written: autograd uses nothing saved of them before."""
    sys.modules["torch"].autograd.graph.increment_version(tensors)


def versions(dicts: Sequence[dict[str, Any]]) -> list[int] | None:
    """Numbers of dictionaries that change with each write to one; None where PyTorch has none."""
    try:
        return list(map(sys.modules["torch"]._C._dynamo.guards.dict_version, dicts))
    except Exception:  # whatever a private function raises that has become another
        return None


class Watched:
    """Tensors with their address and form, and `own` ones, which nobody reshapes, by address."""

    def __init__(self, tensors: Tensors, own: Tensors = ()) -> None:
        self.tensors = tuple(tensors)
        self.before = list(map(state, self.tensors))
        self._every = (*self.tensors, *own)
        self._addresses = addresses(self._every) if self._every else []
        self._are_alike = like(self.tensors) if self.tensors else None

    def are_same(self) -> bool:
        """Return True if the tensors have the memory and the form that they had."""
        if self._are_alike is None:
            return True
        if addresses(self._every) != self._addresses:
            return False
        if self._are_alike(self.tensors):
            return True
        return list(map(state, self.tensors)) == self.before  # else of autograd's graph, perhaps
