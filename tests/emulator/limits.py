# SPDX-License-Identifier: MIT
"""What a GPU would refuse to launch."""

import math

from .errors import EmulatorError

DEFAULT_SHARED_NBYTES = 48 * 1024
# The most that any architecture grants a block on request (compute capability 9.0).
MAX_SHARED_NBYTES = 227 * 1024

_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)

Dimensions = tuple[int, int, int]


def three_dimensions(what: str, sizes: tuple[int, ...]) -> Dimensions:
    """Sizes with ones for those left out."""
    if not 1 <= len(sizes) <= 3:
        raise EmulatorError(f"{what} must have one to three sizes, not {sizes}")
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def check_grid(grid: Dimensions) -> None:
    """Refuse grids beyond the hardware's limits."""
    _check_sizes("grid", grid, _MAX_GRID)


def check_block(block: Dimensions, max_threads: int) -> None:
    """Refuse blocks beyond the hardware's limits or those of __launch_bounds__."""
    _check_sizes("block", block, _MAX_BLOCK)
    if math.prod(block) > max_threads:
        raise EmulatorError(f"block {block} has {math.prod(block)} threads, over {max_threads}")


def check_shared_grant(static: int, dynamic: int, max_shared_nbytes: int) -> None:
    """Refuse to grant a kernel more shared memory than a block may have on this device."""
    if static + dynamic > max_shared_nbytes:
        raise EmulatorError(
            f"{_shared(static, dynamic)} are over {max_shared_nbytes}, the most on this device"
        )


def check_shared_memory(static: int, dynamic: int, granted_dynamic: int) -> None:
    """Refuse a launch with over 48 KiB, and with more than the kernel's attribute grants."""
    if static + dynamic > DEFAULT_SHARED_NBYTES and dynamic > granted_dynamic:
        raise EmulatorError(
            f"{_shared(static, dynamic)} are over {DEFAULT_SHARED_NBYTES}, and "
            f"max_dynamic_shared_size_bytes grants {granted_dynamic}"
        )


def _shared(static: int, dynamic: int) -> str:
    return f"{static} bytes of static and {dynamic} of dynamic shared memory"


def _check_sizes(what: str, sizes: Dimensions, limits: Dimensions) -> None:
    if any(not 1 <= size <= limit for size, limit in zip(sizes, limits, strict=True)):
        raise EmulatorError(f"{what} {sizes} is outside 1 to {limits}")
