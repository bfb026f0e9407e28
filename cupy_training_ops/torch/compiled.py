# SPDX-License-Identifier: MIT
"""Living beside torch.compile: it guards on the modes that are there, and would compile anew."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import torch

from .consumers import Consumers

HOOKS = "enter_exit_hooks"  # of what runs compiled code: called before it, and what they give after


def is_compiled() -> bool:
    """Whether torch.compile looks on."""
    if "torch._dynamo" not in sys.modules:
        return False
    if torch.compiler.is_compiling():  # which looks at no cached function
        return True
    _hook()
    return torch._C._dynamo.eval_frame.get_eval_frame_callback() not in (None, False)


@functools.cache
def _hook() -> None:
    """Let compiled code begin without our modes; torch.compile may look on at a hook."""
    frames: object = sys.modules.get("torch._dynamo.eval_frame")
    runner = getattr(frames, "_TorchDynamoContext", None)
    if runner is not None:  # else compiled functions are compiled once more
        setattr(runner, HOOKS, _Hooks())


class _Hooks:
    """In place of the attribute: the hooks of each object, after ours."""

    def __get__(self, owner: object, _: type) -> object:
        if owner is None:
            return self
        return [_step_aside, *owner.__dict__.get(HOOKS, ())]

    def __set__(self, owner: object, hooks: list[object]) -> None:
        owner.__dict__[HOOKS] = hooks


def _step_aside() -> Callable[[], None]:
    """Take our modes off the stack where compiled code begins; what puts them back."""
    modes = torch.overrides._get_current_function_mode_stack()
    others = [mode for mode in modes if not isinstance(mode, Consumers)]
    if len(others) == len(modes):
        return _nothing
    _set_modes(others)
    return functools.partial(_set_modes, modes)


def _nothing() -> None:
    """There was nothing to put back."""


def _set_modes(modes: list[object]) -> None:
    for _ in range(torch._C._len_torch_function_stack()):
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)
