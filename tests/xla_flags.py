# SPDX-License-Identifier: MIT
"""How JAX compiles where it is an oracle: for each shape, to run the result once."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def flags() -> list[str]:
    """Those that this version knows: others end the process."""
    results = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
    try:
        is_known = version("jaxlib").startswith("0.10.")
    except PackageNotFoundError:
        is_known = False
    # In 0.6 of the time.
    return [*results, "--xla_cpu_use_fusion_emitters=false"] if is_known else results


FLAGS = " ".join(flags())
