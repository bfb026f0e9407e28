# SPDX-License-Identifier: MIT
"""TorchFunctionMode `Consumers`: the torch function that is running, and memory written unseen.

A saved-tensor hook sees which node computed a tensor, not which function saves it: the mode notes
that. It also notes calls that expose memory to writes without a version change, as x.numpy() does.
Below: operations on PyTorch's stacks of modes and hooks; and how the mode leaves the stack while
compiled code runs, as torch.compile guards on modes and would recompile.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

Arguments = tuple[Any, ...]
Named = Mapping[str, Any] | None
Call = tuple[Any, Arguments, Named]  # (torch function, arguments, arguments by name)
Hook = Callable[[Any], Any]
ExposedMemory: TypeAlias = "dict[weakref.ref[torch.UntypedStorage], object]"

# Functions that expose memory to writes without a version change. True: such writes end before the
# next torch function (also kernels that are launched with an address); False: they may come at any
# time. Setting `data` exposes the memory of both tensors.
EXPOSING = {
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
AT_ANY_TIME = object()  # of memory that may be written at any time
# Python functions whose inner calls are noted, as these have save rules; what other functions
# without a rule save is not compressed.
LOOKED_THROUGH = frozenset({functional.multi_head_attention_forward})
SPECIAL = LOOKED_THROUGH | EXPOSING.keys()
# Of __torch_function__'s `types`: none, or only PyTorch's own classes.
PLAIN = frozenset(
    itertools.chain.from_iterable(
        itertools.permutations((Tensor, torch.nn.Parameter), n) for n in range(3)
    )
)


class Consumers(TorchFunctionMode):  # type: ignore[misc]
    """Notes the torch function that a thread runs, and memory that may be written unseen.

    call: the function, its arguments, and those by name; None if it is unknown. exposed: by
    storage, an object that identifies the latest exposure, or AT_ANY_TIME. known: what was saved,
    by place; cleared after code that the mode does not see.
    """

    def __init__(self, exposed: ExposedMemory, known: dict[int, Any]) -> None:
        self.call: Call | None = None
        self.exposed, self.known = exposed, known  # shared by all threads
        self.sees_all = False  # it is on the stack, and all modes below are trusted

    def __torch_function__(
        self,
        func: Any,
        types: object,
        args: Arguments = (),
        kwargs: Named = None,
    ) -> Any:
        """Set `call` while a torch function runs, so that hooks that it runs can read it."""
        before = self.call
        # A tensor subclass may do anything in a call of this function.
        self.call = (func, args, kwargs) if not types or types in PLAIN else None
        try:
            if func in SPECIAL:
                return self._special(func, args, kwargs)
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            self.call = before

    def _special(self, func: Any, args: Arguments, kwargs: Named) -> Any:
        """Call `func`, one of EXPOSING, noting the memory, or the body of one of LOOKED_THROUGH, so
        that its inner calls are noted."""
        if func in EXPOSING:
            for x in args:
                if isinstance(x, Tensor) and x.layout is torch.strided:
                    expose(self.exposed, x.untyped_storage(), EXPOSING[func])
        elif self.call is not None:
            self.call = None
            with self:
                return body(func)(*args, **kwargs or {})
        return func(*args, **kwargs or {})


class ThreadMode(threading.local):
    """The mode of a thread."""

    def __init__(self, exposed: ExposedMemory, known: dict[int, Any]) -> None:
        self.mode = Consumers(exposed, known)


def expose(exposed: ExposedMemory, storage: torch.UntypedStorage, ends: bool) -> None:
    """Note in `exposed` that memory may be written unseen: only in this call (ends=True), or at any
    time."""
    reference = weakref.ref(storage, functools.partial(_forget, exposed))
    if exposed.get(reference) is not AT_ANY_TIME:
        exposed[reference] = object() if ends else AT_ANY_TIME


def _forget(exposed: ExposedMemory, reference: weakref.ref[torch.UntypedStorage]) -> None:
    """Forget freed memory."""
    exposed.pop(reference, None)


def body(function: types.FunctionType) -> types.FunctionType:
    """Copy a function of torch.nn.functional so that it does not call __torch_function__ for
    itself; in each call anew, as libraries replace functions that it calls."""
    names = {name: _no for name in function.__globals__ if name.startswith("has_torch_function")}
    names = {**function.__globals__, **names}
    copy = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _no(*_: object) -> bool:
    return False


# ---- the thread's stacks of modes and hooks ------------------------------------------------------


def is_trusted() -> bool:
    """Return True if all modes on the stack are known: others may call any function."""
    modes = torch.overrides._get_current_function_mode_stack()
    return all(isinstance(mode, Consumers | DeviceContext) for mode in modes)


def n_modes(mode: Consumers) -> int:
    """Count how often a mode is on the thread's stack."""
    return int(torch.overrides._get_current_function_mode_stack().count(mode))


def take_off_mode(mode: Consumers) -> None:
    """Take a mode off the stack, whatever is above it."""
    others = []
    while (top := torch._C._pop_torch_function_stack()) is not mode:
        others.append(top)
    for other in reversed(others):
        torch._C._push_on_torch_function_stack(other)


def take_off_hooks(pack: Hook) -> None:
    """Take a pair of hooks off the stack, if it is there, whatever is above it; pack: its first."""
    others = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        if top[0] is pack:
            break
        others.append(top)
    for other in reversed(others):
        torch._C._autograd._push_saved_tensors_default_hooks(*other)


# ---- with torch.compile --------------------------------------------------------------------------

ENTER_HOOKS = "enter_exit_hooks"  # called before compiled code runs; they return what to call after


def is_compiled() -> bool:
    """Return True if torch.compile traces this code, or runs it between graphs that it compiled.

    Between graphs Dynamo's callback for new frames is set; else it is None or False.
    """
    if "torch._dynamo" not in sys.modules:
        return False
    if torch.compiler.is_compiling():  # first, as torch.compile cannot trace the rest
        return True
    _hook_compiled_code()
    return torch._C._dynamo.eval_frame.get_eval_frame_callback() not in (None, False)


@functools.cache
def _hook_compiled_code() -> None:
    """Register `_step_aside` to run before compiled code."""
    frames: object = sys.modules.get("torch._dynamo.eval_frame")
    runner = getattr(frames, "_TorchDynamoContext", None)
    if runner is not None:  # without it code is recompiled once
        setattr(runner, ENTER_HOOKS, _EnterHooks())


class _EnterHooks:
    """A descriptor of `enter_exit_hooks`: puts ours before each object's own."""

    def __get__(self, owner: object, _: type) -> object:
        if owner is None:
            return self
        hooks: list[object] = owner.__dict__.setdefault(ENTER_HOOKS, [])
        if _step_aside not in hooks:
            hooks.insert(0, _step_aside)
        return hooks  # the list itself, as PyTorch appends to it

    def __set__(self, owner: object, hooks: list[object]) -> None:
        owner.__dict__[ENTER_HOOKS] = hooks


def _step_aside() -> Callable[[], None]:
    """Take our modes off the stack; return a function that puts them back."""
    modes = torch.overrides._get_current_function_mode_stack()
    ours = {mode: mode.sees_all for mode in modes if isinstance(mode, Consumers)}
    if not ours:
        return _do_nothing
    for mode in ours:
        mode.sees_all = False
    _replace_modes([mode for mode in modes if mode not in ours])
    return functools.partial(_step_back, modes, ours)


def _step_back(modes: list[object], ours: dict[Consumers, bool]) -> None:
    """Put modes back; ours: those of this module among them, with what `sees_all` was."""
    for mode, sees_all in ours.items():
        mode.sees_all = sees_all
        mode.known.clear()  # compiled code may have written to that memory unseen
    _replace_modes(modes)


def _do_nothing() -> None:
    """Restore nothing."""


def _replace_modes(modes: list[object]) -> None:
    """Set the thread's stack of modes, the innermost last."""
    for _ in range(torch._C._len_torch_function_stack()):
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)
