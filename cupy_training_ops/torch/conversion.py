# SPDX-License-Identifier: MIT
"""Replace modules of a model by this package's, and report which."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import refuse, shown
from ..log import LOG
from . import functional, nn

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


@dataclass(frozen=True)
class Conversion:
    """The result of `convert` by module name: the new class, or why one was left.

    reason: why nothing was swapped and nothing left.
    """

    swapped: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    reason: str = ""

    def __str__(self) -> str:
        counts = Counter(self.swapped.values())
        kinds = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
        lines = [f"swapped {kinds or 'nothing'}{self.reason and ': '}{self.reason}"]
        lines += [f"left {name or 'the model'}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


def convert(
    model: torch.nn.Module, *, skip: list[str] | tuple[str, ...] | Set[str] = ()
) -> Conversion:
    """Replace a model's norms, losses, dropouts, embeddings and gelus by this package's, in place.

    Modules remain the same objects, with parameters, hooks and state dicts: only their class is
    replaced by a subclass. This applies to PyTorch's own classes, not to subclasses, and to RMS
    norms of transformers. Call it before the model is compiled or wrapped. skip: names of classes
    that are not replaced, as "Dropout".
    """
    conversion, names = Conversion(), {cls.__name__ for cls in _REPLACEMENTS}
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
    for name, module in model.named_modules():
        if type(module).__name__ in skip:
            continue
        replacement = _REPLACEMENTS.get(type(module)) or _of_transformers(module)
        reason = replacement and _reason(replacement, module)
        if reason:
            LOG.info("fallback: convert: %s stays PyTorch's: %s", name or "the model", reason)
            conversion.left[name] = reason
        elif replacement is not None:
            conversion.swapped[name] = type(module).__name__
            module.__class__ = replacement
    if not conversion.swapped and not conversion.left:
        return replace(conversion, reason=_why_nothing(model, names - set(skip)))
    return conversion


def _why_nothing(model: torch.nn.Module, names: Set[str]) -> str:
    """Return why a model has no module to be replaced."""
    ours = tuple(_REPLACEMENTS.values())
    if any(isinstance(m, ours) or type(m).__module__ == __name__ for m in model.modules()):
        return "its modules are this package's already"
    return f"the model has none of {', '.join(sorted(names))}, nor RMS norms of transformers"


def _reason(replacement: Any, module: torch.nn.Module) -> str:
    """Return why a module is not replaced, or ""."""
    find: Callable[[Any], Any] = getattr(replacement, "unsupported_argument", lambda _: None)
    argument = find(module)
    if argument is None:
        return ""
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
