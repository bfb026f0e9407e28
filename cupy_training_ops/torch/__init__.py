# SPDX-License-Identifier: MIT
"""For PyTorch: operators, functions, modules, optimizers, and compressed activations.

This module and its parts are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..tracing import leave_alone
from .activations import CompressedActivations, compressed_activations

if TYPE_CHECKING:
    from . import functional as functional
    from . import nn as nn
    from . import ops as ops
    from .buckets import GradientBuckets as GradientBuckets
    from .conversion import Conversion as Conversion
    from .conversion import convert as convert
    from .graph_codes import activation_codes as activation_codes
    from .optim import SGD as SGD
    from .optim import Adam as Adam
    from .optim import AdamW as AdamW
    from .optim import Lamb as Lamb

# torch.compile traces only these.
_TRACED = {"batch_norm", "conversion", "functional", "image_models", "language_models", "nn", "ops"}
_TRACED |= {"loss_functions", "to_pytorch"}
leave_alone(__name__, __path__, apart=_TRACED)

_MODULES = ("functional", "nn", "ops")
_NAMES = {
    "activation_codes": ".graph_codes",
    "Conversion": ".conversion",
    "convert": ".conversion",
    "fallbacks": ".to_pytorch",
    "GradientBuckets": ".buckets",
} | dict.fromkeys(("Adam", "AdamW", "SGD", "Lamb"), ".optim")

__all__ = ["CompressedActivations", "compressed_activations", *_MODULES, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
