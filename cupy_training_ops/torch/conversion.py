# SPDX-License-Identifier: MIT
"""Replace modules of a model by this package's, and report which."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import refuse, shown
from ..log import LOG
from . import functional, image_models, nn

# Without ReLU: most models save its result anyway, for the next layer.
_REPLACEMENTS = {
    getattr(torch.nn, cls.__name__): cls
    for cls in (
        nn.CrossEntropyLoss,
        nn.Dropout,
        nn.Embedding,
        nn.GELU,
        nn.LayerNorm,
        nn.LogSoftmax,
        nn.RMSNorm,
        nn.Softmax,
    )
}

_RMS_NORM = "RMSNorm"  # the end of class names in the library transformers


class Rule(NamedTuple):
    """A rule by which `convert` replaces modules.

    find: returns the class that a module gets, a subclass of its own; a text that says why it is
    left; or None if the rule is not about its class. names: of the classes that it is about, which
    `skip` may name.
    """

    find: Callable[[torch.nn.Module], type[torch.nn.Module] | str | None]
    names: Set[str]


@dataclass(frozen=True)
class Conversion:
    """The result of `convert`.

    swapped: the new class, by module name. left: why a module of a class that has a replacement was
    left. left_classes: why modules of other classes were, by class name; without modules that only
    contain others.
    """

    swapped: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    left_classes: dict[str, str] = field(default_factory=dict)
    _originals: list[tuple[torch.nn.Module, type]] = field(
        default_factory=list, repr=False, compare=False
    )

    def __str__(self) -> str:
        counts = Counter(self.swapped.values())
        kinds = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
        lines = [f"swapped {kinds or 'nothing'}"]
        lines += [f"left {name or 'the model'}: {reason}" for name, reason in self.left.items()]
        lines += [f"left every {name}: {why}" for name, why in sorted(self.left_classes.items())]
        return "\n".join(lines)

    def undo(self) -> None:
        """Give each module the class that it had; what was trained since stays."""
        while self._originals:
            module, cls = self._originals[-1]
            module.__class__ = cls
            self._originals.pop()


def convert(
    model: torch.nn.Module,
    *,
    skip: list[str] | tuple[str, ...] | Set[str] = (),
    also: list[str] | tuple[str, ...] | Set[str] = (),
) -> Conversion:
    """Replace a model's norms, losses, dropouts, embeddings and gelus by this package's, in place.

    Modules remain the same objects, with parameters, hooks and state dicts: only their class is
    replaced by a subclass. This applies to PyTorch's own classes, not to subclasses, and to RMS
    norms of transformers. Call it before the model is compiled or wrapped. skip: names of classes
    that are not replaced, as "Dropout". The result says what was left and why; its `undo` puts all
    back.

    also: names of classes that are replaced only if they are named, as whether a model gains by it
    is not measured yet. "BasicBlock", "Bottleneck" and "ResNet" are torchvision's: batch norm,
    residual and relu become one pass, forward and backward. "Sequential": a batch norm and the relu
    after it.
    """
    conversion, names = Conversion(), frozenset[str]().union(*[rule.names for rule in _RULES])
    is_module = isinstance(model, torch.nn.Module)
    if not is_module or isinstance(model, torch.jit.ScriptModule):
        got = f"a {type(model).__name__}" if is_module else shown(model)
        refuse("convert", "model", "a torch.nn.Module that Python runs", got)
    expected = f"names of {', '.join(sorted(names))}, or of RMS norms"
    if isinstance(skip, str):
        refuse("convert", "skip", expected, f"one, {shown(skip)}: write ({shown(skip)},)")
    for name in skip:
        if name not in names and not name.endswith(_RMS_NORM):
            refuse("convert", "skip", expected, shown(name))
    if isinstance(also, str) or not set(also).issubset(image_models.NAMES):
        names_of_also = f"names of {', '.join(image_models.NAMES)}"
        refuse("convert", "also", names_of_also, shown(also))
    rules = *_RULES, *(Rule(partial(image_models.replacement, name), {name}) for name in also)
    for name, module in model.named_modules():
        if type(module).__name__ in skip:
            conversion.left_classes[type(module).__name__] = "named in skip"
            continue
        replacement = next((found for rule in rules if (found := rule.find(module))), None)
        if isinstance(replacement, str):
            LOG.info("fallback: convert: %s stays PyTorch's: %s", name or "the model", replacement)
            conversion.left[name] = replacement
        elif replacement is not None:
            conversion.swapped[name] = type(module).__name__
            conversion._originals.append((module, type(module)))
            module.__class__ = replacement
        elif not _is_ours(module) and next(module.children(), None) is None:
            conversion.left_classes.setdefault(type(module).__name__, _class_reason(module))
    return conversion


def _is_ours(module: torch.nn.Module) -> bool:
    """Return True if a module was replaced before, or is one of this package's."""
    return type(module).__module__ in (nn.__name__, __name__)


def _class_reason(module: torch.nn.Module) -> str:
    """Return why no module of a class is replaced."""
    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        return "alone it stays PyTorch's; with the relu after it, see `also`"
    for cls in _REPLACEMENTS:
        if isinstance(module, cls):
            return f"a subclass of {cls.__name__}, which may compute something else"
    if isinstance(module, torch.nn.ReLU):
        return "most models save its result anyway, for the next layer"
    if type(module).__name__.endswith(_RMS_NORM):
        return "not of the form of transformers' RMS norms"
    return "no kernel of this package computes it"


def _of_pytorch(module: torch.nn.Module) -> Any:
    """Return the replacement of one of PyTorch's own modules, why it has none, or None."""
    replacement: Any = _REPLACEMENTS.get(type(module))
    argument = replacement and replacement.unsupported_argument(module)
    if not argument:
        return replacement
    name, expected, got = argument
    return f"{type(module).__name__} with {name}={got} (expected {expected})"


def _of_transformers(module: torch.nn.Module) -> Any:
    """Return the replacement of an RMS norm of the library transformers, or None."""
    cls = type(module)
    is_theirs = cls.__module__.startswith("transformers.") and cls.__name__.endswith(_RMS_NORM)
    has_form = {"variance_epsilon", "weight"} <= {*vars(module), *module._parameters}
    return _rms_norm_of(cls) if is_theirs and has_form else None  # type: ignore[arg-type]


@functools.cache
def _rms_norm_of(cls: Any) -> Any:
    """Make a subclass whose forward pass is `functional.rms_norm`."""

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        weight, eps = self.weight, self.variance_epsilon
        if nn.is_compiling():  # as `nn` does
            return cls.forward(self, hidden_states).to(nn.type_of_norm(hidden_states, weight))
        return functional.rms_norm(hidden_states, weight.shape, weight, eps)

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        """Pickle by the original class: this one is in no module's namespace."""
        _, _, *state = cls.__reduce_ex__(self, protocol)
        return _blank, (cls,), *state

    body = {"forward": forward, "__reduce_ex__": reduce, "__module__": __name__}
    return type(cls.__name__, (cls,), body)


def _blank(cls: Any) -> torch.nn.Module:
    """Make an RMS norm without state, for copy and pickle."""
    subclass = _rms_norm_of(cls)
    module: torch.nn.Module = subclass.__new__(subclass)
    return module


# The first that is about a module's class decides.
_RULES = (
    Rule(_of_pytorch, frozenset(cls.__name__ for cls in _REPLACEMENTS)),
    Rule(_of_transformers, frozenset()),
)
