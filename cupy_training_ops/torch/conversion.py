# SPDX-License-Identifier: MIT
"""Replace modules of a model by this package's, and report which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from ..errors import refuse, shown
from ..log import LOG
from . import image_models, language_models, nn

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
    # (name, module, the class that it had, the one that it got).
    _originals: list[tuple[str, torch.nn.Module, type, type]] = field(
        default_factory=list, repr=False, compare=False
    )

    def __str__(self) -> str:
        """Return a text: what was swapped, and a line for each reason why others were left."""
        counts = Counter(self.swapped.values())
        kinds = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
        lines = [f"swapped {kinds or 'nothing'}"]
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.left.items():
            by_reason.setdefault(reason, []).append(name or "the model")
        for reason, (name, *others) in by_reason.items():
            lines.append(f"left {name}{f' and {len(others)} more' if others else ''}: {reason}")
        lines += [f"left every {name}: {why}" for name, why in sorted(self.left_classes.items())]
        return "\n".join(lines)

    def undo(self) -> None:
        """Give each module the class that it had; what was trained since stays.

        Raises ArgumentError, and changes nothing, if a module got another class since, as by a
        parametrization: that has to be removed first.
        """
        for name, module, *classes in self._originals:
            if type(module) not in classes:
                got = f"a {type(module).__name__}, which it became since: undo that first"
                refuse("undo", name or "the model", "of the class that `convert` gave it", got)
        while self._originals:
            _, module, cls, _ = self._originals[-1]
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
    replaced by a subclass. This applies to PyTorch's own classes, not to subclasses, and to
    language models of transformers with their norms, gated layers and gelus. Such a model, in
    training and with labels, returns a loss without logits, unless a call has skip_logits=False.
    Call it before the model is compiled or wrapped. skip: names of classes that are not replaced,
    as "Dropout" or "LlamaForCausalLM". The result says what was left and why; its `undo` puts all
    back.

    also: names of classes that are replaced only if they are named, as whether a model gains by it
    is not measured yet. "BasicBlock", "Bottleneck" and "ResNet" are torchvision's: batch norm,
    residual and relu become one pass, forward and backward. "Sequential": a batch norm and the relu
    after it. "LlamaAttention" and the same layer of Mistral, Qwen2, Qwen3, Gemma, Gemma2, Gemma3
    and Phi3: queries and keys are each rotated in one pass, forward and backward.
    """
    conversion, names = Conversion(), frozenset[str]().union(*[rule.names for rule in _RULES])
    is_module = isinstance(model, torch.nn.Module)
    if not is_module or isinstance(model, torch.jit.ScriptModule):
        got = f"a {type(model).__name__}" if is_module else shown(model)
        refuse("convert", "model", "a torch.nn.Module that Python runs", got)
    of_pytorch = ", ".join(sorted(cls.__name__ for cls in _REPLACEMENTS))
    expected = f"names of {of_pytorch}, or of transformers' modules that are replaced"
    if isinstance(skip, str):
        refuse("convert", "skip", expected, f"one, {shown(skip)}: write ({shown(skip)},)")
    if not isinstance(skip, _NAMES):
        refuse("convert", "skip", f"{expected}, in a list, tuple or set", shown(skip))
    known = [*names, *_ALSO]
    for name in skip:
        if name not in known and not str(name).endswith(language_models.RMS_NORM):
            refuse("convert", "skip", expected, shown(name))
    if not isinstance(also, _NAMES) or any(name not in [*_ALSO] for name in also):
        expected = f"names of {', '.join(_ALSO)}, in a list, tuple or set"
        refuse("convert", "also", expected, shown(also))
    rules = *_RULES, *(Rule(partial(_ALSO[name], name), {name}) for name in also)
    for name, module in model.named_modules():
        if type(module).__name__ in skip:
            conversion.left_classes[type(module).__name__] = "named in skip"
            continue
        replacement: Any = next(filter(None, (rule.find(module) for rule in rules)), None)
        if replacement is not None and "forward" in vars(module):
            replacement = "another forward pass was put into the module"
        if isinstance(replacement, str):
            LOG.info("fallback: convert: %s stays PyTorch's: %s", name or "the model", replacement)
            conversion.left[name] = replacement
        elif replacement is not None:
            conversion.swapped[name] = type(module).__name__
            conversion._originals.append((name, module, type(module), replacement))
            module.__class__ = replacement
        elif not nn.is_replacing(type(module)) and _is_whole(module):
            conversion.left_classes.setdefault(type(module).__name__, _class_reason(module))
    return conversion


def _is_whole(module: torch.nn.Module) -> bool:
    """Return True unless a module only contains others; a parametrized norm has others, too."""
    return isinstance(module, (*_REPLACEMENTS,)) or next(module.children(), None) is None


def _class_reason(module: torch.nn.Module) -> str:
    """Return why no module of a class is replaced."""
    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        return "alone it stays PyTorch's; with the relu after it, see `also`"
    for cls in _REPLACEMENTS:
        if isinstance(module, cls):
            return f"a subclass of {cls.__name__}, which may compute something else"
    if type(module).__name__ == "SiLUActivation":
        return "gated layers compute it with their product"
    if isinstance(module, torch.nn.ReLU):
        return "most models save its result anyway, for the next layer"
    if type(module).__name__.endswith(language_models.RMS_NORM):
        return "not of the form of transformers' RMS norms"
    return "no kernel of this package computes it"


def _of_pytorch(module: torch.nn.Module) -> Any:
    """Return the class that one of PyTorch's own modules gets, a text that says why it is left, or
    None for other modules."""
    cls = type(module)
    replacement: Any = _REPLACEMENTS.get(cls)
    if replacement and not nn.has_own_forward(cls):
        return f"another forward pass was put into the class {cls.__name__}"
    argument = replacement and replacement.unsupported_argument(module)
    if not argument:
        return replacement
    name, expected, got = argument
    return f"{type(module).__name__} with {name}={got} (expected {expected})"


_NAMES = (list, tuple, Set)
# What finds the class for a module of a class that only `also` names, by that name.
_ALSO = {
    **dict.fromkeys(image_models.NAMES, image_models.replacement),
    **dict.fromkeys(language_models.ALSO, language_models.attention_replacement),
}
# The first that is about a module's class decides.
_RULES = (
    Rule(_of_pytorch, frozenset(cls.__name__ for cls in _REPLACEMENTS)),
    Rule(language_models.replacement, language_models.NAMES),
)


def _blank(cls: Any) -> torch.nn.Module:
    """Make an RMS norm without state: pickles of earlier versions name this function."""
    subclass = language_models.subclass_of(cls)
    module: torch.nn.Module = subclass.__new__(subclass)
    return module
