# SPDX-License-Identifier: MIT
"""The example that learns to read digits, as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

PATH = Path(__file__).resolve().parent.parent / "examples" / "train_digits.py"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_digits", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


train_digits = _loaded()
