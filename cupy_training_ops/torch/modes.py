# SPDX-License-Identifier: MIT
"""The function mode of a context: which torch function is under way, and whose memory is written.

A saved-tensor hook sees who made a tensor, not who saves it: the mode notes that. The same mode
sees what gives memory away to those that write without raising a tensor's version. Below are
PyTorch's stacks of a thread, of modes and of hooks; and how the mode steps aside for torch.compile,
which guards on the modes that are there and would compile anew.
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
Call = tuple[Any, Arguments, Named]
Hook = Callable[[Any], Any]
LentMemory: TypeAlias = "dict[weakref.ref[torch.UntypedStorage], object]"

# Give memory to what writes without raising the version: True where they end before they return (a
# kernel that is launched with an address does as well), False where the write may come at any
# time. Setting `data` gives that of both tensors.
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
# Functions of Python that are looked through: they call functions that the save rules have. Others
# stay closed: what they save is untouched.
LOOKED_THROUGH = frozenset({functional.multi_head_attention_forward})
SPECIAL = LOOKED_THROUGH | LENDING.keys()
PLAIN = frozenset(
    itertools.chain.from_iterable(
        itertools.permutations((Tensor, torch.nn.Parameter), n) for n in range(3)
    )
)


class Consumers(TorchFunctionMode):  # type: ignore[misc]
    """Notes which torch function a thread is in, and memory that may be written unseen.

    lent: for storages that were lent, when that was; AT_ANY_TIME where it does not end.
    """

    def __init__(self, lent: LentMemory) -> None:
        self.call: Call | None = None
        self.lent = lent  # of all threads
        self.sees_all = False  # it is on the stack, and none below it calls what it likes

    def __torch_function__(
        self,
        func: Any,
        types: object,
        args: Arguments = (),
        kwargs: Named = None,
    ) -> Any:
        before = self.call
        # A class of tensors does what it likes under the function's name.
        self.call = (func, args, kwargs) if not types or types in PLAIN else None
        try:
            if func in SPECIAL:
                return self._special(func, args, kwargs)
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            self.call = before

    def _special(self, func: Any, args: Arguments, kwargs: Named) -> Any:
        """Call a function of LENDING and note the memory, or the body of one of LOOKED_THROUGH."""
        if func in LENDING:
            for x in args:
                if isinstance(x, Tensor) and x.layout is torch.strided:
                    lend(self.lent, x.untyped_storage(), LENDING[func])
        elif self.call is not None:
            self.call = None
            with self:
                return body(func)(*args, **kwargs or {})
        return func(*args, **kwargs or {})


class ThreadMode(threading.local):
    """The mode of a thread."""

    def __init__(self, lent: LentMemory) -> None:
        self.mode = Consumers(lent)


def lend(lent: LentMemory, storage: torch.UntypedStorage, ends: bool) -> None:
    """Note that memory may be written unseen, until the call ends or at any time."""
    reference = weakref.ref(storage, functools.partial(_forget, lent))
    if lent.get(reference) is not AT_ANY_TIME:
        lent[reference] = object() if ends else AT_ANY_TIME


def _forget(lent: LentMemory, reference: weakref.ref[torch.UntypedStorage]) -> None:
    """Forget memory that is gone."""
    lent.pop(reference, None)


@functools.cache
def body(function: types.FunctionType) -> types.FunctionType:
    """Copy a function without its question whether a mode wants it."""
    names = {name: _no for name in function.__globals__ if name.startswith("has_torch_function")}
    names = {**function.__globals__, **names}
    copy = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _no(*_: object) -> bool:
    return False


# ---- stacks of a thread --------------------------------------------------------------------------


def is_trusted() -> bool:
    """Return True if the modes on the stack do what functions say: others may call anything."""
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
    """Take hooks off the stack, whatever is above them; none where they are not there."""
    others = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        if top[0] is pack:
            break
        others.append(top)
    for other in reversed(others):
        torch._C._autograd._push_saved_tensors_default_hooks(*other)


# ---- beside torch.compile ------------------------------------------------------------------------

ENTER_HOOKS = "enter_exit_hooks"  # called before compiled code runs; they return what to call after


def is_compiled() -> bool:
    """Return True if torch.compile traces this code, or runs it between graphs that it compiled.

    Between graphs Dynamo's callback for new frames is set; else it is None or False.
    """
    if "torch._dynamo" not in sys.modules:
        return False
    if torch.compiler.is_compiling():  # asked first: a traced call goes no further
        return True
    _hook_compiled_code()
    return torch._C._dynamo.eval_frame.get_eval_frame_callback() not in (None, False)


@functools.cache
def _hook_compiled_code() -> None:
    """Let compiled code begin without our modes; torch.compile may trace a hook."""
    frames: object = sys.modules.get("torch._dynamo.eval_frame")
    runner = getattr(frames, "_TorchDynamoContext", None)
    if runner is not None:  # else compiled functions are compiled once more
        setattr(runner, ENTER_HOOKS, _EnterHooks())


class _EnterHooks:
    """In place of the attribute: the hooks of each object, after ours."""

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
    """Take our modes off the stack where compiled code begins; return what puts them back."""
    modes = torch.overrides._get_current_function_mode_stack()
    others = [mode for mode in modes if not isinstance(mode, Consumers)]
    if len(others) == len(modes):
        return _do_nothing
    _replace_modes(others)
    return functools.partial(_replace_modes, modes)


def _do_nothing() -> None:
    """Put back nothing."""


def _replace_modes(modes: list[object]) -> None:
    for _ in range(torch._C._len_torch_function_stack()):
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)
