# SPDX-License-Identifier: MIT
"""Runs CUDA C kernel sources on a CPU, for tests on machines without a GPU.

module = EmulatedModule(code, options=("-DCTO_T=__half",))
with thread_order("random", seed=7):
    module.get_function("scale")((grid,), (block,), (x, y, np.int64(n)))
"""

from .errors import EmulatorCompileError, EmulatorError
from .memory import device_address, guarded_copy
from .module import EmulatedKernel, EmulatedModule
from .requirement import require_emulator
from .settings import LaunchSettings, current_settings, thread_order, time_limit
from .toolchain import unavailable_reason

__all__ = [
    "EmulatedKernel",
    "EmulatedModule",
    "EmulatorCompileError",
    "EmulatorError",
    "LaunchSettings",
    "current_settings",
    "device_address",
    "guarded_copy",
    "require_emulator",
    "thread_order",
    "time_limit",
    "unavailable_reason",
]
