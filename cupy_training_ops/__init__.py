# SPDX-License-Identifier: MIT
"""ONNX Runtime's CUDA training operators for NumPy-style code, on CuPy and NumPy arrays.

Every operator is here twice, as a class (`GistPack1Encoder()(x)`) and as a function
(`gist_pack1_encoder(x)`); `get_op("GistPack1Encoder")` finds it by its registered name.
"""

from __future__ import annotations

import builtins
import importlib

from . import errors, registry, tracing
from .callables.contexts import release_context
from .callables.functions import register_python_op, register_triton_op, triton_args
from .callables.split_step import SplitStep
from .codecs import CODECS, Packed, compress
from .errors import (
    ArgumentError,
    CompileError,
    DtypeError,
    GroupError,
    OpError,
    ProviderError,
)
from .process_group import ProcessGroup
from .registry import OPERATORS, function, get_op, lookup, providers, registrations

__version__ = "0.2.0"

tracing.leave_alone(__name__, __path__, apart={"torch"})

_OPTIMIZERS = ("SGD", "Adam", "AdamW", "GradientBuckets", "Lamb")  # imported where they are used
_MODULES = {
    "ActivationStash": ".activations",
    "show_versions": ".machine",
    **dict.fromkeys(_OPTIMIZERS, ".optimizers"),
}
_CLASSES = {name: get_op(name) for name in registry.names()}

# `import *` must not hide a function of Python's own.
_STARRED = [name for name in OPERATORS if not hasattr(builtins, name)]

__all__ = [
    "CODECS",
    "ArgumentError",
    "CompileError",
    "DtypeError",
    "GroupError",
    "OpError",
    "Packed",
    "ProcessGroup",
    "ProviderError",
    "SplitStep",
    "compress",
    "get_op",
    "lookup",
    "providers",
    "registrations",
    "register_python_op",
    "register_triton_op",
    "release_context",
    "triton_args",
    *_MODULES,
    *_STARRED,
    *_CLASSES,
]


def __getattr__(name: str) -> object:
    """Return what is imported or made at its first use: modules, operator classes, functions."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name], __name__), name)
    if name == "torch":
        return _with_torch()
    if name in ("onnx", "typing"):
        return importlib.import_module(f".{name}", __name__)
    if name in _CLASSES:
        return _CLASSES[name]
    if name in OPERATORS:
        return globals().setdefault(name, function(name))  # the next look-up finds it
    if name.startswith("_"):  # which tools look for
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    spelt = name.islower(), name.lower()  # of functions and classes alike those of its case
    known = [x for x in __dir__() if x.islower() == spelt[0] or x.lower() == spelt[1]]
    hint = errors.unknown("attribute", name, known, "`cupy-training-ops ops` lists the operators")
    raise AttributeError(f"module {__name__!r} has {hint}")


def _with_torch() -> object:
    """Return the submodule `torch`; AttributeError if PyTorch is not installed."""
    try:
        return importlib.import_module(".torch", __name__)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise AttributeError(f"{__name__}.torch needs PyTorch, which is not installed") from None


def __dir__() -> list[str]:
    return sorted({*__all__, *OPERATORS, "onnx", "torch", "typing", "__version__"})
