# SPDX-License-Identifier: MIT
"""Copies of arrays in memory whose surroundings are watched.

A launch works on copies. A copy keeps the address of the caller's array modulo 16, because the
host chooses vector kernels by it, and ends less than 16 bytes before an inaccessible page. Every
access of a kernel is checked against the exact extent of the copy; writes by other means (memcpy)
are noticed by a canary around it. Arrays that overlap share one copy, so that aliases stay aliases.
"""

import ctypes
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .errors import EmulatorError
from .native import runtime

_ALIGNMENT = 16


@dataclass
class Region:
    """Memory of the caller, and the guarded copy of it."""

    begin: int
    end: int
    labels: list[str]
    writeable: bool
    copy: int = field(default=0, init=False)

    @property
    def nbytes(self) -> int:
        """How many bytes the region holds."""
        return self.end - self.begin

    def load(self) -> None:
        """Make the copy."""
        self.copy = acquire(self.nbytes, self.begin % _ALIGNMENT, " and ".join(self.labels))
        ctypes.memmove(self.copy, self.begin, self.nbytes)

    def store(self) -> None:
        """Bring the copy's contents back to the caller."""
        if self.writeable:
            ctypes.memmove(self.begin, self.copy, self.nbytes)
        elif self._bytes(self.begin) != self._bytes(self.copy):
            raise EmulatorError(
                f"the kernel wrote to {' and '.join(self.labels)}, a read-only array"
            )

    def _bytes(self, address: int) -> bytes:
        return ctypes.string_at(address, self.nbytes)


class GuardedArrays:
    """The guarded copies of a launch's arrays. A context manager, which frees them."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        """`arrays` has names for error messages as keys."""
        self._regions = _merge(
            _region(label, array)
            for label, array in arrays.items()
            if not runtime().emulator_is_guarded(array.ctypes.data)
        )

    def __enter__(self) -> "GuardedArrays":
        """Make the copies."""
        try:
            for region in self._regions:
                region.load()
        except EmulatorError:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Free the copies."""
        self._release()

    def _release(self) -> None:
        for region in self._regions:
            if region.copy:
                runtime().emulator_release(region.copy)

    def relocate(self, address: int) -> int:
        """Where the copies have what the caller has at `address`; unchanged if they have not."""
        # Regions are sorted: at a common boundary the one that begins there wins.
        for region in reversed(self._regions):
            if region.begin <= address <= region.end:
                return region.copy + address - region.begin
        return address

    def store(self) -> None:
        """After a launch that went well: look for stray writes, copy back."""
        damage = runtime().emulator_canary_damage()
        if damage is not None:
            raise EmulatorError(f"memory was {damage.decode()}")
        for region in self._regions:
            region.store()


class GuardedSharedMemory:
    """A block's dynamic shared memory. A context manager, which frees it."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes` is the size that the launch asks for."""
        self.nbytes = nbytes
        self.address = 0

    def __enter__(self) -> "GuardedSharedMemory":
        """Allocate the memory."""
        self.address = acquire(self.nbytes, 0, "dynamic shared memory")
        return self

    def __exit__(self, *_: object) -> None:
        """Free the memory."""
        runtime().emulator_release(self.address)


class Snapshot:
    """What guarded arrays held before a launch that may have to be made again."""

    def __init__(self, addresses: Iterable[int]) -> None:
        """`addresses` are those that the launch is given, with others among them."""
        extents = map(runtime().emulator_extent_at, addresses)
        actual = {(extent.begin, extent.end) for extent in extents}
        self._contents = [(begin, ctypes.string_at(begin, end - begin)) for begin, end in actual]

    def restore(self) -> None:
        """Undo what was written since."""
        for begin, contents in self._contents:
            ctypes.memmove(begin, contents, len(contents))


def guarded_copy(array: np.ndarray) -> np.ndarray:
    """A copy in guarded memory of its own. Launches use such arrays in place.

    For arrays that a kernel reaches through addresses stored in other arrays.
    """
    array = np.asarray(array, order="C")
    label = f"a guarded copy of {array.dtype}{list(array.shape)}"
    address = acquire(array.nbytes, array.ctypes.data % _ALIGNMENT, label)
    buffer = (ctypes.c_ubyte * array.nbytes).from_address(address)
    weakref.finalize(buffer, runtime().emulator_release, address)
    copy: np.ndarray = np.ndarray(array.shape, array.dtype, buffer=memoryview(buffer))
    copy[...] = array
    return copy


def device_address(array: np.ndarray) -> int:
    """The address that an array would have on a GPU; of one without memory it is null."""
    memory = array.base if isinstance(array.base, np.ndarray) else array
    address: int = array.ctypes.data if memory.size else 0
    return address


def acquire(nbytes: int, remainder: int, label: str) -> int:
    """The address of new guarded memory, equal to `remainder` modulo 16."""
    address: int = runtime().emulator_acquire(nbytes, remainder, label.encode())
    if address == 0:
        problem = runtime().emulator_acquire_problem().decode()
        raise EmulatorError(f"no guarded memory for {label} ({nbytes} bytes): {problem}")
    return address


def _region(label: str, array: np.ndarray) -> Region:
    begin = end = array.ctypes.data
    if array.size > 0:
        spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
        begin += sum(span for span in spans if span < 0)
        end += sum(span for span in spans if span > 0) + array.itemsize
    return Region(begin, end, [label], array.flags.writeable)


def _merge(regions: Iterable[Region]) -> list[Region]:
    """One region for all that overlap."""
    merged: list[Region] = []
    for region in sorted(regions, key=lambda r: (r.begin, -r.end)):
        last = merged[-1] if merged else None
        if last is not None and region.begin < last.end:
            last.end = max(last.end, region.end)
            last.labels += region.labels
            last.writeable |= region.writeable
        else:
            merged.append(region)
    return merged
