# SPDX-License-Identifier: MIT
"""Memory of tensors that is lent to what may write it without raising a version."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

# Give memory to what writes without raising the version: at any time, or before they return (a
# kernel that is launched with an address does as well). Setting `data` gives that of both tensors.
LENDING = {
    **dict.fromkeys((Tensor.data_ptr, Tensor.apply_, Tensor.map_), True),
    **dict.fromkeys(
        (
            *(Tensor.data.__get__, Tensor.data.__set__, Tensor.__cuda_array_interface__.__get__),
            *(Tensor.numpy, Tensor.__array__, Tensor.__dlpack__),
            *(Tensor.storage, Tensor.untyped_storage),
        ),
        False,
    ),
}
AT_ANY_TIME = object()
Lent: TypeAlias = dict[weakref.ref[torch.UntypedStorage], object]


def lend(lent: Lent, storage: torch.UntypedStorage, ends: bool) -> None:
    """Note that memory may be written unseen, until the call ends or at any time."""
    reference = weakref.ref(storage, partial(_forget, lent))
    if lent.get(reference) is not AT_ANY_TIME:
        lent[reference] = object() if ends else AT_ANY_TIME


def _forget(lent: Lent, reference: weakref.ref[torch.UntypedStorage]) -> None:
    """Forget memory that is gone."""
    lent.pop(reference, None)
