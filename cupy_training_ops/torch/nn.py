# SPDX-License-Identifier: MIT
"""PyTorch's modules by their names and arguments, over this package's functions.

Each is a subclass of PyTorch's: parameters, state dicts and `isinstance` are the same. In compiled
regions norms, activations and dropouts are PyTorch's, which a compiler fuses with the operations
around them. Results have the same dtype as in eager mode. Exported programs have PyTorch's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import shown
from . import functional

__all__ = [
    "GELU",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "LogSoftmax",
    "RMSNorm",
    "ReLU",
    "Softmax",
]


def __dir__() -> list[str]:
    return sorted(__all__)


is_compiling = torch.compiler.is_compiling
_is_tracing, _compiler = torch.jit.is_tracing, torch.compiler


def is_exported(input: object) -> bool:
    """Return True under torch.export, torch.jit.trace, or torch.fx.symbolic_trace."""
    # The flag itself: torch.compiler.is_exporting() is always true where PyTorch 2.11 compiles.
    is_exporting: bool = _compiler._is_exporting_flag
    return is_exporting or _is_tracing() or isinstance(input, torch.fx.Proxy)


class Replacement:
    """Base of the modules here."""

    @staticmethod
    def unsupported_argument(_: Any) -> tuple[str, str, str] | None:
        """Return an argument that no kernel takes as (name, expected, got), or None.

        A module with one calls PyTorch's function; `convert` leaves it.
        """
        return None


class LayerNorm(Replacement, nn.LayerNorm):  # type: ignore[misc]
    """torch.nn.LayerNorm."""

    def forward(self, input: Tensor) -> Tensor:
        if is_exported(input):
            return super().forward(input)
        if is_compiling():
            return super().forward(input).to(type_of_norm(input, self.weight))
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Replacement, nn.RMSNorm):  # type: ignore[misc]
    """torch.nn.RMSNorm."""

    def forward(self, x: Tensor) -> Tensor:
        if is_exported(x):
            return super().forward(x)
        if is_compiling():
            return super().forward(x).to(type_of_norm(x, self.weight))
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GELU(Replacement, nn.GELU):  # type: ignore[misc]
    """torch.nn.GELU."""

    def forward(self, input: Tensor) -> Tensor:
        if is_exported(input):
            return super().forward(input)
        if is_compiling():
            return super().forward(input).to(input.dtype)
        return functional.gelu(input, self.approximate)


class ReLU(Replacement, nn.ReLU):  # type: ignore[misc]
    """torch.nn.ReLU, which saves a bit an element."""

    def forward(self, input: Tensor) -> Tensor:
        if is_exported(input):
            return super().forward(input)
        if is_compiling():
            return super().forward(input)
        return functional.relu(input, self.inplace)

    @staticmethod
    def unsupported_argument(module: Any) -> tuple[str, str, str] | None:
        return _in_place_option(module)


class Softmax(Replacement, nn.Softmax):  # type: ignore[misc]
    """torch.nn.Softmax."""

    def forward(self, input: Tensor) -> Tensor:
        if is_exported(input):
            return super().forward(input)
        if is_compiling():
            return super().forward(input).to(input.dtype)
        if self.dim is None:
            return functional.softmax(input, None, 5)
        return functional.softmax(input, self.dim)

    @staticmethod
    def unsupported_argument(module: Any) -> tuple[str, str, str] | None:
        return _missing_dim(module)


class LogSoftmax(Replacement, nn.LogSoftmax):  # type: ignore[misc]
    """torch.nn.LogSoftmax."""

    def forward(self, input: Tensor) -> Tensor:
        if is_exported(input):
            return super().forward(input)
        if is_compiling():
            return super().forward(input).to(input.dtype)
        if self.dim is None:
            return functional.log_softmax(input, None, 5)
        return functional.log_softmax(input, self.dim)

    @staticmethod
    def unsupported_argument(module: Any) -> tuple[str, str, str] | None:
        return _missing_dim(module)


class Dropout(Replacement, nn.Dropout):  # type: ignore[misc]
    """torch.nn.Dropout, whose mask takes a bit an element."""

    def forward(self, input: Tensor) -> Tensor:
        if is_exported(input):
            return super().forward(input)
        if is_compiling():
            return super().forward(input)
        return functional.dropout(input, self.p, self.training, self.inplace)

    @staticmethod
    def unsupported_argument(module: Any) -> tuple[str, str, str] | None:
        return _in_place_option(module)


class Embedding(Replacement, nn.Embedding):  # type: ignore[misc]
    """torch.nn.Embedding, whose gradient is the same in every run."""

    def forward(self, input: Tensor) -> Tensor:
        if is_exported(input):
            return super().forward(input)
        return functional.embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )

    @staticmethod
    def unsupported_argument(module: Any) -> tuple[str, str, str] | None:
        if module.max_norm is not None:
            return "max_norm", "None", shown(module.max_norm)
        for name in ("scale_grad_by_freq", "sparse"):
            if getattr(module, name):
                return name, "False", "True"
        return None


class CrossEntropyLoss(Replacement, nn.CrossEntropyLoss):  # type: ignore[misc]
    """torch.nn.CrossEntropyLoss; `inplace` writes the gradient over the scores."""

    def __init__(self, *arguments: Any, inplace: bool = False, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.inplace = inplace

    inplace = False  # default of a module that `convert` replaced

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if is_exported(input):
            return super().forward(input, target)
        return functional.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            inplace=self.inplace,
        )

    @staticmethod
    def unsupported_argument(module: Any) -> tuple[str, str, str] | None:
        if module.label_smoothing and module.weight is not None:
            return "label_smoothing", "0.0 with a weight", shown(module.label_smoothing)
        return None


def replacing(cls: Any, forward: Callable[..., Any], make: Callable[[Any], Any]) -> Any:
    """Make a subclass with another forward pass, in the place of a class.

    make: returns this subclass for the class: copies and pickles name both, as the subclass stands
    in no module. It has the name and module of the class, which libraries look up.
    """

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        _, _, *state = cls.__reduce_ex__(self, protocol)
        return _blank, (make, cls), *state

    body = {"forward": forward, "__reduce_ex__": reduce, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), body | {_REPLACES: cls})


_REPLACES = "_replaced_class"


def is_replacing(cls: type) -> bool:
    """Return True if a class was made by `replacing`, or is one of the modules here."""
    return _REPLACES in vars(cls) or cls.__module__ == __name__


def _blank(make: Callable[[Any], Any], cls: Any) -> Any:
    """Make a module without state."""
    subclass = make(cls)
    return subclass.__new__(subclass)


def type_of_norm(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """Return the dtype of a norm's result."""
    return x.dtype if weight is None else weight.dtype


def _in_place_option(module: Any) -> tuple[str, str, str] | None:
    """Return the unsupported argument inplace=True, if the module has it."""
    return ("inplace", "False", "True") if module.inplace else None


def _missing_dim(module: Any) -> tuple[str, str, str] | None:
    """Return the unsupported argument dim=None, if the module has it."""
    return ("dim", "a dimension", "None") if module.dim is None else None
