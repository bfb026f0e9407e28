# SPDX-License-Identifier: MIT
"""ONNX graphs, those of ONNX Runtime's training among them, on NumPy and CuPy arrays.

Imported where it is asked for; reading a model needs the extra `onnx`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .artifacts import make_artifacts as make_artifacts
    from .session import Session as Session
    from .single import call as call
    from .single import reference_ops as reference_ops
    from .training import TrainingSession as TrainingSession

_NAMES = {
    "Session": ".session",
    "TrainingSession": ".training",
    "call": ".single",
    "make_artifacts": ".artifacts",
    "reference_ops": ".single",
}

__all__ = [*_NAMES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
