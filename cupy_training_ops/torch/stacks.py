# SPDX-License-Identifier: MIT
"""PyTorch's stacks of a thread, of function modes and of saved-tensor hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .consumers import Consumers

Hook = Callable[[Any], Any]


def n_modes(mode: Consumers) -> int:
    """How often a mode is on the thread's stack."""
    return int(torch.overrides._get_current_function_mode_stack().count(mode))


def take_off_mode(mode: Consumers) -> None:
    """Take a mode off the stack, whatever is above it."""
    others = []
    while (top := torch._C._pop_torch_function_stack()) is not mode:
        others.append(top)
    for other in reversed(others):
        torch._C._push_on_torch_function_stack(other)


def take_off_hooks(pack: Hook) -> None:
    """Take hooks off the stack, whatever is above them; none where they are not there."""
    others = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        if top[0] is pack:
            break
        others.append(top)
    for other in reversed(others):
        torch._C._autograd._push_saved_tensors_default_hooks(*other)
