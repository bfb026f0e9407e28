# SPDX-License-Identifier: MIT
"""ONNX graphs, those of ONNX Runtime's training among them, on NumPy and CuPy arrays.

Imported where it is asked for; reading a model needs the extra `onnx`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .artifacts import make_artifacts as make_artifacts
    from .runner import call as call
    from .runner import reference_ops as reference_ops
    from .session import Session as Session
    from .training import TrainingSession as TrainingSession

_NAMES = {
    "Session": ".session",
    "TrainingSession": ".training",
    "call": ".runner",
    "make_artifacts": ".artifacts",
    "reference_ops": ".runner",
}

__all__ = [*_NAMES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
