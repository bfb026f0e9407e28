# SPDX-License-Identifier: MIT
"""Circumstances of figures: GPU, driver, versions, commit, date."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
from typing import Any


def machine() -> dict[str, Any]:
    """Return the fields of the first line of a results file: GPU, versions, commit, date."""
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
    """Return PyTorch's version, None if it is not installed and its peers are left out."""
    try:
        import torch
    except ImportError:
        return None
    return str(torch.__version__)


def liger_version() -> str | None:
    """Return Liger-Kernel's version, None if it is not installed and its peers are left out."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("liger_kernel")
    return None


def commit() -> str:
    """Return the commit: CTO_COMMIT, which a copy without git needs, else git's, or "unknown"."""
    stated = os.environ.get("CTO_COMMIT")
    return stated or command("git", "rev-parse", "--short", "HEAD") or "unknown"


def command(*words: str) -> str:
    """Run a command; return the first line that it prints, "" if it fails."""
    try:
        result = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return result.stdout.partition("\n")[0]
