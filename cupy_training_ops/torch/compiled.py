# SPDX-License-Identifier: MIT
"""Living beside torch.compile: it guards on the modes that are there, and would compile anew."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import torch

from .consumers import Consumers


def is_compiled() -> bool:
    """Whether torch.compile looks on."""
    if "torch._dynamo" not in sys.modules:
        return False
    _leave_alone()
    callback = torch._C._dynamo.eval_frame.get_eval_frame_callback()
    return torch.compiler.is_compiling() or callback not in (None, False)


@functools.cache
def _leave_alone() -> None:
    """Let torch.compile leave this package alone: it may look on when a hook is called."""
    torch._dynamo.trace_rules.add(__package__.partition(".")[0])
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    entering = getattr(frames, "_maybe_set_eval_frame", None)
    if entering is not None:  # else compiled functions are compiled once more
        frames._maybe_set_eval_frame = functools.partial(_stepping_aside, entering)


class _Aside(threading.local):
    """The modes that a compiled region of a thread does not see: all that there were."""

    modes: list[Any] | None = None


_ASIDE = _Aside()


def _stepping_aside(entering: Any, callback: Any) -> Any:
    """Take our modes off the stack where compiled code begins, and put them back where it ends."""
    if callback is None or callback is False:
        if _ASIDE.modes is not None:
            modes, _ASIDE.modes = _ASIDE.modes, None
            _set_modes(modes)
    elif _ASIDE.modes is None and torch._C._len_torch_function_stack():
        modes = torch.overrides._get_current_function_mode_stack()
        others = [mode for mode in modes if not isinstance(mode, Consumers)]
        if len(others) < len(modes):
            _ASIDE.modes = modes
            _set_modes(others)
    return entering(callback)


def _set_modes(modes: list[Any]) -> None:
    for _ in range(torch._C._len_torch_function_stack()):
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)
