# SPDX-License-Identifier: MIT
"""The runtime's C interface, as ctypes sees it."""

import ctypes
import functools
from ctypes import POINTER, c_bool, c_char, c_char_p, c_size_t, c_uint32, c_uint64, c_void_p

from .toolchain import build_runtime


class Parameter(ctypes.Structure):
    """Kind and size of a kernel's parameter: mirrors trampoline.h."""

    _fields_ = (("kind", c_char), ("bytes", c_uint32))


class KernelEntry(ctypes.Structure):
    """A kernel in a compiled module: mirrors trampoline.h."""

    _fields_ = (
        ("name", c_char_p),
        ("body", c_void_p),
        ("parameters", POINTER(Parameter)),
        ("parameter_count", c_uint32),
        ("max_threads", c_uint32),
    )


class Extent(ctypes.Structure):
    """A range of addresses: mirrors interface.h."""

    _fields_ = (("begin", c_size_t), ("end", c_size_t))


class LaunchRequest(ctypes.Structure):
    """Everything about a launch: mirrors launch.cpp."""

    _fields_ = (
        ("body", c_void_p),
        ("arguments", POINTER(c_void_p)),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("thread_order", c_uint32),
        ("reverse_blocks", c_uint32),
        ("seed", c_uint64),
        ("time_limit_milliseconds", c_uint64),
        ("dynamic_shared", c_void_p),
        ("dynamic_shared_bytes", c_uint64),
        ("static_shared", POINTER(Extent)),
        ("static_shared_count", c_uint64),
    )


_FUNCTIONS = {
    "emulator_acquire": (c_size_t, (c_uint64, c_uint64, c_char_p)),
    "emulator_acquire_problem": (c_char_p, ()),
    "emulator_release": (None, (c_size_t,)),
    "emulator_is_guarded": (c_bool, (c_size_t,)),
    "emulator_extent_at": (Extent, (c_size_t,)),
    "emulator_canary_damage": (c_char_p, ()),
    "emulator_launch": (c_bool, (POINTER(LaunchRequest),)),
    "emulator_failure_text": (c_char_p, ()),
    "emulator_failure_return_addresses": (POINTER(c_void_p), ()),
}


@functools.cache
def runtime() -> ctypes.CDLL:
    """The runtime, built on first use. Global, because compiled kernels link against it."""
    library = ctypes.CDLL(str(build_runtime()), mode=ctypes.RTLD_GLOBAL)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
