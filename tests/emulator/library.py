# SPDX-License-Identifier: MIT
"""A compiled kernel source as a shared library: its kernels, its shared memory, its lines."""

import ctypes
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from .native import Extent, KernelEntry, runtime
from .toolchain import INCLUDE_FOLDER, SOURCE_ROOT

# What is read of a 64-bit ELF file: see elf(5).
_SECTION = np.dtype(
    {
        "names": ["type", "flags", "offset", "size", "link"],
        "formats": ["u4", "u8", "u8", "u8", "u4"],
        "offsets": [4, 8, 24, 32, 40],
        "itemsize": 64,
    }
)
_SYMBOL = np.dtype(
    [
        ("name", "u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "u2"),
        ("value", "u8"),
        ("size", "u8"),
    ]
)
_SYMBOL_TABLE, _VARIABLE, _WRITABLE = 2, 1, 1

# The rest is named by #line in the source.
_NOT_KERNEL_SOURCE = ("?", str(INCLUDE_FOLDER), f"{SOURCE_ROOT}kernel.cpp")


class KernelLibrary:
    """A loaded library."""

    def __init__(self, path: Path) -> None:
        """Load it. Its undefined symbols are the runtime's."""
        runtime()
        self._path = path
        self._library = ctypes.CDLL(str(path))
        table = ctypes.addressof(KernelEntry.in_dll(self._library, "cto_kernels"))
        symbols = {
            name: (offset, size) for name, offset, size in _writable_data(path, "cto_kernels")
        }
        self._base = table - symbols.pop("cto_kernels")[0]
        self._statics = {name: place for name, place in symbols.items() if name.startswith("_ZZ")}
        self.kernels = {entry.name.decode(): entry for entry in _entries(table)}
        extents = [Extent(self._base + at, self._base + at + n) for at, n in self._statics.values()]
        self.static_shared = (Extent * len(extents))(*extents)

    def static_shared_bytes(self, kernel: str) -> int:
        """Size of the __shared__ variables declared in the kernel itself."""
        prefix = f"_ZZ{len(kernel)}{kernel}E"
        return sum(size for name, (_, size) in self._statics.items() if name.startswith(prefix))

    def source_line(self, return_addresses: Iterable[int]) -> str | None:
        """File and line of the innermost of these calls that stands in the kernel source."""
        # A return address may belong to the next line already; the byte before it does not.
        offsets = [address - 1 - self._base for address in return_addresses]
        own = [hex(offset) for offset in offsets if offset >= 0]  # others are the runtime's
        command = ["addr2line", "-i", "-e", str(self._path)]
        result = subprocess.run(command, input="\n".join(own), capture_output=True, text=True)
        frames = [f for f in result.stdout.splitlines() if not f.startswith(_NOT_KERNEL_SOURCE)]
        return frames[0].removeprefix(SOURCE_ROOT).split(" ")[0] if frames else None


def _entries(address: int) -> Iterator[KernelEntry]:
    """The kernels of the table at this address, which ends with a nameless one."""
    while (entry := KernelEntry.from_address(address)).name is not None:
        yield entry
        address += ctypes.sizeof(KernelEntry)


def _writable_data(path: Path, *always: str) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of writable variables, and of those named in `always`.

    From the file's table of symbols: a process of nm for each library took longer than most tests.
    """
    data = np.memmap(path, np.uint8, "r")
    table_at, (count,) = data[40:48].view(np.uint64)[0], data[60:62].view(np.uint16)
    sections = _rows(data, _SECTION, table_at, count)
    table = sections[sections["type"] == _SYMBOL_TABLE][0]
    names = sections[table["link"]]
    text = data[names["offset"] :][: names["size"]].tobytes()
    symbols = _rows(data, _SYMBOL, table["offset"], table["size"] // _SYMBOL.itemsize)
    variables = symbols[(symbols["info"] % 16 == _VARIABLE) & (symbols["section"] < count)]
    for symbol in variables:
        name = text[symbol["name"] : text.index(b"\0", symbol["name"])].decode()
        if sections[symbol["section"]]["flags"] & _WRITABLE or name in always:
            yield name, int(symbol["value"]), int(symbol["size"])


def _rows(data: np.ndarray, row: np.dtype, offset: int, count: int) -> np.ndarray:
    """A table in a file."""
    return data[offset:][: count * row.itemsize].view(row)
