# SPDX-License-Identifier: MIT
"""Circumstances of figures: GPU, driver, versions, commit, date."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
from typing import Any


def machine() -> dict[str, Any]:
    """The first line of a results file."""
    import cupy
    import numpy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    driver = command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "gpu": properties["name"].decode(),
        "driver": driver or "unknown",
        "cuda": cupy.cuda.runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
        "torch": torch_version(),
        "liger": liger_version(),
        "numpy": numpy.__version__,
        "commit": commit(),
        "date": command("date", "-u", "+%Y-%m-%d"),
    }


def torch_version() -> str | None:
    """PyTorch's version, or None where it is not installed and its peers are left out."""
    try:
        import torch
    except ImportError:
        return None
    return str(torch.__version__)


def liger_version() -> str | None:
    """Liger-Kernel's version, or None where its peers are left out."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("liger_kernel")
    return None


def commit() -> str:
    """Value of CTO_COMMIT, which a copy without git needs; else git's."""
    stated = os.environ.get("CTO_COMMIT")
    return stated or command("git", "rev-parse", "--short", "HEAD") or "unknown"


def command(*words: str) -> str:
    """The first line a command prints; nothing where it fails."""
    try:
        result = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return result.stdout.partition("\n")[0]
