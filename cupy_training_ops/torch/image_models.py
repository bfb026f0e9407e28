# SPDX-License-Identifier: MIT
"""Residual networks of torchvision: batch norms with the residual and relu after them.

`convert` swaps them only if `also` names them, as their gain in a model is not measured yet. In
evaluation, in exported programs, and if a batch norm or relu was replaced or got hooks since, a
module runs its own pass; also if another one was put into its class.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from . import nn
from .batch_norm import batch_norm_relu

NAMES = ("BasicBlock", "Bottleneck", "ResNet", "Sequential")

_TORCHVISION = "torchvision.models.resnet"
_INNER = "_forward_impl"  # of ResNet, which its forward pass calls
_Module = Any  # of torchvision, whose classes have no common type for their parts


def replacement(name: str, module: torch.nn.Module) -> Any:
    """Return the class that a module gets, a text that says why it is left, or None if it is not of
    the class `name`, one of NAMES."""
    cls: Any = type(module)
    if nn.is_replacing(cls):
        return None
    if name == "Sequential":
        return _of_sequence(module) if isinstance(module, torch.nn.Sequential) else None
    if (_TORCHVISION, name) not in [(base.__module__, base.__name__) for base in cls.__mro__]:
        return None
    if (cls.__module__, cls.__name__) != (_TORCHVISION, name):
        return f"a subclass of {name}, which may compute something else"
    if not _known_passes(cls):
        return f"the forward pass of {name} is not torchvision's"
    reasons = (_reason(module, *pair) for pair in _PAIRS[name])
    return next(filter(None, reasons), None) or subclass_of(cls)


def _passes(cls: Any) -> tuple[Any, ...]:
    """Return the functions that are the forward pass of a class now."""
    return cls.forward, getattr(cls, _INNER, cls.forward)


def _known_passes(cls: Any) -> tuple[Any, ...]:
    """Return the functions of `_passes`; none if another library put one of them into the class."""
    names = [name for name in ("forward", _INNER) if hasattr(cls, name)]
    is_known = all(nn.own_pass(cls, name) for name in names)
    return _passes(cls) if is_known else ()


def subclass_of(cls: Any) -> Any:
    """Return the subclass of a class whose forward pass is one of this module's."""
    return _subclass_in_place_of(cls, _known_passes(cls))


@functools.cache
def _subclass_in_place_of(cls: Any, known: tuple[Any, ...]) -> Any:
    """Return that subclass; known: the functions of `_passes` that it replaces, if they are."""
    make = _resnet_forward if cls.__name__ == "ResNet" else _block_forward
    make = _sequence_forward if issubclass(cls, torch.nn.Sequential) else make
    return nn.replacing(cls, make(cls, known), subclass_of)


# ---- batch norms and relus that can be one ------------------------------------------------------

# Names of batch norms and of the relus after them, in the order in which a module calls them.
_PAIRS = {
    "BasicBlock": (("bn1", "relu"), ("bn2", "relu")),
    "Bottleneck": (("bn1", "relu"), ("bn2", "relu"), ("bn3", "relu")),
    "ResNet": (("bn1", "relu"),),
}
_BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _reason(module: _Module, norm_name: str, relu_name: str) -> str:
    """Return why a batch norm and a relu cannot be computed as one, or "".

    norm_name, relu_name: of these two among the children of `module`.
    """
    norm, relu = module._modules.get(norm_name), module._modules.get(relu_name)
    if type(norm) not in _BATCH_NORMS:
        return f"{norm_name} is a {type(norm).__name__}, not PyTorch's own BatchNorm2d"
    if type(relu) not in (torch.nn.ReLU, nn.ReLU):
        return f"{relu_name} is a {type(relu).__name__}, not a ReLU"
    for name, each in ((norm_name, norm), (relu_name, relu)):
        if any(getattr(each, hooks) for hooks in _HOOKS):
            return f"{name} has hooks, which would not be called"
        if "forward" in vars(each):
            return f"{name} has a forward pass of its own"
    return ""


def _applies(module: _Module, input: object, norm: str, relu: str) -> bool:
    """Return True if the batch norm and the relu of these names are to be one in this call."""
    is_training = getattr(module._modules.get(norm), "training", False)
    is_whole = is_training and not _reason(module, norm, relu) and not _has_any_global_hook()
    # Compilers fuse PyTorch's own with what is around them.
    return is_whole and not nn.is_compiling() and not nn.is_exported(input)


def _norm_relu(norm: _Module, input: Tensor, residual: Tensor | None = None) -> Tensor:
    """Return relu(norm(input) + residual) of a batch norm in training, with its updates."""
    norm._check_input_dim(input)
    # Share of new statistics; with momentum None 1/n, so that running ones are the mean of n steps.
    factor = 0.0 if norm.momentum is None else norm.momentum
    if norm.track_running_stats and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:
            factor = 1.0 / float(norm.num_batches_tracked)
    mean, var = (norm.running_mean, norm.running_var) if norm.track_running_stats else (None, None)
    return batch_norm_relu(
        input, mean, var, norm.weight, norm.bias, True, factor, norm.eps, residual=residual
    )


# ---- modules that have them ----------------------------------------------------------------------


def _block_forward(cls: Any, known: tuple[Any, ...]) -> Callable[..., Any]:
    """Make the pass of a block: convolutions, each with batch norm and relu, the last plus x."""
    pairs = _PAIRS[cls.__name__]

    def forward(self: Any, x: Tensor) -> Any:
        if _passes(cls) != known or not all(_applies(self, x, *pair) for pair in pairs):
            return cls.forward(self, x)
        out, residual = x, x
        for i in range(1, len(pairs)):
            out = getattr(self, f"conv{i}")(out)
            out = _norm_relu(getattr(self, f"bn{i}"), out)
        last = len(pairs)
        out = getattr(self, f"conv{last}")(out)
        if self.downsample is not None:
            residual = self.downsample(x)
        return _norm_relu(getattr(self, f"bn{last}"), out, residual)

    return forward


def _resnet_forward(cls: Any, known: tuple[Any, ...]) -> Callable[..., Any]:
    """Make the pass of a network, whose stem has a batch norm and a relu."""

    def forward(self: Any, x: Tensor) -> Any:
        is_known = _passes(cls) == known and _INNER not in vars(self)
        if not is_known or not _applies(self, x, *_PAIRS["ResNet"][0]):
            return cls.forward(self, x)
        x = self.maxpool(_norm_relu(self.bn1, self.conv1(x)))
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))

    return forward


def _neighbours(module: _Module) -> Iterator[tuple[str, str]]:
    """Yield the names of batch norms of a sequence and of the relus right after them."""
    names = list(module._modules)
    for norm, relu in itertools.pairwise(names):
        is_norm = isinstance(module._modules[norm], torch.nn.modules.batchnorm._BatchNorm)
        if is_norm and isinstance(module._modules[relu], torch.nn.ReLU):
            yield norm, relu


def _of_sequence(module: torch.nn.Sequential) -> Any:
    """Return the class that a sequence gets, a text that says why it is left, or None if it has no
    batch norm before a relu."""
    pairs = list(_neighbours(module))
    if not pairs:
        return None
    if type(module).forward is not torch.nn.Sequential.forward:
        return "a subclass of Sequential with a forward pass of its own"
    if not _known_passes(type(module)):
        return "the forward pass of Sequential is not PyTorch's"
    reasons = [_reason(module, *pair) for pair in pairs]
    cls: Any = type(module)
    return reasons[0] if all(reasons) else subclass_of(cls)


def _sequence_forward(cls: Any, known: tuple[Any, ...]) -> Callable[..., Any]:
    """Make the pass of a sequence: a batch norm and the relu after it are one."""

    def forward(self: Any, input: Any) -> Any:
        if _passes(cls) != known:
            return cls.forward(self, input)
        pairs = {n: relu for n, relu in _neighbours(self) if _applies(self, input, n, relu)}
        skipped = None
        for name, module in self._modules.items():
            if name == skipped:
                continue
            if name in pairs and isinstance(input, Tensor):
                input, skipped = _norm_relu(module, input), pairs[name]
            else:
                input = module(input)
        return input

    return forward
