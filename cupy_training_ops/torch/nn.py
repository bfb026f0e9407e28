# SPDX-License-Identifier: MIT
"""PyTorch's modules by their names and arguments, computed by this package's functions.

Each is a subclass of PyTorch's: parameters, state dicts and `isinstance` are the same. In compiled
regions norms, activations and dropouts are PyTorch's, which a compiler fuses with the operations
around them. Results have the same dtype as in eager mode. Exported programs have PyTorch's alone.
"""

from __future__ import annotations

import functools
import math
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
    "LinearCrossEntropyLoss",
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

        The argument of this function is a module of PyTorch's class, whose options are read. One
        that has such an option calls PyTorch's function; `convert` leaves it.
        """
        return None


class LayerNorm(Replacement, nn.LayerNorm):  # type: ignore[misc]
    """torch.nn.LayerNorm."""

    def forward(self, input: Tensor) -> Tensor:
        if is_exported(input):
            return super().forward(input)
        kind = type_of_norm(input, self.weight)
        if is_compiling():
            return super().forward(input).to(kind)
        weight, bias = widened(self.weight, kind), widened(self.bias, kind)
        return functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps).to(kind)


class RMSNorm(Replacement, nn.RMSNorm):  # type: ignore[misc]
    """torch.nn.RMSNorm."""

    def forward(self, x: Tensor) -> Tensor:
        if is_exported(x):
            return super().forward(x)
        kind = type_of_norm(x, self.weight)
        if is_compiling():
            return super().forward(x).to(kind)
        weight = widened(self.weight, kind)
        return functional.rms_norm(x, self.normalized_shape, weight, self.eps).to(kind)


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


class _Measuring:
    """Options of losses that PyTorch's modules lack: arguments of `functional.cross_entropy`."""

    # Of a module that `convert` replaced.
    lse_square_scale = 0.0
    softcap: float | None = None
    return_z_loss = return_token_accuracy = return_predicted_tokens = False

    def _set_options(
        self,
        lse_square_scale: float = 0.0,
        softcap: float | None = None,
        return_z_loss: bool = False,
        return_token_accuracy: bool = False,
        return_predicted_tokens: bool = False,
    ) -> None:
        self.lse_square_scale, self.softcap = lse_square_scale, softcap
        self.return_z_loss = return_z_loss
        self.return_token_accuracy = return_token_accuracy
        self.return_predicted_tokens = return_predicted_tokens

    def extra_repr(self) -> str:
        """Return PyTorch's text, with options that are not the default."""
        options = [
            f"{name}={value}"
            for name, value in self._options().items()
            if value != getattr(_Measuring, name)
        ]
        theirs: str = super().extra_repr()  # type: ignore[misc]
        return ", ".join(filter(None, [theirs, *options]))

    def _options(self) -> dict[str, Any]:
        names = "lse_square_scale", "softcap", "return_z_loss", "return_token_accuracy"
        return {name: getattr(self, name) for name in (*names, "return_predicted_tokens")}


class CrossEntropyLoss(_Measuring, Replacement, nn.CrossEntropyLoss):  # type: ignore[misc]
    """torch.nn.CrossEntropyLoss, with the options of `functional.cross_entropy` by name.

    `inplace` writes the gradient over the scores.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        inplace: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.inplace = inplace
        self._set_options(**options)

    inplace = False  # default of a module that `convert` replaced

    def forward(self, input: Tensor, target: Tensor) -> Any:
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
            **self._options(),
        )


class _LinearCrossEntropyLoss(nn.modules.loss._WeightedLoss):  # type: ignore[misc]
    """The constructor of torch.nn.LinearCrossEntropyLoss, which PyTorch has from 2.13.

    The scores of a row have the shape (num_classes, *out_features). options: of PyTorch's kernels.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: Any = None,
    ) -> None:
        super().__init__(weight, None, None, reduction)
        self.num_classes, self.out_features = num_classes, out_features
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        n_scores = math.prod(out_features, start=num_classes)
        self.linear = nn.Linear(in_features, n_scores, bias=bias, device=device, dtype=dtype)
        self.options = options


_TheirLinear: Any = getattr(nn, "LinearCrossEntropyLoss", _LinearCrossEntropyLoss)


class LinearCrossEntropyLoss(_Measuring, Replacement, _TheirLinear):  # type: ignore[misc]
    """torch.nn.LinearCrossEntropyLoss of PyTorch 2.13, in chunks, also in earlier versions.

    The scores of a row have the shape (num_classes, *out_features).
    Options of `functional.linear_cross_entropy` by name: lse_square_scale, softcap, return_z_loss,
    return_token_accuracy, return_predicted_tokens.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: Any = None,
        **others: Any,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            out_features=out_features,
            bias=bias,
            device=device,
            dtype=dtype,
            reduction=reduction,
            weight=weight,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            options=options,
        )
        self._set_options(**others)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        shape = (self.num_classes, *self.out_features)
        weight, bias = self.linear.weight, self.linear.bias
        return functional.linear_cross_entropy(
            input,
            weight.reshape(*shape, weight.shape[-1]),
            target,
            linear_bias=None if bias is None else bias.reshape(shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
            **self._options(),
        )


def replacing(cls: Any, forward: Callable[..., Any], make: Callable[[Any], Any]) -> Any:
    """Return a subclass with another forward pass, and with the name and module of the class, which
    libraries look up.

    make(cls): returns this same subclass: pickles and copies store `make` and `cls`, as no module
    has the subclass under its name.
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


def has_own_forward(cls: Any) -> bool:
    """Return True if a class's forward pass is that of the library that has the class, with no
    decorator of others around it.

    Of a subclass that `replacing` made it is the class that was replaced.
    """
    return own_pass(vars(cls).get(_REPLACES, cls)) is not None


def own_pass(cls: Any, name: str = "forward") -> Any:
    """Return a method of a class; None if another library put it there, or a decorator around it.

    PyTorch's decorators are tools of others: its own modules have none.
    """
    method = getattr(cls, name)
    return method if _is_own(cls, name, method) else None


@functools.cache
def _is_own(cls: Any, name: str, method: Any) -> bool:
    """Return True if a method, and what it decorates, are of the library that has the class."""
    owner = next(base for base in cls.__mro__ if name in vars(base))
    home = owner.__module__.partition(".")[0]
    while hasattr(method, "__wrapped__"):
        decorator = getattr(method, "__globals__", {}).get("__name__", "").partition(".")[0]
        if decorator != home or decorator == "torch":
            return False
        method = method.__wrapped__
    names = getattr(method, "__module__", ""), getattr(method, "__qualname__", "")
    return names == (owner.__module__, f"{owner.__qualname__}.{name}")


def _blank(make: Callable[[Any], Any], cls: Any) -> Any:
    """Make a module of the subclass make(cls) without state; pickles call it (`replacing`)."""
    subclass = make(cls)
    return subclass.__new__(subclass)


def type_of_norm(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """Return the dtype of the result of one of PyTorch's norms: that of x, but under autocast the
    weight's, as PyTorch computes norms in float32 there."""
    if weight is None or weight.dtype == x.dtype or x.is_meta:
        return x.dtype
    return weight.dtype if torch.is_autocast_enabled(x.device.type) else x.dtype


def widened(weight: Tensor | None, kind: torch.dtype) -> Tensor | None:
    """Return a norm's weight, in `kind` if that is wider: kernels round to the weight's dtype."""
    if weight is None or weight.dtype.itemsize >= kind.itemsize:
        return weight
    return weight.to(kind)


def _in_place_option(module: Any) -> tuple[str, str, str] | None:
    """Return the unsupported argument inplace=True, if the module has it."""
    return ("inplace", "False", "True") if module.inplace else None


def _missing_dim(module: Any) -> tuple[str, str, str] | None:
    """Return the unsupported argument dim=None, if the module has it."""
    return ("dim", "a dimension", "None") if module.dim is None else None
