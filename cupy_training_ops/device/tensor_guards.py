# SPDX-License-Identifier: MIT
"""Guards of PyTorch's tensors: whether hundreds of them changed, checked at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

Tensors = Sequence[Any]
Check = Callable[[Tensors], bool]


def like(tensors: Tensors) -> Check:
    """Return a function that is True for as many tensors with the metadata of these, in order.

    Metadata: type, dtype, shape, strides, device, and what PyTorch dispatches by.
    """
    guards = _guards(tensors)
    if guards is None:
        kinds, forms = list(map(type, tensors)), list(map(_form, tensors))
        return lambda others: list(map(type, others)) == kinds and list(map(_form, others)) == forms

    def check(others: Tensors) -> bool:
        try:
            return bool(guards(*others))
        except TypeError:  # another number of tensors
            return False

    return check


def _guards(tensors: Tensors) -> Callable[..., bool] | None:
    """Return check(*others) of PyTorch's private TensorGuards, ten times faster than Python's; None
    if this PyTorch has none."""
    try:
        kind = sys.modules["torch"]._C._dynamo.guards.TensorGuards
        check = kind(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        serves = check(*tensors) is True
    except Exception:  # the private class may have changed
        return None
    return check if serves else None


def _form(tensor: Any) -> object:
    """Return a tensor's metadata, equal for tensors that a call treats alike."""
    shape = tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.layout
    return *shape, tensor.is_neg(), tensor.is_conj()


def state(tensor: Any) -> object:
    """Return (address, shape, strides, dtype), which are equal if a tensor did not change."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return strides in elements as PyTorch's contiguous tensors have them, never 0."""
    inner = accumulate((max(extent, 1) for extent in reversed(shape[1:])), mul, initial=1)
    return tuple(inner)[::-1] if shape else ()


def addresses(tensors: Tensors) -> list[int]:
    """Return the addresses of the first elements."""
    return list(map(sys.modules["torch"].Tensor.data_ptr, tensors))


def raise_versions(tensors: Tensors) -> None:
    """Raise the versions of written tensors, by which autograd notices changes of saved ones."""
    sys.modules["torch"].autograd.graph.increment_version(tensors)


def versions(dicts: Sequence[dict[str, Any]]) -> list[int] | None:
    """Return the version of each dictionary, which a write changes; None if PyTorch lacks it."""
    try:
        return list(map(sys.modules["torch"]._C._dynamo.guards.dict_version, dicts))
    except Exception:  # the private function may have changed
        return None


class Watched:
    """A guard that says if tensors still have the addresses and metadata of its making."""

    def __init__(self, tensors: Tensors, own: Tensors = ()) -> None:
        """tensors: to be watched. own: more, of which only addresses are compared."""
        self.tensors = tuple(tensors)
        self.before: list[Any] = list(map(state, self.tensors))
        self._every = (*self.tensors, *own)
        self._addresses = addresses(self._every) if self._every else []
        self._are_alike = like(self.tensors) if self.tensors else None

    def are_same(self) -> bool:
        """Return True if no tensor changed."""
        if self._are_alike is None:
            return True
        if addresses(self._every) != self._addresses:
            return False
        if self._are_alike(self.tensors):
            return True
        return list(map(state, self.tensors)) == self.before  # guards may differ by requires_grad
